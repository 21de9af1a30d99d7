"""Known differences of the frameworks' functions in the package: by any spelling, and as the suite lists them."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from unified_clip.parity.known import entries
from unified_clip.port import catalog
from unified_clip.port.report import differences

ROOT = Path(__file__).parents[3]
SPEC = spec_from_file_location("port_differences", ROOT / "tools" / "port_differences.py")
assert SPEC is not None
assert SPEC.loader is not None
port_differences = module_from_spec(SPEC)
SPEC.loader.exec_module(port_differences)

SUITE = ROOT / "parity" / "known.toml"
FUNCTIONS = catalog.names("measured")


@pytest.mark.parametrize(
    ("name", "measured"),
    [
        *((function, function) for function in FUNCTIONS),
        ("torch.nn.utils.clip_grad_norm", "torch.nn.utils.clip_grad_norm_"),
        ("torch.nn.utils.clip_grad.clip_grad_norm", "torch.nn.utils.clip_grad_norm_"),
        ("torch.nn.utils.clip_grad.clip_grad_norm_", "torch.nn.utils.clip_grad_norm_"),
        ("tensorflow.clip_by_norm", "tf.clip_by_norm"),
        ("tensorflow.compat.v1.clip_by_global_norm", "tf.clip_by_global_norm"),
        ("tensorflow.global_norm", "tf.linalg.global_norm"),
        ("keras.optimizers.Adam(clipnorm=)", "tf.clip_by_norm"),
        ("tensorflow.keras.optimizers.SGD(global_clipnorm=)", "tf.clip_by_global_norm"),
        ("tensorflow.keras.optimizers.legacy.SGD(clipvalue=)", "tf.clip_by_value"),
        ("tf.contrib.layers.optimize_loss", "tf.clip_by_global_norm"),
        ("tf.contrib.estimator.clip_gradients_by_norm", "tf.clip_by_global_norm"),
        ("tf_slim.learning.create_train_op", "tf.clip_by_norm"),
        ("tf_slim.training.clip_gradient_norms_fn", "tf.clip_by_norm"),
        ("tf_agents.utils.eager_utils.clip_gradient_norms", "tf.clip_by_norm"),
        ("paddle.nn.clip.ClipGradByNorm", "paddle.nn.ClipGradByNorm"),
        ("paddle.fluid.clip.GradientClipByGlobalNorm", "paddle.nn.ClipGradByGlobalNorm"),
        ("paddle.nn.clip.GradientClipByNorm", "paddle.nn.ClipGradByNorm"),
        ("paddle.fluid.dygraph_grad_clip.GradClipByValue", "paddle.nn.ClipGradByValue"),
        ("paddle.fluid.layers.clip_by_norm", "paddle.nn.ClipGradByNorm"),
        ("paddle.nn.clip.clip_by_norm", "paddle.nn.ClipGradByNorm"),
    ],
)
def test_every_spelling_of_a_function_has_its_known_differences(name: str, measured: str) -> None:
    assert differences.measured_as(name) == measured


@pytest.mark.parametrize(
    "name",
    [
        "",
        "unified_clip.torch.clip_grad_norm_",
        "accelerate.Accelerator.clip_grad_norm_",
        "tensorflow.clip_by_average_norm",
        "paddle.fluid.clip.set_gradient_clip",  # which had an effect, where Paddle's newer one has none
        "paddle.fluid.clip.ErrorClipByValue",
        "paddle.nn.clip.ClipGradBase",
        "optax.clip_by_block_rms",
    ],
)
def test_functions_that_were_not_measured_have_no_known_differences(name: str) -> None:
    assert differences.measured_as(name) == ""


UNMEASURED = {
    "Tensor.clamp_",
    "apex.contrib.clip_grad.clip_grad_norm_",
    "autoclip.torch.QuantileClip",
    "autoclip.torch.StandardClip",
    "jax.example_libraries.optimizers.clip_grads",
    "jax.lax.clamp",
    "jax.numpy.clip",
    "keras.ops.clip",
    "keras.optimizers.clip_norm",
    "numpy.clip",
    "tf.keras.backend.clip",
    "torch.clamp",
    "optax.clip_by_block_rms",
    "optax.per_example_global_norm_clip",
    "paddle.clip",
    "paddle.nn.clip.ClipGradBase",
    "paddle.incubate.distributed.models.moe.ClipGradForMOEByGlobalNorm",
    "paddle.fluid.clip.ErrorClipByValue",
    "paddle.fluid.clip.append_gradient_clip_ops",
    "paddle.fluid.clip.set_gradient_clip",
    "tf.clip_by_average_norm",
    "timm.utils.adaptive_clip_grad",
    "timm.utils.dispatch_clip_grad",
    "zclip.ZClip",
}


def test_each_function_that_port_finds_was_measured_or_is_listed() -> None:
    functions = {native.name for native in catalog.clip_functions().values()}
    unmeasured = {name for name in functions if not differences.measured_as(name)}
    assert unmeasured == UNMEASURED, (
        f"{sorted(unmeasured ^ UNMEASURED)}: correct UNMEASURED in this test, or COMPUTED_BY in "
        "unified_clip/port/report/differences.py."
    )


def test_every_entry_of_the_suite_belongs_to_a_function() -> None:
    for known in entries.read(SUITE):
        functions = [function for function in FUNCTIONS if differences.framework_of(function) == known.framework]
        if known.framework == "mlx":  # `port` finds no functions of MLX
            assert not functions
            continue
        assert any(fnmatchcase(function, known.function) for function in functions), known


@pytest.mark.parametrize("function", FUNCTIONS)
def test_known_differences_of_a_function_are_those_of_the_suite(function: str) -> None:
    reported = {(known.when, known.why) for known in differences.known_differences(function)}
    listed = {
        tuple(known.reason.split(": ", 1))
        for known in entries.read(SUITE)
        if known.framework == differences.framework_of(function) and fnmatchcase(function, known.function)
        if not known.parts[0]
    }
    assert reported == listed


def test_sizes_are_in_words() -> None:
    by = {known.when: (known.size, known.by) for known in differences.known_differences("tf.clip_by_norm")}
    assert by["repeated rows of an embedding's gradient are not summed"] == (0.782, "78 %")
    assert by["gradients below the threshold become inf"] == (math.inf, "inf or NaN")
    assert by["gradients below the threshold change"] == (1.81e-07, "1.8e-07")


@pytest.mark.parametrize("function", ["torch.nn.utils.clip_grad_value_", "paddle.nn.ClipGradByValue", "optax.clip"])
def test_functions_without_a_norm_have_no_difference_of_norms(function: str) -> None:
    assert not [
        known.when for known in differences.known_differences(function) if "norm" in known.when.replace("(name", "")
    ]


def test_the_file_is_that_of_the_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--known", str(SUITE)]
    assert port_differences.main([*arguments, "--check"]) == 0
    stale = tmp_path / "differences.json"
    text = port_differences.FILE.read_text(encoding="utf-8")
    stale.write_text(text.replace("0.67 %", "0.68 %"), encoding="utf-8")
    assert port_differences.main([*arguments, "--check", "--file", str(stale)]) == 1
    assert "differences.json is stale. Run: python tools/port_differences.py" in capsys.readouterr().err
    assert port_differences.main([*arguments, "--file", str(stale)]) == 0
    assert stale.read_text(encoding="utf-8") == text
