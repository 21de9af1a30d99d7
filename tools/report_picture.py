"""Write docs/report.png, the top of the parity report, and docs/compare.png, that of the comparison of two runs in
docs/my-loss-curve-differs.md. It needs Debian's `chromium`.

Type `python tools/report_picture.py` in an environment with all frameworks, such as the `.venv` of `make test`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUITE = ("--frameworks", "numpy,torch,tensorflow,paddle,jax")
WITHOUT = ("--without", "device,graph,static,compiled,processes_2,processes_4")
COMMAND = [sys.executable, "-P", "-m", "unified_clip"]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report")
        subprocess.run([*COMMAND, "parity", *SUITE, *WITHOUT, "--out", str(report)], cwd=ROOT, check=True)
        take(report / "index.html", "report.png", "1200,850")
        take(compared(Path(folder)), "compare.png", "1100,1180")
    return 0


def compared(folder: Path) -> Path:
    """Run the scripts of the page, and return the page of the comparison."""
    text = (ROOT / "docs/my-loss-curve-differs.md").read_text(encoding="utf-8")
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL):
        (folder / name).write_text(code, encoding="utf-8")
    subprocess.run([sys.executable, "data.py"], cwd=folder, check=True)
    for run in ("old", "new"):
        record = [*COMMAND, "record", f"{run}.jsonl", "--norms", "--", sys.executable, f"train_{run}.py"]
        subprocess.run(record, cwd=folder, check=True)
    subprocess.run([*COMMAND, "compare", "old.jsonl", "new.jsonl", "--html", "page.html"], cwd=folder, check=False)
    return folder / "page.html"


def take(page: Path, name: str, size: str) -> None:
    browser = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={page.parent}/profile"]
    picture = [f"--window-size={size}", f"--screenshot={ROOT / 'docs' / name}"]
    subprocess.run([*browser, *picture, page.as_uri()], stderr=subprocess.DEVNULL, check=True)  # it warns about D-Bus


if __name__ == "__main__":
    sys.exit(main())
