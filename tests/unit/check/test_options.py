"""`unified-clip config check` on clips whose threshold is an option of the command line."""

from __future__ import annotations

import re
import textwrap

import pytest
from support.config.check_files import Check, only_finding

CALL = "torch.nn.utils.clip_grad_norm_(model.parameters(), {})"
CLIP = f"import torch\n\n{CALL}\n"
PARSER = """import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--max-grad-norm", type=float, default={})
"""
CLASS = """from dataclasses import dataclass, field

import tyro


@dataclass
class Args:
    max_grad_norm: float = {}


"""
ABSL = "from absl import flags\n\nFLAGS = flags.FLAGS\nflags.DEFINE_float('max_grad_norm', {}, 'help')\n"
PARSED = "args = parser.parse_args()"
READ = "args.max_grad_norm"


def script(head: str, parse: str, threshold: str = READ) -> str:
    return f"{head}{textwrap.dedent(parse)}\n{CLIP.format(threshold)}"


SCRIPTS = {
    "argparse": script(PARSER, PARSED),
    "a general name": script(PARSER.replace("max-grad-norm", "clip"), PARSED, "args.clip"),
    "a parameter": f"{PARSER}import torch\n\ndef main(args):\n    {CALL.format(READ)}\n\nmain(parser.parse_args())\n",
    "a class": script(CLASS, "args = tyro.cli(Args)"),
    "transformers": script(CLASS, "(args,) = HfArgumentParser(Args).parse_args_into_dataclasses()"),
    "Accelerate": script(PARSER, PARSED).replace("torch.nn.utils.", "accelerator."),
    "absl": script(ABSL, "", "FLAGS.max_grad_norm"),
}  # fmt: skip


