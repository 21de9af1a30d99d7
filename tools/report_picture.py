"""Write docs/report.png: the top of the parity report, for eager calls on one rank. It needs Debian's `chromium`.

Type `python tools/report_picture.py` in an environment with all frameworks, such as the `.venv` of `make test`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUITE = ("--frameworks", "numpy,torch,tensorflow,paddle,jax")
WITHOUT = ("--without", "device,graph,static,compiled,processes_2,processes_4")
SIZE = "1200,850"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report")
        command = [sys.executable, "-P", "-m", "unified_clip", "parity", *SUITE, *WITHOUT, "--out", str(report)]
        subprocess.run(command, cwd=ROOT, check=True)
        browser = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
        picture = [f"--window-size={SIZE}", f"--screenshot={ROOT / 'docs/report.png'}"]
        page = (report / "index.html").as_uri()
        subprocess.run([*browser, *picture, page], stderr=subprocess.DEVNULL, check=True)  # it warns about D-Bus
    return 0


if __name__ == "__main__":
    sys.exit(main())
