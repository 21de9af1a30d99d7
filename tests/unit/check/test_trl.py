"""`unified-clip config check` on scripts and files of TRL."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, Check

IN_CALL = "parser = TrlParser((ModelConfig, SFTConfig))\n"
IN_NAME = "classes = (ModelConfig, SFTConfig)\nparser = TrlParser(classes, prog='sft')\n"
BY_KEYWORD = "parser = TrlParser(dataclass_types=(ModelConfig, SFTConfig))\n"
SCRIPT = """from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser

{}model_args, training_args = parser.parse_args_and_config()
SFTTrainer(model, args=training_args).train()
"""
YAML = "model_name_or_path: a\nlr_scheduler_type: cosine\n{}"


@pytest.mark.parametrize("parser", [IN_CALL, IN_NAME, BY_KEYWORD])
def test_a_parser_of_trl_reads_training_arguments(check: Check, parser: str) -> None:
    files = {"sft.py": SCRIPT.format(parser), "ds.json": DEEPSPEED % "1.0"}
    (finding,) = check(files).findings
    assert (finding.kind, finding.clip) == ("unknown", "trl.SFTConfig(max_grad_norm=)")
    assert finding.edit.startswith("training_args.max_grad_norm = 1.0\n"), "not model.max_grad_norm"
    entry = '[[check.ignore]]\npath = "sft.py"\nrule = "global_norm"\nthreshold = 1.0\nreason = "parsed"\n'
    findings = check({**files, "a.sh": "python sft.py --max_grad_norm 0.5\n"}, CLIP_CONFIG + entry).findings
    assert [(each.path, each.kind) for each in findings] == [("a.sh", "drift")]
    assert check({**files, "a.sh": "python sft.py --max_grad_norm 1.0\n"}, CLIP_CONFIG + entry).findings == []


@pytest.mark.parametrize(
    "command", ["trl sft --lr 1 \\\n  --config conf/a.yaml\n", "python trl/scripts/sft.py --config=conf/a.yaml\n"]
)
def test_a_command_of_trl_shows_the_format_of_its_file(check: Check, command: str) -> None:
    key = "max_grad_norm: 0.5\n"
    files = {"jobs/a.sh": command, "conf/a.yaml": YAML.format(key), "conf/b.yaml": YAML.format(key)}
    findings = check(files).findings
    assert [(each.path, each.kind) for each in findings] == [("conf/a.yaml", "drift"), ("conf/b.yaml", "unknown")]
    assert findings[0].clip == "Hugging Face's TrainingArguments: max_grad_norm"