@pytest.mark.parametrize("source", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_clips_by_the_default_of_its_option(check: Check, source: str) -> None:
    """How an option is found is the subject of tests/unit/source."""
    (clip,) = check({"a.py": source.format("1.0")}).clips
    assert clip.result == "same"
    assert re.search(r" by default: \S+ is not passed$", clip.clip)
    finding = only_finding(check({"a.py": source.format("5.0")}))
    assert (finding.kind, [each.about for each in finding.differences]) == ("drift", ["threshold"])


def test_an_option_of_a_helper_in_another_file_is_read_there(check: Check) -> None:
    head, _, add = PARSER.rpartition("parser.add")
    helper = f"def add_args(parser):\n    parser.add{add}"
    files = {
        "lib.py": helper.format("5.0"),
        "a.py": script(f"{head.format()}import lib\n\nlib.add_args(parser)\n", PARSED),
    }
    assert only_finding(check(files)).path == "a.py"
    assert check({**files, "lib.py": helper.format("1.0")}).findings == []


def test_an_argument_of_a_trainer_has_the_default_of_its_option(check: Check) -> None:
    text = script(PARSER, PARSED).partition("import torch")[0] + "import lightning\n\n"
    source = f"{text}lightning.Trainer(gradient_clip_val=args.max_grad_norm)\n"
    assert check({"a.py": source.format("1.0")}).findings == []
    assert only_finding(check({"a.py": source.format("5.0")})).kind == "drift"


@pytest.mark.parametrize("option", ["clip", "gn", "max-grad"])
def test_a_command_line_sets_an_option_whose_name_shows_no_clip(check: Check, option: str) -> None:
    source = script(PARSER.replace("max-grad-norm", option), PARSED, f"args.{option.replace('-', '_')}").format("1.0")
    assert only_finding(check({"a.py": source, "run.sh": f"python a.py --{option} 20.0\n"})).path == "run.sh"
    assert check({"run.sh": f"python a.py --{option} 1.0\n"}).findings == []


def test_a_constant_that_another_file_sets_is_no_constant(check: Check) -> None:
    files = {"cons.py": "LIMIT = 1.0\n", "a.py": f"import cons\n{CLIP.format('cons.LIMIT')}"}
    assert check(files).findings == []
    assert "unknown" in {each.kind for each in check({"b.py": "import cons\n\ncons.LIMIT = 20.0\n"}).findings}


def test_a_default_is_compared_beside_a_line_that_replaces_it(check: Check) -> None:
    other = {"b.py": "def prepare(args):\n    args.max_grad_norm = 1.0\n"}
    source = script(PARSER, PARSED)
    assert check({"a.py": source.format("1.0"), **other}).findings == []
    finding = only_finding(check({"a.py": source.format("5.0"), **other}))
    assert (finding.kind, finding.line) == ("drift", 4)


UNKNOWN = {
    "no default": script(PARSER.replace(", default={}", ""), PARSED),
    "a default of 0": script(PARSER.replace("{}", "0.0"), PARSED),
    "a default that no float can hold": script(PARSER.replace("{}", "10**399"), PARSED),
    "another object": script("", "args = load()"),
}


@pytest.mark.parametrize("source", UNKNOWN.values(), ids=UNKNOWN)
def test_a_threshold_without_a_default_is_unknown(check: Check, source: str) -> None:
    finding = only_finding(check({"a.py": source}))
    assert (finding.kind, finding.clip) == ("unknown", "torch.nn.utils.clip_grad_norm_")


@pytest.mark.parametrize("value", ["1.0", "5.0"])
def test_a_threshold_that_code_sets_is_compared_where_it_is_set(check: Check, value: str) -> None:
    text = script("", f"args = load()\nargs.max_grad_norm = {value}")
    report = check({"a.py": text})
    assert {each.clip: each.result for each in report.clips} == {
        "torch.nn.utils.clip_grad_norm_": "same",
        f"max_grad_norm = {value}": "same" if value == "1.0" else "drift",
    }


RUN = "python -m torch.distributed.run {} \\\n  --max-grad-norm {}\n"
UNSET = script(PARSER.replace(", default={}", ""), PARSED)
OTHER_RULE = UNSET.replace("clip_grad_norm_", "clip_grad_value_")


@pytest.mark.parametrize(
    ("command", "sources", "expected"),
    [
        (RUN.format("a.py", 1.0), {"a.py": UNSET}, "same"),
        (RUN.format("src/a.py", 1.0), {"src/a.py": UNSET}, "same"),
        (RUN.format("a.py", 1.0), {"a.py": UNSET, "src/a.py": UNSET}, "same"),
        (RUN.format("a.py", 1.0), {"a.py": UNSET, "b.py": OTHER_RULE}, "same"),
        (RUN.format("a.py", 5.0), {"a.py": UNSET}, "drift"),
        (RUN.format("a.py", 1.0), {"a.py": OTHER_RULE}, "drift"),
        (RUN.format("a.py", 1.0), {"a.py": UNSET, "src/a.py": OTHER_RULE}, "unknown"),
        (RUN.format("b.py", 1.0), {"a.py": UNSET}, "unknown"),
        (RUN.format("data.py", 1.0), {"a.py": UNSET}, "unknown"),
        (RUN.format("a.py", "$CLIP"), {"a.py": UNSET}, "unknown"),
        (RUN.format("a.py", 0.0), {"a.py": UNSET}, "unknown"),
        (RUN.format("a.py", 1.0), {"a.py": script(PARSER, "args = load()")}, "unknown"),
        (RUN.format("a.py", 1.0), {"a.py": UNSET.replace("max", "limit")}, "unknown"),
        (RUN.format("a.py", 1.0), {"a.py": UNSET.replace("type=float", "action=Scaled")}, "unknown"),
        ("python b.py\n" + RUN.format("a.py", 1.0), {"a.py": UNSET}, "same"),
        (RUN.format("a.py config/b.py", 1.0), {"a.py": UNSET}, "same"),
        (RUN.format("a.py --config=config/b.py", 5.0), {"a.py": UNSET}, "drift"),
        (RUN.format("xla_spawn.py --num_cores 8 a.py", 1.0), {"a.py": UNSET}, "unknown"),
        ("python a.py\n" + RUN.format("b.py", 1.0), {"a.py": UNSET}, "unknown"),
        ("python b.py && " + RUN.format("a.py", 1.0), {"a.py": UNSET}, "unknown"),
        ("# as a.py\n" + RUN.format("$FILE", 1.0), {"a.py": UNSET}, "unknown"),
        ("FILE=a.py\n" + RUN.format("$FILE", 1.0), {"a.py": UNSET}, "same"),
        ("CLIP=1.0\n" + RUN.format("a.py", "$CLIP"), {"a.py": UNSET}, "same"),
        ("CLIP=1.0\n" + RUN.format("a.py", "$CLIP --CLIP=$CLIP CLIP=$CLIP"), {"a.py": UNSET}, "same"),
        ("CLIP=1.0\n[ $BIG ] && CLIP=5.0\n" + RUN.format("a.py", "$CLIP"), {"a.py": UNSET}, "unknown"),
        ("CLIP=1.0\nfor CLIP in 5 6; do\n" + RUN.format("a.py", "$CLIP"), {"a.py": UNSET}, "unknown"),
        ("CLIP=1.0\nread -r CLIP\n" + RUN.format("a.py", "$CLIP"), {"a.py": UNSET}, "unknown"),
    ],
)
def test_a_command_line_has_the_rule_of_the_script_that_it_runs(
    check: Check, command: str, sources: dict[str, str], expected: str
) -> None:
    report = check({"run.sh": command, **sources})
    assert next(clip.result for clip in report.clips if clip.path == "run.sh") == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.yaml", 'command: [python, a.py, --max-grad-norm, "1.0"]\n'),
        ("launch.py", "import os\n\nos.system('python a.py --max-grad-norm 1.0')\n"),
    ],
)
def test_command_lines_in_other_files_have_it_too(check: Check, name: str, text: str) -> None:
    report = check({"a.py": UNSET, name: text})
    assert [clip.result for clip in report.clips if clip.path == name] == ["same"]


