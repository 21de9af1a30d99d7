"""Record a script or a module where unified_clip is not installed: `python recorder run.jsonl train.py --epochs 1`."""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent

USAGE = (
    f"python {FOLDER.name} RECORDING.jsonl SCRIPT.py [ARGUMENTS]. A module is -m MODULE instead of SCRIPT.py. "
    f"For example: python {FOLDER.name} run.jsonl train.py --epochs 1"
)


def main() -> None:
    options = argparse.ArgumentParser(prog=f"python {FOLDER.name}", usage=USAGE)
    options.add_argument("file", type=Path)
    options.add_argument("-m", action="store_true", dest="is_module")
    options.add_argument("script")
    options.add_argument("arguments", nargs=argparse.REMAINDER)
    given = options.parse_args()
    file, script = given.file, given.script
    for problem, is_wrong in (
        (f"{file} exists. Pass another file.", file.exists()),
        (f"{file.parent} is no directory.", not file.parent.is_dir()),
        (f"{script} is no file.", not (given.is_module or Path(script).is_file())),
    ):
        if is_wrong:
            options.error(problem)
    # not the folder itself: its modules must not hide those of the script
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != FOLDER]
    sys.path.insert(0, str(Path.cwd()) if given.is_module else str(Path(script).resolve().parent))
    package = runpy.run_path(str(FOLDER / "startup" / "sitecustomize.py"))["load"](FOLDER)
    process = importlib.import_module(f"{package.__name__}.process")
    sys.argv[:] = [script, *given.arguments]
    process.start(process.FileRecording(file.resolve(), norms=True, version="recorder"))
    if given.is_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
