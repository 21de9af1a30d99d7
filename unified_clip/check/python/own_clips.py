"""Find calls of unified_clip's functions and of `ClipConfig` in Python source."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from ..._kit.static_values import UnknownValueError
from ...config.clip_config import ClipConfig
from ...errors import ConfigError
from ...port.catalog import FRAMEWORKS, clip_functions, positional_parameters
from ...source.constants import constant, followed
from ...source.module import MAX_ALIASES, Module
from ...source.project import Project
from ...source.tree import Target, is_name, last_name
from ..clip_use import OWN, ClipUse
from . import clip_calls

SAME = ("pathlib.Path", "str", "os.path.abspath")

LOADERS = ("ClipConfig.load", "ClipConfig.import_from")

METHODS = {
    "__call__": "functional", "as_optax": "class", "as_paddle": "class", "clip_": "in place", "pairs": "functional",
}  # fmt: skip
"""The methods of a `ClipConfig` that clip, and what `clip_calls.check` has to know about them."""

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
            function.replacement, OwnFunction(clip_calls.kind_of(function), function.rule, function.family, limits)
        )
    return own


class OwnClips(NamedTuple):
    uses: list[ClipUse]
    calls: set[tuple[Path, int, int]]
    """The places of calls of a `ClipConfig`, such as `clip(gradients)`."""


def read(project: Project, paths: Sequence[Path]) -> OwnClips:
    """Return the clips of unified_clip in Python files."""
    found, calls = OwnClips([], set()), list[ClipUse]()
    mentioning = (path for path in paths if OWN.encode() in project.read(path))
    for module in filter(None, map(project.readable, mentioning)):
        for node, use in _uses(module):
            reads = list(_reads(project, module, node)) if use.config is not None and not use.call else []
            for reader, read in reads:
                if (called := _clip_call(reader, read)) is not None:
                    clip = _of_call(reader, *called, use.config)
                    found.calls.add((clip.path, clip.line, clip.column))
                    calls += [clip] if clip.why_unknown else []
            users = {reader.path for reader, _ in reads if reader is not module and reader.path}
            use = replace(use, users=tuple(sorted(users)))
            found.uses.append(use if use.call or reads else _unread(module, node, use))
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


def _reads(project: Project, module: Module, node: ast.AST | None) -> Iterator[tuple[Module, ast.expr]]:
    """Yield the reads of the variables that hold a `ClipConfig` or an object made from it, also in other files."""
    waiting = [(module, target) for target in _targets(module, node)]
    seen = set[ast.AST]()
    while waiting:
        module, target = waiting.pop()
        if target in seen:
            continue
        seen.add(target)
        reads = [(module, read) for read in module.binding(target).reads]
        if isinstance(target, ast.Name) and module.scope(target) is module.scopes.top:
            reads += _reads_elsewhere(project, module, target)
        for reader, read in reads:
            yield reader, read  # type: ignore[misc]
            called = _clip_call(reader, read)
            if called is None or called[1].startswith("as_"):
                waiting += [(reader, each) for each in _targets(reader, read)]


def _targets(module: Module, node: ast.AST | None) -> list[ast.expr]:
    """Return the names and attributes to which the statement of an expression assigns a value."""
    statement = module.statement(node) if node is not None else None
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    inner = [each for target in targets for each in getattr(target, "elts", [target])]
    return [each for each in inner if isinstance(each, Target) and isinstance(each.ctx, ast.Store)]


def _reads_elsewhere(project: Project, module: Module, target: ast.Name) -> Iterator[tuple[Module, ast.AST]]:
    for other in project.mentioning(target.id, module):
        for node in other.nodes if other is not module else ():
            if isinstance(node, Target) and other.full_name(node).rpartition(".")[2] == target.id:
                found = project.definition(other, node)
                if found is not None and found.node is target:
                    yield other, node


def _unread(module: Module, node: ast.AST | None, use: ClipUse) -> ClipUse:
    """Mark a `ClipConfig` that no code reads. Code elsewhere can read an attribute, such as `self.clip`."""
    names = [target.id for target in _targets(module, node) if isinstance(target, ast.Name)]
    if use.config is None or not names:
        return use
    return replace(use, config=None, why_unknown=UNREAD.format(name=names[0]), unused=names[0])


def _clip_call(module: Module, read: ast.AST) -> tuple[ast.Call, str] | None:
    """Return (call, method) if code clips with a `ClipConfig`, or copies it with other settings."""
    method = getattr(module.parents[read], "attr", "__call__")
    call = module.method_call(read) if method != "__call__" else module.call_of(read)
    outer = module.argument(read)
    if outer is not None and module.dotted(outer[0].func) == "copy.replace":
        call, method = outer[0], "copy"
    return (call, method) if call is not None and (method in METHODS or _is_changed(call)) else None


def _of_call(module: Module, call: ast.Call, method: str, config: ClipConfig | None) -> ClipUse:
    assert module.path is not None
    assert config is not None
    why = CHANGED.format(code=ast.unparse(call)) if method in COPIES else ""
    try:
        if not why:
            clip_calls.check(module, call, config.rule, METHODS[method])
    except ConfigError as error:
        why = str(error)
    place = module.path, *module.position(call)
    return ClipUse(*place, f"{OWN}.ClipConfig.{method}", why_unknown=why, package=OWN, code=module.code(call))


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
            clip_calls.check(module, call, config.rule, _own_functions()[last].kind)
            limits = _own_functions()[last].limits
            return use(config, call=clip_calls.with_threshold_slot(call, positional_parameters(last), limits))
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
        return _config(module, call, name, {"threshold": 1.0})
    return None


def _file(module: Module, call: ast.Call) -> Path:
    """Return the file that a call reads. A relative path is searched in the folders of and above the source."""
    passed = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "path")]
    code = ast.unparse(call)
    try:
        name = _path(module, passed[0]) if passed else Path()
    except UnknownValueError as unknown:
        raise ConfigError(RUN_TIME_PATH.format(call=code, part=unknown)) from None
    folders = module.path.absolute().parents if module.path else ()
    file = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if file is None:
        raise ConfigError(NO_FILE.format(call=code))
    return file


def _path(module: Module, node: ast.expr, depth: int = 0) -> Path:
    """Return the path of a literal, or of code such as `Path(__file__).parent / "clip.toml"`."""
    node = followed(module, node)
    inner = partial(_path, module, depth=depth + 1)
    if depth > MAX_ALIASES:
        raise UnknownValueError(node)
    match node:
        case ast.Name(id="__file__") if module.path is not None:
            return module.path.absolute()
        case ast.Constant(value=str(text)) if text:
            return Path(text)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return inner(left) / inner(right)
        case ast.Attribute(value=value, attr="parent"):
            return inner(value).parent
        case ast.Subscript(value=ast.Attribute(value=value, attr="parents"), slice=ast.Constant(value=int(index))):
            with contextlib.suppress(IndexError):
                return inner(value).parents[index]
        case ast.Call(func=ast.Attribute(value=value, attr="resolve" | "absolute" as method), args=[]):
            path = inner(value)
            return path.resolve() if method == "resolve" and path.is_absolute() else path
        case ast.Call(func=function, args=[argument]) if module.dotted(function) in SAME:
            return inner(argument)
        case ast.Call(func=function, args=[argument]) if module.dotted(function) == "os.path.dirname":
            return inner(argument).parent
        case ast.Call(func=function, args=[_, *_] as parts) if module.dotted(function) == "os.path.join":
            return Path(*map(inner, parts))
    raise UnknownValueError(node)


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
