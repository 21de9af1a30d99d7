"""Every error of a command has a code, and the page of each code shows a message that a command prints."""

from __future__ import annotations

import ast
import importlib.util
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from support import syntax
from support.parity.cases import ONE_CASE, suite
from support.terminal import on_a_terminal
from support.tiers import sampled

import unified_clip
from unified_clip import _command, cli
from unified_clip._command import codes, statuses
from unified_clip._kit import atomic_files, install
from unified_clip.errors import ClipWarning

PACKAGE = Path(unified_clip.__file__).parent
CODES = codes.read()
CLIP = 'rule = "global_norm"\nthreshold = 1.0\n'
STEP = """
def step(weights, batches):
    for x in batches:
        yield weights, weights
"""
STEPS = {"old.py": STEP, "new.py": STEP}

Patch = pytest.MonkeyPatch


# -- one command for each code


def _arrays(_: Patch) -> None:
    np.savez("init.npz", weight=np.ones(2, np.float32))
    np.savez("batches.npz", x=np.ones((2, 1), np.float32))
    np.savez("uneven.npz", x=np.ones((2, 1), np.float32), y=np.ones(3, np.float32))


def _without_shtab(patch: Patch) -> None:
    find_spec = importlib.util.find_spec

    def found(name: str, *rest: str) -> object:
        return None if name == "shtab" else find_spec(name, *rest)

    patch.setattr(importlib.util, "find_spec", found)
    patch.setattr(install, "command", "pip install './unified_clip[{}]'".format)


def _full_disk(patch: Patch) -> None:
    def write(path: Path, _: bytes) -> Path:
        raise OSError(28, "No space left on device", path.name)

    patch.setattr(atomic_files, "write_beside", write)


def _private(patch: Patch) -> None:
    stat = os.stat

    def denied(path: object, *more: object, **options: object) -> object:
        if "private" in str(path):  # root may read every directory
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *more, **options)  # type: ignore[arg-type]

    patch.setattr(os, "stat", denied)


def _no_calls(_: Patch) -> None:
    with pytest.warns(ClipWarning, match="No clip calls"), unified_clip.record("run.jsonl"):
        pass


def _large(patch: Patch) -> None:
    np.savez_compressed("g.npz", weight=np.zeros(500_000, np.float32))
    patch.setenv("UNIFIED_CLIP_MAX_BYTES", "1MiB")


def _elsewhere(_: Patch) -> None:
    gradients = (
        "[[gradients]]\nname = 'g'\nfile = 'g.pt'\n[[cases]]\ngradients = ['g']\ncalls = [{call = 'global_norm'}]"
    )
    suite(Path("parity"), gradients, frameworks="[frameworks.torch]\npython = 'nowhere/bin/python'\nmodes = ['host']")


