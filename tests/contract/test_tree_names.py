"""The names of gradients in nested containers are equal in details, recordings, patterns and errors."""

from __future__ import annotations

import json
import re
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from support.kits import Kit

import unified_clip
from unified_clip import ClipConfig

Pair = namedtuple("Pair", ["weight", "bias"])

TREES: dict[str, tuple[Any, list[str]]] = {
    "dicts in a list": ({"layers": [{"w": 3.0}, {"w": 40.0}]}, ["layers.0.w", "layers.1.w"]),
    "a list of dicts": ([{"w": 3.0}, {"w": 4.0}], ["0.w", "1.w"]),
    "lists and tuples": ({"a": (1.0, [2.0, 3.0])}, ["a.0", "a.1.0", "a.1.1"]),
    "tuples in a list": ([(1.0, 2.0), (3.0, 4.0)], ["0.0", "0.1", "1.0", "1.1"]),
    "a named tuple": ({"dense": Pair(1.0, 2.0)}, ["dense.weight", "dense.bias"]),
    "names in a list": ([("a", 1.0), ("b", [2.0, 3.0])], ["a", "b.0", "b.1"]),
    "wrapped models": (
        {"module.fc.w": 1.0, "_orig_mod.fc.b": 2.0, "_forward_module.module.out": 3.0, "stack._orig_mod.w": 4.0},
        ["fc.w", "fc.b", "out", "stack.w"],
    ),
    "TensorFlow's names": ({"net/dense/kernel:0": 1.0}, ["net.dense.kernel"]),
    "equal names": ({"a": {"b": 1.0}, "a.b": 2.0, "module.a.b": 3.0}, ["a.b", "a.b#2", "a.b#3"]),
}


@pytest.fixture(params=TREES)
def tree(request: pytest.FixtureRequest) -> tuple[Any, list[str]]:
    return TREES[request.param]


def tensors(kit: Kit, node: Any) -> Any:
    if isinstance(node, float):
        return kit.tensor([node])
    if isinstance(node, dict):
        return {key: tensors(kit, value) for key, value in node.items()}
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return type(node)(*(tensors(kit, value) for value in node))
    return type(node)(value if isinstance(value, str) else tensors(kit, value) for value in node)


def clip(kit: Kit, node: Any, **settings: Any) -> dict[str, float]:
    clipper = ClipConfig(rule="global_norm", threshold=1.0, **settings).clipper(details=True)
    clipper(tensors(kit, node))
    return clipper.last.parameters


def test_details_and_recordings(kit: Kit, tree: tuple[Any, list[str]], tmp_path: Path) -> None:
    node, names = tree
    details = clip(kit, node)
    with unified_clip.record(tmp_path / "run.jsonl", norms=True):
        kit.namespace.clip_by_global_norm(tensors(kit, node), 1.0)
    line = json.loads((tmp_path / "run.jsonl").read_text().splitlines()[-1])
    assert list(line["parameters"]) == names
    assert details == {name: each["norm"] for name, each in line["parameters"].items()}


def test_patterns(kit: Kit, tree: tuple[Any, list[str]]) -> None:
    node, names = tree
    name = next(name for name in names if "#" not in name)
    chosen = [each for each in names if each.partition("#")[0] == name]
    assert list(clip(kit, node, include=[name])) == chosen[::-1]
    assert len(clip(kit, node, exclude=[name])) == len(names) - len(chosen)


def test_a_pattern_may_contain_the_prefix_of_a_wrapper(kit: Kit) -> None:
    node = {"module.fc.w": 1.0, "head.w": 2.0}
    assert clip(kit, node, include=["module.*"]) == clip(kit, node, include=["fc.*"]) == {"fc.w": 1.0}


def test_errors(kit: Kit) -> None:
    with pytest.raises(TypeError, match=re.escape("position 1 (parameter 'layers.1.w')")):
        kit.namespace.global_norm({"module.layers": [{"w": kit.tensor([1.0])}, {"w": "text"}]})


def test_a_flat_list_has_no_names(kit: Kit) -> None:
    assert clip(kit, [3.0, 4.0]) == {"1": 4.0, "0": 3.0}
    assert clip(kit, [[3.0, 4.0], 5.0]) == {"1": 5.0, "0.1": 4.0, "0.0": 3.0}
    with pytest.raises(TypeError, match="has no name"):
        clip(kit, [3.0, 4.0], include=["0"])


def test_parameters_of_nested_lists_are_paired_by_their_names(kit: Kit) -> None:
    """Adaptive gradient clipping limits each gradient by the norm of its parameter."""
    clipper = ClipConfig(rule="norm", adaptive={"rule": "agc", "clip_factor": 1.0}).clipper()
    parameters = tensors(kit, {"layers": [{"w": 1.0}, {"w": 10.0}]})
    clipped = clipper(tensors(kit, {"layers": [{"w": 30.0}, {"w": 20.0}]}), parameters=parameters)
    assert [float(kit.array(layer["w"])[0]) for layer in clipped["layers"]] == pytest.approx([1.0, 10.0])
