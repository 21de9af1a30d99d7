"""`unified-clip config check` on DeepSpeed's settings in Python source, which decide instead of max_grad_norm."""

from __future__ import annotations

import pytest
from support.config.check_files import Check, only_finding

ARGUMENTS = (
    "from transformers import TrainingArguments\n\n{before}args = TrainingArguments('out', {more}deepspeed={value})\n"
)
MISSING = {"zero_optimization": {"stage": 2}}


def source(value: str, arguments: str = "max_grad_norm=1.0, ", before: str = "") -> str:
    return ARGUMENTS.format(value=value, more=arguments, before=before)


@pytest.mark.parametrize("arguments", ["max_grad_norm=1.0, ", "", "max_grad_norm=0.0, "])
@pytest.mark.parametrize("value", ["args.deepspeed", "ds if use_it else None", "os.environ['DS']"])
def test_settings_that_are_only_known_at_run_time_are_unknown(check: Check, value: str, arguments: str) -> None:
    finding = only_finding(check({"a.py": source(value, arguments)}))
    assert finding.kind == "unknown"
    assert "are only known at run time. If these settings do not set gradient_clipping" in finding.does
    assert "set gradient_clipping, max_grad_norm is ignored." in finding.does
    assert "DeepSpeed does not expose the gradients" in finding.edit


@pytest.mark.parametrize("value", ["None", "''", "'conf/ds.json'", "ds", "'conf/ds.json' if use_it else None"])
def test_a_file_that_leaves_the_clip_to_the_trainer_is_the_same(check: Check, value: str) -> None:
    files = {"conf/ds.json": '{"zero_optimization": {}, "gradient_clipping": "auto"}'}
    assert check({"train/a.py": source(value, before="ds = 'conf/ds.json'\n"), **files}).findings == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"zero_optimization": {}}', "does not set gradient_clipping. DeepSpeed then ignores max_grad_norm"),
        ('{"gradient_clipping": 0.5}', "Trainer rejects 0.5, because max_grad_norm is 1.0"),
        ('{"gradient_clipping": ', "this is not JSON"),
    ],
)
def test_a_file_that_changes_the_clip_is_unknown(check: Check, text: str, why: str) -> None:
    report = check({"a.py": source("'conf/ds.json'"), "conf/ds.json": text})
    (finding,) = [each for each in report.findings if each.path == "a.py"]
    assert finding.kind == "unknown"
    assert why in finding.does


def test_a_file_that_is_not_found_is_unknown(check: Check) -> None:
    finding = only_finding(check({"a.py": source("'conf/gone.json'")}))
    assert (finding.kind, "is not in the directory" in finding.does) == ("unknown", True)


AUTO = "import deepspeed\n\nconfig = {'train_batch_size': 8, 'gradient_clipping': 'auto'}\n"


def test_auto_without_a_trainer_is_unknown_for_its_own_reason(check: Check) -> None:
    (finding,) = [each for each in check({"a.py": AUTO}).findings if "gradient_clipping" in each.clip]
    assert finding.kind == "unknown"
    assert finding.does.startswith(
        'With "auto", max_grad_norm of TrainingArguments sets the threshold, but this file has no TrainingArguments.'
    )


def test_auto_with_a_trainer_leaves_the_clip_to_its_argument(check: Check) -> None:
    trainer = "from transformers import TrainingArguments\n\nargs = TrainingArguments('o', deepspeed=config{})\n"
    assert check({"a.py": AUTO + trainer.format("")}).findings == []
    finding = only_finding(check({"a.py": AUTO + trainer.format(", max_grad_norm=0.5")}))
    assert (finding.kind, finding.clip) == ("drift", "transformers.TrainingArguments(max_grad_norm=)")


@pytest.mark.parametrize(
    ("arguments", "settings", "kind", "edit"),
    [
        ("max_grad_norm=0.7, ", "1.0", "drift", "max_grad_norm=1.0"),
        ("max_grad_norm=0.7, ", '"1.0"', "drift", "max_grad_norm=1.0"),
        ("max_grad_norm=0.0, ", "1.0", "drift", "max_grad_norm=1.0"),
        (
            "max_grad_norm=1.0, ",
            "0.1",
            "unknown",
            'Pass max_grad_norm=1.0 to TrainingArguments, and set "gradient_clipping": "auto"',
        ),
        ("", "0.1", "unknown", 'Pass max_grad_norm=1.0 to TrainingArguments, and set "gradient_clipping": "auto"'),
    ],
)
def test_a_threshold_that_trainer_rejects_is_a_drift_if_it_differs_from_the_configuration(
    check: Check, arguments: str, settings: str, kind: str, edit: str
) -> None:
    files = {"a.py": source("'conf/ds.json'", arguments), "conf/ds.json": f'{{"gradient_clipping": {settings}}}'}
    (finding,) = [each for each in check(files).findings if each.path == "a.py"]
    assert (finding.kind, edit in finding.edit) == (kind, True)
    assert "Trainer rejects" in (finding.effect if kind == "drift" else finding.does)


def test_a_clip_that_is_off_and_that_trainer_rejects_is_unknown_in_a_file_of_check_off(check: Check) -> None:
    files = {
        "a.py": source("'conf/ds.json'", "max_grad_norm=0.0, "),
        "conf/ds.json": '{"zero_optimization": {}, "gradient_clipping": 0.1}',
    }
    report = check(files, 'rule = "global_norm"\nthreshold = 1.0\n\n[check]\noff = ["a.py"]\n')
    assert [(each.kind, "Trainer rejects" in each.does) for each in report.findings if each.path == "a.py"] == [
        ("unknown", True)
    ]
