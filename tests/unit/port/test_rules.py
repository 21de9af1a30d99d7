"""The rules of docs/port.md about names, meanings, gradients and form, each with a few lines of source."""

from __future__ import annotations

import pytest
from support.port.snippets import KERAS, PADDLE, TAPE, ported, verdicts, with_lines

from unified_clip.port import catalog
from unified_clip.port.catalog import ClipFunction
from unified_clip.port.ported_clip import Target

# -- names


@pytest.mark.parametrize(
    ("imports", "call", "after"),
    [
        ("import torch", "torch.nn.utils.clip_grad_norm_", "unified_clip.torch.clip_grad_norm_"),
        ("import torch as t", "t.nn.utils.clip_grad_norm_", "unified_clip.torch.clip_grad_norm_"),
        ("from torch import nn", "nn.utils.clip_grad_norm_", "unified_clip.torch.clip_grad_norm_"),
        ("import torch.nn.utils as u", "u.clip_grad_norm_", "unified_clip.torch.clip_grad_norm_"),
        ("import torch\nu = torch.nn.utils", "u.clip_grad_norm_", "unified_clip.torch.clip_grad_norm_"),
        ("from torch.nn.utils import clip_grad_norm_ as c", "c", "c"),
        ("from torch.nn.utils.clip_grad import clip_grad_norm_", "clip_grad_norm_", "clip_grad_norm_"),
    ],
)
def test_a_name_is_resolved_by_its_import(imports: str, call: str, after: str) -> None:
    text, (site,) = ported(f"{imports}\n{call}(p, 1.0)\n")
    assert site.verdict == "rewritten"
    assert text.splitlines()[-1] == f"{after}(p, 1.0)"
    assert "unified_clip.torch" in text


@pytest.mark.parametrize(
    "source",
    [
        "from .utils import clip_grad_norm_\nclip_grad_norm_(p, 1.0)\n",
        "def clip_grad_norm_(p, c): pass\nclip_grad_norm_(p, 1.0)\n",
        "import numpy as tf\ntf.clip_by_norm(g, 1.0)\n",
        "def f(tf):\n    tf.clip_by_norm(g, 1.0)\n",
        "import torch\n# torch.nn.utils.clip_grad_norm_(p, 1.0)\n'torch.nn.utils.clip_grad_norm_'\n",
    ],
)
def test_other_functions_of_the_same_name_are_no_clips(source: str) -> None:
    assert ported(source) == (source, [])


def test_a_name_in_all_is_still_exported() -> None:
    source = "from torch.nn.utils import clip_grad_norm_\n__all__ = ['clip_grad_norm_']\nclip_grad_norm_(p, 1.0)\n"
    assert ported(source)[0] == source.replace("torch.nn.utils", "unified_clip.torch")


def test_an_import_that_other_code_uses_is_kept() -> None:
    source = "from torch.nn.utils import clip_grad_norm_\nx = isinstance(f, clip_grad_norm_)\nclip_grad_norm_(p, 1.0)\n"
    text, _ = ported(source)
    assert text.startswith("from torch.nn.utils import clip_grad_norm_\n")
    assert text.endswith("unified_clip.torch.clip_grad_norm_(p, 1.0)\n")


def test_unified_clip_is_imported_in_the_same_try_block() -> None:
    source = """\
    try:
        import torch
    except ImportError:
        torch = None

    def clip(p):
        torch.nn.utils.clip_grad_norm_(p, 1.0)
    """
    text, _ = ported(source)
    assert text.startswith(
        "try:\n    import torch\n    import unified_clip.torch\nexcept ImportError:\n    torch = None\n"
    )


def test_a_name_with_another_meaning_after_a_failed_import_is_flagged() -> None:
    attempt = "try:\n    from torch.nn.utils import clip_grad_norm_ as c\n"
    source = attempt + "except ImportError:\n    from mine import c\nc(p, 1.0)\n"
    assert ported(source)[0] == source
    assert verdicts(source) == ["flagged"]


