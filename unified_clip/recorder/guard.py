"""Run unified_clip's own code inside the imports, the training and the exit of other people's programs.

Everything that only observes or registers runs in a `Hook`. An error of this code never reaches the user's program: it
is reported once per hook, and the hook steps aside. Code that clips raises its errors, and needs no hook.

It runs in every Python process that `unified-clip record` starts, so it imports the standard library only.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

Observer = Callable[["Call"], "Iterator[None]"]
"""A generator function that yields once, when the observed function is to run. If the function raises an error,
the generator is closed and `Call.error` is the error."""

NAMED = ("unified_clip", "torch", "tensorflow", "keras", "paddle", "jax", "optax", "mlx", "numpy")
"""A report contains the versions of these modules, if they are imported."""

REGISTRY: dict[str, Hook] = {}
"""All hooks of this process by their names. A test makes each of them fail."""


class Call:
    """A call that a hook observes. Before the call, an observer may replace `args`, and after the call `result`."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        return inspect.signature(self.function).bind(*self.args, **self.kwargs).arguments


class Hook:
    def __init__(self, name: str, lost: str) -> None:
        """`lost` is a sentence without a period: what the user loses if this hook fails."""
        self.name, self.lost = name, lost
        self._is_reported = False
        REGISTRY[name] = self

    @property
    def is_strict(self) -> bool:
        return False

    def run(self, observe: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the result of `observe`, or None after an error."""
        try:
            return observe(*args, **kwargs)
        except Exception as error:
            if self.is_strict:
                raise
            try:
                self.report(error)
            except Exception:
                print_instead(self.message(error))
        return None

    def report(self, error: Exception) -> None:
        if not self._is_reported:
            self._is_reported = True
            warn(self.message(error), lambda message: warnings.warn(message, _warning(), stacklevel=5))

    def message(self, error: Exception) -> str:
        versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in NAMED}
        known = ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
        problem = describe_error(error).partition("\n")[0]
        releases = "docs/install.md lists the tested releases: `unified-clip help` prints the place of docs/"
        return f"{self.lost}: {problem}. Your program continues. Here run {known}. {releases}."

    def guarded(self, observe: Callable[..., Any]) -> Callable[..., Any]:
        """Return a callback for a framework, for Python's exit or for a graph."""

        @functools.wraps(observe)
        def callback(*args: Any, **kwargs: Any) -> Any:
            return self.run(observe, *args, **kwargs)

        return callback

    def around(
        self,
        function: Callable[..., Any],
        observe: Observer,
        *,
        reads: bool = False,
        unless: Callable[[], bool] | None = None,
    ) -> Callable[..., Any]:
        """Return a function that calls `function` exactly once, outside of the guarded code.

        If `observe` reads the arguments, iterators become lists first: code that fails halfway would use them up.
        """

        @functools.wraps(function)
        def observed(*args: Any, **kwargs: Any) -> Any:
            if unless is not None and unless():
                return function(*args, **kwargs)
            call = Call(function, args, kwargs)
            if reads:
                call.args, call.kwargs = list(map(_listed, args)), {key: _listed(kwargs[key]) for key in kwargs}
            steps = observe(call)
            self.run(next, steps, None)
            try:
                call.result = function(*call.args, **call.kwargs)
            except BaseException as error:
                call.error = error
                self.run(steps.close)  # type: ignore[attr-defined]  # a generator
                raise
            self.run(next, steps, None)
            return call.result

        return observed

    def after_import(self, actions: Mapping[str, Callable[[], object]]) -> None:
        """Run each action after the import of its module. Modules that are imported already are ignored."""
        sys.meta_path.insert(0, AfterImport(self, actions))


class AfterImport:
    def __init__(self, hook: Hook, actions: Mapping[str, Callable[[], object]]) -> None:
        self._hook, self._actions = hook, dict(actions)
        self._finding: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._actions or fullname in self._finding:
            return None
        self._finding.add(fullname)
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        try:
            spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in finders)), None)
        finally:
            self._finding.discard(fullname)
        if spec is not None and spec.loader is not None:
            self._hook.run(self._extend, spec.loader, fullname)
        return spec

    def _extend(self, loader: Any, fullname: str) -> None:
        execute = loader.exec_module

        def then_act(module: ModuleType) -> None:
            execute(module)
            is_it = module.__name__ == fullname  # pytest has one loader for all modules
            action = self._actions.pop(fullname, None) if is_it else None
            if action is not None:
                self._hook.run(action)

        loader.exec_module = then_act


def _listed(argument: Any) -> Any:
    return list(argument) if isinstance(argument, Iterator) else argument


def _warning() -> type[Warning]:
    """An old environment has no unified_clip."""
    errors = sys.modules.get("unified_clip.errors")
    return UserWarning if errors is None else errors.ClipWarning


def describe_error(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"


def warn(message: str, issue: Callable[[str], object]) -> None:
    """Issue a warning. If the user turned warnings into errors, print it, because it must not end the program."""
    try:
        issue(message)
    except Exception:
        print_instead(message)


def print_instead(message: str) -> None:
    with suppress(Exception):  # such as a closed stderr
        print(f"unified_clip: {message}", file=sys.stderr)
