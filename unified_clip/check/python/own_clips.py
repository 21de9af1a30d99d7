"""Find calls of unified_clip's functions and of `ClipConfig` in Python source."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from ..._kit.static_values import UnknownValueError
from ...config.clip_config import ClipConfig
from ...errors import ConfigError
from ...port.catalog import FRAMEWORKS, clip_functions, positional_parameters
from ...source.constants import constant
from ...source.module import Module
from ...source.project import Project
from ...source.tree import Target, is_name, last_name
from ..clip_use import OWN, ClipUse
from . import clipped_parameters, effect
from .paths import file_of

LOADERS = ("ClipConfig.load", "ClipConfig.import_from")

METHODS = {
    "__call__": "functional", "as_optax": "class", "as_paddle": "class", "clip_": "in place", "pairs": "functional",
}  # fmt: skip
"""The methods of a `ClipConfig` that clip, and what `effect.of_call` has to know about them."""

COPIES = ("model_copy", "copy", "replace")
"""Methods of pydantic models, and copy.replace: they return a copy, with other settings if they get arguments."""

CHANGED = (
    "{code} may set or change settings of a clip configuration, so the effect of that configuration is unknown. Write "
    "the settings into a file, and load the file with ClipConfig.load. Or add this code to check.ignore with a reason."
)

NOT_CALLED = (
    "The effect of this clip is unknown, because this line names the function but does not call it. Where you call the "
    "function, write its full name, and pass a number as the threshold. Or add this clip to check.ignore with a reason."
)

UNREAD = (
    "No checked code reads {name}, so this configuration clips nothing. Clip with it, as in {name}(gradients), or "
    "remove this line. If another file uses {name}, also pass that file to the check."
)
HIDDEN = (
    "The file reads names of unified_clip by `import *` or `getattr`, so its clips are unknown. Import each name that "
    "the file uses."
)
STARRED = "The arguments of {call} are only known at run time. Pass each argument by name: {names}."
NO_FILE = (
    "Cannot find the file of {call} in the directory of this source or a parent directory. Correct the path, and pass "
    "it as the first argument."
)
RUN_TIME_PATH = (
    "{part} is only known at run time, so the file of {call} is unknown. Write a path relative to the source, "
    'such as ClipConfig.load(Path(__file__).parent / "clip.toml"). Or add the clip to check.ignore with a reason.'
)


class OwnFunction(NamedTuple):
    kind: str
    rule: str
    family: str
    limits: tuple[str, ...]


@cache
def _own_functions() -> dict[str, OwnFunction]:
    native = (function for function in clip_functions().values() if function.replacement and function.rule)
    own: dict[str, OwnFunction] = {}
    for function in native:
        limits = tuple(function.renamed.get(name, name) for name in function.limits)
        own.setdefault(
            function.replacement, OwnFunction(effect.kind_of(function), function.rule, function.family, limits)
        )
    return own


class OwnClips(NamedTuple):
    uses: list[ClipUse]
    calls: Set[tuple[Path, int, int]]
    """The places of calls of a `ClipConfig`, such as `clip(gradients)`."""


def read(project: Project, paths: Sequence[Path]) -> OwnClips:
    """Return the clips of unified_clip in Python files."""
    modules = [
        module
        for path in paths
        if OWN.encode() in project.read(path) and (module := project.readable(path)) is not None
    ]
    found, calls = OwnClips([], set()), list[ClipUse]()
    for module in modules:
        for node, use in _uses(module):
            if use.config is None or use.call:
                found.uses.append(use)
                continue
            variables = _Variables(project, module, node, use.config)
            calls += variables.clips
            found.calls.update(variables.calls)  # type: ignore[attr-defined]
            found.uses.append(variables.marked(use))
    return OwnClips([*found.uses, *calls], found.calls)


def _uses(module: Module) -> Iterator[tuple[ast.expr | None, ClipUse]]:
    """Yield (node, clip). If `import *` or `getattr` hides which functions a file uses, yield one unknown clip."""
    assert module.path is not None
    is_hidden = any(star.partition(".")[0] == OWN for star in module.stars) or any(
        is_name(call.func, "getattr") and call.args and module.full_name(call.args[0]).partition(".")[0] == OWN
        for call in module.calls
    )
    if is_hidden:
        yield None, ClipUse(module.path, 1, 1, OWN, why_unknown=HIDDEN, package=OWN)
        return
    for node in module.nodes:
        if isinstance(node, Target) and isinstance(node.ctx, ast.Load):
            package, _, name = module.full_name(node).partition(".")
            if package == OWN and name and (use := _own(module, name, node)) is not None:
                yield node, use


class _Variables:
    """The variables that hold a `ClipConfig` or an object made from it, in all files, and the calls of them."""

    def __init__(self, project: Project, module: Module, node: ast.AST | None, config: ClipConfig) -> None:
        self._project, self._module, self._config = project, module, config
        self._waiting: list[tuple[Module, ast.expr]] = []
        self._seen: set[ast.AST] = set()
        self._users: set[Path] = set()
        self._has_reads = False
        self.clips: list[ClipUse] = []
        """The calls that clip nothing or only a part of the parameters."""
        self.calls: set[tuple[Path, int, int]] = set()
        if node is not None:
            self._add_targets(module, node)
        self._names = [ast.unparse(target) for _, target in self._waiting]
        for module, target in self._waiting:
            for reader, read in self._reads(module, target):
                self._has_reads = True
                self._users |= {reader.path} if reader is not self._module and reader.path else set()
                if not self._called(reader, read):
                    self._add_targets(reader, read)

    def marked(self, use: ClipUse) -> ClipUse:
        """Return the clip with the files that use it. Mark a clip of unknown effect if no code reads its variable.

        Code elsewhere can read an attribute, such as `self.clip`, and can use a configuration that has no variable.
        """
        use = replace(use, users=tuple(sorted(self._users)))
        if self._has_reads or not self._names or not all(map(str.isidentifier, self._names)):
            return use
        name = min(self._names)
        return replace(use, config=None, why_unknown=UNREAD.format(name=name), unused=name)

    def _add_targets(self, module: Module, node: ast.AST) -> None:
        statement = module.statement(node)
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        for target in (inner for each in targets for inner in getattr(each, "elts", [each])):
            if isinstance(target, Target) and target not in self._seen and isinstance(target.ctx, ast.Store):
                self._seen.add(target)
                self._waiting.append((module, target))

    def _reads(self, module: Module, target: ast.expr) -> Iterator[tuple[Module, ast.expr]]:
        if not isinstance(target, ast.Name):
            text = ast.unparse(target)
            same = (node for node in module.nodes if isinstance(node, ast.Attribute) and node.attr == last_name(target))
            yield from ((module, node) for node in same if node is not target and ast.unparse(node) == text)
            return
        yield from ((module, read) for read in module.binding(target).reads)  # type: ignore[misc]
        if module.scope(target) is module.scopes.top:
            for other in self._project.mentioning(target.id, module):
                for node in other.nodes if other is not module else ():
                    if isinstance(node, Target) and other.full_name(node).rpartition(".")[2] == target.id:
                        found = self._project.definition(other, node)
                        if found is not None and found.node is target:
                            yield other, node

    def _called(self, module: Module, read: ast.expr) -> bool:
        """Add the call of a method that clips, and return whether there is one."""
        method = getattr(module.parents[read], "attr", "__call__")
        call = module.method_call(read) if method != "__call__" else module.call_of(read)
        outer = module.argument(read)
        if outer is not None and module.dotted(outer[0].func) == "copy.replace":
            call, method = outer[0], "copy"
        if call is None or not (method in METHODS or _is_changed(call)):
            return False
        assert module.path is not None
        place = module.path, *module.position(call)
        self.calls.add(place)
        use = ClipUse(*place, f"{OWN}.ClipConfig.{method}", package=OWN, code=module.code(call))
        try:
            if method in COPIES:
                raise ConfigError(CHANGED.format(code=ast.unparse(call)))
            narrowed = effect.of_call(module, call, self._config, METHODS[method])
            self.clips += [replace(use, config=narrowed)] if narrowed != self._config else []
        except ConfigError as error:
            self.clips.append(replace(use, why_unknown=str(error)))
        return not method.startswith("as_")


def _own(module: Module, name: str, node: ast.expr) -> ClipUse | None:
    call = module.parents[node]
    assert module.path is not None
    last = name.rpartition(".")[2]
    package = name.partition(".")[0] if name.partition(".")[0] in FRAMEWORKS else OWN
    use = partial(
        ClipUse, module.path, *module.position(node), f"{OWN}.{name}", package=package, code=module.code(call)
    )
    if not isinstance(call, ast.Call) or call.func is not node:
        is_passed_on = not isinstance(call, ast.Attribute | ast.Compare | ast.Expr)
        return use(why_unknown=NOT_CALLED) if is_passed_on and last.islower() and last in _own_functions() else None
    try:
        if (config := _created(module, call, name)) is not None:
            copy = module.method_call(call)
            return (
                use(why_unknown=CHANGED.format(code=ast.unparse(copy))) if copy and _is_changed(copy) else use(config)
            )
        if name.startswith("ClipConfig.") and not name.startswith("ClipConfig.model_json_"):
            return use(why_unknown=CHANGED.format(code=ast.unparse(call)))
        if last in _own_functions():
            config = _config(module, call, last, _threshold(module, call, last))
            code = clipped_parameters.with_threshold_slot(
                call, positional_parameters(last), _own_functions()[last].limits
            )
            return use(effect.of_call(module, call, config, _own_functions()[last].kind), call=code)
    except ConfigError as error:
        return use(why_unknown=str(error), rule=_rule(module, call, last))
    return None


def _is_changed(call: ast.Call) -> bool:
    """Return whether a call copies a configuration with other settings."""
    return last_name(call.func) in COPIES and bool(call.args or call.keywords)


def _created(module: Module, call: ast.Call, name: str) -> ClipConfig | None:
    if name == "ClipConfig":
        return ClipConfig(**arguments(module, call, list(ClipConfig.model_fields)))
    if name == "ClipConfig.loads":
        return ClipConfig.loads(**arguments(module, call, ["text", "kind"]))
    return ClipConfig.import_from(_file(module, call)) if name in LOADERS else None


def arguments(module: Module, call: ast.Call, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of the arguments of a call, by the names of the parameters."""
    is_starred = any(isinstance(each, ast.Starred) for each in call.args) or any(not each.arg for each in call.keywords)
    if is_starred or len(call.args) > len(names):
        raise ConfigError(STARRED.format(call=ast.unparse(call), names=", ".join(names)))
    passed = dict(zip(names, call.args, strict=False)) | {each.arg or "": each.value for each in call.keywords}
    return {name: constant(module, value) for name, value in passed.items()}