def test_a_name_that_may_come_from_a_star_import_is_flagged() -> None:
    text, (site,) = ported("from torch.nn.utils import *\nclip_grad_norm_(p, 1.0)\n")
    assert (site.verdict, site.reason) == (
        "flagged",
        "This name comes from `from torch.nn.utils import *`. "
        "Add an import: from torch.nn.utils import clip_grad_norm_",
    )
    assert "clip = unified_clip.torch.GradientClipByGlobalNorm(1.0)  # once" in site.suggestion
    assert "unified_clip" not in text


@pytest.mark.parametrize(
    ("star", "name"),
    [
        ("paddle.fluid", "clip.GradientClipByGlobalNorm(1.0)"),
        ("tensorflow", "linalg.global_norm(grads)"),
        ("torch.nn", "utils.clip_grad_norm_(p, 1.0)"),
    ],
)
def test_a_module_that_may_come_from_a_star_import_is_flagged(star: str, name: str) -> None:
    _, (site,) = ported(f"from {star} import *\nx = {name}\n")
    start = f"from {star} import"
    assert site.reason == f"This name comes from `{start} *`. Add an import: {start} {name.partition('.')[0]}"


def test_arguments_get_the_names_of_unified_clip() -> None:
    source = "import paddle.fluid as fluid\nx = fluid.layers.clip_by_norm(x=p.grad, max_norm=1.0)\n"
    text, _ = ported(source, "drop-in")
    assert "x = unified_clip.paddle.clip_by_norm(t=p.grad, clip_norm=1.0)" in text


def test_renamed_arguments_that_are_unknown_are_flagged() -> None:
    source = "import paddle.fluid as fluid\nx = fluid.layers.clip_by_norm(p.grad, **kw)\n"
    assert ported(source, "drop-in")[0] == source


@pytest.mark.parametrize("target", ["torch", "drop-in"])
def test_a_positional_argument_with_another_position_in_the_replacement_is_passed_by_keyword(target: Target) -> None:
    source = "import paddle.fluid as fluid\nx = fluid.layers.clip_by_norm(p.grad, 1.0, 'clipped')  # per tensor\n"
    text, (site,) = ported(source, target)
    assert site.verdict == "rewritten"
    assert text.endswith(".clip_by_norm(p.grad, 1.0, name='clipped')  # per tensor\n")


def test_unpacked_arguments_of_a_function_with_another_order_are_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    function = ClipFunction(
        "tensorflow", "tf.clip_by_norm", "functional", (), ["t", "clip_norm", "name"], "clip_by_norm"
    )
    monkeypatch.setitem(catalog.clip_functions(), function.name, function)
    assert verdicts("import tensorflow as tf\nx = tf.clip_by_norm(*args)\n", "drop-in") == ["flagged"]
    assert verdicts("import tensorflow as tf\nclip = tf.clip_by_norm\n", "drop-in") == ["flagged"]
    text, _ = ported("import tensorflow as tf\nx = tf.clip_by_norm(grad, 1.0, 'clipped')\n", "drop-in")
    assert text.endswith("unified_clip.tensorflow.clip_by_norm(grad, 1.0, name='clipped')\n")


def test_a_replacement_with_another_order_gets_every_argument_by_keyword(monkeypatch: pytest.MonkeyPatch) -> None:
    function = ClipFunction(
        framework="torch",
        name="torch.nn.utils.swapped.clip_grad_norm_",
        kind="in place",
        parameters=["c", "params"],
        replacement="clip_grad_norm_",
        renamed={"c": "max_norm", "params": "parameters"},
    )
    monkeypatch.setitem(catalog.clip_functions(), function.name, function)
    text, _ = ported("import torch\ntorch.nn.utils.swapped.clip_grad_norm_(1.0, model.parameters())\n")
    assert text.endswith("clip_grad_norm_(max_norm=1.0, parameters=model.parameters())\n")


