"""The lines that `unified-clip port` suggests have the meaning of the flagged clip."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from support.port.snippets import ported

from unified_clip.port.port_file import port
from unified_clip.port.ported_clip import UNUSED, Target


@pytest.mark.parametrize("value", ["0", "0.0", "-1.0"])
@pytest.mark.parametrize("target", ["torch", "drop-in"])
def test_a_threshold_of_keras_that_is_off_in_some_versions_has_no_lines(value: str, target: Target) -> None:
    (site,) = ported(f"from tensorflow import keras\nkeras.optimizers.Adam(clipvalue={value})\n", target)[1]
    assert (site.verdict, site.meaning, site.suggestion) == ("flagged", None, [])
    assert "A threshold of 0 or less switches clipping off" in site.reason


def test_a_threshold_of_none_that_fails_since_transformers_5_has_no_lines() -> None:
    source = "from transformers import TrainingArguments\nTrainingArguments(max_grad_norm=None)\n"
    (site,) = ported(source)[1]
    assert (site.verdict, site.meaning, site.suggestion) == ("flagged", None, [])
    assert site.reason.startswith("Since transformers 5, training fails with max_grad_norm=None")
    (site,) = ported(source.replace("None", "0"))[1]
    assert (site.verdict, site.reason) == ("left", "A threshold of 0 or less switches clipping off.")


@pytest.mark.parametrize(
    "source",
    [
        "import optax\ntx = optax.clip_by_global_norm(-1.0)\n",
        "from tensorflow import keras\nd = {'clipnorm': -1.0}\n",
        "p.grad.clamp_(1, -1)\n",
    ],
)
def test_no_lines_are_suggested_that_unified_clip_rejects(source: str) -> None:
    assert [site.suggestion for site in ported(source)[1] if site.suggestion] == []


@pytest.mark.parametrize(
    ("call", "bounds", "code"),
    [
        ("p.grad.clamp_(max=1.0)", (-math.inf, 1.0), '1.0, -float("inf")'),
        ("p.grad.clamp_(-1.0)", (-1.0, math.inf), 'float("inf"), -1.0'),
        ("torch.clamp(p.grad, None, 2)", (-math.inf, 2.0), '2, -float("inf")'),
        ("np.clip(grad, -5, None)", (-5.0, math.inf), 'float("inf"), -5'),
        ("paddle.clip(p.grad, None, 0.5)", (-math.inf, 0.5), '0.5, -float("inf")'),
    ],
)
def test_a_clamp_with_one_bound_has_no_other_bound(call: str, bounds: tuple[float, float], code: str) -> None:
    (site,) = ported(f"import paddle, torch\nimport numpy as np\ngrad = {call}\n")[1]
    assert site.meaning is not None
    assert (site.verdict, (site.meaning.config.min, site.meaning.config.max)) == ("flagged", bounds)
    assert f"clip = unified_clip.torch.GradientClipByValue({code})  # once" in site.suggestion


def test_a_bound_of_none_of_paddles_class_is_symmetric() -> None:
    source = "import paddle\nclip = paddle.nn.ClipGradByValue(0.5, None)\n"
    (site,) = ported(source)[1]
    assert site.meaning is not None
    assert (site.meaning.threshold, site.meaning.config.threshold) == ("", 0.5)


VALUE = '"value" if {} == "value" else "global_norm"'


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("L.Trainer(gradient_clip_val=0.5, gradient_clip_algorithm='value')", '"value"'),
        ("L.Trainer(gradient_clip_val=0.5, gradient_clip_algorithm='norm')", '"global_norm"'),
        ("L.Trainer(gradient_clip_val=0.5, gradient_clip_algorithm=None)", '"global_norm"'),
        ("L.Trainer(gradient_clip_val=0.5, gradient_clip_algorithm=u.GradClipAlgorithmType.VALUE)", '"value"'),
        ("L.Trainer(gradient_clip_val=0.5, gradient_clip_algorithm=args.by)", VALUE.format("args.by")),
        ("d = {'gradient_clip_val': 0.5, 'gradient_clip_algorithm': 'value'}", '"value"'),
    ],
)
def test_lightnings_lines_have_the_rule_of_its_algorithm(source: str, rule: str) -> None:
    (site,) = ported(f"import lightning as L\n{source}\n")[1]
    assert f"clip = ClipCallback(ClipConfig(rule={rule}, threshold=0.5))" in site.suggestion


def test_lightnings_lines_name_an_algorithm_that_is_not_in_the_call() -> None:
    (site,) = ported("import lightning as L\nL.Trainer(**options)\n")[1]
    assert site.suggestion[0] == '# write rule="value" if gradient_clip_algorithm is "value"'
    several = (
        "a = {'gradient_clip_val': 0.5, 'gradient_clip_algorithm': 'value'}\nb = {'gradient_clip_algorithm': 'norm'}"
    )
    (site,) = ported(f"import lightning as L\n{several}\n")[1]
    assert site.meaning is None
    assert site.suggestion[0] == '# write rule="value" if gradient_clip_algorithm is "value"'


CLIP = "optax.clip_by_global_norm(1.0)"
FIRST = "import unified_clip.torch"
UNKNOWN = "# these lines are correct only if no other transformation changes the gradients before this clip"
LATER = "# optax applies other transformations before this clip: port them too, and clip their result"


@pytest.mark.parametrize(
    ("source", "first_line"),
    [
        (f"optax.chain({CLIP}, optax.adam(0.1))", FIRST),
        (f"optax.MultiSteps(optax.chain({CLIP}, optax.adam(0.1)), 4)", FIRST),
        ("optax.chain(optax.inject_hyperparams(optax.clip_by_global_norm)(max_norm=1.0), optax.sgd(0.1))", FIRST),
        (f"optax.chain(*[{CLIP}, optax.adam(0.1)])", FIRST),
        (f"optax.chain(optax.chain({CLIP}), optax.adam(0.1))", FIRST),
        (CLIP, UNKNOWN),
        (f"optax.masked({CLIP}, mask)", UNKNOWN),
        (f"optax.chain(optax.scale_by_adam(), {CLIP})", LATER),
        (f"optax.chain(*[optax.zero_nans(), {CLIP}])", LATER),
        (f"optax.chain(*others, {CLIP})", LATER),
        (f"optax.chain(optax.zero_nans(), optax.chain({CLIP}))", LATER),
    ],
)
def test_lines_for_optax_clip_gradients_only_if_optax_does(source: str, first_line: str) -> None:
    (site,) = ported(f"import optax\ntx = {source}\n")[1]
    assert site.suggestion[0] == first_line
    assert (len(site.suggestion) == 1) == (first_line == LATER)


@pytest.mark.parametrize(("source", "is_late"), [(f"{CLIP}, optax.sgd(0.1)", False), (f"optax.sgd(0.1), {CLIP}", True)])
def test_drop_in_lines_for_a_clip_of_updates_have_a_comment(source: str, is_late: bool) -> None:
    (site,) = ported(f"import optax\ntx = optax.chain({source})\n", "drop-in")[1]
    comment = "# this clip gets the results of other transformations: to clip gradients, put this clip first"
    assert site.suggestion[:-2] == [comment] * is_late


def test_two_clips_at_the_start_of_a_chain_are_both_first() -> None:
    sites = ported(f"import optax\ntx = optax.chain(optax.clip(3.0), {CLIP}, optax.sgd(1.0))\n")[1]
    assert [site.suggestion[0] for site in sites] == [FIRST, FIRST]


@pytest.mark.parametrize("call", [f"masked({CLIP}, mask)", f"multi_transform({{'a': {CLIP}}}, labels)"])
def test_lines_for_optax_name_the_parameters_that_it_selects(call: str) -> None:
    (site,) = ported(f"import optax\ntx = optax.{call}\n")[1]
    where = f"the parameters that optax.{call.partition('(')[0]} selects"
    assert f"clip.clip_(parameters)  # before every step. Put only {where} into parameters" in site.suggestion


def test_an_optimizer_with_a_type_annotation_has_its_name() -> None:
    source = "from tensorflow import keras\nself.opt: Any = keras.optimizers.SGD(clipvalue=1.0)\n"
    (site,) = ported(source)[1]
    assert "attach_to(self.opt)" in site.suggestion[1]


def test_lines_for_a_global_norm_of_tensorflow_have_the_parameters_as_a_list_since_they_read_them_twice() -> None:
    source = "import tensorflow as tf\ngrads = f()\ngrads, _ = tf.clip_by_global_norm(grads, 1.0)\n"
    (site,) = ported(source)[1]
    line = "grads = [parameter.grad for parameter in parameters]  # where parameters = list(model.parameters())"
    assert line in site.suggestion


@pytest.mark.parametrize("target", ["torch", "drop-in"])
def test_a_clip_whose_result_no_code_uses_has_no_lines_because_they_would_clip(target: Target) -> None:
    path = Path(__file__).parents[2] / "data" / "port" / "sources" / "unused_results.py"
    sites = port(path, path.read_bytes(), target).sites
    assert [(site.line, site.meaning, site.suggestion) for site in sites if site.rule == UNUSED] == [
        (line, None, []) for line in (8, 9, 14, 15, 17, 20)
    ]


ACTION = "def f(q, a, tape):\n    dqda = tape.gradient([q], [a])[0]\n    return {}"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (ACTION.format("tf.clip_by_norm(dqda, c, axes=-1)"), ["unified_clip.torch.clip_by_norm(dqda, c, axes=-1)"]),
        (ACTION.format("tf.clip_by_value(dqda, -1, 1)"), ["unified_clip.torch.clip_by_value(dqda, -1, 1)"]),
        (
            "grads, _ = tf.clip_by_global_norm(tf.gradients(x, weights), 1.0, use_norm=n)",
            ["unified_clip.torch.clip_by_global_norm(tf.gradients(x, weights), 1.0, use_norm=n)"],
        ),
        ("from torch.nn.utils import *\nclip_grad_norm_(p, 1.0, 1)", ["unified_clip.torch.clip_grad_norm_(p, 1.0, 1)"]),
    ],
)
def test_lines_for_a_call_that_parameters_cannot_express_have_all_its_arguments(source: str, lines: list[str]) -> None:
    (site,) = ported(f"import tensorflow as tf\n{source}\n")[1]
    assert site.suggestion == ["import unified_clip.torch", *lines]


def test_a_clamp_of_an_actions_gradient_has_no_lines_for_parameters() -> None:
    source = "import torch\ndef f(q, a):\n    g, = torch.autograd.grad(q, {})\n    return torch.clamp(g, -1, 1)\n"
    (site,) = ported(source.format("a"))[1]
    assert (site.verdict, site.suggestion) == ("flagged", [])
    (site,) = ported(source.format("model.parameters()"))[1]
    assert "clip.clip_(model.parameters())  # before every step" in site.suggestion


def test_lines_for_a_clip_of_selected_parameters_name_the_selection() -> None:
    (site,) = ported("import paddle\nclip = paddle.nn.ClipGradByNorm(1.0, need_clip=chosen)\nuse(clip)\n")[1]
    (line,) = [line for line in site.suggestion if "clip_(" in line]
    assert line.startswith("clip.clip_(parameters)")
    assert "chosen" in line
