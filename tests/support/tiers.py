"""Which tests run: in which tier, for which releases and for which frameworks."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from importlib.metadata import distribution
from typing import Any
from zlib import crc32

import pytest

CHANGE_TIER = "not nightly"

ORIGIN = json.loads(distribution("unified_clip").read_text("direct_url.json") or "{}")
not_editable = pytest.mark.skipif(
    ORIGIN.get("dir_info", {}).get("editable", False), reason="Python looks for an editable install before all paths"
)

FULL_TIER = {"torch": "2.9", "tensorflow": "2.18", "paddle": "3.2", "jax": "0.7"}
"""The oldest release of each framework whose graphs are supported."""


def is_at_least(framework: str, release: str) -> bool:
    return _numbers(importlib.import_module(framework).__version__) >= _numbers(release)


def _numbers(version: str) -> list[int]:
    return list(map(int, re.findall(r"\d+", version)[:2]))


def why_no_graphs(framework: str) -> str:
    """Return '' if graphs are supported."""
    oldest = FULL_TIER.get(framework)
    return "" if oldest is None or is_at_least(framework, oldest) else f"graphs need {framework} >= {oldest}"


def skip_for_release(items: Iterable[pytest.Item], framework: str) -> None:
    """Skip the tests of graphs with releases below the full tier, and tests that need another release than this."""
    reason = why_no_graphs(framework)
    for item in items:
        if reason and item.get_closest_marker("graphs"):
            item.add_marker(pytest.mark.skip(reason=reason))
        for mark in item.iter_markers("since"):
            release, lack = mark.args
            if not is_at_least(framework, release):
                item.add_marker(pytest.mark.skip(reason=f"before {framework} {release}: {lack}"))


def where(applies: Callable[..., bool]) -> pytest.MarkDecorator:
    """Collect a test only for kits for which `applies` returns True, such as those of frameworks with sparse gradients.

    `applies` gets the kit, and those parameters of the test that it has an argument for.
    """
    return pytest.mark.where.with_args(applies)


def is_collected(item: Any, kit: Any) -> bool:
    for mark in item.iter_markers("where"):
        (applies,) = mark.args
        names = list(inspect.signature(applies).parameters)[1:]
        if not applies(kit, *(item.callspec.params[name] for name in names)):
            return False
    return True


# What older releases lack.
READS_TENSORS = pytest.mark.since("2.10", "there is no C interface to tensors")
PADDLE_READS_TENSORS = pytest.mark.since("3.3", "there is no C interface to tensors")
REMOVES_GRADIENTS = pytest.mark.since("3.3", "`parameter.grad` cannot become None")

# Dynamo's limits, by the release of PyTorch that has lifted them.
FORMATS_TEXTS = pytest.mark.since("2.11", "the error of fullgraph=True cannot have the text of ours")
TRACES_NATIVES = pytest.mark.since("2.11", "Dynamo cannot trace PyTorch's own clip_grad_norm_")
TRACES_HOOKS = pytest.mark.since("2.13", "Dynamo cannot trace a hook of an intermediate tensor")
TRACES_WORLD = pytest.mark.since("2.13", "Dynamo cannot trace group.WORLD, so the call runs more functions")


def copies_workers(config: pytest.Config) -> bool:
    """Return whether workers of the tools are copies of one process. The nightly tier starts them as users do."""
    return config.getoption("markexpr") == CHANGE_TIER and sys.platform == "linux"


def nightly(*values: Any) -> list[Any]:
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]


def quick(values: Iterable[Any], *change: Any) -> list[Any]:
    """Return all of `values` as parameters. Only the tests of those in `change` run in the change tier, too."""
    values = list(values)
    assert all(value in values for value in change), f"{change} are not all in {values}"
    return [value if value in change else nightly(value)[0] for value in values]


def quick_on(*frameworks: str) -> pytest.MarkDecorator:
    """In the change tier, run a test that starts processes only on these frameworks, and only on the host path."""
    return pytest.mark.quick_on.with_args(*frameworks)


def sampled(values: Iterable[Any], every: int) -> list[Any]:
    """Return all of `values` as parameters. A tuple has one value for each name. The change tier runs only every n-th
    value, beginning with the first."""
    values = [value if isinstance(value, tuple) else (value,) for value in values]
    marks = [() if index % every == 0 else pytest.mark.nightly for index in range(len(values))]
    return [pytest.param(*value, marks=mark) for value, mark in zip(values, marks, strict=True)]


FACTS = ("check", "config", "port")
"""Folders of unit tests whose variants are facts about other products, each of which takes milliseconds: all run."""


def leave_variants_to_nightly(items: Iterable[pytest.Item], suite: str) -> None:
    """Mark variants of each test as nightly: the test keeps a third of them, or all if there are at most three.

    Each suite of a framework keeps other variants, so together they run most variants of a test that they share.
    """
    variants: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if any(suite not in mark.args for mark in item.iter_markers("quick_on")):
            item.add_marker(pytest.mark.nightly)
        if item.get_closest_marker("nightly") is None and item.path.parent.name not in FACTS:
            variants[item.nodeid.partition("[")[0]].append(item)
    for of_one_test in variants.values():
        of_one_test.sort(key=lambda item: crc32(f"{suite} {item.nodeid}".encode()))
        for item in of_one_test[len(of_one_test) // 3 :] if len(of_one_test) > 3 else []:
            item.add_marker(pytest.mark.nightly)