def test_a_clamp_whose_second_argument_is_the_gradient_is_found() -> None:
    source = "import jax\ngrads = jax.grad(loss)(params)\nx = jax.lax.clamp(-0.5, grads, 2.0)\n"
    _, (site,) = ported(source)
    assert site.verdict == "flagged"
    assert site.meaning is not None
    assert (site.meaning.config.threshold, site.meaning.config.min) == (None, -0.5)


@pytest.fixture
def renaming_function(monkeypatch: pytest.MonkeyPatch) -> None:
    function = ClipFunction(
        framework="torch",
        name="torch.nn.utils.bounds.clip_grad_norm_",
        kind="in place",
        parameters=["parameters", "bound", "order"],
        replacement="clip_grad_norm_",
        renamed={"bound": "max_norm", "order": "norm_type"},
        rule="global_norm",
        family="pytorch",
        limits=["bound"],
    )
    monkeypatch.setitem(catalog.clip_functions(), function.name, function)


@pytest.mark.usefixtures("renaming_function")
def test_a_replacement_gets_renamed_arguments_and_the_report_their_meaning() -> None:
    text, (site,) = ported("import torch\ntorch.nn.utils.bounds.clip_grad_norm_(p, bound=2.0, order=1)\n")
    assert text.endswith("unified_clip.torch.clip_grad_norm_(p, max_norm=2.0, norm_type=1)\n")
    assert site.meaning is not None
    assert (site.meaning.config.threshold, site.meaning.config.norm_type) == (2.0, 1.0)


def test_another_name_of_the_threshold_has_the_same_meaning() -> None:
    imports = "from paddle.fluid.dygraph_grad_clip import GradClipByGlobalNorm\n"
    meanings = [
        ported(f"{imports}clip = GradClipByGlobalNorm({argument}=5.0)\n", "drop-in")[1][0].meaning
        for argument in ("clip_norm", "max_global_norm")
    ]
    assert meanings[0] is not None
    assert meanings[0] == meanings[1]


def test_an_unknown_argument_is_flagged() -> None:
    _, (site,) = ported("import torch\ntorch.nn.utils.clip_grad_norm_(p, 1.0, group=g)\n")
    assert (site.verdict, site.reason) == (
        "flagged",
        "The call has unknown arguments: group=. Pass only documented arguments, by name.",
    )


def test_a_function_that_the_file_replaces_is_flagged() -> None:
    source = "import torch\ntorch.nn.utils.clip_grad_norm_ = mine\ntorch.nn.utils.clip_grad_norm_(p, 1.0)\n"
    assert ported(source)[0] == source
    assert verdicts(source) == ["flagged"]


@pytest.mark.parametrize(
    "line",
    [
        "setattr(torch.nn.utils, 'clip_grad_norm_', mine)",
        "monkeypatch.setattr(torch.nn.utils, 'clip_grad_norm_', mine)",
        "monkeypatch.setattr('torch.nn.utils.clip_grad_norm_', mine)",
        "mock.patch('torch.nn.utils.clip_grad_norm_').start()",
        "mock.patch.object(torch.nn.utils, 'clip_grad_norm_').start()",
        "torch.nn.utils.clip_grad_norm_, x = mine, 1",
    ],
)
def test_a_function_that_the_file_replaces_in_another_way_is_flagged(line: str) -> None:
    source = f"import torch\n{line}\ntorch.nn.utils.clip_grad_norm_(p, 1.0)\n"
    assert ported(source)[0] == source
    assert verdicts(source) == ["flagged"]


@pytest.mark.parametrize("package", ["accelerate", "lightning", "pytorch_lightning"])
def test_an_engines_own_method_is_flagged_where_pytorch_is_not_imported(package: str) -> None:
    assert verdicts(f"import {package}\nx.clip_grad_norm_(p, 1.0)\n") == ["flagged"]


