"""A row of a function or argument with a mistake is an error, and rows agree with each other and with the code."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import unified_clip
from unified_clip._dispatch import ADAPTERS
from unified_clip.facts import clips
from unified_clip.facts.trainer_rows import RowError, trainers
from unified_clip.port.catalog import positional_parameters

FUNCTION = {"framework": "torch", "name": "a.clip", "kind": "in place"}
ARGUMENT = {"keyword": "clip", "why_not": "The trainer clips."}
MODULES = {
    "torch": "recorder/pytorch.py",
    "tf": "recorder/tensorflow1_graphs.py",
    "paddle": "recorder/paddle2.py",
    "optax": "recording/natives/optax.py",
}
"""{package: module with its hooks}"""


@pytest.mark.parametrize(
    ("row", "values", "problem"),
    [
        (clips.ClipFunction, FUNCTION | {"alias": []}, r"a\.toml, rows\.0\.alias: Unexpected keyword argument"),
        (clips.ClipFunction, FUNCTION | {"kind": "method"}, r"rows\.0\.kind: Input should be '', 'in place'"),
        (clips.ClipFunction, {"name": "a.clip", "kind": "in place"}, r"rows\.0\.framework: Field required"),
        (clips.EngineMethod, {"name": "clip", "package": "a", "parameters": []}, r"rows\.0\.limits: Field required"),
        (clips.TrainerSetting, ARGUMENT | {"off": "0"}, r"rows\.0\.off: Input should be '', 'None', "),
        (clips.TrainerSetting, ARGUMENT | {"default": 1.0}, r"rows\.0\.default: Input should be a valid string"),
    ],
)
def test_a_row_with_a_mistake_is_rejected_with_its_place(row: type, values: dict[str, Any], problem: str) -> None:
    with pytest.raises(RowError, match=problem):
        list(clips._rows("a.toml", "rows", row, [values]))


def test_every_replacement_exists_and_has_the_parameters_of_the_row() -> None:
    functions = {function for function in clips.clip_functions().values() if function.replacement}
    assert len(functions) > 20
    for function in functions:
        assert function.framework in ADAPTERS.values(), function.name
        assert {*function.new_names} <= {*positional_parameters(function.replacement)}, function.name


def test_arguments_of_a_trainer_mean_the_same_in_python_as_in_files() -> None:
    lightning = clips.setting_of("lightning.Trainer")
    assert lightning is not None
    assert (lightning.rule, lightning.family, lightning.default) == ("global_norm", "pytorch", "")
    assert (lightning.off, lightning.rule_keyword) == ("None, 0 or less", "gradient_clip_algorithm")
    for trainer in trainers().values():
        for argument in trainer.argument:
            ways = [clip for clip in trainer.clip if any(key[-1] == argument["keyword"] for key in clip.key)]
            if any(clip.null == "error" for clip in ways):
                assert argument.get("none"), f"{trainer.name}: None is an error in files, so say so in `none`"


@pytest.mark.parametrize("package", MODULES)
def test_the_recorder_has_hooks_for_the_functions_in_the_list_and_no_others(package: str) -> None:
    """The recorder imports nothing of `facts`, so its names are compared here."""
    tree = ast.parse(Path(unified_clip.__file__).parent.joinpath(MODULES[package]).read_text(encoding="utf-8"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    attributes = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    rows = {function.name for function in clips.clip_functions().values() if function.name.startswith(f"{package}.")}
    known = {name for name in rows if name.rpartition(".")[2] in {*texts, *attributes, *defined}}
    assert known == {name for name in clips.names("recorded") if name.startswith(f"{package}.")}
