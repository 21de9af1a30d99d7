"""`unified-clip config check` on clips of gradients that PyTorch's or Paddle's `GradScaler` has scaled."""

from __future__ import annotations

import textwrap

import pytest
from support.config.check_files import CLIP_CONFIG, Check, only_finding

NEAREST = CLIP_CONFIG + '\n[check]\nnearest = ["**"]\n'
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
BACKWARD, UNSCALE, STEP = "scaler.scale(loss).backward()", "scaler.unscale_(opt)", "scaler.step(opt)"
SCALED = "the gradients are still multiplied by the scale of scaler"
LATE = "This clip comes before scaler.unscale_(opt) in line"
NEVER = "This clip has no scaler.unscale_(optimizer) before it"


def step(*lines: str, before: str = "") -> dict[str, str]:
    """Return a file with a training step of these lines, after the lines of `before`."""
    body = textwrap.indent("\n".join(lines), "    ")
    return {"a.py": f"import torch\n{before}\n\n\ndef step(model, opt, loss, scaler):\n{body}\n"}


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([BACKWARD, CLIP, UNSCALE, STEP], LATE),
        ([BACKWARD, CLIP, STEP], NEVER),
        ([BACKWARD, UNSCALE, CLIP, STEP, BACKWARD, CLIP.replace("1.0", "1"), STEP], NEVER),
        (["loss = scaler.scale(loss)", "loss.backward()", CLIP, STEP], NEVER),
        (["if amp:", f"    {BACKWARD}", "else:", "    loss.backward()", CLIP, "if amp:", f"    {STEP}"], NEVER),
        (["def clip():", f"    {CLIP}", BACKWARD, "clip()", STEP], NEVER),
    ],
)
def test_a_clip_of_scaled_gradients_is_unknown(check: Check, lines: list[str], why: str) -> None:
    finding = only_finding(check(step(*lines)))
    assert finding.kind == "unknown"
    assert finding.does.startswith(why)
    assert SCALED in finding.does


def test_a_clip_by_a_configuration_of_scaled_gradients_is_unknown(check: Check) -> None:
    before = "from unified_clip import ClipConfig\n\nclip = ClipConfig.load('clip.toml')\n"
    clip = "clip.clip_(model.named_parameters())"
    assert only_finding(check(step(BACKWARD, clip, STEP, before=before))).does.startswith(NEVER)
    assert check(step(BACKWARD, UNSCALE, clip, STEP, before=before)).findings == []
    assert check(step("clip.attach_to(opt, model)", BACKWARD, STEP, before=before)).findings == []


@pytest.mark.parametrize(
    "lines",
    [
        [BACKWARD, UNSCALE, CLIP, STEP],
        [BACKWARD, "if clip:", f"    {UNSCALE}", f"    {CLIP}", STEP],
        [BACKWARD, "unscale(opt)", CLIP, STEP],
        [BACKWARD, "prepare(opt, scaler)", CLIP, STEP],
        [BACKWARD, STEP, "loss_d.backward()", CLIP, "opt.step()"],
        ["loss.backward()", CLIP, "opt.step()"],
        ["(loss / scaler.get_scale()).backward()", CLIP, STEP],
        ["scaler = torch.amp.GradScaler(enabled=False)", BACKWARD, CLIP, STEP],
        ["scaler = DynamicScaler()", BACKWARD, CLIP, STEP],
        ["transform.scale(loss).backward()", CLIP, STEP],
        [
            *("def backward():", "    if scaler:", f"        {BACKWARD}", "    else:", "        loss.backward()"),
            *("backward()", "if scaler:", f"    {UNSCALE}", f"    {STEP}", "else:", f"    {CLIP}", "    opt.step()"),
        ],
    ],
)
def test_a_clip_of_unscaled_gradients_is_not_unknown(check: Check, lines: list[str]) -> None:
    assert [each for each in check(step(*lines)).findings if each.kind == "unknown"] == []


def test_a_scaler_of_paddle_scales_too(check: Check) -> None:
    source = """\
    import paddle

    class Trainer:
        def __init__(self):
            self.amp = paddle.amp.GradScaler()

        def step(self, model, opt, loss):
            self.amp.scale(loss).backward()
            paddle.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            self.amp.step(opt)
    """
    assert "multiplied by the scale of self.amp" in only_finding(check({"a.py": textwrap.dedent(source)}, NEAREST)).does
