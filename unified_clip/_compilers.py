"""Register `entry.run` with compilers. Otherwise, `torch.compile` cannot trace public functions."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

COMPILERS = {"torch._dynamo": "unified_clip._backends.torch.traced_bodies"}


class CompilerImport:
    """Register a compiler when it is imported, because importing it here would take about a second."""

    def __init__(self, compiler: str) -> None:
        self.compiler = compiler

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.compiler:
            return None
        finders = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_register(module: ModuleType) -> None:
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _register(name)

        spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


def watch() -> None:
    for compiler in COMPILERS:
        if compiler in sys.modules:
            _register(compiler)
        else:
            sys.meta_path.insert(0, CompilerImport(compiler))


def _register(compiler: str) -> None:
    importlib.import_module(COMPILERS[compiler]).register()
