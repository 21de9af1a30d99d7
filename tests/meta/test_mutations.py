"""The tests can fail: each mutation breaks the library in one place, and a test fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.tiers import not_editable

import unified_clip

pytestmark = pytest.mark.nightly

TESTS = Path(__file__).parent.parent


@dataclass(frozen=True)
class Mutation:
    """A change of a file of the package, from `before` to `after`. After the change, `tests` with `-k expression` must
    fail."""

    file: str
    before: str
    after: str
    tests: str
    expression: str
    framework: str = "numpy"
    path: str = ""


MUTATIONS = {
    "eps dropped from PyTorch's names": Mutation(
        "_core/rule.py", "PYTORCH = ClipConvention(eps=1e-6", "PYTORCH = ClipConvention(eps=0.0",
        "contract/test_property.py", "oracles",
    ),
    "eps on Paddle's names and clip_by_norm": Mutation(
        "_core/rule.py", "PADDLE = ClipConvention(eps=0.0", "PADDLE = ClipConvention(eps=1e-6",
        "contract/test_property.py", "oracles",
    ),
    "eps on clip_by_global_norm": Mutation(
        "_core/rule.py", "TENSORFLOW_GLOBAL = ClipConvention(eps=0.0", "TENSORFLOW_GLOBAL = ClipConvention(eps=1e-6",
        "contract/test_property.py", "oracles",
    ),
    "the norm accumulated in float32": Mutation(
        "_compute/kernels.py", 'sums.append(np.einsum("ij,ij->i", blocks, blocks)',
        'sums.append(np.einsum("ij,ij->i", *[blocks.astype(np.float32)] * 2).astype(np.float64)',
        "contract/test_property.py", "oracles",
    ),
    "the exact fall-back removed": Mutation(
        "_core/exact.py", "return low if low == high else None", "return low",
        "contract/test_property.py", "oracles",
    ),
    "the coefficient rounded to float16": Mutation(
        "_compute/kernels.py", "decode(view, dtype).astype(np.float32) * np.asarray(coef, dtype=np.float32)",
        "decode(view, dtype).astype(np.float32) * np.asarray(coef, dtype=np.float16)",
        "contract/test_property.py", "oracles",
    ),
    "a generator read twice": Mutation(
        "_core/collect.py", "    return list(container) or iter(())",
        "    list(container)\n    return list(container) or iter(())",
        "contract/test_property.py", "a_container_comes_back",
    ),
    "the same gradient scaled twice": Mutation(
        "_core/collect.py", "if owners[index] == index", "if True",
        "contract/test_in_place.py", "same_memory",
    ),
    "a write before an error": Mutation(
        "_core/rule.py", "    norms = measure(gradients, everything, rule, rule.tensors())\n",
        "    norms = measure(gradients, everything, rule, rule.tensors())\n"
        "    gradients.change(norms[0]._replace(coef=norms[0].path.xp.asarray(0.0)))\n"
        "    gradients.writer.finish()\n",
        "contract/test_clipping.py", "changes_nothing",
    ),
    "each gradient written before the next one is prepared": Mutation(
        "_core/writers.py", "        self._writes += change.writes()\n        if change.path.on_host",
        "        make_all(change.writes())\n        if change.path.on_host",
        "contract/test_failing_operations.py", "leaves_all_gradients_unchanged", "torch", "framework",
    ),
    "the host path taken although a derivative is wanted, on PyTorch": Mutation(
        "_backends/torch/conditions.py", "return differentiable and torch.is_grad_enabled()", "return False",
        "contract/test_derivatives.py", "clipping_a_list", "torch",
    ),
    "the host path taken under a recording tape, on TensorFlow": Mutation(
        "_backends/tensorflow/backend.py", "return bool(tensors) and bool(gradient_types(list(tensors)))",
        "return False",
        "contract/test_derivatives.py", "clipping_a_list", "tensorflow",
    ),
    "a raw write that autograd does not hear of": Mutation(
        "_backends/torch/backend.py", "            releases.increment_versions(tensors)\n", "            pass\n",
        "frameworks/test_each_write.py", "autograd_notices and host", "torch",
    ),
}  # fmt: skip


def run(package: Path, mutation: Mutation) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--rootdir", str(TESTS.parent)]
    command += ["-c", str(TESTS.parent / "pyproject.toml"), str(TESTS / mutation.tests)]
    command += ["-k", mutation.expression, "--framework", mutation.framework]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COVERAGE", "UNIFIED_CLIP"))}
    environment |= {"PYTHONPATH": str(package), "UNIFIED_CLIP_NATIVE": "0"}  # mutations change Python, not the kernels
    environment |= {"UNIFIED_CLIP_PATH": mutation.path}
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=package, timeout=300, check=False
    )


@pytest.fixture
def package(tmp_path: Path) -> Path:
    source = Path(unified_clip.__file__).parent
    shutil.copytree(source, tmp_path / "unified_clip", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@not_editable
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_fails_a_test(package: Path, name: str) -> None:
    mutation = MUTATIONS[name]
    unchanged = run(package, mutation)
    assert unchanged.returncode == 0, unchanged.stdout
    file = package / "unified_clip" / mutation.file
    text = file.read_text()
    assert text.count(mutation.before) == 1
    file.write_text(text.replace(mutation.before, mutation.after))
    broken = run(package, mutation)
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert "failed" in broken.stdout
