"""Compare the functions of unified_clip/facts/functions.toml with the installed frameworks."""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from collections.abc import Iterator
from typing import Any

from unified_clip.port.catalog import ClipFunction, clip_functions

PACKAGES = {"tf": "tensorflow"}


def functions_of(framework: str) -> list[tuple[str, ClipFunction]]:
    return [(name, native) for name, native in clip_functions().items() if native.framework == framework]


def find_installed(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return _find(*(f"torch.{name}" if name.startswith("Tensor.") else name).split("."))


def _find(first: str, *attributes: str) -> Any:
    try:
        item: Any = importlib.import_module(PACKAGES.get(first, first))
    except ImportError:
        return None
    for number, part in enumerate(attributes):
        if not hasattr(item, part):
            try:
                importlib.import_module(".".join([PACKAGES.get(first, first), *attributes[: number + 1]]))
            except ImportError:
                return None
        item = getattr(item, part, None)
        if item is None:
            return None
    return None if inspect.ismodule(item) else item


def parameter_names(function: Any) -> list[str]:
    try:
        signature_parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return _documented(function)
    return [each.name for each in signature_parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]


def _documented(function: Any) -> list[str]:
    name = function.__name__.rstrip("_")
    text = function.__doc__ or getattr(importlib.import_module("torch"), name).__doc__  # clamp_ has none: clamp's
    signature = re.search(rf"\b{name}_?\((.*?)\)", text)
    assert signature, f"no signature in the docstring of {function}"
    return [each.split("=")[0].strip() for each in signature[1].split(",") if each.strip() != "*"]


OLDER = {"need_clip"}


def changed_parameters(framework: str) -> Iterator[str]:
    for name, native in functions_of(framework):
        function = find_installed(name)
        if function is not None and native.parameters and not native.needs:
            names = parameter_names(function)
            expected = [each for each in native.parameters if each in names or each not in OLDER]
            if names[: len(expected)] != expected:
                yield f"{name}{tuple(names)}, and not {tuple(expected)}"


def missing_functions(framework: str) -> set[str]:
    return {name for name, _ in functions_of(framework) if find_installed(name) is None}


def without_replacement(framework: str) -> Iterator[str]:
    namespace = importlib.import_module(f"unified_clip.{framework}")
    for name, native in functions_of(framework):
        if native.replacement:
            taken = parameter_names(getattr(namespace, native.replacement))
            names = [native.renamed.get(each, each) for each in native.parameters]
            if missing := [each for each in names if each not in taken and each != "name"]:
                yield f"{name}: {native.replacement} does not take {missing}"
