"""Exports to a trainer with the rule of another family: an error, or with `--nearest` the trainer's family."""

from __future__ import annotations

import pytest
from support.config.clip_configs import Write

from unified_clip import ClipConfig, ClipWarning, NotRepresentableError
from unified_clip.cli import main
from unified_clip.config.formats import FORMATS

BOUND = (
    "For a norm of n, the relative difference between the two clip coefficients is at most 1e-06 / n, apart from "
    "rounding. With threshold = 0.5, the difference is"
)

INFINITE = (
    "If the norm is infinite, TensorFlow's rule makes every gradient NaN. The rules of PyTorch and Paddle make finite "
    "gradients 0 and infinite gradients NaN."
)

OTHER_FAMILIES = [
    ("", "optax", "'paddle'", "This configuration's family is 'pytorch', the default", f"{BOUND} at most 2e-06."),
    ('family = "tensorflow"', "optax", "'paddle'", "This configuration's family is 'tensorflow'", INFINITE),
    ('family = "paddle"', "hf", "'pytorch'", "This configuration's family is 'paddle'", f"{BOUND} at most 2e-06."),
    ("", "keras", "'tensorflow'", "This configuration's family is 'pytorch', the default",
     f"{BOUND} at most 2e-06. {INFINITE}"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "to", "family", "own_rule", "difference"), OTHER_FAMILIES)
def test_export_to_another_family_is_an_error_with_the_remedy(
    keys: str, to: str, family: str, own_rule: str, difference: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write("clip.toml", f'rule = "global_norm"\nthreshold = 0.5\n{keys}\n')
    assert main(["config", "export", str(path), "--to", to]) == 2
    out, error = capsys.readouterr()
    nearest = "Or export with the trainer's family and eps: pass --nearest, or nearest=True in Python."
    message = f"it needs the family {family}. {own_rule}. Set `family` to {family}. {nearest} {difference}"
    assert out == ""
    assert error == f"unified-clip: error UC107: Cannot export to {FORMATS[to].title}: {message}\n"


@pytest.mark.parametrize(("keys", "to", "family", "own_rule", "difference"), OTHER_FAMILIES)
def test_nearest_exports_the_rule_of_the_other_family_and_prints_the_difference(
    keys: str, to: str, family: str, own_rule: str, difference: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write("clip.toml", f'rule = "global_norm"\nthreshold = 0.5\n{keys}\n')
    assert main(["config", "export", str(path), "--to", to, "--nearest"]) == 0
    out, error = capsys.readouterr()
    eps = "1e-06" if family == "'pytorch'" else "0"
    assert error == f"note: Exported with the trainer's family, {family} with eps = {eps}. {difference}\n"
    assert main(["config", "export", str(write("same.toml", f"{TEXT}\nfamily = {family}\n")), "--to", to]) == 0
    assert capsys.readouterr().out == out


TEXT = 'rule = "global_norm"\nthreshold = 0.5'


def test_nearest_in_python_warns_of_the_difference() -> None:
    config = ClipConfig(rule="norm", threshold=0.5, eps=1e-8)
    with pytest.raises(
        NotRepresentableError, match=r"does not support `eps = 1e-08`\. Remove `eps`\. Or .*=True.* 9.9e-"
    ):
        config.export_to("detectron2")
    with pytest.warns(ClipWarning, match=r"'pytorch' with eps = 1e-06\. .* 9\.9e-07 / n, .* at most 2e-06\.$"):
        text = config.export_to("detectron2", nearest=True)
    assert text == config.model_copy(update={"eps": None}).export_to("detectron2")


def test_nearest_replaces_no_other_setting(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("clip.toml", f'{TEXT}\nnonfinite = "skip"\n')
    assert main(["config", "export", str(path), "--to", "optax", "--nearest"]) == 2
    assert 'does not support `nonfinite = "skip"`' in capsys.readouterr().err


@pytest.mark.parametrize("nearest", [False, True])
def test_a_family_with_the_same_effect_is_exported(nearest: bool) -> None:
    """Per tensor, TensorFlow's and Paddle's rules are the same. So are Paddle's with eps = 1e-6 and PyTorch's."""
    config = ClipConfig(rule="norm", threshold=0.5, family="tensorflow")
    assert config.export_to("paddleclas", nearest=nearest) == "Optimizer:\n  clip_norm: 0.5\n"
    config = ClipConfig(rule="global_norm", threshold=0.5, family="paddle", eps=1e-6)
    assert config.export_to("deepspeed", nearest=nearest) == '{\n  "gradient_clipping": 0.5\n}\n'
