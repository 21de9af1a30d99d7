"""The names of functions and optimizers that may clip, and the functions of a catalog that users may extend."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.port.snippets import ported, verdicts

from unified_clip.port import catalog, port_files
from unified_clip.port.catalog import (
    KERAS_OPTIMIZER,
    ClipFunction,
    class_checks,
    clip_function,
    clip_functions,
    clip_pattern,
    settings,
)
from unified_clip.port.file_rewrite import is_name_taken
from unified_clip.source.module import Module


def test_an_engine_is_a_full_name_and_all_below_it() -> None:
    fleet = next(engine for engine in class_checks() if "paddle.distributed.fleet" in engine.names)
    assert fleet.has("paddle.distributed.fleet")
    assert fleet.has("paddle.distributed.fleet.init")
    assert not fleet.has("paddle.distributed.fleet_executor")


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        ("import unified_clip.torch\nunified_clip.torch.clip_grad_norm_(p)\n", False),
        ("import unified_clip\n", False),
        ("import unified_clip as uc\nf(unified_clip=1)\nself.unified_clip = 1\n", False),
        ("from unified_clip import torch\n", False),
        ("unified_clip = 1\n", True),
        ("def f(unified_clip):\n    pass\n", True),
        ("def f():\n    for unified_clip in x:\n        pass\n", True),
        ("def unified_clip():\n    pass\n", True),
        ("import torch as unified_clip\n", True),
        ("import unified_clip.torch as unified_clip\n", True),
        ("from mine import unified_clip\n", True),
        ("from mine import x as unified_clip\n", True),
        ("import unified_clip\ndef f():\n    unified_clip = 1\n", True),
    ],
)
def test_a_file_may_use_the_name_unified_clip_otherwise(source: str, taken: bool) -> None:
    assert is_name_taken(Module(source.encode())) is taken


@pytest.mark.parametrize(
    ("name", "known_as"),
    [
        ("tensorflow.clip_by_norm", "tf.clip_by_norm"),
        ("tensorflow.compat.v1.clip_by_norm", "tf.clip_by_norm"),
        ("tensorflow.python.ops.clip_ops.clip_by_norm", "tf.clip_by_norm"),
        ("optax.transforms.clip", "optax.clip"),
        ("optax.transforms._clipping.clip_by_block_rms", "optax.clip_by_block_rms"),
        ("optax._src.clipping.adaptive_grad_clip", "optax.adaptive_grad_clip"),
        ("optax._src.transform.clip", "optax.clip"),
        ("optax.contrib.dpsgd", "optax.per_example_global_norm_clip"),
        ("optax.contrib._privacy.dpsgd", "optax.per_example_global_norm_clip"),
        ("optax._src.contrib.privacy.dpsgd", "optax.per_example_global_norm_clip"),
        (
            "paddle.incubate.distributed.models.moe.grad_clip.ClipGradForMOEByGlobalNorm",
            "paddle.incubate.distributed.models.moe.ClipGradForMOEByGlobalNorm",
        ),
    ],
)
def test_a_function_has_the_names_of_all_modules_that_contain_it(name: str, known_as: str) -> None:
    function = clip_function(name)
    assert function is not None
    assert function.name == known_as


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("tensorflow.keras.optimizers.Adam", True),
        ("tensorflow.python.keras.optimizers.Adam", True),
        ("keras.optimizers.legacy.Adam", True),
        ("tf_keras.optimizers.Adam", True),
        ("mykeras.optimizers.Adam", False),
        ("keras.layers.Dense", False),
    ],
)
def test_an_optimizer_of_keras_is_recognized_by_its_module(name: str, is_one: bool) -> None:
    assert (KERAS_OPTIMIZER.match(name) is not None) is is_one


def test_every_name_that_is_found_is_searched_for_in_the_text() -> None:
    names = [name.rpartition(".")[2] for name in clip_functions()]
    for setting in settings():
        owners = (*setting.classes, *setting.elsewhere, *setting.factories)
        names += [setting.keyword, *(owner.rpartition(".")[2] for owner in owners)]
    assert [name for name in names if not clip_pattern().search(name.encode())] == []


def test_a_function_of_a_file_of_the_project_is_found_there(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "clipping.py").write_text("def clip_grad_norm(p): ...\n")
    (tmp_path / "train").mkdir()
    script = tmp_path / "train" / "main.py"
    script.write_text("from mine.clipping import clip_grad_norm\nclip_grad_norm(p)\n")
    (result,), _ = port_files.port_all([script])
    assert list(result.sites) == []
    script.write_text("from other.clipping import clip_grad_norm\nclip_grad_norm(p)\n")
    (result,), _ = port_files.port_all([script])
    assert [site.verdict for site in result.sites] == ["flagged"]
    project = (
        "try:\n    from mine.clipping import clip_grad_norm\nexcept ImportError:\n    from other import clip_grad_norm"
    )
    script.write_text(f"{project}\nclip_grad_norm(p)\n")
    (result,), _ = port_files.port_all([script])
    assert [site.name for site in result.sites] == ["other.clip_grad_norm"]


def test_unpacked_arguments_of_a_function_with_another_order_are_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    function = ClipFunction(
        "tensorflow", "tf.clip_by_norm", "functional", (), ["t", "clip_norm", "name"], "clip_by_norm"
    )
    monkeypatch.setitem(catalog.clip_functions(), function.name, function)
    assert verdicts("import tensorflow as tf\nx = tf.clip_by_norm(*args)\n", "drop-in") == ["flagged"]
    assert verdicts("import tensorflow as tf\nclip = tf.clip_by_norm\n", "drop-in") == ["flagged"]
    text, _ = ported("import tensorflow as tf\nx = tf.clip_by_norm(grad, 1.0, 'clipped')\n", "drop-in")
    assert text.endswith("unified_clip.tensorflow.clip_by_norm(grad, 1.0, name='clipped')\n")


def test_a_replacement_with_another_order_gets_every_argument_by_keyword(monkeypatch: pytest.MonkeyPatch) -> None:
    function = ClipFunction(
        framework="torch",
        name="torch.nn.utils.swapped.clip_grad_norm_",
        kind="in place",
        parameters=["c", "params"],
        replacement="clip_grad_norm_",
        renamed={"c": "max_norm", "params": "parameters"},
    )
    monkeypatch.setitem(catalog.clip_functions(), function.name, function)
    text, _ = ported("import torch\ntorch.nn.utils.swapped.clip_grad_norm_(1.0, model.parameters())\n")
    assert text.endswith("clip_grad_norm_(max_norm=1.0, parameters=model.parameters())\n")


@pytest.fixture
def renaming_function(monkeypatch: pytest.MonkeyPatch) -> None:
    function = ClipFunction(
        framework="torch",
        name="torch.nn.utils.bounds.clip_grad_norm_",
        kind="in place",
        parameters=["parameters", "bound", "order"],
        replacement="clip_grad_norm_",
        renamed={"bound": "max_norm", "order": "norm_type"},
        rule="global_norm",
        family="pytorch",
        limits=["bound"],
    )
    monkeypatch.setitem(catalog.clip_functions(), function.name, function)


@pytest.mark.usefixtures("renaming_function")
def test_a_replacement_gets_renamed_arguments_and_the_report_their_meaning() -> None:
    text, (site,) = ported("import torch\ntorch.nn.utils.bounds.clip_grad_norm_(p, bound=2.0, order=1)\n")
    assert text.endswith("unified_clip.torch.clip_grad_norm_(p, max_norm=2.0, norm_type=1)\n")
    assert site.meaning is not None
    assert (site.meaning.config.threshold, site.meaning.config.norm_type) == (2.0, 1.0)