def _rule(module: Module, call: ast.Call, name: str) -> ClipConfig | None:
    if name not in _own_functions():
        return None
    with contextlib.suppress(ConfigError):
        config = _config(module, call, name, {"threshold": 1.0})
        with contextlib.suppress(ConfigError):
            return effect.of_call(module, call, config, _own_functions()[name].kind)
        return config
    return None


def _file(module: Module, call: ast.Call) -> Path:
    passed = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "path")]
    code = ast.unparse(call)
    try:
        file = file_of(module, passed[0]) if passed else None
    except UnknownValueError as unknown:
        raise ConfigError(RUN_TIME_PATH.format(call=code, part=unknown)) from None
    if file is None:
        raise ConfigError(NO_FILE.format(call=code))
    return file


def _config(module: Module, call: ast.Call, name: str, threshold: dict[str, Any]) -> ClipConfig:
    function, passed = _own_functions()[name], _passed(call, name)
    settings: dict[str, Any] = {} if function.rule == "value" else {"family": function.family}
    if "norm_type" in passed:
        settings["norm_type"] = constant(module, passed["norm_type"])
    if "error_if_nonfinite" in passed and constant(module, passed["error_if_nonfinite"]):
        settings["nonfinite"] = "raise"
    return ClipConfig(rule=function.rule, **settings, **threshold)


def _threshold(module: Module, call: ast.Call, name: str) -> dict[str, Any]:
    function, passed = _own_functions()[name], _passed(call, name)
    limits = [constant(module, passed[limit]) for limit in function.limits if limit in passed]
    if not limits:
        names = " and ".join(function.limits)
        raise ConfigError(f"Cannot infer {names} of {ast.unparse(call)}. Pass {names} by name.")
    if len(limits) == 2 and limits[0] != -limits[1]:
        return dict(zip(("max", "min"), limits, strict=True))
    return {"threshold": limits[0]}


def _passed(call: ast.Call, name: str) -> dict[str, ast.expr]:
    passed = dict(zip(positional_parameters(name), call.args, strict=False))
    return passed | {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
