"""A `ClipCallback` in configuration files of LightningCLI and Hydra."""

from __future__ import annotations

import textwrap

import pytest
from support.config.check_files import Check, only_finding

NAME = "unified_clip.integrations.lightning_callback.ClipCallback"
CLI = f"""\
trainer:
  max_epochs: 3
  {{key}}
  callbacks:
    - class_path: lightning.pytorch.callbacks.ModelSummary
    - class_path: {NAME}
      init_args:
        config:
          class_path: unified_clip.ClipConfig
          init_args:
            rule: {{rule}}
            threshold: {{threshold}}
"""
HYDRA = f"""\
trainer:
  _target_: lightning.pytorch.Trainer
  max_epochs: 3
  {{key}}
callbacks:
  clip:
    _target_: {NAME}
    config:
      _target_: unified_clip.ClipConfig
      rule: {{rule}}
      threshold: {{threshold}}
"""
NULL = "gradient_clip_val: null"
SHORT = CLI.replace(NAME, "ClipCallback").replace("unified_clip.ClipConfig", "ClipConfig")
forms = pytest.mark.parametrize("text", [CLI, HYDRA])


@forms
@pytest.mark.parametrize("key", [NULL, "accelerator: cpu"])
def test_a_callback_like_the_configuration_passes(check: Check, text: str, key: str) -> None:
    report = check({"config.yaml": text.format(key=key, rule="global_norm", threshold=1.0)})
    results = {clip.clip == NAME: clip.result for clip in report.clips}
    assert (report.findings, results) == ([], {True: "same"})


@forms
@pytest.mark.parametrize(("rule", "threshold", "about"), [("global_norm", 3.0, "threshold"), ("value", 1.0, "rule")])
def test_another_rule_or_threshold_is_a_drift(check: Check, text: str, rule: str, threshold: float, about: str) -> None:
    content = text.format(key=NULL, rule=rule, threshold=threshold)
    finding = only_finding(check({"config.yaml": content}))
    line = content[: content.index(NAME)].count("\n") + 1
    assert (finding.kind, finding.clip, finding.line) == ("drift", NAME, line)
    assert finding.differences[0].about == about
    assert "gradient_clip_val" not in finding.edit


@forms
def test_a_threshold_that_the_file_does_not_show_is_unknown(check: Check, text: str) -> None:
    content = text.format(key=NULL, rule="global_norm", threshold="${limit}")
    finding = only_finding(check({"config.yaml": content}))
    assert (finding.kind, finding.clip) == ("unknown", NAME)
    assert finding.does.startswith("The check cannot read the configuration of this ClipCallback. ")
    loaded = content.replace("unified_clip.ClipConfig", "my.ClipConfig")
    assert (
        "The value of the key `config` is not a ClipConfig with settings."
        in only_finding(check({"config.yaml": loaded})).does
    )


def test_names_without_a_module_are_read_as_lightning_cli_reads_them(check: Check) -> None:
    assert check({"config.yaml": SHORT.format(key=NULL, rule="global_norm", threshold=1.0)}).findings == []
    finding = only_finding(check({"config.yaml": SHORT.format(key=NULL, rule="value", threshold=1.0)}))
    assert (finding.kind, finding.clip) == ("drift", NAME)


def test_a_script_with_lightning_cli_clips_by_the_callback_of_its_file(check: Check) -> None:
    script = "from lightning.pytorch.cli import LightningCLI\n\ncli = LightningCLI(Model)\n"
    files = {"config.yaml": CLI.format(key=NULL, rule="global_norm", threshold=1.0), "train.py": script}
    report = check(files)
    assert report.findings == []
    assert report.notes[0].startswith("train.py:3 ")
    assert "config.yaml:6" in report.notes[0]
    files["config.yaml"] = CLI.format(key=NULL, rule="global_norm", threshold=2.0)
    assert {each.path: each.kind for each in check(files).findings} == {"config.yaml": "drift"}


CALLBACKS = HYDRA.format(key="", rule="global_norm", threshold=1.0).partition("callbacks:\n")[2]
PARTS = {
    "conf/train.yaml": "defaults:\n  - trainer: default\n  - callbacks: clip\n",
    "conf/trainer/default.yaml": "_target_: lightning.pytorch.Trainer\nmax_epochs: 3\n{}",
    "conf/callbacks/clip.yaml": textwrap.dedent(CALLBACKS),
}