def _bug(patch: Patch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError

    patch.setattr(codes, "listing", fail)


VERIFY = "verify old.py:step new.py:step --weights init.npz --batches batches.npz"
COMMANDS: Mapping[str, tuple[str, dict[str, str], Callable[[Patch], None] | None]] = {
    "UC101": ("explain clip.toml", {}, None),
    "UC102": ("explain clip.toml", {"clip.toml": "rule = global_norm\n"}, None),
    "UC103": (
        "config import train.yaml",
        {"train.yaml": "max_grad_norm: 1.0\neval_strategy: steps\ntrainer:\n  max_epochs: 3\n"},
        None,
    ),
    "UC104": ("explain clip.toml", {"clip.toml": f"{CLIP}treshold = 2.0\n"}, None),
    "UC105": ("explain run.yaml --from timm", {"run.yaml": "train:\n  clip_grad: 1.0\n"}, None),
    "UC106": (
        "config import train.yaml",
        {"train.yaml": "trainer:\n  max_epochs: 3\n  gradient_clip_val: ${oc.env:CLIP}\n"},
        None,
    ),
    "UC107": ("config export clip.toml --to lightning", {"clip.toml": f'{CLIP}exclude = ["*.bias"]\n'}, None),
    "UC108": ("config check clip.toml docs", {"clip.toml": CLIP, "docs/a.md": ""}, None),
    "UC201": ("comapre old.jsonl new.jsonl", {}, None),
    "UC202": ("port train.py --force", {}, None),
    "UC203": ("compare old.jsonl new.jsonl --max-ulp -1", {}, None),
    "UC204": ("completion bash", {}, _without_shtab),
    "UC205": ("config import clip.toml --out clips/clip.yaml", {"clip.toml": CLIP}, None),
    "UC206": ("config import clip.toml --out clip.toml", {"clip.toml": CLIP}, None),
    "UC207": ("compare private/old.jsonl new.jsonl", {"private/old.jsonl": ""}, _private),
    "UC301": ("parity", {}, None),
    "UC303": ("parity --accept --suite parity", {"parity/suite.toml": f"{ONE_CASE}\n[frameworks.numpy]\n"}, None),
    "UC401": ("port docs", {"docs/a.md": ""}, None),
    "UC402": ("port train.py --write", {"train.py": "import torch\ntorch.nn.utils.clip_grad_norm_(p, 1.0)\n"}, None),
    "UC403": (
        "port train.py --write --force",
        {"train.py": "import torch\ntorch.nn.utils.clip_grad_norm_(p, 1.0)\n"},
        _full_disk,
    ),
    "UC501": ("compare old.jsonl new.jsonl", {"old.jsonl": '{"loss": 1.0}\n'}, None),
    "UC502": ("compare run.jsonl run.jsonl", {}, _no_calls),
    "UC503": ("compare a.jsonl b.jsonl --map names.toml", {"names.toml": 'fc.weight = "dense.weight"\n'}, None),
    "UC504": ("record run.jsonl -- pyhton train.py", {}, None),
    "UC601": (VERIFY.replace("old.py:step", "old.py"), STEPS, _arrays),
    "UC602": (VERIFY.replace("batches.npz", "uneven.npz"), STEPS, _arrays),
    "UC603": (VERIFY, STEPS, _arrays),
    "UC604": (
        VERIFY,
        {"old.py": STEP, "new.py": STEP.replace("yield weights, weights", "yield {'bias': x['x']}, {}")},
        _arrays,
    ),
    "UC605": (
        VERIFY,
        {"old.py": f"import os\n{STEP.replace('yield weights, weights', 'os._exit(9)')}", "new.py": STEP},
        _arrays,
    ),
    "UC701": ("parity init g.npz", {"g.npz": "damaged"}, None),
    "UC702": ("parity init g.npz", {}, _large),
    "UC703": ("parity", {"parity/g.pt": "weights"}, _elsewhere),
    "UC901": ("help errors", {}, _bug),
}
"""For each code: a command that ends with this code, the files that the command finds, and a function that prepares the
test."""


@pytest.mark.parametrize("code", sorted({*CODES, *COMMANDS}))
def test_the_example_of_a_code_is_what_a_command_prints(
    code: str, tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command, files, prepare = COMMANDS[code]
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    if prepare:
        prepare(monkeypatch)
    try:
        status = cli.main(command.split())
    except SystemExit as end:  # argparse
        status = end.code
    printed = capsys.readouterr()
    assert printed.out == ""
    message = printed.err.splitlines()[-1].replace(f"{tmp_path}/", "")
    assert message == CODES[code].message
    assert status == {"UC504": statuses.NOT_FOUND, "UC605": statuses.INCOMPLETE, "UC901": statuses.BROKEN}.get(
        code, statuses.REJECTED
    )


# -- no error without a code


FILES = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}


def test_the_list_of_codes_is_complete_and_in_order() -> None:
    assert list(CODES) == sorted(CODES)
    for code in CODES.values():
        assert re.fullmatch(r"UC[1-9]\d\d", code.code)
        assert code.group
        assert code.remedies
        for text in (code.title, code.explanation, *code.remedies):
            assert text.rstrip("`").endswith((".", ":")) or "`" in text, text


def test_the_source_uses_every_code_and_no_other() -> None:
    used = {
        node.value
        for path in FILES.values()
        for node in syntax.nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"UC\d+", node.value)
    }
    assert used == set(CODES)


