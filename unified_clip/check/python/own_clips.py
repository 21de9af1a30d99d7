"""Find calls of unified_clip's functions and of `ClipConfig` in Python source."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from ..._kit.static_values import UnknownValueError
from ...config.clip_config import ClipConfig
from ...errors import ConfigError
from ...port.catalog import FRAMEWORKS, ClipFunction, clip_functions, positional_parameters
from ...port.found_clip import FoundClip
from ...port.to_config import meaning
from ...source.constants import AT_RUN_TIME, constant, followed
from ...source.module import MAX_ALIASES, Module
from ...source.project import Project
from ...source.tree import Target, is_name, last_name, method_of
from ..clip_use import OWN, ClipUse
from . import clip_calls

PATHS = ("pathlib", "os")
"""The packages of the functions in a path, such as `Path`."""

LOADERS = ("ClipConfig.load", "ClipConfig.import_from")

METHODS = {
    "__call__": "functional", "as_optax": "class", "as_paddle": "class", "clip_": "in place", "pairs": "functional",
}  # fmt: skip
"""The methods of a `ClipConfig` that clip, and what `clip_calls.check` has to know about them."""

COPIES = ("model_copy", "copy", "replace")

CHANGED = (
    "{code} may set or change settings of a clip configuration, so the effect of that configuration is unknown. Write "
    "the settings into a file, and load the file with ClipConfig.load. Or add this code to check.ignore with a reason."
)

RUN_TIME = (
    "The effect of this clip is unknown, since an argument is only known at run time. Pass a constant value, or add "
    "the clip to check.ignore with a reason."
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
UNKNOWN_FILE = (
    "The file of {call} is unknown. Write its name in the path, as in ClipConfig.load(Path(__file__).parent / "
    '"clip.toml"). Exactly one file of this name must be in the folder of this source and the folders above.'
)


@cache
def _own_functions() -> dict[str, ClipFunction]:
    """Return the functions of unified_clip that clip, with the rules of the functions that they replace."""
    own: dict[str, ClipFunction] = {}
    for function in clip_functions().values():
        if function.replacement and function.rule and function.replacement not in own:
            own[function.replacement] = replace(
                function, kind=clip_calls.kind_of(function), renamed={},
                limits=[function.renamed.get(name, name) for name in function.limits],
                parameters=positional_parameters(function.replacement),
            )  # fmt: skip
    return own


class OwnClips(NamedTuple):
    uses: list[ClipUse]
    calls: set[tuple[Path, int, int]]
    """The places of calls of a `ClipConfig`, such as `clip(gradients)`."""


def read(project: Project, paths: Sequence[Path]) -> OwnClips:
    """Return the clips of unified_clip in Python files."""
    mentioning = (path for path in paths if OWN.encode() in project.read(path))
    modules = list(filter(None, map(project.readable, mentioning)))
    uses = {node: use for module in modules for node, use in _uses(module)}
    users: dict[ast.AST, set[Path]] = {}
    calls: list[ClipUse] = []
    for module, read, creation in _reads(project, modules, uses):
        assert module.path is not None
        if read is not creation:
            users.setdefault(creation, set()).add(module.path)
        if (called := _clip_call(module, read)) is not None:
            calls.append(_of_call(module, *called, uses[creation].config))
    own = [
        replace(use, users=tuple(sorted(users[node] - {use.path}))) if node in users else _unread(project, node, use)
        for node, use in uses.items()
    ]
    places = {(use.path, use.line, use.column) for use in calls}
    return OwnClips([*own, *(use for use in calls if use.why_unknown)], places)


def _uses(module: Module) -> Iterator[tuple[ast.AST, ClipUse]]:
    """Yield (node, clip). If `import *` or `getattr` hides which functions a file uses, yield one unknown clip."""
    assert module.path is not None
    is_hidden = any(star.partition(".")[0] == OWN for star in module.stars) or any(
        is_name(call.func, "getattr") and call.args and module.full_name(call.args[0]).partition(".")[0] == OWN
        for call in module.calls
    )
    if is_hidden:
        yield module.tree, ClipUse(module.path, 1, 1, OWN, why_unknown=HIDDEN, package=OWN)
        return
    for node in module.nodes:
        if isinstance(node, Target) and isinstance(node.ctx, ast.Load):
            package, _, name = module.full_name(node).partition(".")
            if package == OWN and name and (use := _own(module, name, node)) is not None:
                yield (node if use.why_unknown else module.parents[node]), use


def _reads(
    project: Project, modules: Sequence[Module], uses: Mapping[ast.AST, ClipUse]
) -> Iterator[tuple[Module, ast.expr, ast.AST]]:
    """Yield (module, read, creation) for each expression that gives a `ClipConfig`: its creation, and each read of a
    variable that holds it, also in other files."""
    made = {node for node, use in uses.items() if use.config is not None and not use.call}
    names = {(last_name(node), module) for module in modules for node in module.nodes if _holds(module, node, made)}
    others = [other for name, module in names for other in project.mentioning(name, module)]
    for module in dict.fromkeys([*modules, *others]):
        yield from ((module, node, node) for node in module.calls if node in made)
        loads = (node for node in module.nodes if isinstance(node, Target) and isinstance(node.ctx, ast.Load))
        for node in loads:
            if (creation := _creation(project, module, node)) in made:
                yield module, node, creation


def _holds(module: Module, node: ast.AST, made: Container[ast.AST]) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and module.bound_value(node).value in made


def _creation(project: Project, module: Module, node: ast.expr, depth: int = 0) -> ast.expr | None:
    """Return the expression that creates the object of a variable, such as `ClipConfig.load(...)`, also before
    `.clipper()`."""
    found = project.definition(module, node)
    value = found.module.bound_value(found.node).value if found is not None else followed(module, node)
    if depth < MAX_ALIASES and isinstance(value, ast.Call) and method_of(value) == "clipper":
        assert isinstance(value.func, ast.Attribute)
        return _creation(project, found.module if found is not None else module, value.func.value, depth + 1)
    return value


def _unread(project: Project, creation: ast.AST, use: ClipUse) -> ClipUse:
    """Mark a `ClipConfig` in a variable that no code reads."""
    targets = getattr(project.module(use.path).parents.get(creation), "targets", [])
    is_unread = use.config is not None and not use.call and [type(each) for each in targets] == [ast.Name]
    return replace(use, config=None, why_unknown=UNREAD.format(name=targets[0].id)) if is_unread else use


def _clip_call(module: Module, read: ast.AST) -> tuple[ast.Call, str] | None:
    """Return (call, method) if code clips with a `ClipConfig`, or copies it with other settings."""
    argument = module.argument(read)
    if argument is not None and module.dotted(argument[0].func) == "copy.replace":
        return argument[0], "replace"
    method = getattr(module.parents[read], "attr", "__call__")
    call = module.method_call(read) if method != "__call__" else module.call_of(read)
    if call is None or not (method in METHODS or (method in COPIES and (call.args or call.keywords))):
        return None
    return call, method


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
    rule: ClipConfig | None = None
    try:
        if (config := _created(module, call, name)) is not None:
            return use(config)
        if name.startswith("ClipConfig.") and not name.startswith("ClipConfig.model_json_"):
            return use(why_unknown=CHANGED.format(code=ast.unparse(call)))
        if (function := _own_functions().get(last)) is None:
            return None
        effect = meaning(module, FoundClip(node, name, function, call))
        if effect is None:
            raise ConfigError(RUN_TIME)
        rule = effect.config
        if effect.threshold:
            raise ConfigError(AT_RUN_TIME.format(code=effect.threshold))
        clip_calls.check(module, call, rule.rule, function.kind)
        return use(rule, call=clip_calls.with_threshold_slot(call, function.parameters, function.limits))
    except ConfigError as error:
        return use(why_unknown=str(error), rule=rule)


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


def _file(module: Module, call: ast.Call) -> Path:
    """Return the file that a call reads: the only one to which the names in its path lead, from the folder of the
    source or a folder above."""
    passed = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "path")]
    files: list[Path] = []
    with contextlib.suppress(UnknownValueError):
        names = _names(module, passed[0]) if passed else []
        folders = module.path.absolute().parents if module.path is not None and names else ()
        files = [file for folder in folders if (file := folder.joinpath(*names)).is_file()]
    if len(files) != 1:
        raise ConfigError(UNKNOWN_FILE.format(call=ast.unparse(call)))
    return files[0]


def _names(module: Module, node: ast.expr, depth: int = 0) -> list[str]:
    """Return the names in a path, such as "clip.toml" for `Path(__file__).parent / "clip.toml"`."""
    node = followed(module, node)
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Name(id=name) if name != "__file__" and module.full_name(node).partition(".")[0] not in PATHS:
            raise UnknownValueError(node)
        case _ if depth > MAX_ALIASES:
            raise UnknownValueError(node)
    inner = (each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr))
    return [text for each in inner for text in _names(module, each, depth + 1)]
