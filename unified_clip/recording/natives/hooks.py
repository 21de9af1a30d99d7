"""Replace the frameworks' own clip functions during a recording."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from ..startup.after_import import AfterImport

WATCHED = {
    "torch": ("torch", "install"),
    "tensorflow": ("tensorflow", "install"),
    "keras": ("keras", "install"),
    "paddle": ("paddle", "install"),
    "unified_clip.paddle": ("paddle", "install_unified_clip"),
    "optax": ("optax", "install"),
}
"""{module with clip functions: (module with hooks, function that adds the hooks)}."""

Home = tuple[Any, str]
"""(module or class, name of a function)."""


class Hook(NamedTuple):
    homes: Sequence[Home]
    function: Any
    replacement: Any


class Hooks:
    def __init__(self) -> None:
        self._hooks: list[Hook] = []
        self._switches: list[tuple[Callable[[], object], Callable[[], object]]] = []
        self._replaced: list[tuple[Home, Any]] = []
        self._is_on = False
        self._missing: dict[str, tuple[str, str]] | None = None  # None before the first recording
        self.on_failure: Callable[[str, Exception], object] = lambda what, error: None  # the dispatcher sets it

    def wrap(self, homes: Sequence[Home], wrapper: Callable[[Any], Any]) -> None:
        """During recordings, replace the function in all `homes` by `wrapper(function)`."""
        homes = [home for home in homes if hasattr(*home)]
        if homes:
            function = getattr(*homes[0])
            hook = Hook(homes, function, functools.wraps(function)(wrapper(function)))
            self._hooks.append(hook)
            if self._is_on:
                self._replace(hook, homes)

    def on_switch(self, on: Callable[[], object], off: Callable[[], object]) -> None:
        self._switches.append((on, off))
        if self._is_on:
            on()

    def switch(self, is_on: bool) -> None:
        """Add or remove all hooks, also in modules that use `from ... import`."""
        if is_on == self._is_on:
            return
        self._is_on = is_on
        if is_on:
            self._prepare()
            imported = _imported(self._hooks)
            for hook in self._hooks:
                self._replace(hook, [*hook.homes, *imported[id(hook.function)]])
        else:
            for home, function in self._replaced:
                setattr(*home, function)
            self._replaced.clear()
        for on, off in self._switches:
            (on if is_on else off)()

    def add_imported(self, *ended: str) -> None:
        """Add the hooks of all imported frameworks. The import of the modules in `ended` has just ended."""
        if self._missing is None:
            return
        for name in list(self._missing):
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if spec is not None and (name in ended or not getattr(spec, "_initializing", False)):
                try:
                    module, function = self._missing.pop(name)
                    getattr(import_module(f"unified_clip.recording.natives.{module}"), function)()
                except Exception as error:  # an unknown version of the framework must not end the script
                    self.on_failure(f"{name} {getattr(sys.modules[name], '__version__', '')}".rstrip(), error)

    def _prepare(self) -> None:
        if self._missing is not None:
            return
        self._missing, self._is_on = dict(WATCHED), False
        actions = {name: partial(self.add_imported, name) for name in WATCHED if name not in sys.modules}
        AfterImport(actions).install()
        self.add_imported()
        self._is_on = True

    def _replace(self, hook: Hook, homes: Sequence[Home]) -> None:
        for home in homes:
            if getattr(*home, None) is hook.function:
                self._replaced.append((home, hook.function))
                setattr(*home, hook.replacement)


def _imported(hooks: Sequence[Hook]) -> dict[int, list[Home]]:
    homes: dict[int, list[Home]] = {id(hook.function): [] for hook in hooks}
    packages = {id(hook.function): _package(getattr(hook.function, "__module__", "")) for hook in hooks}
    for name, module in list(sys.modules.items()):
        attributes = dict(getattr(module, "__dict__", {}))
        if packages.keys().isdisjoint(map(id, attributes.values())) or (package := _package(name)) == "unified_clip":
            continue
        for key, value in attributes.items():
            if packages.get(id(value), package) != package:
                homes[id(value)].append((module, key))
    return homes


def _package(module: str) -> str:
    return module.partition(".")[0]


HOOKS = Hooks()
