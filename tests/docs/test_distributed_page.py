"""Every row of the tables of layouts in docs/distributed.md has a test that runs it, on its framework.

PyTorch's table has its own: tests/distributed/test_torch_distributed_layouts.py runs the code in it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "distributed.md"

JAX, SHARD_MAP = "distributed/test_jax_shards.py", "distributed/test_jax_shard_map.py"
PROCESSES = "distributed/test_jax_shards_processes.py"
REPLICAS, KERAS = "distributed/test_tensorflow_shards.py", "distributed/test_tensorflow_keras_shards.py"
PADDLE, FLEET = "distributed/test_paddle_shards.py", "distributed/test_paddle_fleet_shards.py"
ONE_DEVICE = f"{JAX}::test_the_norm_and_the_gradients_are_those_of_one_device"

TESTS: dict[str, dict[str, list[str]]] = {
    "JAX": {
        "eager, one process with several devices": [ONE_DEVICE],
        "eager, several processes (`jax.distributed`), which must all make the call": [
            f"{PROCESSES}::test_arrays_over_several_processes_are_clipped_as_on_one",
            f"{PROCESSES}::test_ownership_declares_arrays_on_some_processes",
        ],
        "under `jit`, `NamedSharding`": [ONE_DEVICE],
        "inside `shard_map`": [ONE_DEVICE, f"{SHARD_MAP}::test_process_group_may_name_one_of_two_axes"],
        "`pmap`, and `shard_map` with `check_vma=False`": [
            f"{SHARD_MAP}::test_process_group_in_pmap",
            f"{SHARD_MAP}::test_process_group_names_the_axes_of_the_norm",
        ],
    },
    "TensorFlow and Keras": {
        "`MirroredStrategy`, `MultiWorkerMirroredStrategy`, your own loop": [
            f"{REPLICAS}::test_every_replica_has_the_norm_and_the_gradients_of_one_device"
        ],
        "Keras' `fit`, or `optimizer.apply`, under `MirroredStrategy`": [
            f"{KERAS}::test_the_norm_of_an_update_is_the_threshold_and_larger_with_keras_own_clip",
            f"{KERAS}::test_two_replicas_make_the_same_update_as_one",
        ],
    },
    "Paddle": {
        "`DataParallel`": [f"{PADDLE}::test_gradients_of_data_parallel_models_need_no_collective"],
        "`shard_tensor` on a mesh of all processes": [
            f"{PADDLE}::test_the_norm_and_the_gradients_are_those_of_one_process"
        ],
        "`shard_tensor` on a mesh of some processes": [
            f"{PADDLE}::test_gradients_on_meshes_of_some_processes_need_ownership"
        ],
        "`fleet`, tensor and pipeline parallel": [
            f"{FLEET}::test_the_optimizer_of_fleet_clips_by_the_norm_of_the_whole_model",
            f"{FLEET}::test_attributes_of_parameters_decide_which_process_counts_them",
            f"{FLEET}::test_stages_of_a_pipeline_share_one_norm",
        ],
        "`fleet`, sharding": [f"{FLEET}::test_sharded_optimizers_clip_by_one_norm"],
    },
}
"""By section and first column: the tests that run the layout and compare with unsharded gradients."""


@pytest.mark.parametrize("section", TESTS)
def test_every_row_has_a_test_and_every_test_a_row(section: str) -> None:
    text = PAGE.read_text(encoding="utf-8").partition(f"### {section}\n")[2].partition("\n#")[0]
    first_column = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    assert first_column[:2] == ["layout", "---"]
    assert first_column[2:] == list(TESTS[section])


@pytest.mark.parametrize("test", sorted({test for rows in TESTS.values() for tests in rows.values() for test in tests}))
def test_the_tests_of_the_rows_exist(test: str) -> None:
    path, name = test.split("::")
    functions = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8")).body
    assert name in [node.name for node in functions if isinstance(node, ast.FunctionDef)]


def test_every_framework_with_a_table_is_tested() -> None:
    layouts = PAGE.read_text(encoding="utf-8").partition("## Keywords for each layout\n")[2].partition("\n## ")[0]
    sections = layouts.split("\n### ")[1:]
    with_tables = [section.partition("\n")[0] for section in sections if "| layout |" in section]
    assert with_tables == ["PyTorch", *TESTS]
