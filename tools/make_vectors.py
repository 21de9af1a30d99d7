"""Write the conformance vectors in conformance/, from its cases and the parity suite's exact results."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unified_clip.parity.judge import oracle
from unified_clip.parity.judge.oracle import Expected
from unified_clip.parity.suite import cases, schema
from unified_clip.parity.suite.case import Case
from unified_clip.tensors.types import Gradient, Sparse

VECTORS = Path(__file__).parents[1] / "conformance"

NORM_ULPS, GRADIENT_ULPS = 1, 3
"""The largest accepted errors of the norm and of the clipped gradients, for norm types other than 1, 2 and inf."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vectors", type=Path, default=VECTORS, help="the directory (default: conformance)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is stale")
    options = parser.parse_args(arguments)
    stale = []
    for name, text in files(options.vectors).items():
        path = options.vectors / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not options.check:
                path.write_text(text, encoding="utf-8")
    if options.check and stale:
        print(f"stale: {', '.join(stale)}; run tools/make_vectors.py", file=sys.stderr)
    return int(options.check and bool(stale))


def files(directory: Path) -> dict[str, str]:
    shared = directory / "cases/shared.toml"
    sources = sorted(path for path in directory.glob("cases/*.toml") if path != shared)
    return {
        f"{path.stem}.json": _file(
            path, cases.build([(file, schema.read(file, schema.CasesFile)) for file in (shared, path)], {})
        )
        for path in sources
    }


def _file(source: Path, file_cases: Sequence[Case]) -> str:
    """Each vector is on one line, so that grep finds it."""
    comment = [line[2:] for line in source.read_text(encoding="utf-8").split("\n\n")[0].splitlines()]
    lines = ",\n".join(json.dumps(vector(case)) for case in file_cases)
    return f'{{"about": {json.dumps(" ".join(comment))},\n"vectors": [\n{lines}\n]}}\n'


def vector(case: Case) -> dict[str, Any]:
    p = case.arguments.get("norm_type", 2)
    is_close = not case.options.raises and p not in (1, 2, math.inf)
    return {
        "name": case.name,
        "call": case.call_name,
        "arguments": {name: _argument(value) for name, value in case.arguments.items()},
        "gradients": [_gradient(gradient) for gradient in case.gradients],
        **({"need_clip": list(case.call_form.need_clip)} if case.call_form.need_clip else {}),
        **({"groups": list(case.call_form.groups)} if case.call_form.groups else {}),
        **({"subnormal": True} if case.options.subnormal else {}),
        **({"ulps": {"norm": NORM_ULPS, "gradients": GRADIENT_ULPS}} if is_close else {}),
        "expected": {"raises": case.options.raises} if case.options.raises else _expected(case, oracle.expect(case)),
    }


def _argument(value: float | bool | str | Sequence[int]) -> Any:
    return value if isinstance(value, bool | str | list) else written(value)


def _expected(case: Case, right: Expected) -> dict[str, Any]:
    expected: dict[str, Any] = {}
    if right.norm is not None:
        expected["norm"] = {"dtype": right.norm.dtype, "value": written(float(right.norm.values()))}
    if right.gradients is not None:
        expected["gradients"] = [_gradient(gradient) for gradient in right.gradients]
    return expected


def _gradient(gradient: Gradient) -> dict[str, Any] | None:
    if gradient is None:
        return None
    dense = gradient.values if isinstance(gradient, Sparse) else gradient
    rows = {"rows": gradient.rows.tolist()} if isinstance(gradient, Sparse) else {}
    values = [written(value) for value in dense.values().reshape(-1).tolist()]
    return {"dtype": gradient.dtype, "shape": list(gradient.shape), **rows, "values": values}


def written(value: float) -> str:
    return re.sub(r"\.?0*p", "p", float(value).hex())


if __name__ == "__main__":
    sys.exit(main())
