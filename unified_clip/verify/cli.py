"""`unified-clip port --verify old.py:step new.py:step`: its options, and what it does."""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from .._display import complain

if TYPE_CHECKING:
    from .compare import Verified

REFUSED, CRASHED, INTERRUPTED = 2, 3, 130
"""Exit statuses: a file or the command is wrong; a process crashed or hung; somebody ended it."""

SECONDS = 600.0

OPTIONS = ("weights", "batches", "steps", "map", "python_old", "python_new", "max_ulp", "out", "timeout")
"""Options that apply to `--verify` alone. None is their default: whether one was passed can then be seen."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `--verify`, but for `--json`, which other forms of the command have too."""
    group = parser.add_argument_group("running an old and a new training step")
    group.add_argument("--verify", nargs=2, metavar=("OLD", "NEW"), help="two functions, as in old.py:step new.py:step")
    group.add_argument("--weights", type=Path, help="the initial weights by name: .npz, .safetensors, .pt, ...")
    group.add_argument("--batches", type=Path, help="an .npz file of arrays whose first axis is the step")
    group.add_argument("--steps", type=int, help="take the first so many batches (default: all)")
    group.add_argument("--map", type=Path, help='a TOML file of "name in the old" = "name in the new"')
    for side in ("old", "new"):
        group.add_argument(f"--python-{side}", metavar="PYTHON", help=f"the interpreter for the {side} (default: this)")
    group.add_argument("--max-ulp", type=float, help="up to so many units in the last place are the same (default: 0)")
    group.add_argument("--out", type=Path, metavar="DIR", help="keep both recordings and the tensors in a directory")
    group.add_argument("--timeout", type=float, help="seconds for both (default: 600)")


def run(options: argparse.Namespace) -> int:
    """Exit status: 0 the same; 1 they part; 2 a file or the command is wrong; 3 a process crashed or hung."""
    from ..recording.runs import RunError
    from . import report
    from .run import VerifyError, WorkerError

    try:
        with ExitStack() as stack:
            found = _verify(options, stack)
            if options.json:
                print(json.dumps(report.as_data(found), indent=1, allow_nan=False))
            else:
                report.show(found)
    except (VerifyError, RunError) as error:
        return _end(str(error), REFUSED)
    except WorkerError as error:
        return _end(str(error), CRASHED)
    except KeyboardInterrupt:
        return _end("interrupted; both processes were ended", INTERRUPTED)
    return 0 if found.is_same else 1


def _verify(options: argparse.Namespace, stack: ExitStack) -> Verified:
    from ..recording.compare import read_names
    from ..tensors.files.entries import from_array
    from . import run
    from .compare import compare_steps
    from .run import VerifyError

    for name in ("weights", "batches"):
        if getattr(options, name) is None:
            raise VerifyError(f"--verify needs --{name}: both functions are run on the same; docs/verify.md says how")
    max_ulp = 0.0 if options.max_ulp is None else options.max_ulp
    timeout = SECONDS if options.timeout is None else options.timeout
    if not max_ulp >= 0:
        raise VerifyError(f"--max-ulp is {max_ulp}; it must be 0 or more")
    if not timeout > 0:
        raise VerifyError(f"--timeout is {timeout}; it must be more than 0")
    pythons = (options.python_old, options.python_new)
    scripts = [
        run.script(side, text, python)
        for side, text, python in zip(("old", "new"), options.verify, pythons, strict=True)
    ]
    names = read_names(options.map) if options.map else None
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unified_clip_verify_")))
    (scratch / "weights").mkdir()
    weights = run.read_weights(options.weights, scratch / "weights")
    batches = run.read_batches(options.batches, options.steps)
    out = _directory(options.out) if options.out else scratch
    ran = run.run(scripts, weights, batches, out, timeout)
    held = {name: from_array(each) for name, each in weights.items()}
    steps = len(next(iter(batches.values())))
    return compare_steps(*ran, weights=held, steps=steps, out=out, names=names, max_ulp=max_ulp)


def _directory(path: Path) -> Path:
    from .run import VerifyError

    for name in ("old", "new", "old.jsonl", "new.jsonl"):
        if (path / name).exists():
            raise VerifyError(f"{path / name} is there already; name another directory with --out, or remove it")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise VerifyError(f"{path} cannot be written: {error.strerror}; name another directory with --out") from None
    return path


def _end(message: str, status: int) -> int:
    complain(message)
    return status
