"""The command `unified-clip verify OLD NEW`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._command import DIFFERENT, INTERRUPTED, SUCCESS, UsageError, add_format
from .._display import complain
from .._progress import progress
from .._scratch import Scratch

if TYPE_CHECKING:
    from .compare import Verification

DEFAULTS: Mapping[str, Any] = {
    "weights": None,
    "batches": None,
    "steps": None,
    "map": None,
    "python_old": None,
    "python_new": None,
    "max_ulp": 0.0,
    "resync": False,
    "out": None,
    "timeout": 600.0,
}
"""The defaults of all options except `--format`. In the parser, the default is None, so that any other value is from
the user."""


def add_parser(commands: Any) -> None:
    verify = commands.add_parser(
        "verify",
        help="run an old and a new training step, and compare their clipping",
        description="Run two training steps on the same weights and batches, each in its own process. Compare norms, "
        "coefficients, clipped gradients and updates, and explain the first difference.",
    )
    for side in ("old", "new"):
        verify.add_argument(side, metavar=side.upper(), help=f"the {side} training step, as in {side}.py:step")
    add_options(verify)
    add_format(verify, "text", "json", old=["json"])
    verify.set_defaults(run=run)


def add_options(parser: argparse.ArgumentParser, *, hidden: bool = False) -> None:
    def add(name: str, description: str, **settings: Any) -> None:
        parser.add_argument(name, help=argparse.SUPPRESS if hidden else description, **settings)

    add("--weights", "initial weights by name: .npz, .safetensors, .pt, ... (required)", type=Path, metavar="FILE")
    add(
        "--batches",
        ".npz file of arrays. The first axis of each array is the step, or each array is named STEP/NAME (required)",
        type=Path,
        metavar="FILE",
    )
    add("--steps", "run only the first N batches (default: all)", type=int, metavar="N")
    add("--map", 'TOML file of parameter names, "old name" = "new name"', type=Path, metavar="FILE")
    for side in ("old", "new"):
        add(f"--python-{side}", f"interpreter for {side.upper()} (default: this one)", metavar="PYTHON")
    add(
        "--max-ulp",
        f"ignore differences of up to N units in the last place (default: {DEFAULTS['max_ulp']:g})",
        type=float,
        metavar="N",
    )
    add("--resync", "after each step, copy the weights of OLD into NEW", action="store_true", default=None)
    add("--out", "keep both recordings and all tensors in this directory", type=Path, metavar="DIR")
    add(
        "--timeout",
        f"seconds for both processes together (default: {DEFAULTS['timeout']:g})",
        type=float,
        metavar="SECONDS",
    )


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
    from ..recording.pairs.parameters import read_names
    from ..tensors.types import from_numpy
    from .compare import compare_steps
    from .launch import run
    from .launch.input_files import read_batches, read_weights
    from .launch.script import parse_script

    passed = {name: value for name in DEFAULTS if (value := getattr(options, name)) is not None}
    chosen = argparse.Namespace(**{**DEFAULTS, **passed})
    for name in ("weights", "batches"):
        if name not in passed:
            message = f"--{name} is missing: both steps need it. Pass --{name} FILE, as docs/verify.md describes."
            raise UsageError(message, "UC201")
    if not chosen.max_ulp >= 0:
        raise UsageError(f"--max-ulp is {chosen.max_ulp}. Pass 0 or more.", "UC203")
    if not chosen.timeout > 0:
        raise UsageError(f"--timeout is {chosen.timeout}. Pass a number of seconds above 0.", "UC203")
    old = parse_script("old", options.old, chosen.python_old)
    new = parse_script("new", options.new, chosen.python_new)
    names = read_names(chosen.map) if chosen.map else None
    (scratch / "weights").mkdir()
    weights = read_weights(chosen.weights, scratch / "weights")
    batches = read_batches(chosen.batches, chosen.steps)
    out = run.make_directory(chosen.out) if chosen.out else scratch
    resync = {**(names or {})} if chosen.resync else None
    steps = len(batches)
    with progress({"old": steps, "new": steps}) as advance:
        runs = run.run([old, new], weights, batches, out, chosen.timeout, resync=resync, advance=advance)
    rerun = partial(run.run_transposed, new, weights, batches[:1], scratch / "again", chosen.timeout)
    tensors = {name: from_numpy(array) for name, array in weights.items()}
    return compare_steps(*runs, weights=tensors, steps=steps, out=out, names=names, max_ulp=chosen.max_ulp, rerun=rerun)