INTERNAL = {
    "check/python/notebooks.py: NotebookError",
    "_kit/parse.py: UnreadableSourceError",
    "facts/trainer_rows.py: RowError",
    "_kit/static_values.py: UnknownValueError",
    "bench/cuda.py: NoDeviceError",
    "config/documents/keys.py: ParseError",
    "parity/adapters/base.py: FunctionsMissingError",
    "parity/old_releases/frameworks.py: NotAvailableError",
    "parity/workers/user_function.py: UserFunctionError",
    "source/values.py: _EndedError",
    "source/values.py: _UnknownError",
    "verify/errors.py: InvalidStepError",
}
"""Exceptions that other code catches before a command ends. It turns them into an error with a code, or into a part of
a report."""

PUBLIC = {
    "errors.py: ClipWarning",
    "errors.py: NonFiniteNormError",
    "errors.py: NothingClippedError",
    "errors.py: PartlyClippedError",
}
"""Exceptions of the functions for training scripts. No command raises them."""


def test_every_exception_has_a_code_or_is_listed_as_internal() -> None:
    """An exception with neither ends a command as a bug, UC901."""
    bases = {
        f"{name}: {node.name}": [ast.unparse(base) for base in node.bases]
        for name, path in FILES.items()
        for node in syntax.nodes(path)
        if isinstance(node, ast.ClassDef)
    }
    exceptions = {name for name, parents in bases.items() if re.search("(Error|Exception|Warning)$", " ".join(parents))}
    assert len(exceptions) > 15
    coded: set[str] = set()
    names = {"CodedError"}
    while result := {name for name in exceptions - coded if names & {*bases[name]}}:
        coded |= result
        names |= {name.partition(": ")[2] for name in result}
    assert exceptions - coded == {*INTERNAL, *PUBLIC, "_kit/coded_error.py: CodedError"}


def test_an_error_of_another_kind_has_its_own_code_also_after_pickling() -> None:
    error = unified_clip.errors.ConfigError("message", "UC101")
    for same in (error, pickle.loads(pickle.dumps(error))):
        assert (str(same), same.code, same.exit_status) == ("message", "UC101", 2)
    assert unified_clip.errors.ConfigError("message").code == "UC104"
    assert unified_clip.errors.NotRepresentableError("message").code == "UC107"


# -- output


ERROR = [sys.executable, "-P", "-m", "unified_clip", "explain", "missing.toml"]
EXPLANATION = f"Explanation: {sys.executable} -m unified_clip help UC101"
MESSAGE = (
    "unified-clip: error UC101: missing.toml cannot be read: No such file or directory. Correct the path, or pass "
    "another path."
)
RED = MESSAGE.replace("error UC101:", "\x1b[1;31merror UC101:\x1b[0m")


@pytest.mark.parametrize(
    ("settings", "expected"),
    sampled(
        [
            ({}, f"{RED}\n\x1b[2m{EXPLANATION}\x1b[0m\n"),
            ({"NO_COLOR": "1"}, f"{MESSAGE}\n{EXPLANATION}\n"),
            ({"TERM": "dumb"}, f"{MESSAGE}\n{EXPLANATION}\n"),
            ({"NO_COLOR": ""}, f"{RED}\n\x1b[2m{EXPLANATION}\x1b[0m\n"),
        ],
        2,
    ),
)
def test_an_error_on_a_terminal_has_colours_and_the_command_that_explains_it(
    settings: dict[str, str], expected: str, tmp_path: Path
) -> None:
    assert on_a_terminal(ERROR, tmp_path, PATH="", **settings) == (2, expected)


