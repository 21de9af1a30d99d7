"""The steps of docs/adding-a-framework.md are complete: the tests follow them for the toy framework in `toy/`.

Steps about files that only `make`, `pip`, mypy or people read are left out.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import unified_clip

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
TOY = ROOT / "tests" / "meta" / "toy"

EXAMPLE = """
```python
import toyframe
from unified_clip import clip_grad_norm_

norm = clip_grad_norm_([toyframe.Tensor([3.0, 4.0])], max_norm=1.0)
print(f"{float(norm):.1f}")
```
"""

TABLE = """
[frameworks.toy]
modes = ["host", "device"] # it has no functions of its own
"""


ROUTES = """

def on_toy(check: Check) -> None:
    import pytest
    import toyframe

    check("host", toyframe.Tensor([1.0]), differentiable=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNIFIED_CLIP_PATH", "framework")
        check("device", toyframe.Tensor([1.0]))


TABLE["toy"] = on_toy
"""


def write_the_adapter(copy: Path) -> None:
    shutil.copy(TOY / "toy_backend.py", copy / "unified_clip" / "_backends" / "toy.py")


def write_its_namespace(copy: Path) -> None:
    text = (copy / "unified_clip" / "mlx.py").read_text()
    for old, new in (
        ("mlx.core as mx", "toyframe"),
        ("mx.array", "toyframe.Tensor"),
        ("_backends.mlx", "_backends.toy"),
    ):
        assert old in text
        text = text.replace(old, new)
    (copy / "unified_clip" / "toy.py").write_text(text)


def have_its_tensors_recognised(copy: Path) -> None:
    insert(copy / "unified_clip" / "_dispatch.py", "ADAPTERS = {\n", '    "toyframe": "toy",\n')


def write_a_kit(copy: Path) -> None:
    append(copy / "tests" / "support" / "kits.py", (TOY / "kit.py").read_text())


def add_its_routes_to_the_table(copy: Path) -> None:
    append(copy / "tests" / "contract" / "test_routes.py", ROUTES)


def write_its_tensor_converter(copy: Path) -> None:
    shutil.copy(TOY / "toy_converter.py", copy / "unified_clip" / "tensors" / "frameworks" / "toy.py")


def write_tests_of_its_paths(copy: Path) -> None:
    shutil.copy(TOY / "toy_paths.py", copy / "tests" / "frameworks" / "test_toy_paths.py")


def add_it_to_the_parity_suite(copy: Path) -> None:
    shutil.copy(TOY / "adapter_toy.py", copy / "unified_clip" / "parity" / "adapters" / "toy.py")
    append(copy / "parity" / "suite.toml", TABLE)
    for path in (copy / "parity" / "cases").glob("*.toml"):  # NumPy is named where tensors can be written
        path.write_text(re.sub(r'^frameworks = \["numpy"', r'\g<0>, "toy"', path.read_text(), flags=re.MULTILINE))


def put_it_on_the_lists(copy: Path) -> None:
    append(copy / "docs" / "quickstart.md", EXAMPLE)


STEPS = [
    write_the_adapter,
    write_its_namespace,
    have_its_tensors_recognised,
    write_a_kit,
    write_tests_of_its_paths,
    add_its_routes_to_the_table,
    write_its_tensor_converter,
    add_it_to_the_parity_suite,
    put_it_on_the_lists,
]


def insert(file: Path, after: str, text: str) -> None:
    before = file.read_text()
    assert before.count(after) == 1
    file.write_text(before.replace(after, after + text))


def append(file: Path, text: str) -> None:
    file.write_text(file.read_text() + text)


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("repository")
    nothing_compiled = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(unified_clip.__file__).parent, copy / "unified_clip", ignore=nothing_compiled)
    for name in ("tests", "tools", "parity", "docs", "benchmarks", "conformance"):
        shutil.copytree(ROOT / name, copy / name, ignore=nothing_compiled)
    for name in ("README.md", "CONTRIBUTING.md", "pyproject.toml"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(TOY / "toyframe", copy / "toyframe")
    for step in STEPS:
        step(copy)
    return copy


def run(added: Path, *arguments: str, path: str = "") -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COVERAGE", "UNIFIED_CLIP"))}
    environment |= {"PYTHONPATH": str(added), "UNIFIED_CLIP_PATH": path}
    done = subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, env=environment, cwd=added, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", ["", "framework"], ids=["host", "device"])
def test_it_conforms_to_the_contract(added: Path, path: str) -> None:
    run(added, "pytest", "-q", "tests/contract", "tests/frameworks", "--framework", "toy", path=path)


def test_it_passes_the_parity_suite_and_has_the_bits_of_numpy(added: Path) -> None:
    run(added, "unified_clip", "parity", "--frameworks", "numpy,toy")
    cases = json.loads((added / "report" / "parity.json").read_text())["cases"]
    results = [case["frameworks"] for case in cases]
    assert results
    for result in results:
        assert result["toy"]["host"]["sha256"] == result["numpy"]["host"]["sha256"]
    on_device = [result["toy"]["device"]["verdict"] for result in results if "device" in result["toy"]]
    assert set(on_device) == {"equal", "close"}
    assert len(on_device) > 0.9 * len(results)  # a few cases name the modes in which they run


def test_it_keeps_to_the_layers(added: Path) -> None:
    run(added, "pytest", "-q", "tests/meta/test_layers.py")
