"""`unified-clip verify` of PyTorch's own functions and of their ports, each in its own process."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.port.verify_pairs import (
    NUMPY,
    TORCH,
    cause_kinds,
    run_verify,
    verify_as_json,
)
from support.tiers import sampled

CLIP = "torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)"
NATIVE = TORCH.replace("CLIP", CLIP)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("clip", "mistake"),
    [
        ("[torch.nn.utils.clip_grad_norm_([p], 0.5) for p in net.parameters()]", "per tensor for global"),
        ("uc.ClipGradByGlobalNorm(0.5).clip_(net.parameters())", "another eps of the clip"),
        ("torch.nn.utils.clip_grad_norm_(net.parameters(), 0.25)", "another threshold"),
        (f"{CLIP}; {CLIP}", "clipped twice"),
    ],
)
def test_a_mistake_between_natives_is_named_at_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clip: str, mistake: str
) -> None:
    data = verify_as_json(tmp_path, capsys, NATIVE, TORCH.replace("CLIP", clip))
    assert data["steps"][0]["differs"]
    assert mistake in cause_kinds(data)


@pytest.mark.nightly
@pytest.mark.parametrize("is_old", [True, False])
def test_a_step_that_never_clips_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], is_old: bool) -> None:
    unclipped = TORCH.replace("CLIP", "")
    data = verify_as_json(tmp_path, capsys, *((unclipped, NATIVE) if is_old else (NATIVE, unclipped)))
    assert cause_kinds(data) == ["left-out clip"]
    ((sentence, fix),) = ((each["text"], each["fix"]) for each in data["findings"])
    name, other = ("old.py", "new.py") if is_old else ("new.py", "old.py")
    assert sentence.startswith(f"{name}:step never clips: its 4 optimizer steps have no clip call. {other}:step ")
    assert f"Add this clip to {name}:step, between the backward pass and the step" in fix
    assert "its own code" not in sentence


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


@pytest.mark.nightly
def test_the_coefficient_of_a_native_is_what_it_multiplied_by(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """PyTorch's norm is a float32 sum, and unified_clip's norm is exact. The only cause of the difference is
    rounding."""
    replacement = TORCH.replace("CLIP", "uc.clip_grad_norm_(net.parameters(), 0.5)")
    data = verify_as_json(tmp_path, capsys, NATIVE, replacement)
    assert set(cause_kinds(data)) <= {"rounding"}
    assert data["steps"][0]["norm"]["ulps"] == 0
    assert all(step["old"][0]["coef"] == pytest.approx(0.5 / (step["old"][0]["norm"] + 1e-6)) for step in data["steps"])


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
@pytest.mark.parametrize(
    ("change", "field", "values"),
    sampled(
        [
            ("lr=0.01, eps=1e-3", "eps", (1e-08, 0.001)),
            ("lr=0.02", "learning rate", (0.01, 0.02)),
            ("lr=0.01, betas=(0.9, 0.9)", "betas", ([0.9, 0.999], [0.9, 0.9])),
            ("lr=0.01, weight_decay=0.1", "weight decay", (0.01, 0.1)),
        ],
        4,
    ),
)
def test_a_setting_of_the_optimizer_is_named_with_both_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, field: str, values: tuple[object, object]
) -> None:
    data = verify_as_json(tmp_path, capsys, ADAM, ADAM.replace("lr=0.01", change))
    assert {each["field"]: (each["a"], each["b"]) for each in data["findings"]} == {field: values}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("change", "mistake", "text"),
    [
        (
            ("optimizer.step()", "optimizer.step(); optimizer.step()"),
            "another optimizer",
            "'weight' and 'bias' differ by",
        ),
        (
            ("optimizer.step()", "pass"),
            "weights are not updated",
            "do not change 'weight' and 'bias', which old.py:step changes",
        ),
        (("AdamW(net.parameters()", "AdamW([net.weight]"), "weights are not updated", "do not change 'bias'"),
        (
            ("optimizer.step()", "optimizer.step(); net.weight.data.mul_(0.5)"),
            "another optimizer",
            "the updates of 'weight' differ by",
        ),
        (
            (
                "optimizer.step()",
                "old = [p.detach().clone() for p in net.parameters()]; optimizer.step(); "
                "[p.data.lerp_(each, 0.5) for p, each in zip(net.parameters(), old)]",
            ),
            "another optimizer",
            "'weight' and 'bias' differ by 50 %",
        ),
    ],
)
def test_updates_that_differ_with_equal_settings_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], mistake: str, text: str
) -> None:
    data = verify_as_json(tmp_path, capsys, ADAM, ADAM.replace(*change))
    assert cause_kinds(data) == [mistake]
    assert text in data["findings"][0]["text"].replace(f"{tmp_path}/", "")


BERT = """
from collections import defaultdict
import torch

class Unrecorded:
    def __init__(self, params, settings):
        self.param_groups, self.state = [{"params": list(params), **settings}], defaultdict(dict)

    def zero_grad(self):
        for p in self.param_groups[0]["params"]:
            p.grad = None

class BertAdam(BASE):
    @torch.no_grad()
    def step(self):
        (group,) = self.param_groups
        for p in group["params"]:
            m, v = (self.state[p].setdefault(name, torch.zeros_like(p)) for name in ("m", "v"))
            m.lerp_(p.grad, 0.1)
            v.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
            p.sub_(group["lr"] * (m / (v.sqrt() + group["eps"]) + group["weight_decay"] * p))
"""


def bert_adam(base: str, settings: str = "") -> str:
    values = f"dict({{'betas': (0.9, 0.999), 'lr': 0.01, 'eps': 1e-8, 'weight_decay': 0.01}}{settings})"
    return BERT.replace("BASE", base) + ADAM.replace(
        "torch.optim.AdamW(net.parameters(), lr=0.01)", f"BertAdam(net.parameters(), {values})"
    )


@pytest.mark.usefixtures("quick_pytorch_workers")
@pytest.mark.parametrize(
    ("base", "order", "changed", "field"),
    sampled(
        [
            ("Unrecorded", 1, "", None),
            ("torch.optim.Optimizer", -1, "", None),
            ("Unrecorded", 1, ", lr=0.02", "learning rate"),
            ("Unrecorded", 1, ", weight_decay=1.0", "weight decay"),
            ("Unrecorded", -1, ", eps=1e-3", "eps"),
            ("torch.optim.Optimizer", 1, ", lr=0.02", "learning rate"),
        ],
        2,
    ),
)
def test_missing_bias_correction_of_adam_is_named_beside_another_difference(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    base: str,
    order: int,
    changed: str,
    field: str | None,
) -> None:
    old, new = (bert_adam(base, changed), ADAM)[::order]
    data = verify_as_json(tmp_path, capsys, old, new)
    found = {each["field"]: (each["a"], each["b"])[::order] for each in data["findings"]}
    assert found.pop("bias correction") == (None, "as in Adam")
    assert list(found) == ([field] if field else [])