PASS = "--max-grad-norm {} "
TWICE = f"python a.py {PASS.format(5.0)}{{}}{PASS.format(1.0)}"


@pytest.mark.parametrize(
    ("command", "results"),
    [
        (TWICE.format(""), ["same"]),
        (TWICE.format("\\\n  --lr 3 ") + "2>&1 | tee log", ["same"]),
        (f"python a.py {PASS.format(1.0)}{PASS.format(5.0)}", ["drift"]),
        (TWICE.format("\npython a.py "), ["drift", "same"]),
        (TWICE.format("; python $FILE "), ["drift", "same"]),
        (TWICE.format("&& python $FILE "), ["drift", "same"]),
        (TWICE.format("# or "), ["drift"]),
        (f"launch {PASS.format(5.0)} a.py {PASS.format(1.0)}", ["drift", "same"]),
        (f"python a.py {PASS.format(5.0)}--max-grad-norm-d 1.0", ["drift", "unknown"]),
    ],
)
def test_the_last_of_repeated_options_applies(check: Check, command: str, results: list[str]) -> None:
    report = check({"run.sh": f"{command}\n", "a.py": UNSET})
    assert [clip.result for clip in report.clips if clip.path == "run.sh"] == results


def test_the_reason_names_the_script_of_an_option_behind_a_configuration(check: Check) -> None:
    report = check({"run.sh": "python train.py config/a.py --grad_clip=0.5\n", "config/a.py": "seed = 1\n"})
    assert only_finding(report).does.startswith("The command passes this option to train.py, which is not checked.")


@pytest.mark.parametrize("option", ["--gradient 2", "--gradient_check 1", "--clip 3"])
def test_other_options_are_no_abbreviations(check: Check, option: str) -> None:
    report = check({"run.sh": f"python a.py {option}\n", "a.py": UNSET})
    assert [clip.path for clip in report.clips] == ["a.py"]
