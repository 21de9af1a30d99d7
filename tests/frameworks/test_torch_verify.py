"""`unified-clip verify` of PyTorch's own functions and of their ports, each in its own process."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.port.verify_pairs import NUMPY, TORCH, run_verify, verify_as_json

CLIP = "torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)"
NATIVE = TORCH.replace("CLIP", CLIP)


@pytest.mark.usefixtures("quick_pytorch_workers")
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(TORCH.replace("CLIP", "[p.grad.mul_(0.5) for p in net.parameters()]"), id="clips by hand"),
        pytest.param(NUMPY.replace("CLIP", ""), id="no recorded step", marks=pytest.mark.nightly),
    ],
)
def test_a_step_that_may_clip_without_a_recorded_call_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], step: str
) -> None:
    assert run_verify(tmp_path, NATIVE, step) == 2
    assert "UC603: The recording of" in capsys.readouterr().err


@pytest.mark.usefixtures("quick_pytorch_workers")
def test_a_wrong_momentum_of_batchnorm_shows_only_in_its_buffers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = NATIVE.replace("(net(torch", "(norm(net(torch").replace('["x"])) -', '["x"]))) -')
    old = old.replace("    optimizer =", "    norm = torch.nn.BatchNorm1d(2, affine=False)\n    optimizer =")
    old = old.replace("dict(net.named_parameters()),", '{**dict(net.named_parameters()), "mean": norm.running_mean},')
    assert run_verify(tmp_path, old, old, "--json") == 0
    capsys.readouterr()
    data = verify_as_json(tmp_path, capsys, old, old.replace("(2, affine", "(2, momentum=0.01, affine"))
    for step in data["steps"]:
        assert step["differs"] == ["update"]
        assert [each["parameter"] for each in step["parameters"]["update"] if each["ulps"]] == ["mean"]


ADAM = NATIVE.replace("SGD(net.parameters(), 0.25)", "AdamW(net.parameters(), lr=0.01)")


@pytest.mark.usefixtures("quick_pytorch_workers")
def test_a_setting_of_the_optimizer_is_named_with_both_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = verify_as_json(tmp_path, capsys, ADAM, ADAM.replace("lr=0.01", "lr=0.01, eps=1e-3"))
    assert {each["field"]: (each["a"], each["b"]) for each in data["findings"]} == {"eps": (1e-08, 0.001)}
