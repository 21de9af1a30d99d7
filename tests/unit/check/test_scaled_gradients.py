"""`unified-clip config check` on clips of gradients that a `GradScaler` of PyTorch, Paddle or Accelerate has scaled."""

from __future__ import annotations

import textwrap

import pytest
from support.config.check_files import CLIP_CONFIG, Check, only_finding

NEAREST = CLIP_CONFIG + '\n[check]\nnearest = ["**"]\n'
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
BACKWARD, UNSCALE, STEP = "scaler.scale(loss).backward()", "scaler.unscale_(opt)", "scaler.step(opt)"
SCALED = "the gradients are still multiplied by the scale of scaler"
LATE = "This clip comes before scaler.unscale_(opt) in line"
NEVER = "No scaler.unscale_(optimizer) comes before this clip"


def step(*lines: str, before: str = "") -> dict[str, str]:
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
        ([BACKWARD, "if by_value:", f"    {UNSCALE}", "    clip(model)", "else:", f"    {CLIP}", STEP], NEVER),
        ([BACKWARD, "if use_amp:", "    (0 * loss).backward()", "else:", f"    {CLIP}", STEP], NEVER),
        ([BACKWARD, "if by_value:", "    if use_amp:", f"        {UNSCALE}", "else:", f"    {CLIP}", STEP], NEVER),
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
        [BACKWARD, "if use_amp:", f"    {UNSCALE}", f"    {CLIP}", "else:", f"    {CLIP}", STEP],
        [BACKWARD, "if scaler is None:", f"    {CLIP}", "else:", f"    {UNSCALE}", f"    {CLIP}", STEP],
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


ACCELERATE = """\
import torch
from accelerate import Accelerator
from unified_clip import ClipConfig


def clip_gradients(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def train(model, optimizer, loader, args):
    accelerator = Accelerator({arguments})
    for batch in loader:
        accelerator.backward(model(batch))
        if accelerator.sync_gradients:
            {clip}
        optimizer.step()
"""
FILE = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: {}\n"
LOAD = 'clip = ClipConfig.load("clip.toml")'
FP16 = 'mixed_precision="fp16"'


def unknown(check: Check, arguments: str = FP16, clip: str = CLIP, **files: str) -> list[str]:
    texts = {f"{name}.yaml": text for name, text in files.items()}
    findings = check({"train.py": ACCELERATE.format(arguments=arguments, clip=clip), **texts}).findings
    assert {each.kind for each in findings} <= {"unknown"}
    return [each.does for each in findings]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (FP16, "Line 11 sets mixed_precision to fp16."),
        ("True, False, 'fp16'", "Line 11 sets mixed_precision to fp16."),
        ("mixed_precision=args.precision", "The precision, args.precision, is only known at run time."),
        ('mixed_precision="fp16" if args.amp else "no"', "The precision, 'fp16' if args.amp else 'no', is only known"),
        ("**settings", "The precision, settings, is only known at run time."),
        (
            "",
            "This file does not set the precision: other code, the command line or a file of Accelerate may set fp16.",
        ),
        ("mixed_precision=None", "This file does not set the precision"),
    ],
)
def test_a_clip_of_gradients_that_accelerate_may_have_scaled_is_unknown(check: Check, arguments: str, why: str) -> None:
    (text,) = unknown(check, arguments)
    assert text.startswith("With fp16, accelerator.backward(...) in line 13 multiplies the gradients by a loss scale")
    assert why in text
    assert "Call accelerator.unscale_gradients() before the clip, or clip with accelerator.clip_grad_norm_." in text


@pytest.mark.parametrize("clip", [f"{LOAD}; clip.clip_(model.parameters())", "clip_gradients(model)"])
def test_a_clip_by_a_configuration_or_a_function_of_the_file_is_unknown_too(check: Check, clip: str) -> None:
    (text,) = unknown(check, clip=clip)
    assert "this clip gets the scaled gradients" in text


def test_both_reasons_of_an_unknown_clip_are_given(check: Check) -> None:
    (text,) = unknown(check, clip=CLIP.replace("1.0", "args.max_norm"))
    assert text.startswith("The threshold, args.max_norm, is only known at run time. With fp16, ")


@pytest.mark.parametrize("precision", ['"bf16"', '"no"', '"fp8"', '"bf16" if args.amp else "no"'])
def test_a_clip_with_another_precision_is_right(check: Check, precision: str) -> None:
    assert unknown(check, f"mixed_precision={precision}") == []


@pytest.mark.parametrize(
    "clip",
    [
        "accelerator.clip_grad_norm_(model.parameters(), 1.0)",
        f"accelerator.unscale_gradients(); {CLIP}",
        f"accelerator.clip_grad_norm_(model.parameters(), 1.0); {CLIP}",
        f"{LOAD}; clip_(accelerator, clip, model.parameters())",
    ],
)
def test_a_clip_of_gradients_that_accelerate_has_unscaled_is_right(check: Check, clip: str) -> None:
    assert unknown(check, clip=clip) == []


def test_the_precision_of_accelerates_file_applies_without_an_argument(check: Check) -> None:
    assert unknown(check, "", config=FILE.format("bf16")) == []
    assert unknown(check, "", config=FILE.format("no")) == []
    assert "config.yaml sets mixed_precision to fp16." in unknown(check, "", config=FILE.format("fp16"))[0]
    (text,) = unknown(check, "", config=FILE.format("bf16"), gpu=FILE.format("fp16"))
    assert "gpu.yaml sets mixed_precision to fp16." in text
    assert "Line 11 sets" in unknown(check, FP16, config=FILE.format("bf16"), gpu=FILE.format("no"))[0]


def test_a_file_of_accelerate_in_another_project_does_not_apply(check: Check) -> None:
    files = {"a/train.py": ACCELERATE.format(arguments="", clip=CLIP), "b/config.yaml": FILE.format("bf16")}
    assert "does not set the precision" in only_finding(check(files)).does


def test_deepspeed_has_a_scale_of_its_own(check: Check) -> None:
    assert unknown(check, f"{FP16}, deepspeed_plugin=plugin") == []


TENSORFLOW = """import tensorflow as tf


def step(model, optimizer, loss, use_fp16):
    with tf.GradientTape() as tape:
        scaled = optimizer.get_scaled_loss(loss(model))
    grads = tape.gradient(scaled, model.trainable_variables)
    {}
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
"""
GLOBAL = "grads, _ = tf.clip_by_global_norm(grads, 1.0)"
UNSCALED = "grads = optimizer.get_unscaled_gradients(grads)"


def test_a_clip_of_the_gradients_of_a_scaled_loss_of_tensorflow(check: Check) -> None:
    finding = only_finding(check({"a.py": TENSORFLOW.format(f"{GLOBAL}\n    {UNSCALED}")}, NEAREST))
    assert finding.does.startswith(
        "This clip gets gradients of optimizer.get_scaled_loss(loss(model)), so the gradients"
    )


@pytest.mark.parametrize("unscale", [UNSCALED, f"if use_fp16:\n        {UNSCALED}"])
def test_a_clip_of_unscaled_gradients_of_tensorflow_passes(check: Check, unscale: str) -> None:
    assert check({"a.py": TENSORFLOW.format(f"{unscale}\n    {GLOBAL}")}, NEAREST).findings == []
