"""`unified-clip port --native` writes calls of PyTorch's functions, if these support the clip."""

from __future__ import annotations

import pytest
from support.port.snippets import PADDLE, TAPE, ported, verdicts, with_lines


def test_native_calls_get_the_number_of_a_threshold_that_is_named_elsewhere() -> None:
    source = with_lines(PADDLE, ("    clip =", "    limit = 2.5\n    clip ="), ("ByNorm(1.0)", "ByGlobalNorm(limit)"))
    assert "torch.nn.utils.clip_grad_norm_(model.parameters(), 2.5)" in ported(source, native=True)[0]


def test_native_keeps_a_clip_object_that_other_code_reads() -> None:
    source = with_lines(PADDLE, ("    for batch", "    if clip is not None:\n        pass\n    for batch"))
    text, (site,) = ported(source, native=True)
    assert text == source
    line = source.splitlines().index("    if clip is not None:") + 1
    assert site.reason.startswith(f"Line {line} uses the clip, but not as grad_clip=.")


def test_native_calls_do_not_clip_parameters_that_paddle_excludes() -> None:
    source = with_lines(PADDLE, ("    for batch", "    model.bias.need_clip = False\n    for batch"))
    assert ported(source, native=True)[0] == source


def test_new_loops_use_new_names() -> None:
    source = with_lines(PADDLE, ("parameters=model.parameters()", 'parameters=[{"params": group}]'))
    assert "for group_ in optimizer.param_groups:" in ported(source)[0]
    assert "for parameter_ in model.parameters():" in ported(PADDLE + "parameter = 1\n", native=True)[0]


def test_native_calls_clip_each_tensor_of_each_parameter_group() -> None:
    groups = with_lines(PADDLE, ("parameters=model.parameters()", 'parameters=[{"params": model.parameters()}]'))
    text, _ = ported(groups, native=True)
    loops = '{0}for group in optimizer.param_groups:\n{0}    for parameter in group["params"]:\n'.format(" " * 8)
    assert loops + " " * 16 + "torch.nn.utils.clip_grad_norm_(parameter, 1.0)\n" in text


def test_native_calls_replace_the_clip_object() -> None:
    text, _ = ported(PADDLE, native=True)
    assert "for parameter in model.parameters():\n            torch.nn.utils.clip_grad_norm_(parameter, 1.0)\n" in text
    assert "ClipGradByNorm" not in text


@pytest.mark.parametrize(
    "clip", ["ClipGradByNorm(limit)", "ClipGradByValue(1.0, -2.0)", "ClipGradByNorm(1.0) if limit else None"]
)
def test_native_does_not_rewrite_clips_without_an_equal_function(clip: str) -> None:
    source = with_lines(PADDLE, ("ClipGradByNorm(1.0)", clip))
    assert ported(source, native=True)[0] == source


@pytest.mark.parametrize(
    "change",
    [
        ("    grads = [tf", "    clipped = [tf"),
        ("    grads = [tf", "    grads = [g * 0.5 for g in grads]\n    grads = [tf"),
        ("for g in grads]", "if big(g) else g for g in grads]"),
        ("for g in grads]", "if big(g) else None for g in grads]"),
    ],
)
def test_native_does_not_rewrite_clips_of_changed_gradients(change: tuple[str, str]) -> None:
    assert verdicts(TAPE, native=True) == ["rewritten"]
    source = with_lines(TAPE, change)
    assert ported(source, native=True)[0] == source


@pytest.mark.parametrize(
    "change",
    [
        ("    grads = [tf", "    raw = grads\n    grads = [tf"),
        ("    grads = [tf", "    seen.append(grads)\n    grads = [tf"),
        ("    grads = tape", "    grads = raw = tape"),
    ],
)
def test_native_does_not_rewrite_gradients_that_other_code_uses(change: tuple[str, str]) -> None:
    source = with_lines(TAPE, change)
    assert verdicts(source) == ["rewritten"]
    assert ported(source, native=True)[0] == source


def test_native_calls_do_not_support_axes() -> None:
    source = with_lines(TAPE, ("clip_by_norm(g, 1.0)", "clip_by_norm(g, 1.0, axes=0)"))
    text, (site,) = ported(source, native=True)
    assert text == source
    assert "This clip passes axes=, which PyTorch's function does not accept." in site.reason