def test_an_import_that_a_string_may_name_is_kept() -> None:
    source = "import torch.nn.utils as u\n__all__ = ['u']\nu.clip_grad_norm_(p, 1.0)\n"
    assert ported(source)[0].startswith("import torch.nn.utils as u\n")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("kwargs['clipnorm'] = 1.0", "{'clipnorm':}"),
        ("model.optimizer.clipnorm = 1.0", "model.optimizer.clipnorm"),
        ("functools.partial(tf.keras.optimizers.Adam, clipvalue=1.0)", "functools.partial(clipvalue=)"),
        ("lamb.LAMB(0.1, global_clipnorm=1.0)", "lamb.LAMB(global_clipnorm=)"),
    ],
)
@pytest.mark.parametrize("target", ["torch", "drop-in"])
def test_a_threshold_of_an_unknown_optimizer_is_flagged(line: str, name: str, target: Target) -> None:
    source = f"import functools, lamb\nimport tensorflow as tf\n{line}\n"
    text, (site,) = ported(source, target)
    assert (text, site.verdict, site.name) == (source, "flagged", name)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("loss, step, 0.1, 'Adam', clip_gradients=5.0", ["flagged"]),
        ("loss, step, 0.1, 'Adam', None, None, 5.0", ["flagged"]),
        ("loss, step, **kw", ["flagged"]),
        ("*args", ["flagged"]),
        ("loss, step, 0.1, 'Adam', None, None, None", ["left"]),
        ("loss, step, 0.1, 'Adam'", []),
    ],
)
def test_a_function_that_clips_with_an_argument_is_found_however_it_is_passed(
    arguments: str, expected: list[str]
) -> None:
    source = f"import tensorflow as tf\ntf.contrib.layers.optimize_loss({arguments})\n"
    assert verdicts(source, "drop-in") == expected


def test_a_threshold_as_an_attribute_of_another_object_is_no_clip() -> None:
    assert ported("import tensorflow as tf\nself.clipnorm = args.clipnorm = 1.0\n")[1] == []


@pytest.mark.parametrize("line", ["unified_clip = 3", "def f(unified_clip): pass", "import mine as unified_clip"])
def test_nothing_is_rewritten_if_the_name_unified_clip_is_in_use(line: str) -> None:
    source = f"import torch\n{line}\ntorch.nn.utils.clip_grad_norm_(p, 1.0)\n"
    assert ported(source)[0] == source
    assert verdicts(source) == ["flagged"]


def test_a_name_that_a_case_pattern_binds_is_not_the_import() -> None:
    source = "import torch\nmatch z:\n    case torch:\n        torch.nn.utils.clip_grad_norm_(p, 1.0)\n"
    assert ported(source)[0] == source


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("torch.nn.utils.clip_grad_norm_(p, -1.0)", "the argument -1.0 of this clip: it is -1.0. Give 0 or more"),
        ("torch.nn.utils.clip_grad_norm_(p, max_norm=-1.0)", "the argument max_norm=-1.0 of this clip: it is -1.0."),
        ("torch.nn.utils.clip_grad_norm_(p, 1.0, norm_type=-2)", "the argument norm_type=-2 of this clip: it is -2.0."),
        (
            "tensorflow.clip_by_value(grads, 1.0, -1.0)",
            "the arguments -1.0 and 1.0 of this clip: min (1) is above max (-1)",
        ),
    ],
)
def test_an_argument_that_unified_clip_rejects_is_flagged(call: str, reason: str) -> None:
    text, (site,) = ported(f"import {call.partition('.')[0]}\nx = {call}\n")
    assert site.verdict == "flagged"
    assert site.reason.startswith(f"unified_clip rejects {reason}")
    assert "unified_clip" not in text


# -- meanings


