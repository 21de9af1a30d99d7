"""`unified-clip config check` on clips whose threshold is an option of the command line."""

from __future__ import annotations

import re
import textwrap

import pytest
from support.config.check_files import Check, only_finding

CLIP = "import torch\n\ntorch.nn.utils.clip_grad_norm_(model.parameters(), {})\n"
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
    "argparse": script(PARSER, "args = parser.parse_args()"),
    "known arguments": script(PARSER, "args, rest = parser.parse_known_args()"),
    "another destination": script(
        PARSER.replace("--max-grad-norm", "--clip-norm").replace("type=float", "dest='max_grad_norm'"),
        "args = parser.parse_args()",
    ),
    "a function": script(PARSER, "def get():\n    args = parser.parse_args()\n    return args\n\nargs = get()"),
    "a function with the name of the method": script(
        PARSER, "def parse_args():\n    args = parser.parse_args()\n    return args\n\nargs = parse_args()"
    ),
    "a parameter": script(PARSER, "def main(args):\n    pass\n\nmain(parser.parse_args())"),
    "an attribute": script(
        PARSER, "args = parser.parse_args()\n\ndef set(self, args):\n    self.args = args", "self." + READ
    ),
    "a variable": script(PARSER, f"args = parser.parse_args()\nlimit = {READ}", "limit"),
    "tyro": script(CLASS, "args = tyro.cli(Args)"),
    "a field": script(CLASS.format("field(default={})"), "args = tyro.cli(Args)"),
    "transformers": script(CLASS, "(args,) = HfArgumentParser(Args).parse_args_into_dataclasses()"),
    "an object": script(CLASS, "args = Args()"),
    "Accelerate": script(PARSER, PARSED).replace("torch.nn.utils.", "accelerator."),
    "absl": script(ABSL, "", "FLAGS.max_grad_norm"),
    "absl's holder": script(ABSL.replace("flags.DEF", "LIMIT = flags.DEF"), "", "LIMIT.value"),
    "absl's keywords": script(
        ABSL.replace("'max_grad_norm', {}, ", "default={}, name='max_grad_norm', help="), "", "FLAGS.max_grad_norm"
    ),
    "TensorFlow's flags": script(
        ABSL.replace("from absl import flags", "import tensorflow as tf\n\nflags = tf.app.flags"),
        "",
        "FLAGS.max_grad_norm",
    ),
    "a later parameter": script(
        PARSER, "def main(model, args):\n    pass\n\noptions = parser.parse_args()\nmain(x, options)"
    ),
    "several classes": script(
        CLASS, "parser = HfArgumentParser((Args, Model))\nargs, model = parser.parse_args_into_dataclasses()"
    ),
    "Tap": script(CLASS.replace("Args", "Args(Tap)"), "args = Args().parse_args()"),
    "a derived class": script(CLASS + "class Big(Args):\n    depth: int = 2\n\n\n", "args = tyro.cli(Big)"),
    "other attributes": script(
        PARSER,
        "args = parser.parse_args()\nargs.device = 'cpu'\nsettings = vars(args)\nsettings['n'] = 2\nlog.update(args)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("source", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_clips_by_the_default_of_its_option(check: Check, source: str) -> None:
    (clip,) = check({"a.py": source.format("1.0")}).clips
    assert clip.result == "same"
    assert re.search(r" by default: \S+ is not passed$", clip.clip)
    finding = only_finding(check({"a.py": source.format("5.0")}))
    assert (finding.kind, [each.about for each in finding.differences]) == ("drift", ["threshold"])


UNKNOWN = {
    "no default": script(PARSER.replace(", default={}", ""), PARSED),
    "two defaults": script(PARSER + PARSER, PARSED),
    "another object": script(PARSER, "args = load()"),
    "no parser": script(PARSER, ""),
    "two values": script(PARSER, PARSED + "\nargs = load()"),
    "a list of options": script(PARSER, "args = parser.parse_args(OPTIONS)"),
    "an assignment": script(PARSER, PARSED + "\nargs.max_grad_norm = 5.0"),
    "setattr": script(PARSER, PARSED + "\nsetattr(args, name, 5.0)"),
    "an update": script(PARSER, PARSED + "\nvars(args).update(other)"),
    "set_defaults": script(PARSER, "parser.set_defaults(max_grad_norm=5.0)\n" + PARSED),
    "a changed object": script(CLASS, "args = tyro.cli(Args, default=Args(max_grad_norm=5.0))"),
    "another name": script(PARSER, PARSED, "args.other"),
    "unpacked defaults": script(PARSER, "parser.set_defaults(**settings)\n" + PARSED),
    "a dict of defaults": script(PARSER, "parser.set_defaults(settings)\n" + PARSED),
    "a required option": script(PARSER.replace("default", "required=True, default"), PARSED),
    "an update by keyword": script(PARSER, PARSED + "\nvars(args).update(max_grad_norm=5.0)"),
    "an item": script(PARSER, PARSED + "\nvars(args)[name] = 5.0"),
    "a dict in a variable": script(PARSER, PARSED + "\nsettings = vars(args)\nsettings |= other"),
    "another dict": script(PARSER, PARSED + "\nargs.__dict__ = other"),
    "__setattr__": script(PARSER, PARSED + "\nargs.__setattr__(name, 5.0)"),
    "globals": script(PARSER, PARSED + "\nglobals()['args'] = load()"),
    "exec": script(PARSER, PARSED + "\nexec(open('configurator.py').read())"),
    "an action's default": script(PARSER, "parser.actions[0].default = 5.0\n" + PARSED),
    "a method": script(CLASS, "args = Args()\nargs.load_yaml(path)"),
    "a loop": script(PARSER, PARSED + "\nfor args in sweep:\n    pass"),
    "a walrus": script(PARSER, PARSED + "\nif args := load():\n    pass"),
    "a context": script(PARSER, PARSED + "\nwith load() as args:\n    pass"),
    "a second target": script(PARSER, PARSED + "\nrest, args = load()"),
    "a pattern": script(PARSER, PARSED + "\nmatch load():\n    case args:\n        pass"),
    "an import": script(PARSER, PARSED + "\nfrom settings import args"),
    "a checkpoint": script(PARSER, PARSED + "\nargs = checkpoint.args"),
    "a later parameter": script(PARSER, PARSED + "\n\ndef main(model, args):\n    pass\n\nmain(model, load())"),
    "a keyword": script(PARSER, PARSED + "\n\ndef main(*, args):\n    pass\n\nmain(args=load())"),
    "a constructor": script(
        PARSER,
        PARSED + "\n\nclass A:\n    def __init__(self, args):\n        self.args = args\n\nA(load())",
        "self." + READ,
    ),
    "a lambda": script(PARSER, PARSED + "\nclip = lambda args: None"),
    "an attribute": script(PARSER, PARSED + "\nself.args = load(args)", "self." + READ),
    "an attribute of a base class": script(PARSER, PARSED, "self." + READ),
    "configuration files": script(PARSER.replace("ser()", "ser(default_config_files=['a.conf'])"), PARSED),
    "configargparse": script(PARSER.replace("argparse", "configargparse"), PARSED),
    "tyro's default": script(CLASS, "args = tyro.cli(Args, default=load())"),
    "tyro's arguments": script(CLASS, "args = tyro.cli(Args, args=OPTIONS)"),
    "another class": script(CLASS, "@dataclass\nclass Other(Base):\n    pass\n\nargs = tyro.cli(Other)"),
    "an imported class": script(CLASS, "from settings import Other\n\nargs = tyro.cli(Other)"),
    "a class and a parser": script(CLASS, "args = parser.parse_args()"),
    "an attribute of a class": script(CLASS + "class Big(Args):\n    max_grad_norm = 5.0\n\n\n", "args = Big()"),
    "absl's set_default": script(ABSL, "FLAGS.set_default('max_grad_norm', 5.0)", "FLAGS.max_grad_norm"),
    "absl's item": script(ABSL, "FLAGS['max_grad_norm'].value = 5.0", "FLAGS.max_grad_norm"),
    "absl's holder": script(ABSL.replace("flags.DEF", "LIMIT = flags.DEF"), "FLAGS.max_grad_norm = 5.0", "LIMIT.value"),
    "absl's string": script(ABSL.replace("float", "string"), "", "FLAGS.max_grad_norm"),
}


@pytest.mark.parametrize("source", UNKNOWN.values(), ids=UNKNOWN)
def test_a_threshold_without_a_sure_default_is_unknown(check: Check, source: str) -> None:
    findings = check({"a.py": source.replace("{}", "1.0")}).findings
    (finding,) = (each for each in findings if each.kind == "unknown")
    assert finding.clip == "torch.nn.utils.clip_grad_norm_"
    assert "By default" not in finding.does
    assert all(each.clip == "max_grad_norm = 5.0" for each in findings if each is not finding)


@pytest.mark.parametrize(
    ("option", "default", "shown"), [("max-grad-norm", "0.0", "0.0"), ("clip", "1.0", "1.0"), ("clip", "0.25", "0.25")]
)
def test_a_default_is_named_if_it_may_not_be_the_threshold(check: Check, option: str, default: str, shown: str) -> None:
    """A default of 0 often means that the script does not clip, and no shell script shows that `--clip` is a clip."""
    source = script(PARSER.replace("max-grad-norm", option), PARSED, f"args.{option.replace('-', '_')}")
    finding = only_finding(check({"a.py": source.format(default)}))
    assert finding.kind == "unknown"
    assert finding.does.endswith(f"The default of --{option} is {shown}.")


@pytest.mark.parametrize("names", ['"-c", "--max-grad-norm"', '"--max-grad-norm", "--clip"'])
def test_a_default_is_named_if_one_name_of_the_option_does_not_show_a_clip(check: Check, names: str) -> None:
    finding = only_finding(check({"a.py": script(PARSER.replace('"--max-grad-norm"', names), PARSED).format("1.0")}))
    assert finding.kind == "unknown"
    assert re.search(r"The default of (-c|--clip) is 1\.0\.$", finding.does)


@pytest.mark.parametrize("default", ["10**399", "1" + "0" * 350])
def test_a_default_that_no_float_can_hold_is_unknown(check: Check, default: str) -> None:
    assert only_finding(check({"a.py": script(PARSER, PARSED).format(default)})).kind == "unknown"


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
        (
            RUN.format("a.py", 1.0),
            {"a.py": UNSET.replace("type=float", "type=lambda text: float(text) / 2")},
            "unknown",
        ),
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


@pytest.mark.parametrize(
    ("imported", "change", "expected"),
    [
        ("from tools import prepare", "args.max_grad_norm = 5.0", "unknown"),
        ("import lib.tools", "opts.args.max_grad_norm = 5.0", "unknown"),
        ("from tools import prepare", "self.max_grad_norm = 5.0", "same"),
        ("from tools import prepare", "assert args.max_grad_norm == 5.0", "same"),
        ("from toolset import prepare", "args.max_grad_norm = 5.0", "same"),
    ],
)
def test_the_default_is_unknown_if_an_imported_module_sets_the_option(
    check: Check, imported: str, change: str, expected: str
) -> None:
    source = f"{imported}\n{script(PARSER, PARSED).format('1.0')}"
    other = f"import torch\n\n\ndef prepare(args):\n    {change}\n    torch.nn.utils.clip_grad_norm_(model, 1.0)\n"
    (clip,) = (clip for clip in check({"a.py": source, "tools.py": other}).clips if clip.path == "a.py")
    assert (clip.result, "by default" in clip.clip) == (expected, expected == "same")


def test_the_reason_names_the_script_of_an_option_behind_a_configuration(check: Check) -> None:
    report = check({"run.sh": "python train.py config/a.py --grad_clip=0.5\n", "config/a.py": "seed = 1\n"})
    assert only_finding(report).does.startswith("The command passes this option to train.py, which is not checked.")


@pytest.mark.parametrize("option", ["--gradient 2", "--gradient_check 1", "--clip 3"])
def test_other_options_are_no_abbreviations(check: Check, option: str) -> None:
    report = check({"run.sh": f"python a.py {option}\n", "a.py": UNSET})
    assert [clip.path for clip in report.clips] == ["a.py"]
