"""The command `unified-clip verify OLD NEW`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._command import DIFFERENT, INTERRUPTED, SUCCESS, UsageError, add_format
from .._command.progress import progress
from .._kit.display import complain
from .._kit.scratch import Scratch

if TYPE_CHECKING:
    from .compare import Verification


def add_parser(commands: Any) -> None:
    verify = commands.add_parser(
        "verify",
        help="run an old and a new training step, and compare their clipping",
        description="Run an old and a new training step on the same weights and batches, each in its own process. "
        "Compare norms, coefficients, clipped gradients and updates, and explain the first difference.",
    )
    for side in ("old", "new"):
        verify.add_argument(side, metavar=side.upper(), help=f"the {side} training step, as in {side}.py:step")
    verify.add_argument(
        "--weights",
        help="file of named initial weights, such as .npz, .safetensors or .pt (required)",
        type=Path,
        metavar="FILE",
    )
    verify.add_argument(
        "--batches",
        help=".npz file of arrays. The first axis of each array is the step, or each array is named STEP/NAME "
        "(required)",
        type=Path,
        metavar="FILE",
    )
    verify.add_argument("--steps", help="run only the first N batches (default: all)", type=int, metavar="N")
    verify.add_argument(
        "--map", help='TOML file of parameter names, "old name" = "new name"', type=Path, metavar="FILE"
    )
    for side in ("old", "new"):
        verify.add_argument(
            f"--python-{side}",
            help=f"Python interpreter for {side.upper()} (default: the interpreter of this command)",
            metavar="PYTHON",
        )
    verify.add_argument(
        "--max-ulp",
        help="ignore differences of up to N units in the last place (default: 0)",
        type=float,
        metavar="N",
        default=0.0,
    )
    verify.add_argument(
        "--out", help="keep both recordings and all tensors in this directory", type=Path, metavar="DIR"
    )
    verify.add_argument(
        "--timeout",
        help="stop with an error if a process still runs after this many seconds (default: 600)",
        type=float,
        metavar="SECONDS",
        default=600.0,
    )
    add_format(verify, "text", "json", old=["json"])
    verify.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from . import report

    try:
        with Scratch("verify") as scratch:
            result = _verify(options, scratch.path)
            if options.format == "json":
                print(json.dumps(report.as_data(result), indent=1, allow_nan=False))
            else:
                report.show(result)
        return SUCCESS if result.is_same else DIFFERENT
    except KeyboardInterrupt:
        complain("interrupted. Both processes were ended.")
        return INTERRUPTED


def _verify(options: argparse.Namespace, scratch: Path) -> Verification:
    from ..compare.parameter_names import read_names
    from ..tensors.types import from_numpy
    from .compare import compare_steps
    from .launch import run
    from .launch.input_files import read_batches, read_weights
    from .launch.script import parse_script

    for name in ("weights", "batches"):
        if getattr(options, name) is None:
            message = f"--{name} is missing: both steps need it. Pass --{name} FILE, as docs/verify.md describes."
            raise UsageError(message, "UC201")
    if not options.max_ulp >= 0:
        raise UsageError(f"--max-ulp is {options.max_ulp}. Pass 0 or more.", "UC203")
    if not options.timeout > 0:
        raise UsageError(f"--timeout is {options.timeout}. Pass a number of seconds above 0.", "UC203")
    old = parse_script("old", options.old, options.python_old)
    new = parse_script("new", options.new, options.python_new)
    names = read_names(options.map) if options.map else None
    (scratch / "weights").mkdir()
    weights = read_weights(options.weights, scratch / "weights")
    batches = read_batches(options.batches, options.steps)
    out = run.make_directory(options.out) if options.out else scratch
    steps = len(batches)
    with progress({"old": steps, "new": steps}) as advance:
        runs = run.run([old, new], weights, batches, out, options.timeout, advance=advance)
    tensors = {name: from_numpy(array) for name, array in weights.items()}
    return compare_steps(*runs, weights=tensors, steps=steps, names=names, max_ulp=options.max_ulp)
