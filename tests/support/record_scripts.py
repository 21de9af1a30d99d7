"""Record scripts in forks of one process, which has imported a framework: `record_scripts.py FRAMEWORK JOBS`.

A job is a script and the file for its recording. The script runs unchanged, as by `unified-clip record`.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import unified_clip


def run(script: str, file: str) -> None:
    sys.path.insert(0, str(Path(script).parent))
    sys.argv = [script]
    with unified_clip.record(file, norms=True):
        runpy.run_path(script, run_name="__main__")


def main() -> int:
    for name in sys.argv[1].split(","):
        importlib.import_module(name)
    status = 0
    for script, file in json.loads(sys.argv[2]):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run(script, file)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        status |= os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status


if __name__ == "__main__":
    sys.exit(main())
