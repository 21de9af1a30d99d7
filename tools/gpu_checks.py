"""Run every check that needs an NVIDIA GPU: `make gpu`. The most important ones come first.

Each step writes its output to OUT/<step>.log. summary.json and summary.txt have the results so far, with the commit
and the GPU, so a run that is cut off leaves what it has found. A step that takes too long is ended, and has failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default"]
TESTS = [
    str(path.relative_to(ROOT))
    for folder in ("frameworks", "integrations")
    for path in sorted((ROOT / "tests" / folder).glob("test_torch_cuda*.py"))
]
CONTRACT = [*PYTEST, "-m", "not nightly", "tests/contract", "--framework", "torch-cuda"]
CHECKED = "random_lists and 0-products"
"""Tests for NVIDIA's memory checker, which takes long: clips of all dtypes, and of unaligned gradients."""

PROBE = """
import json, torch
from unified_clip._compute import cuda
gpu = cuda._launcher()
print(json.dumps({
    "gpu": torch.cuda.get_device_name(), "capability": gpu.capability(0), "driver": gpu.driver_version,
    "torch": torch.__version__, "cuda": torch.version.cuda, "nvrtc": cuda.find_compiler().version,
}))
"""


class Step(NamedTuple):
    name: str
    command: Sequence[str]
    seconds: int
    kernels: bool = True


def steps(out: Path) -> list[Step]:
    checker = shutil.which("compute-sanitizer")
    checked = [*PYTEST, "tests/frameworks/test_torch_cuda.py", "--framework", "torch", "-k", CHECKED]
    return [
        Step("device", [sys.executable, "-c", PROBE], 60),
        Step("graphs, loss scaling, FSDP2", [*PYTEST, *TESTS, "--framework", "torch"], 180),
        Step("workloads", [sys.executable, "benchmarks/gpu_workloads.py", "--out", str(out / "workloads.json")], 120),
        Step("bench", [
            sys.executable, "-m", "unified_clip", "bench", "--device", "cuda", "--seconds", "0.2", "--out",
            str(out / "bench"),
        ], 180),
        Step("contract", CONTRACT, 180),
        *([Step("memory checker", [checker, "--error-exitcode", "1", "--target-processes", "all", *checked], 120)]
          if checker else []),
        Step("contract without kernels", CONTRACT, 120, kernels=False),
    ]  # fmt: skip


def run(step: Step, out: Path) -> dict[str, Any]:
    log = out / f"{step.name.replace(',', '').replace(' ', '_')}.log"
    start = time.monotonic()
    with log.open("w") as file:
        environment = {**os.environ, "UNIFIED_CLIP_CUDA": str(int(step.kernels))}
        try:
            code = subprocess.run(
                step.command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, timeout=step.seconds,
                check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = None
    lines = log.read_text(errors="replace").splitlines()
    return {
        "step": step.name,
        "passed": code == 0,
        "exit": "took too long" if code is None else code,
        "seconds": round(time.monotonic() - start, 1),
        "last": lines[-1] if lines else "",
        "log": log.name,
    }


def write(out: Path, data: Mapping[str, Any]) -> None:
    (out / "summary.json").write_text(json.dumps(data, indent=1) + "\n")
    lines = [f"commit {data['commit']}"]
    for row in data["steps"]:
        mark = "passed" if row["passed"] else f"FAILED ({row['exit']})"
        lines.append(f"{row['step']:30} {mark:22} {row['seconds']:6} s  {row['last']}")
    (out / "summary.txt").write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--only", nargs="*", help="the names of steps, such as bench")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    data: dict[str, Any] = {"commit": commit.stdout.strip() or "unknown", "steps": []}
    for step in steps(options.out):
        if options.only and step.name not in options.only:
            continue
        data["steps"].append(run(step, options.out))
        write(options.out, data)
        print((options.out / "summary.txt").read_text().splitlines()[-1], flush=True)
    return 0 if data["steps"] and all(row["passed"] for row in data["steps"]) else 1


if __name__ == "__main__":
    sys.exit(main())
