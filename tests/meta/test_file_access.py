"""Only `atomic_files` opens files, and only `parse` parses Python: their guards hold for every reader and writer."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support import syntax

import unified_clip

PACKAGE = Path(unified_clip.__file__).parent

METHODS = ("open", "fdopen", "read_text", "read_bytes", "write_text", "write_bytes")
FUNCTIONS = (
    "open", "ast.parse", "json.dump", "pickle.dump", "np.load", "np.save", "np.savez",
    "np.savez_compressed", "np.fromfile", "np.memmap", "tempfile.NamedTemporaryFile", "ZipFile", "zipfile.ZipFile",
)  # fmt: skip
DRAWN = ("savefig", "tofile")

SCRATCH = "a file in a temporary directory of the command, which an error removes"
OPEN = "takes a file that `atomic_files` has opened"
OWN = "not a file of the user"

EXCEPTIONS = {
    "_kit/display.py: open": OWN,
    "_kit/install.py: metadata.distribution('unified_clip').read_text": OWN,
    "_kit/scratch.py: os.open": "the lock of a temporary directory",
    "bench/measure.py: (PROCESS / 'clear_refs').write_text": OWN,
    "bench/run.py: path.open": SCRATCH,
    "bench/worker.py: os.fdopen": "standard output",
    "parity/old_releases/worker.py: (options.job / 'job.json').read_text": "runs in old environments",
    "parity/old_releases/worker.py: (options.out / 'current.jsonl').open": SCRATCH,
    "parity/old_releases/worker.py: np.memmap": "runs in old environments",
    "parity/old_releases/worker.py: part.write_text": SCRATCH,
    "parity/old_releases/worker.py: path.open": SCRATCH,
    "parity/workers/worker.py: (out / 'current.jsonl').open": SCRATCH,
    "parity/workers/worker.py: (out / f'{number}.{memmap.TENSORS}').open": SCRATCH,
    "parity/workers/worker_files.py: (job / memmap.TENSORS).open": SCRATCH,
    "recorder/process.py: (directory / f'{os.getpid()}{STARTED}').write_text": "runs in old environments",
    "recorder/process.py: (self.path / f'{os.getpid()}{NOTES}').open": "appends while the training runs",
    "recorder/process.py: path.open": "appends while the training runs",
    "recorder/startup/sitecustomize.py: notes.open": "runs before the package can be imported",
    "recording/command.py: os.open": "the terminal",
    "suggest.py: figure.savefig": "draws into memory",
    "tensors/files/formats.py: archive.open": OPEN,
    "tensors/files/formats.py: zipfile.ZipFile": OPEN,
    "tensors/files/memmap.py: (directory / TENSORS).open": SCRATCH,
    "tensors/files/memmap.py: np.memmap": OPEN,
    "verify/launch/input_files.py: np.load": OPEN,
    "verify/launch/run.py: np.savez": SCRATCH,
    "verify/launch/worker.py: np.load": SCRATCH,
}
"""{place: why the call needs no guard}."""


def direct_accesses(nodes: list[ast.AST]) -> set[str]:
    calls = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
    return {call for call in calls if call in FUNCTIONS or _is_method(*call.rpartition(".")[::2])}


def _is_method(owner: str, name: str) -> bool:
    return bool(owner) and owner not in ("atomic_files", "documents") and name in (*METHODS, *DRAWN)


def test_files_are_read_and_written_in_one_place() -> None:
    paths = [path for path in PACKAGE.rglob("*.py") if path.name not in ("atomic_files.py", "parse.py")]
    assert len(paths) > 100
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}: {call}"
        for path in paths
        for call in direct_accesses(syntax.nodes(path))
    }
    assert sorted(found) == sorted(EXCEPTIONS), "read and write with _kit.atomic_files, and parse with _kit.parse"


@pytest.mark.parametrize(
    "code",
    [
        "open('a', 'w')", "Path('a').open()", "path.write_text('')", "path.read_bytes()", "json.dump(data, file)",
        "np.save(path, array)", "figure.savefig(path)", "ast.parse(text)",
    ],
)  # fmt: skip
def test_a_direct_access_is_found(code: str) -> None:
    assert direct_accesses([*ast.walk(ast.parse(code))])


def slow_patterns(nodes: list[ast.AST]) -> list[str]:
    """Return the patterns that read the same blank lines again from each line."""
    calls = [node for node in nodes if isinstance(node, ast.Call) and "re.MULTILINE" in ast.unparse(node)]
    constants = [node.value for call in calls for node in ast.walk(call) if isinstance(node, ast.Constant)]
    return [f"{text!r}" for text in constants if isinstance(text, str | bytes) and "^\\s*" in str(text)]


def test_no_pattern_takes_quadratic_time_for_blank_lines() -> None:
    assert slow_patterns([*ast.walk(ast.parse(r"re.compile(r'^\s*a', re.MULTILINE)"))])
    found = {path.name: patterns for path in PACKAGE.rglob("*.py") if (patterns := slow_patterns(syntax.nodes(path)))}
    assert not found, r"write ^[ \t]*, because \s also matches line breaks"