@pytest.mark.parametrize(
    ("call", "rule", "threshold", "family", "expression"),
    [
        ("torch.nn.utils.clip_grad_norm_(p, 0.5)", "global_norm", 0.5, "pytorch", ""),
        ("torch.nn.utils.clip_grad_norm_(p, max_norm=LIMIT)", "global_norm", 2.0, "pytorch", ""),
        ("torch.nn.utils.clip_grad_norm_(p, float('inf'))", "global_norm", float("inf"), "pytorch", ""),
        ("torch.nn.utils.clip_grad_norm_(p, args.clip)", "global_norm", 1.0, "pytorch", "args.clip"),
        ("torch.nn.utils.clip_grad_value_(p, 3)", "value", 3.0, None, ""),
        ("paddle.nn.ClipGradByNorm(clip_norm=4.)", "norm", 4.0, "paddle", ""),
        ("tf.clip_by_global_norm(grads, 5e-1)", "global_norm", 0.5, "tensorflow", ""),
    ],
)
def test_the_meaning_of_a_clip_is_a_configuration(
    call: str, rule: str, threshold: float, family: str | None, expression: str
) -> None:
    _, (site,) = ported(f"import torch, paddle\nimport tensorflow as tf\nLIMIT = 2.0\nx = {call}\n", "drop-in")
    assert site.meaning is not None
    config = site.meaning.config
    assert (config.rule, config.threshold, config.family, site.meaning.threshold) == (
        rule,
        threshold,
        family,
        expression,
    )


def test_bounds_are_reported_low_and_high() -> None:
    _, (site,) = ported("import paddle\nclip = paddle.nn.ClipGradByValue(2.0, -1.0)\n", "drop-in")
    assert site.meaning is not None
    assert (site.meaning.config.min, site.meaning.config.max) == (-1.0, 2.0)


# -- gradients


@pytest.mark.parametrize(
    "lines",
    [
        "g = tape.gradient(loss, v)",
        "g = tf.gradients(loss, [v])[0]",
        "g, _ = optimizer.compute_gradients(loss)[0]",
        "for g, _ in optimizer.compute_gradients(loss): pass",
        "gvs = optimizer.compute_gradients(loss)\ngs, vs = zip(*gvs)\ng = gs[0]",
        "for i, (g, v) in enumerate(gvs2): pass\ngvs2 = list(zip(tape.gradient(loss, w), w))",
        "gs = []\ngs.append(tape.gradient(loss, v))\ng = gs[-1]",
        "g = tape.gradient(loss, v) * 0.5",
        "g = tf.cast(tape.gradient(loss, v), tf.float32)",
        "g = p.grad",
    ],
)
def test_a_gradient_is_followed_from_its_source(lines: str) -> None:
    assert verdicts(f"import tensorflow as tf\n{lines}\ng2 = tf.clip_by_norm(g, 1.0)\n", "drop-in") == ["rewritten"]


@pytest.mark.parametrize(
    ("tensor", "verdict"),
    [
        ("image", "left"),
        ("tf.exp(new - old)", "left"),
        ("image + step * tape.gradient(loss, image)", "flagged"),
        ("tf.norm(tape.gradient(d, x))", "flagged"),
        ("-tape.gradient(d, x)", "flagged"),
        ("v for k, v in dict(zip(names, tape.gradient(d, x))).items()", "flagged"),
        ("grads", "flagged"),
        ("self.gradients[0]", "flagged"),
        ("x for x in grads", "flagged"),
    ],
)
def test_clips_of_other_tensors_are_unchanged(tensor: str, verdict: str) -> None:
    tensor, loop, end = tensor.partition(" for ")
    source = f"import tensorflow as tf\ny = [tf.clip_by_value({tensor}, -1.0, 1.0){loop}{end}]\n"
    assert ported(source, "drop-in")[0] == source
    assert verdicts(source, "drop-in") == [verdict]


