"""`unified-clip config check` on configurations that Hydra composes, and on scripts that build a Trainer from them."""

from __future__ import annotations

import pytest
from support.config.check_files import Check, only_finding

from unified_clip.check.model import CheckReport

PART = """\
# @package _global_
defaults:
  - override /trainer: {trainer}
trainer:
  max_epochs: 10
  gradient_clip_val: {threshold}
"""
MAIN = "defaults:\n  - _self_\n  - trainer: default\n  - experiment: null\n"
FILES = {
    "conf/train.yaml": MAIN,
    "conf/trainer/default.yaml": "_target_: lightning.pytorch.Trainer\nmax_epochs: 1\ngradient_clip_val: 1.0\n",
}
SCRIPT = """\
import hydra
import lightning as L


@hydra.main(version_base=None, config_path="../conf", config_name="train{suffix}")
def main(cfg):
    trainer: L.Trainer = {trainer}
    trainer.fit()
"""
INSTANTIATE = "hydra.utils.instantiate(cfg.trainer, callbacks=callbacks)"


def script(trainer: str = INSTANTIATE, suffix: str = "") -> dict[str, str]:
    return {"src/train.py": SCRIPT.format(trainer=trainer, suffix=suffix)}


def experiment(threshold: float, trainer: str = "default") -> dict[str, str]:
    return {"conf/experiment/large.yaml": PART.format(threshold=threshold, trainer=trainer)}


def drifts(report: CheckReport) -> dict[str, list[str]]:
    assert {each.kind for each in report.findings} <= {"drift"}
    return {each.path: [difference.about for difference in each.differences] for each in report.findings}


def test_an_experiment_is_compared_as_hydra_composes_it(check: Check) -> None:
    assert check({**FILES, **experiment(1.0)}).headline == "2 clips: 2 as in clip.toml."
    assert drifts(check({**FILES, **experiment(0.5)})) == {"conf/experiment/large.yaml": ["threshold"]}
    value = {"conf/trainer/value.yaml": "defaults: [default]\ngradient_clip_algorithm: value\n"}
    assert "rule" in drifts(check({**FILES, **value, **experiment(1.0, "value")}))["conf/experiment/large.yaml"]


def test_the_main_configuration_is_checked_without_the_experiment_too(check: Check) -> None:
    files = {**FILES, "conf/trainer/default.yaml": "_target_: lightning.pytorch.Trainer\nmax_epochs: 1\n"}
    assert "conf/train.yaml" in drifts(check({**files, **experiment(1.0)}))


@pytest.mark.parametrize(
    "mains",
    [
        {},
        {"conf/train.yaml": MAIN.replace("experiment", "debug")},
        {"conf/train.yaml": MAIN, "conf/other.yaml": MAIN.replace("trainer: default", "trainer: other")},
    ],
)
def test_an_experiment_without_one_known_composition_is_unknown(check: Check, mains: dict[str, str]) -> None:
    other = "_target_: lightning.pytorch.Trainer\nmax_epochs: 1\ngradient_clip_algorithm: value\n"
    part = "# @package _global_\ntrainer:\n  max_epochs: 10\n  gradient_clip_val: 1.0\n"
    files = {**FILES, "conf/trainer/other.yaml": other, "conf/experiment/large.yaml": part}
    del files["conf/train.yaml"]
    finding = next(each for each in check({**files, **mains}).findings if each.path == "conf/experiment/large.yaml")
    assert finding.kind == "unknown"
    assert "Hydra merges this file with other files" in finding.does


def test_main_configurations_that_agree_are_no_problem(check: Check) -> None:
    assert check({**FILES, "conf/train_long.yaml": MAIN, **experiment(1.0)}).findings == []


@pytest.mark.parametrize(
    "trainer", [INSTANTIATE, 'hydra.utils.instantiate(cfg["trainer"])', "L.Trainer(**cfg.trainer, logger=logger)"]
)
@pytest.mark.parametrize("suffix", ["", ".yaml"])
def test_a_trainer_that_a_script_builds_from_a_known_file_is_that_of_the_file(
    check: Check, trainer: str, suffix: str
) -> None:
    report = check({**FILES, **script(trainer, suffix)})
    assert report.findings == []
    assert any("The check compares the clip in conf/trainer/default.yaml:" in note for note in report.notes)
    assert "1 clip: 1 as in" in report.headline


def test_a_trainer_beside_a_clip_of_unified_clip_has_to_be_off(check: Check) -> None:
    own = "import unified_clip.torch\n\nunified_clip.torch.clip_grad_norm_(model.parameters(), 1.0)\n"
    source = script()["src/train.py"]
    finding = only_finding(check({**FILES, "src/train.py": f"{own}{source}"}))
    assert (finding.kind, finding.line) == ("unknown", 10)
