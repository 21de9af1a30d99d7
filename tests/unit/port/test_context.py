"""Conclusions of `unified-clip port` from the code around a clip: programs, scales, versions, annotations."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.port.snippets import PADDLE, ported, with_lines

from unified_clip.port.port_file import port
from unified_clip.port.report import build

FLUID = """\
import paddle.fluid as fluid

with fluid.dygraph.guard():
    {}
    clip = fluid.clip.GradientClipByGlobalNorm(5.0)
    optimizer = fluid.optimizer.SGD(0.1, parameter_list=model.parameters(), grad_clip=clip)
    for x in loader:
        loss = model(x)
        loss.backward()
        optimizer.minimize(loss)
"""


@pytest.mark.parametrize(
    "line",
    [
        "fluid.default_startup_program().random_seed = 90\n    fluid.default_main_program().random_seed = 90",
        "from paddle.static import InputSpec\n    spec = InputSpec([None, 2])",
        "import paddle\n    model = paddle.jit.to_static(model, [paddle.static.InputSpec([None, 2])])",
    ],
)
def test_functions_of_dynamic_mode_build_no_program(line: str) -> None:
    text, (site,) = ported(FLUID.format(line))
    assert site.verdict == "rewritten", site.reason
    assert "clip.clip_(model.parameters())" in text


@pytest.mark.parametrize(
    "line",
    [
        "program = fluid.default_main_program()",
        "fluid.default_main_program().global_block()",
        "exe = fluid.Executor(place)",
        "import paddle\n    paddle.enable_static()",
        "import paddle\n    exe = paddle.static.Executor()",
        "import paddle\n    x = paddle.static.data('x', [1])",
        "import paddle\n    x = paddle.static.nn.fc(x, 1)",
    ],
)
def test_functions_that_build_or_run_a_program_are_recognized(line: str) -> None:
    _, (site,) = ported(FLUID.format(line))
    assert site.reason.startswith("The file builds static programs")


@pytest.mark.parametrize(
    "line",
    [
        "print(clip)",
        "print('clips by', clip)",
        "logger.info('clip: %s', clip)",
        "logging.debug(str(clip))",
        "print(optimizer)",
    ],
)
def test_a_printed_clip_is_not_used(line: str) -> None:
    source = with_lines(PADDLE, ("    for batch", f"    {line}\n    for batch"))
    text, (site,) = ported(source)
    assert site.verdict == "rewritten", site.reason
    assert f"    {line}\n" in text


@pytest.mark.parametrize("line", ["register(clip)", "x = print(clip)", "print(wrap(clip))", "clips.append(clip)"])
def test_a_clip_that_is_passed_on_may_be_used(line: str) -> None:
    _, (site,) = ported(with_lines(PADDLE, ("    for batch", f"    {line}\n    for batch")))
    assert site.verdict == "flagged"
    assert "Line 6 uses clip, but not as grad_clip=clip. To pass clip to an optimizer," in site.reason


@pytest.mark.parametrize("annotation", ["paddle.nn.ClipGradByNorm", "Optional[paddle.nn.ClipGradByNorm]"])
def test_a_type_annotation_is_rewritten_with_its_clip(annotation: str) -> None:
    source = with_lines(PADDLE, ("    clip = ", f"    clip: {annotation} = "))
    text, sites = ported(source)
    assert [site.verdict for site in sites] == ["rewritten", "rewritten"]
    assert (
        f"clip: {annotation.replace('paddle.nn', 'unified_clip.torch')} = unified_clip.torch.ClipGradByNorm(1.0)"
        in text
    )


def test_a_type_annotation_is_kept_if_its_clip_is() -> None:
    source = with_lines(
        PADDLE, ("    clip = ", "    clip: paddle.nn.ClipGradByNorm = "), ("    for b", "    f(clip)\n    for b")
    )
    text, sites = ported(source)
    assert (text, [site.verdict for site in sites]) == (source, ["flagged", "flagged"])


def test_a_type_annotation_of_a_parameter_is_no_use_of_the_clip() -> None:
    source = PADDLE + "\ndef use(clip: paddle.nn.ClipGradByNorm): ...\n"
    text, sites = ported(source)
    assert [site.verdict for site in sites] == ["rewritten", "rewritten"]
    assert "def use(clip: unified_clip.torch.ClipGradByNorm): ..." in text


STATIC = "import paddle.fluid as fluid\nc = 1.0\n{}fluid.clip.set_gradient_clip({})\n"
CLIP = "fluid.clip.GradientClipByGlobalNorm(c)"


@pytest.mark.parametrize("factor", ["loss_scaling", "self.loss_scale", "args.init_loss_scaling"])
def test_a_threshold_that_is_multiplied_by_the_loss_scale_gets_advice_to_unscale(factor: str) -> None:
    site = ported(STATIC.format(f"if fp16:\n    c *= {factor}\n", CLIP))[1][1]
    assert (
        site.suggestion[0] == f"# unscale the gradients before the clip, and do not multiply the threshold by {factor}"
    )


def test_a_threshold_that_is_multiplied_by_another_number_is_not_scaled() -> None:
    site = ported(STATIC.format("c *= 2\n", CLIP))[1][1]
    assert site.suggestion[0] == "import unified_clip.torch"


def test_a_scaled_threshold_gets_a_check_if_it_is_rewritten() -> None:
    source = with_lines(
        PADDLE, ("    clip = ", "    limit = 1.0\n    limit *= loss_scale\n    clip = "), ("Norm(1.0)", "Norm(limit)")
    )
    (site,) = ported(source)[1]
    assert site.verdict == "rewritten"
    assert any("multiply the threshold by the loss scale" in check for check in site.checks)


@pytest.mark.parametrize(
    ("lines", "call"),
    [
        ("", f"{CLIP}, param_list=['w_0', 'b_0']"),
        ("", f"clip={CLIP}, param_list=['w_0', 'b_0']"),
        (f"clip = {CLIP}\n", "clip, ['w_0', 'b_0']"),
    ],
)
def test_only_the_parameters_of_param_list_are_clipped(lines: str, call: str) -> None:
    sites = ported(STATIC.format(lines, call))[1]
    suggestion = next(site.suggestion for site in sites if site.suggestion)
    assert "clip.clip_(parameters)  # before every step. Put only ['w_0', 'b_0'] into parameters" in suggestion


@pytest.mark.parametrize("call", [CLIP, f"{CLIP}, param_list=None", f"{CLIP}, program=main"])
def test_without_param_list_all_parameters_are_clipped(call: str) -> None:
    site = ported(STATIC.format("", call))[1][1]
    assert "clip.clip_(model.parameters())  # before every step" in site.suggestion


@pytest.mark.parametrize(
    ("imports", "arguments", "rule"),
    [
        ("from keras.optimizers import Adam", "lr=0.1, clipnorm=1.0", "global_norm"),
        ("from keras.optimizers import Adam", "0.1, decay=1e-6, clipnorm=1.0", "global_norm"),
        ("from keras.optimizers import Adam\nfrom keras.layers import merge\nmerge()", "clipnorm=1.0", "global_norm"),
        ("import tensorflow as tf\nfrom keras.optimizers import Adam\ns = tf.Session()", "clipnorm=1.0", "global_norm"),
        ("from keras.optimizers import Adam", "0.1, clipnorm=1.0", None),
        ("import keras\nfrom keras.optimizers import Adam\nx = keras.ops.abs(y)", "0.1, clipnorm=1.0", "norm"),
        ("import keras\nfrom keras.optimizers import Adam\nkeras.config.set_floatx(x)", "0.1, clipnorm=1.0", "norm"),
        ("from tensorflow.keras.optimizers import Adam", "lr=0.1, clipnorm=1.0", "norm"),
        ("from tf_keras.optimizers import Adam", "0.1, clipnorm=1.0", "norm"),
        ("from keras.optimizers import Adam", "lr=0.1, clipvalue=1.0", "value"),
    ],
)
def test_the_meaning_of_clipnorm_depends_on_the_version_of_keras(
    imports: str, arguments: str, rule: str | None
) -> None:
    (site,) = ported(f"{imports}\nopt = Adam({arguments})\n", "drop-in")[1]
    assert (site.meaning.config.rule if site.meaning is not None else None) == rule
    assert bool(site.suggestion) == (rule is not None)
    if rule in ("global_norm", None):
        assert "Standalone Keras up to 2.3.1 clips by the global norm" in site.reason
        assert "print(keras.__version__)" in site.reason
        assert 'ClipConfig(rule="norm", threshold=1.0, family="tensorflow").attach_to(optimizer)' in site.reason


def test_a_global_clipnorm_is_not_measured_as_a_function_of_one_tensor() -> None:
    result = port(Path("a.py"), b"from keras.optimizers import Adam\nopt = Adam(lr=0.1, clipnorm=1.0)\n")
    report = build.build_report([result], [], "torch")
    assert report.files[0].clips[0].measured_as == ""