@pytest.mark.parametrize(
    "use",
    [
        "list(map(lambda t: tf.clip_by_norm(t, 5.0), tape.gradient(loss, v)))",
        "tf.nest.map_structure(lambda t: tf.clip_by_norm(t, 5.0), tape.gradient(loss, v))",
        "[bound(x) for x in tape.gradient(loss, v)]\ndef bound(t):\n    return tf.clip_by_norm(t, 5.0)",
        "tape.gradient(loss, v)\nz = z + y\nz = tf.clip_by_norm(z, 1.0)",
    ],
)
def test_a_clip_in_a_function_that_gets_a_gradient_is_flagged(use: str) -> None:
    assert verdicts(f"import tensorflow as tf\ny = {use}\n", "drop-in") == ["flagged"]


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("def f(x):\n    y = tape.gradient(x, v)\n    return y\n", "f(loss)"),
        ("class A:\n    def f(self, x):\n        return 0, tape.gradient(x, v)\n", "self.f(loss)[1]"),
        ("def f(x):\n    yield tape.gradient(x, v)\n", "next(f(loss))"),
    ],
)
def test_a_clip_of_a_gradient_that_a_function_returns_is_flagged(function: str, call: str) -> None:
    source = f"import tensorflow as tf\n{function}update = {call}\nx = tf.clip_by_norm(update, 1.0)\n"
    assert verdicts(source, "drop-in") == ["flagged"]


def test_unknown_arguments_may_contain_a_gradient() -> None:
    _, (site,) = ported("import tensorflow as tf\nx = tf.clip_by_norm(**kw)\n", "drop-in")
    assert (site.verdict, site.reason) == (
        "flagged",
        "The call has unknown arguments: **. Pass only documented arguments, by name.",
    )


def test_a_clip_in_a_function_without_gradients_is_left() -> None:
    function = "def f(t):\n    return tf.clip_by_value(t, 0, 1)\n"
    source = f"import tensorflow as tf\n{function}f(image)\ng = tape.gradient(loss, v)\n"
    assert verdicts(source, "drop-in") == ["left"]


# -- form


def test_strings_and_comments_in_rewritten_code_are_kept() -> None:
    limit = """cfg[
            "a  #b",  # the limit
        ]"""
    text, _ = ported(with_lines(TAPE, ("loss, variables)", "f(loss,  # a\n        x), variables)")))
    assert "    f(loss, x).backward()\n" in text
    assert "# a\n" in text
    keras, _ = ported(with_lines(KERAS, ("LIMIT", limit)) + "cfg = {}\n")
    assert 'GradientClipByGlobalNorm(cfg["a  #b",]).clip_(variables)' in keras


def test_a_name_that_is_declared_global_is_no_clip() -> None:
    source = (
        "from torch.nn.utils import clip_grad_norm_\ndef f(p):\n    global clip_grad_norm_\n    clip_grad_norm_(p, 1)\n"
    )
    assert len(ported(source)[1]) == 1


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("indent", ["    ", "\t"])
def test_new_lines_have_the_newline_and_indentation_of_the_file(newline: str, indent: str) -> None:
    source = PADDLE.replace("    ", indent).replace("\n", newline)
    text, _ = ported(source)
    assert f"{newline}{indent * 2}clip.clip_(model.parameters()){newline}" in text
    assert "\n" not in text.replace(newline, "")


@pytest.mark.parametrize("first", ["import torch\n", "import torch; x = 1\n"])
def test_unified_clip_is_imported_before_its_use(first: str) -> None:
    text, _ = ported(f"{first}torch.nn.utils.clip_grad_norm_(p, 1.0)\nimport json\n")
    assert text.index("import unified_clip.torch") < text.index("unified_clip.torch.clip")


def test_imports_stay_below_future_imports() -> None:
    source = """\
    \"\"\"Doc.\"\"\"
    from __future__ import annotations
    print(keras.optimizers)

    def f(p):
        import torch
        torch.nn.utils.clip_grad_norm_(p, 1.0)
    """
    text, _ = ported(source)
    assert text.startswith('"""Doc."""\nfrom __future__ import annotations\nprint')
    assert "    import torch\n    import unified_clip.torch\n" in text