@pytest.mark.parametrize(("settings", "expected"), [({}, MESSAGE), ({"FORCE_COLOR": "1"}, RED)])
def test_an_error_elsewhere_is_one_plain_line(settings: dict[str, str], expected: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    ended = subprocess.run(
        ERROR, cwd=tmp_path, env={**environment, **settings}, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"{expected}\n")


# -- the pages


@pytest.mark.parametrize("columns", ["20", "40", "100", "300"])
def test_help_prints_the_page_of_a_code_in_the_width_of_the_terminal(
    columns: str, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for code in CODES.values():
        assert cli.main(["help", code.code.lower()]) == 0
        page = capsys.readouterr().out
        words = page.split()
        for text in (f"{code.code}: {code.title}", code.explanation, *code.remedies, code.message):
            assert " ".join(text.split()) in " ".join(words)
        longest_word = max(map(len, words)) + 4
        assert max(map(len, page.splitlines())) <= max(min(int(columns), 100), longest_word)


def test_help_lists_the_codes_and_the_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "errors"]) == 0
    printed = capsys.readouterr().out
    assert re.findall(r"^  (UC\d+)  ", printed, re.MULTILINE) == list(CODES)
    assert [line for line in printed.splitlines() if not line.startswith(" ")] == list(codes.GROUPS.values())
    assert cli.main(["help", "exit-status"]) == 0
    assert re.findall(r"^  (\d+) ", capsys.readouterr().out, re.MULTILINE) == [str(key) for key in statuses.GENERAL]


@pytest.mark.parametrize("command", ["compare", "config import", "parity init"])
def test_help_prints_the_help_of_a_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", *command.split()]) == 0
    printed = capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--help"])
    assert printed == capsys.readouterr().out
    assert printed.startswith(f"usage: unified-clip {command} ")


def test_help_without_a_topic_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n    {name}" in printed for name, _ in _command.subcommands(cli._parser()) if " " not in name)


LIST = "List the error codes: unified-clip help errors"


@pytest.mark.parametrize(
    ("topic", "hint"),
    [
        ("comapre", "Did you mean compare?"),
        ("import", "Did you mean config import?"),
        ("UC999", f"List the commands: unified-clip help. {LIST}"),
    ],
)
def test_an_unknown_topic_is_an_error(topic: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", topic]) == 2
    assert capsys.readouterr() == ("", f"unified-clip: error UC203: there is no topic {topic!r}. {hint}\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("", "UC201", "the following arguments are required: COMMAND."),
        ("compare a", "UC201", "the following arguments are required: B."),
        ("compare a b --map", "UC201", "argument --map: expected one argument."),
        ("compare a b --max-ulp=x", "UC203", "argument --max-ulp: invalid float value: 'x'"),
        ("explain a --format=xml", "UC203", "argument --format: invalid choice: 'xml' (choose from 'text', 'json')"),
        ("explain a --json --format=text", "UC202", "argument --format: not allowed with argument --json."),
        ("explain a --formt=json", "UC201", "unrecognized arguments: --formt=json. Did you mean --format?"),
        ("compare a b c", "UC201", "unrecognized arguments: c. List the arguments: unified-clip compare --help"),
        ("config exprt a", "UC201", "there is no command 'config exprt'. Did you mean config export?"),
        ("config explain a", "UC201", "there is no command 'config explain'. Did you mean explain?"),
        ("config nothing", "UC201", "there is no command 'config nothing'. Choose from import, export, check."),
        ("parity mysuite", "UC201", "there is no command 'parity mysuite'. To run a suite, pass its path to --suite."),
        ("record a python b.py", "UC201", "unrecognized arguments: python b.py. Put -- before the command, for "),
        ("record a python -- b.py", "UC201", "unrecognized arguments: python. Put -- before the command, for example"),
        ("record a --nrms -- b", "UC201", "unrecognized arguments: --nrms. Did you mean --norms?"),
        ("import", "UC201", "there is no command 'import'. Did you mean config import?"),
        ("exprt", "UC201", "there is no command 'exprt'. Did you mean config export?"),
        ("nothing", "UC201", "there is no command 'nothing'. Choose from parity, "),
    ],
)
def test_an_error_of_the_command_line_has_the_usage_of_its_command(
    arguments: str, code: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments.split())
    out, errors = capsys.readouterr()
    usage, error = errors.splitlines()[0], errors.splitlines()[-1]
    assert out == ""
    assert error.startswith(f"unified-clip: error {code}: {message}")
    named = arguments.split()[:1] if code != "UC201" or " " in arguments else []
    assert usage.startswith(" ".join(["usage: unified-clip", *named]))
