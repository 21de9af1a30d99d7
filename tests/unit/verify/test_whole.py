"""`unified-clip verify` never reports values as equal that it has not compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.port.verify_pairs import NUMPY, run_verify, verify_as_json
from support.tiers import sampled

GLOBAL = NUMPY.replace("CLIP", "grads, _ = uc.clip_by_global_norm(grads, 0.5)")
YIELDED = "yield weights, grads"


def script_that_yields(parameters: str, gradients: str = "None") -> str:
    return GLOBAL.replace(YIELDED, f"yield {parameters}, {gradients}")


@pytest.mark.parametrize(
    ("new", "says"),
    sampled(
        [
            (
                script_that_yields("{'weight': weights['weight']}"),
                "new.py:step yields no parameter that matches 'bias' of ",
            ),
            (
                script_that_yields("{**weights, 'bias': weights['bias'][:1]}"),
                "new.py:step yields 'bias' in the shape (1,). No order of axes",
            ),
            (
                script_that_yields("{'weight': weights['weight'], 'b': weights['bias'][:1]}"),
                "yields no parameter that matches 'bias' of ",
            ),
            (
                script_that_yields("weights", "{'x.' + name: each for name, each in grads.items()}"),
                "yields gradients of 'x.bias' and 'x.weight' at step 1, but no parameters of these names. "
                "Its parameters are 'weight'",
            ),
            (
                script_that_yields("weights", "grads, {'x': grads['bias']}"),
                "yields unclipped gradients of 'x' at step 1, but no parameters of these names",
            ),
            (
                script_that_yields("weights", "{**grads, 'weight': grads['weight'].T}"),
                "yields gradients of 'weight' in the shape (2, 6) at step 1, but the parameter has the shape (6, 2)",
            ),
            (
                script_that_yields("(weights if batch is not batches[1] else {'weight': weights['weight']})"),
                "yields 'bias' at step 1 but not at step 2. Yield the same parameters",
            ),
        ],
        3,
    ),
)
def test_a_tensor_that_only_one_step_yields_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], new: str, says: str
) -> None:
    assert run_verify(tmp_path, GLOBAL, new) == 2
    assert says in capsys.readouterr().err


def test_a_parameter_that_only_the_new_step_yields_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verify(tmp_path, GLOBAL, script_that_yields("{**weights, 'extra': np.ones(3)}")) == 2
    assert "'extra'" in capsys.readouterr().err


def test_a_weight_that_neither_step_yields_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without_bias = script_that_yields("{'weight': weights['weight']}")
    assert run_verify(tmp_path, without_bias, without_bias) == 2
    assert (
        "--weights has 'bias', but neither function yields a parameter of this name. If no function reads a tensor, "
        in capsys.readouterr().err
    )


def test_a_weight_in_another_shape_than_the_yielded_parameter_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repeated = script_that_yields("{**weights, 'bias': np.repeat(weights['bias'], 2)}")
    assert run_verify(tmp_path, repeated, repeated) == 2
    assert "--weights has 'bias' in the shape (2,), but " in (message := capsys.readouterr().err)
    assert "old.py:step yields 'bias' in the shape (4,)." in " ".join(message.split())


@pytest.mark.parametrize(("missing", "same"), [("bias", False), ("unused", True)])
def test_a_gradient_that_only_one_step_yields_is_compared_with_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str, same: bool
) -> None:
    zero = "np.zeros(3, np.float32)"
    old = script_that_yields(f"{{**weights, 'unused': {zero}}}", f"{{**grads, 'unused': {zero}}}")
    new = old.replace("yield", f"given = {{**grads, 'unused': {zero}}}; given.pop({missing!r}); yield")
    new = new.replace(f"{{**grads, 'unused': {zero}}}\n", "given\n")
    data = verify_as_json(tmp_path, capsys, old, new)
    assert data["same"] is same
    assert [step["differs"] for step in data["steps"]] == [[] if same else ["tensors"]] * 4


def test_a_parameter_that_is_no_weight_is_compared_by_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (
        GLOBAL.replace(f"        {YIELDED}", f"    return {{**weights, 'scale': np.float32([{scale}])}}, None")
        for scale in (1, 2)
    )
    assert not verify_as_json(tmp_path, capsys, old, new)["same"]


def test_a_map_of_tensors_of_other_shapes_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = tmp_path / "names.toml"
    names.write_text('weight = "bias"\n', encoding="utf-8")
    assert run_verify(tmp_path, GLOBAL, GLOBAL, "--map", str(names)) == 2
    assert "yields 'weight' in the shape (6, 2), and " in capsys.readouterr().err
