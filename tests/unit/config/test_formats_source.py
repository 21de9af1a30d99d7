"""Clips in Python source: they are read without running the source, rejected with a reason, and written."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from packaging.version import Version

from unified_clip import ClipConfig
from unified_clip.config.documents import Document
from unified_clip.config.formats import FORMATS, Imported
from unified_clip.config.schema import Settings
from unified_clip.errors import ConfigError


def read(name: str, text: str) -> Imported:
    document = FORMATS[name].parse(text, "train.py")
    return FORMATS[name].read(FORMATS[name].inheritance.compose(document, no_other_file), None)


def no_other_file(path: Path, name: str) -> Document:
    raise AssertionError(f"{name} is opened")


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({"min": -0.25, "max": 1.0}, "ClipGradByValue(max=1.0, min=-0.25)"),
        ({"min": -1.0, "max": 1.0}, "ClipGradByValue(max=1.0)"),
        ({"min": 0.0, "max": float("inf")}, 'ClipGradByValue(max=float("inf"), min=0.0)'),
        ({"min": float("-inf"), "max": 0.5}, 'ClipGradByValue(max=0.5, min=float("-inf"))'),
        ({"threshold": 0.0}, "ClipGradByValue(max=0.0, min=-0.0)"),
    ],
)
def test_paddle_s_clip_by_value_has_bounds(bounds: dict[str, float], text: str) -> None:
    settings = Settings(rule="value", **bounds)
    written = FORMATS["paddle"].dump(FORMATS["paddle"].write(settings, Version("3.3.1")))
    assert text in written
    again = read("paddle", written).settings
    low, high = (again["min"], again["max"]) if "min" in again else (-again["threshold"], again["threshold"])
    expected = bounds.get("threshold")
    assert (low, high) == ((bounds["min"], bounds["max"]) if expected is None else (-expected, expected))


def test_bounds_that_are_infinite_clip_nothing() -> None:
    for settings in (Settings(rule="value", min=-math.inf, max=math.inf), Settings(rule="value", threshold=math.inf)):
        written = FORMATS["paddle"].dump(FORMATS["paddle"].write(settings, Version("3.3.1")))
        assert "grad_clip = None" in written


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import optax\nopt = optax.chain(", "Line 2 is not valid Python"),
        ("from optax import *\nclip(1.0)", "line 1: cannot infer the names that * imports from optax"),
        ("import optax\ngetattr(optax, 'clip')(1.0)", "line 2: getattr(optax, 'clip') is only known at run time"),
        (
            "import optax\noptax.clip_by_global_norm()",
            "line 2: optax.clip_by_global_norm is called without max_norm. Pass max_norm.",
        ),
        (
            "import optax\noptax.adaptive_grad_clip(eps=0.01)",
            "line 2: optax.adaptive_grad_clip is called without clipping. Pass clipping.",
        ),
        ("import optax\noptax.clip_by_global_norm(None)", "line 2, max_norm: training fails with None"),
        ("import optax\noptax.clip_by_global_norm('1.0')", "line 2, max_norm: '1.0' is not a threshold"),
        ("import optax\noptax.clip_by_global_norm(True)", "line 2, max_norm: True is not a threshold"),
        (
            "import optax\noptax.clip_by_global_norm(norm=1.0)",
            "line 2: the argument norm of optax.clip_by_global_norm(norm=1.0) is unknown. Pass only max_norm.",
        ),
        (
            "import optax\noptax.clip_by_global_norm(1.0, 2.0)",
            "(1.0, 2.0) has 2 positional arguments. Pass only max_norm.",
        ),
        (
            "import optax\noptax.clip_by_global_norm(**args)",
            "line 2: the arguments in **args are only known at run time. Pass each argument by name: max_norm.",
        ),
        (
            "import optax\noptax.clip_by_global_norm(*args)",
            "line 2: the arguments in *args are only known at run time. Pass each argument by name: max_norm.",
        ),
        ("import optax\nc = 1.0\nc = 2.0\noptax.clip(c)", "line 4: The value of c is only known at run time"),
        ("import optax\ndef f(c=1.0):\n  return optax.clip(c)", "line 3: The value of c is only known at run time"),
        (
            "import optax\nc = 1.0\ndef f(c):\n  return optax.clip(c)",
            "line 4: The value of c is only known at run time",
        ),
        (
            "import optax\nparts = [optax.adam(1), optax.clip(1.0)]\noptax.chain(*parts)",
            "line 2: the clip comes after optax.adam(1)",
        ),
        (
            "import optax\nparts = []\nparts.append(optax.clip(1.0))",
            "cannot infer whether this clip is the first",
        ),
        (
            "import optax\ndef clip():\n  return optax.clip(1.0)\noptax.chain(optax.adam(1), clip())",
            "line 4: the clip comes after optax.adam(1)",
        ),
        (
            "import optax\noptax.chain(optax.inject_hyperparams(optax.adamw, static_args=('b1', 'b2', 'eps'))(1.0), "
            "optax.clip(1.0))",
            "line 2: the clip comes after optax.inject_hyperparams(...)(...), so it clips updates",
        ),
        (
            "import optax\nclip = optax.clip(1.0)\nfirst = clip\noptax.named_chain(('a', optax.adam(1)), ('c', first))",
            "line 4: the clip comes after ('a', optax.adam(1))",
        ),
    ],
)
def test_source_that_cannot_be_read_is_rejected(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read("optax", text)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "threshold"),
    [
        ("optax.clip_by_global_norm(1)", 1.0),
        ("    optax.clip_by_global_norm(max_norm=0.5)\n", 0.5),
        ("import optax as o, numpy as np\no.transforms.clip_by_global_norm(np.inf)", float("inf")),
        ("import optax\noptax.clip_by_global_norm(float('inf'))", float("inf")),
        ("import optax\nA = 2.0\nB = A\noptax.chain(optax.clip_by_global_norm(B), optax.adam(1))", 2.0),
        ("import optax\noptax.named_chain(('clip', optax.clip_by_global_norm(3.0)), ('adam', optax.adam(1)))", 3.0),
        ("import optax\ntx = optax.sgd(1)\ntx = optax.chain(optax.clip_by_global_norm(4.0), tx)", 4.0),
        (
            "import optax\ndef f(p, g, s):\n  tx = optax.chain(optax.clip_by_global_norm(6.0), optax.sgd(1))\n"
            "  return optax.apply_updates(p, tx.update(g, s)[0])",
            6.0,
        ),
        ("import optax\npath = '\\d'\noptax.clip_by_global_norm(5.0)", 5.0),
    ],
)
def test_an_expression_of_optax_is_read(text: str, threshold: float) -> None:
    assert read("optax", text).settings == {"rule": "global_norm", "threshold": threshold, "family": "paddle"}


@pytest.mark.parametrize(
    "text",
    [
        "optax.chain(*([optax.scale_by_adam()] + [optax.clip_by_global_norm(1.0)]))",
        "parts = [optax.scale_by_adam()]\nparts += [optax.clip(1.0)]\noptax.chain(*parts)",
        "parts = [optax.clip(1.0)]\nparts.insert(0, optax.adam(1))\noptax.chain(*parts)",
        "parts = [optax.clip(1.0)]\nparts[0:0] = [optax.adam(1)]\noptax.chain(*parts)",
        "parts = [optax.clip(1.0)]\nparts = [optax.adam(1)] + parts\noptax.chain(*parts)",
        "parts = [optax.clip(1.0), optax.adam(1)]\noptax.chain(*reversed(parts))",
        "parts = [optax.clip(1.0), optax.adam(1)][::-1]\noptax.chain(*parts)",
        "self.clip = optax.clip(1.0)\noptax.chain(optax.scale_by_adam(), self.clip)",
        "from lib import holder\nholder.clip = optax.clip(1.0)\noptax.chain(optax.adam(1), holder.clip)",
        "class A:\n  clip = optax.clip(1.0)\n  def f(self):\n    optax.chain(optax.adam(1), self.clip)",
        "class A:\n  def clip(self):\n    return optax.clip(1.0)\n  def f(self):\n"
        "    return optax.chain(optax.adam(1), self.clip())",
        "class A:\n  @property\n  def clip(self):\n    return optax.clip(1.0)\noptax.chain(optax.adam(1), A().clip)",
        "def make():\n  return optax.chain(optax.adam(1), clip)\nclip = optax.clip(1.0)",
        "clip = lambda: optax.clip(1.0)\noptax.chain(optax.adam(1), clip())",
        "both(optax.adam(1), optax.clip(1.0))",
        "both(optax.adam(1), optax.chain(optax.clip(1.0)))",
        "adam = optax.adam(1)\nboth(adam, optax.chain(optax.clip(1.0)))",
        "clip = optax.clip(1.0)\nboth(first=optax.adam(1), second=clip)",
        "parts = {'clip': optax.clip(1.0)}\noptax.chain(optax.adam(1), parts['clip'])",
        "parts['clip'] = optax.clip(1.0)\noptax.chain(optax.adam(1), parts['clip'])",
        "def f(clip=optax.clip(1.0)):\n  return optax.chain(optax.adam(1), clip)",
        "optax.chain(optax.adam(1), optax.apply_if_finite(optax.clip(1.0), 5))",
        "clip = optax.clip(1.0)\nupdates, _ = clip.update(updates, clip.init(params))",
        "for clip in [optax.clip(1.0)]:\n  optax.chain(optax.adam(1), clip)",
    ],
)
def test_a_clip_of_optax_that_may_clip_updates_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match=r"the clip comes after|cannot infer whether this clip is the first"):
        read("optax", f"import optax\n{text}\n")


@pytest.mark.parametrize(
    "text",
    [
        "optax.chain(*([optax.clip(1.0)] + [optax.adam(1)]))",
        "parts = [optax.clip(1.0)]\nparts.append(optax.adam(1))\nparts += [optax.scale(1)]\noptax.chain(*parts)",
        "class A:\n  def __init__(self):\n    self.clip = optax.clip(1.0)\n"
        "    self.tx = optax.chain(self.clip, optax.adam(1))\n  def f(self, g, s):\n    return self.tx.update(g, s)",
        "def clip():\n  return optax.clip(1.0)\nstate = create(params, tx=optax.chain(clip(), optax.adam(1)))\n"
        "state['a'] + state.step",
        "rate = optax.cosine_decay_schedule(1, 2)\ntx = optax.chain(optax.clip(1.0), optax.adam(rate))\nfit(tx, rate)",
    ],
)
def test_a_clip_of_optax_at_the_start_of_a_chain_is_read(text: str) -> None:
    assert read("optax", f"import optax\n{text}\n").settings == {"rule": "value", "threshold": 1.0}


@pytest.mark.parametrize(
    "text",
    [
        "import paddle\nnn = paddle.nn\nclip = nn.ClipGradByGlobalNorm(1.0)",
        "from paddle import nn\nlayers = nn\nclip = layers.ClipGradByGlobalNorm(1.0)",
        "import paddle as p\nq = p\nnn = q.nn\nclip = nn.ClipGradByGlobalNorm(1.0)",
    ],
)
def test_a_module_of_paddle_may_have_another_name(text: str) -> None:
    assert read("paddle", text).settings == {"rule": "global_norm", "threshold": 1.0, "family": "paddle"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "self.nn = paddle.nn\nself.nn.ClipGradByNorm(1.0)",
            "line 3: cannot infer whether self.nn.ClipGradByNorm is Paddle's",
        ),
        ("group = dict(params=[p], grad_clip=paddle.nn.ClipGradByNorm(1.0))", "line 2: this grad_clip is for one"),
        ("groups[0]['grad_clip'] = paddle.nn.ClipGradByNorm(1.0)", "line 2: this grad_clip is for one group"),
        ("nn = torch.nn\nnn = paddle.nn\nnn.ClipGradByNorm(c)", "line 4: The value of c is only known"),
        (
            "paddle.nn.ClipGradByGlobalNorm(1.0, auto_skip_clip=True)",
            "line 2, auto_skip_clip: with this argument, Paddle raises an error",
        ),
    ],
)
def test_source_of_paddle_that_cannot_be_read_is_rejected(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read("paddle", f"import paddle\n{text}\n")
    assert reason in str(caught.value)


def test_source_is_never_run(tmp_path: Path) -> None:
    text = f"import paddle\nopen({str(tmp_path / 'ran')!r}, 'w')\nclip = paddle.nn.ClipGradByNorm(1.0)"
    assert read("paddle", text).settings["threshold"] == 1.0
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "code",
    [
        "if 1:\n    optim_wrapper = dict(clip_grad=dict(max_norm=1))",
        "from .base import optim_wrapper",
        "from base import *",
        "kept = optim_wrapper.setdefault('clip_grad', dict(max_norm=1))",
        "globals()['optim_wrapper'] = dict(clip_grad=dict(max_norm=1))",
        "[optim_wrapper := dict(clip_grad=dict(max_norm=1))]",
        "del optim_wrapper",
        "optim_wrapper = dict(generator=make(1), discriminator=make(2))",
        "optim_wrapper |= dict(clip_grad=dict(max_norm=1))",
        "kept = optim_wrapper\nkept |= dict(clip_grad=dict(max_norm=1))",
    ],
)
def test_unknown_changes_of_a_configuration_of_mmengine_are_rejected(code: str) -> None:
    with pytest.raises(
        ConfigError, match=r"train.py, line \d, optim_wrapper(.generator)?: the value of .* Import the whole"
    ):
        read("mmengine", f"optim_wrapper = dict(optimizer=dict(lr=0.1))\n{code}\n")


@pytest.mark.parametrize(
    "text",
    [
        "m = 1\nm *= rate()\noptim_wrapper = dict(clip_grad=dict(max_norm=m))",
        "n = 1\nif rate():\n    n = 2\nm = 1\nm *= n\noptim_wrapper = dict(clip_grad=dict(max_norm=m))",
        "for m in (1, 2):\n    pass\noptim_wrapper = dict(clip_grad=dict(max_norm=m))",
        "from base import *",
        "optimizer_config.update(grad_clip=dict(max_norm=1))",
        "optim_wrapper = None",
    ],
)
def test_an_unknown_threshold_of_mmengine_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError):
        read("mmengine", text)


def test_a_threshold_of_none_in_python_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"max_norm: training fails with None\. Set a number\."):
        read("mmengine", "optim_wrapper = dict(clip_grad=dict(max_norm=None))")


@pytest.mark.parametrize(
    "text",
    [
        "optim_wrapper: dict = dict(clip_grad=dict(max_norm=1))",
        "a = optim_wrapper = dict(clip_grad=dict(max_norm=1))",
        "optim_wrapper = a = dict(clip_grad=dict(max_norm=1))",
        "m = 0.5\nn = 2\nm *= n\noptim_wrapper = dict(clip_grad=dict(max_norm=m))",
        "m = 1\nepochs = range(m)\noptim_wrapper = dict(clip_grad=dict(max_norm=m))\nepochs[0]",
        "import os\nlr: float\nlr = 0.1\noptim_wrapper = dict(optimizer=dict(lr=lr), clip_grad=dict(max_norm=1))\n"
        "hooks = [dict(lr=lr)]\nhooks.append(os.environ)",
        "_base_ = ['a.py']\noptim_wrapper = dict(clip_grad=dict(max_norm=1, _delete_=True))",
        "from torch.optim import SGD\nfrom our import rate\n"
        "optim_wrapper = dict(optimizer=dict(type=SGD, lr=rate(1)), clip_grad=dict(max_norm=1))",
    ],
)
def test_a_statement_of_mmengine_that_only_assigns_is_read(text: str) -> None:
    imported = read("mmengine", text)
    assert imported.settings == {"rule": "global_norm", "threshold": 1.0, "family": "pytorch"}
    assert imported.notes == []


@pytest.mark.parametrize("name", ["mmengine", "mmcv"])
@pytest.mark.parametrize("base", ["", "model = dict()", "{table} = dict(type='T')"])
def test_delete_stays_an_argument_if_no_base_file_sets_the_dict(name: str, base: str, tmp_path: Path) -> None:
    table, key = ("optim_wrapper", "clip_grad") if name == "mmengine" else ("optimizer_config", "grad_clip")
    text = f"lr_config = total_epochs = 1\n{table} = dict({key}=dict(max_norm=1, _delete_=True))\n"
    (tmp_path / "base.py").write_text(base.format(table=table))
    (tmp_path / "a.py").write_text(("_base_ = ['base.py']\n" if base else "") + text)
    with pytest.raises(ConfigError, match=rf"{table}\.{key}\._delete_: .* Remove (_delete_|the argument)\.$"):
        ClipConfig.import_from(tmp_path / "a.py", name)
    (tmp_path / "base.py").write_text(f"{table} = dict({key}=dict(max_norm=5))")
    (tmp_path / "a.py").write_text("_base_ = ['base.py']\n" + text)
    assert ClipConfig.import_from(tmp_path / "a.py", name).threshold == 1.0


def test_delete_of_a_whole_wrapper_without_a_base_file_is_rejected() -> None:
    text = "optim_wrapper = dict(_delete_=True, clip_grad=dict(max_norm=1))"
    with pytest.raises(
        ConfigError, match=r"optim_wrapper\._delete_: no base file sets this dict, so _delete_ makes training fail"
    ):
        read("mmengine", text)


@pytest.mark.parametrize("deletes", ["False", "0", "flag()"])
def test_mmengine_inherits_keys_without_delete(deletes: str) -> None:
    text = f"_base_ = ['a.py']\noptim_wrapper = dict(_delete_={deletes}, optimizer=dict(lr=0.1))"
    with pytest.raises(
        ConfigError,
        match=r"_base_ 1: cannot find a.py. A file that was not read might set optim_wrapper.clip_grad|of flag",
    ):
        read("mmengine", text)
