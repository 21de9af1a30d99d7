"""Every row of the tables of layouts in docs/distributed.md has a test that runs it, on its framework.

PyTorch's table has its own: tests/distributed/test_torch_distributed_layouts.py runs the code in it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "distributed.md"

JAX, PROCESSES = "distributed/test_jax_shards.py", "distributed/test_jax_shards_processes.py"
REPLICAS, KERAS = "distributed/test_tensorflow_shards.py", "distributed/test_tensorflow_keras_shards.py"
PADDLE, FLEET = "distributed/test_paddle_shards.py", "distributed/test_paddle_fleet_shards.py"
ONE_DEVICE = f"{JAX}::test_the_norm_and_the_gradients_are_those_of_one_device"

TESTS: dict[str, dict[str, list[str]]] = {
    "JAX": {
        "eager, arrays over devices of one process": [ONE_DEVICE],
        "eager, several processes (`jax.distributed`). All have to call": [
            f"{PROCESSES}::test_arrays_over_several_processes",
            f"{PROCESSES}::test_for_arrays_on_some_processes_it_is_stated_what_the_others_have",
        ],
        "under `jit`, `NamedSharding`": [ONE_DEVICE],
        "inside `shard_map`": [ONE_DEVICE, f"{JAX}::test_one_of_two_axes"],
        "`pmap`, and `shard_map` with `check_vma=False`": [
            f"{JAX}::test_pmap_where_it_is_stated_what_devices_have",
            f"{JAX}::test_process_group_names_the_axes_along_which_gradients_are_cut",
        ],
    },
    "TensorFlow and Keras": {
        "`MirroredStrategy`, `MultiWorkerMirroredStrategy`, your own loop": [
            f"{REPLICAS}::test_every_replica_has_the_norm_and_the_gradients_of_one_device"
        ],
        "Keras' `fit`, or `optimizer.apply`, under `MirroredStrategy`": [
            f"{KERAS}::test_an_update_is_as_long_as_the_limit_and_that_of_keras_is_longer",
            f"{KERAS}::test_two_replicas_make_the_update_of_one",
        ],
    },
    "Paddle": {
        "`DataParallel`": [f"{PADDLE}::test_gradients_of_data_parallel_models_are_clipped_without_a_message"],
        "`shard_tensor` on a mesh of all processes": [
            f"{PADDLE}::test_the_norm_and_the_gradients_are_those_of_one_process"
        ],
        "`shard_tensor` on a mesh of some processes": [
            f"{PADDLE}::test_meshes_of_some_processes_do_not_tell_what_the_others_hold"
        ],
        "`fleet`, tensor and pipeline parallel": [
            f"{FLEET}::test_the_optimizer_of_fleet_clips_by_the_norm_of_the_whole_model",
            f"{FLEET}::test_attributes_tell_who_counts_what",
            f"{FLEET}::test_stages_of_a_pipeline_share_one_norm",
        ],
        "`fleet`, sharding": [f"{FLEET}::test_sharded_optimizers_clip_by_one_norm"],
    },
}
"""By section and first column: the tests that run the layout and compare with the norm of the whole gradients."""


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
    assert name in [each.name for each in functions if isinstance(each, ast.FunctionDef)]


def test_every_framework_with_a_table_is_here() -> None:
    """A new section with a table of layouts needs its tests."""
    layouts = PAGE.read_text(encoding="utf-8").partition("## Keywords for each layout\n")[2].partition("\n## ")[0]
    sections = layouts.split("\n### ")[1:]
    with_tables = [each.partition("\n")[0] for each in sections if "| layout |" in each]
    assert with_tables == ["PyTorch", *TESTS]
