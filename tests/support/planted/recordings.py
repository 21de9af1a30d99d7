"""Recordings of the scripts of pairs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path

from support.planted.pairs import Pair, Script

from unified_clip._kit.workers import CPU_ONLY

SUPPORT = Path(__file__).parents[1]
TRAINING = SUPPORT / "training"
SECONDS = 900


def losses(recording: Path) -> list[float]:
    """Return the losses of a recording, in their order, without the engine of `compare`."""
    lines = [json.loads(line) for line in recording.read_text(encoding="utf-8").splitlines()]
    return [float(loss) for line in lines for loss in (*line.get("losses", ()), *line.get("logged", {}).values())]


class Recordings:
    """The recordings of all scripts. The first request for one of a framework records all of that framework."""

    def __init__(self, folder: Path, pairs: Iterable[Pair]) -> None:
        shutil.copytree(TRAINING, folder, dirs_exist_ok=True)
        scripts = dict.fromkeys(script for pair in pairs for script in (pair.old, pair.new))
        codes = {script: script.code(folder) for script in scripts}
        self._codes = {
            script: (folder / f"{script.name}_{zlib.crc32(code.encode()):08x}.py", code)
            for script, code in codes.items()
        }
        self._recorded: set[str] = set()

    def file(self, script: Script) -> Path:
        if script.modules not in self._recorded:
            self._recorded.add(script.modules)
            self._record(script.modules)
        return self._codes[script][0].with_suffix(".jsonl")

    def _record(self, modules: str) -> None:
        jobs = []
        for script, (path, code) in self._codes.items():
            if script.modules == modules and not path.with_suffix(".jsonl").exists():
                path.write_text(code, encoding="utf-8")
                jobs.append((str(path), str(path.with_suffix(".jsonl"))))
        environment = os.environ | CPU_ONLY | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        environment |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, SUPPORT / "record_scripts.py", modules, json.dumps(jobs)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stderr
