"""`unified-clip port` and loss scalers: gradients are unscaled before the clip, or the clip is flagged."""

from __future__ import annotations

import pytest
from support.port.snippets import CLASS, PADDLE, ported, with_lines


@pytest.mark.parametrize(
    "lines",
    [
        "scaler.unscale_(optimizer)\n        if ok:\n            scaler.step(optimizer)",
        "scaler.unscale_(optimizer)\n        scaler.step(other)\n        scaler.step(optimizer)",
        "scaler.unscale_(optimizer)\n        schedule.step()\n        scaler.step(optimizer)",
        "scaler.unscale_(optimizer=optimizer)\n        scaler.step(optimizer)",
    ],
)
def test_an_unscale_on_the_way_to_the_step_is_enough(lines: str) -> None:
    assert ported(with_lines(PADDLE, ("optimizer.step()", lines)))[0].count("unscale_") == 1


def test_an_unscale_of_the_step_before_is_not_enough() -> None:
    lines = "scaler.unscale_(optimizer)\n        scaler.step(optimizer)\n        scaler.step(optimizer)"
    assert ported(with_lines(PADDLE, ("optimizer.step()", lines)))[0].count("unscale_") == 2


UNSCALE = "scaler.unscale_(optimizer)"


@pytest.mark.parametrize(
    "lines",
    [
        f"if amp:\n            {UNSCALE}\n        scaler.step(optimizer)",
        f"with context():\n            {UNSCALE}\n        scaler.step(optimizer)",
        "trainer.scaler.unscale_(optimizer)\n        scaler.step(optimizer)",
        f"{UNSCALE}\n        for scaler in scalers:\n            scaler.step(optimizer)",
        f"if amp:\n            {UNSCALE}\n            scaler.step(optimizer)\n        else:\n            {UNSCALE}\n"
        "        scaler.step(optimizer)",
    ],
)
def test_a_clip_is_flagged_if_its_gradients_may_be_unscaled(lines: str) -> None:
    source = with_lines(PADDLE, ("optimizer.step()", lines))
    text, (site,) = ported(source)
    assert (text, site.verdict) == (source, "flagged")
    assert "might not run before every step. Move scaler.unscale_(optimizer)" in site.reason


def test_a_clip_is_flagged_if_another_method_may_unscale_its_gradients() -> None:
    source = CLASS.replace("self.opt.step()", "self.scaler.step(self.opt)")
    assert ported(source)[0].count("self.scaler.unscale_(self.opt)\n") == 1
    source += "\n    def log_norm(self):\n        self.scaler.unscale_(self.opt)\n"
    text, (site,) = ported(source)
    assert (text, site.verdict) == (source, "flagged")
    assert "Line 11 unscales the gradients, but might not run before every step." in site.reason


def test_a_scaler_is_unscaled_before_the_clip() -> None:
    text, _ = ported(with_lines(PADDLE, ("optimizer.step()", "scaler.step(optimizer)")))
    lines = [line.strip() for line in text.splitlines()][-3:]
    assert lines == ["scaler.unscale_(optimizer)", "clip.clip_(model.parameters())", "scaler.step(optimizer)"]


def test_unscaled_gradients_are_not_unscaled_again() -> None:
    text, _ = ported(
        with_lines(PADDLE, ("optimizer.step()", "scaler.unscale_(optimizer)\n        scaler.step(optimizer)"))
    )
    assert text.count("unscale_") == 1
