"""Replace the frameworks' own functions during a recording, and keep the recordings of this process."""

from __future__ import annotations

import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .guard import Hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .guard import Call, Observer

    Home = tuple[Any, str]
    """(module or class, name of a function)."""

NOT_RECORDED = "is not recorded"
"""Each warning about a lost part of a recording contains this text."""


class RecordingHook(Hook):
    """A hook whose errors go to the active recordings."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(name, f"{what} {NOT_RECORDED}")

    @property
    def is_strict(self) -> bool:
        return OUTPUT.stores_results

    def report(self, error: Exception) -> None:
        for recording in OUTPUT.recordings:
            recording.on_failure(self, error)
            self._is_reported = True
        if not OUTPUT.recordings:
            super().report(error)


class Replacement(NamedTuple):
    homes: Sequence[Home]
    function: Any
    replacement: Any


class Hooks:
    def __init__(self) -> None:
        self._hooks: list[Replacement] = []
        self._hook = RecordingHook("switch", "a part of the training")
        self._imports: dict[str, RecordingHook] = {}
        self._switches: list[tuple[Callable[[], object], Callable[[], object]]] = []
        self._replaced: list[tuple[Home, Any]] = []
        self._is_on = False
        self.installers: Mapping[str, Callable[[], object]] = {}
        """{module with clip functions: function that adds the hooks}. Set it before the first recording."""
        self._missing: dict[str, Callable[[], object]] | None = None  # None before the first recording

    def wrap(
        self,
        homes: Sequence[Home],
        what: str,
        observe: Observer,
        *,
        unless: Callable[[], bool] | None = None,
        convert: Callable[[Any], Any] = lambda function: function,
    ) -> None:
        """During recordings, observe the calls of the function in all `homes`. `what` is lost if `observe` fails."""
        homes = [home for home in homes if hasattr(*home)]
        if homes:
            function = getattr(*homes[0])
            owner, name = homes[0]
            hook = RecordingHook(f"{getattr(owner, '__module__', '')}.{owner.__name__}.{name}".lstrip("."), what)
            replaced = convert(hook.around(function, observe, reads=True, unless=unless))
            self._hooks.append(Replacement(homes, function, replaced))
            if self._is_on:
                self._replace(self._hooks[-1], homes)

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
            imported = self._hook.run(_imported, self._hooks) or {}
            for hook in self._hooks:
                self._hook.run(self._replace, hook, [*hook.homes, *imported.get(id(hook.function), ())])
        else:
            for home, function in self._replaced:
                setattr(*home, function)
            self._replaced.clear()
        for on, off in self._switches:
            self._hook.run(on if is_on else off)

    def add_imported(self, *ended: str) -> None:
        """Add the hooks of all imported frameworks. The import of the modules in `ended` has just ended."""
        if self._missing is None:
            return
        for name in list(self._missing):
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if spec is not None and (name in ended or not getattr(spec, "_initializing", False)):
                self._imports[name].run(self._missing.pop(name))

    def _prepare(self) -> None:
        if self._missing is not None:
            return
        self._missing, self._is_on = dict(self.installers), False
        self._imports = {name: RecordingHook(f"import of {name}", name) for name in self._missing}
        actions = {name: partial(self.add_imported, name) for name in self._missing if name not in sys.modules}
        self._hook.after_import(actions)
        self.add_imported()
        self._is_on = True

    def _replace(self, hook: Replacement, homes: Sequence[Home]) -> None:
        for home in homes:
            if getattr(*home, None) is hook.function:
                self._replaced.append((home, hook.function))
                setattr(*home, hook.replacement)


def _imported(hooks: Sequence[Replacement]) -> dict[int, list[Home]]:
    homes: dict[int, list[Home]] = {id(hook.function): [] for hook in hooks}
    packages = {id(hook.function): _package(getattr(hook.function, "__module__", "")) for hook in hooks}
    for name, module in list(sys.modules.items()):
        attributes = dict(getattr(module, "__dict__", {}))
        package = _package(name)
        if packages.keys().isdisjoint(map(id, attributes.values())) or package == "unified_clip":
            continue
        for key, value in attributes.items():
            if packages.get(id(value), package) != package:
                homes[id(value)].append((module, key))
    return homes


def _package(module: str) -> str:
    return module.partition(".")[0]


HOOKS = Hooks()


class Output:
    def __init__(self) -> None:
        self.recordings: Sequence[Any] = ()
        """The active recordings."""

        self.store: Callable[[Any], Any] = lambda gradient: None
        """Copies a gradient to the host."""

        self.summed: set[str] = set()
        """The names of the matrices whose sums these recordings have."""

        self.loss_scale: Callable[[], Any] = lambda: None
        """Returns the factor of the loss while the gradients have one, or None if it is unknown."""

        self.recorded_calls = 0
        self.on_clipped: list[Callable[[str, Sequence[Any]], object]] = []
        """Functions of the name of a call and the parameters whose gradients it has clipped. A parameter is None if the
        call got only its gradient."""

        self.on_empty: dict[str, Callable[[Sequence[Any]], object]] = {}
        """{framework: function of the parameters of a call of unified_clip that found no gradient}."""

    @property
    def norms(self) -> bool:
        return any(each.norms for each in self.recordings)

    @property
    def stores_gradients(self) -> bool:
        return any(each.gradients_every is not None for each in self.recordings)

    @property
    def stores_results(self) -> bool:
        """Whether a recording stores the clipped gradients."""
        return any(each.stores_results for each in self.recordings)

    def scale_fields(self) -> dict[str, float]:
        scale = self.loss_scale()
        return {} if scale is None else {"loss_scale": scale}

    def copy(self, gradient: Any) -> Any:
        """Return a copy if the recordings store the gradients of the next call, and otherwise None."""
        return self.store(gradient) if any(each.stores_next for each in self.recordings) else None

    def report_clipped(self, call: str, parameters: Sequence[Any]) -> None:
        for report in self.on_clipped:
            report(call, parameters)


OUTPUT = Output()


def ran(call: Call) -> Iterator[None]:
    """Observe nothing."""
    yield


class Outermost:
    """Record no call inside of a recorded call."""

    def __init__(self) -> None:
        self._thread = threading.local()
        self.is_hidden: Callable[[], bool] = lambda: False

    def observer(self, observe: Observer) -> Observer:
        def observe_outermost(call: Call) -> Iterator[None]:
            if getattr(self._thread, "is_inside", False) or self.is_hidden():
                return
            self._thread.is_inside = True
            try:
                yield from observe(call)
            finally:
                self._thread.is_inside = False

        return observe_outermost


CLIP_CALLS = Outermost()
