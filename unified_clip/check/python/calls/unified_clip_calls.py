"""Find calls of unified_clip's functions and of `ClipConfig` in Python source."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from ...._kit.static_values import UnknownValueError
from ....config.clip_config import ClipConfig
from ....config.formats.python_source import Source, last_name
from ....errors import ConfigError
from ....port.catalog import FRAMEWORKS, clip_functions, positional_parameters
from ...clip_use import OWN, ClipUse
from ...notebooks.cells import parsed, python_source
from .. import clipped_parameters, source_paths
from . import effect

LOADERS = ("ClipConfig.load", "ClipConfig.import_from")

MAKERS = (
    "model_construct", "model_validate", "model_validate_json", "model_validate_strings", "construct", "from_orm",
    "parse_file", "parse_obj", "parse_raw", "validate",
)  # fmt: skip
"""Methods of pydantic models that create a `ClipConfig`."""

METHODS = {
    "__call__": "functional", "as_optax": "class", "as_paddle": "class", "clip_": "in place", "pairs": "functional",
}  # fmt: skip
"""The methods of a `ClipConfig` that clip, and what `effect.of_call` has to know about them."""

COPIES = ("model_copy", "copy")

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


def uses(path: Path) -> list[ClipUse]:
    """Return the clips of unified_clip in a Python file.

    If the Python is invalid, or if `import *` or `getattr` hides which functions the file uses, return one
    clip of unknown effect.
    """
    if OWN.encode() not in python_source(path):
        return []
    try:
        source = parsed(path)
        used = list(source.named(OWN))
    except ConfigError as error:
        return [ClipUse(path, 1, 1, OWN, why_unknown=str(error), package=OWN)]
    own = [use for name, node in used if (use := _own(source, path, name, node)) is not None]
    return own + [
        ClipUse(
            path,
            call.lineno,
            call.col_offset + 1,
            f"{OWN}.{name}",
            why_unknown=why,
            package=OWN,
        )
        for call, name, why in _changed(source)
    ]


def _changed(source: Source) -> Iterator[tuple[ast.Call, str, str]]:
    """Yield (call, name, reason) for each call that copies an object with other settings of a `ClipConfig`."""
    for call in source.calls:
        is_replaced = source.dotted(call.func) == "copy.replace"
        is_copied = isinstance(call.func, ast.Attribute) and call.func.attr in COPIES
        names = [each.arg for each in call.keywords] if is_replaced else []
        for update in (each.value for each in call.keywords if is_copied and each.arg in ("update", None)):
            names += [getattr(key, "value", None) for key in update.keys] if isinstance(update, ast.Dict) else [None]
        if any(name is None or name in ClipConfig.model_fields for name in names):
            name = "copy.replace" if is_replaced else last_name(call.func)
            yield call, name, CHANGED.format(code=ast.unparse(call))


def names(source: Source, uses: Sequence[ClipUse]) -> dict[str, ClipConfig]:
    """Return the variables that hold a `ClipConfig` or an object made from one, such as "self.clip"."""
    made = {(use.line, use.column - 1): use.config for use in uses if use.config is not None and not use.call}
    assignments = [node for node in source.nodes if isinstance(node, ast.Assign | ast.AnnAssign) and node.value]
    known: dict[str, ClipConfig] = {}
    before = -1
    while before < len(known):
        before = len(known)
        for node in assignments:
            read = [each for each in ast.walk(node.value or node) if isinstance(each, ast.Name | ast.Attribute)]
            configs = [made.get((each.lineno, each.col_offset)) or known.get(ast.unparse(each)) for each in read]
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for config in filter(None, configs):
                known |= {ast.unparse(name): config for each in targets for name in getattr(each, "elts", [each])}
    return known


def imported(source: Source, module: str, known: Mapping[str, ClipConfig]) -> dict[str, ClipConfig]:
    """Return the names by which a file imports the variables `known` of another file. A star imports all of them."""
    found: dict[str, ClipConfig] = {}
    for node in source.nodes:
        match node:
            case ast.ImportFrom(module=name) if (name or "").rpartition(".")[2] == module:
                for alias in node.names:
                    if alias.name in known:
                        found[alias.asname or alias.name] = known[alias.name]
                    elif alias.name == "*":
                        found |= known
            case ast.Import() | ast.ImportFrom():
                modules = {each.asname or each.name for each in node.names if each.name.rpartition(".")[2] == module}
                found |= {f"{each}.{name}": config for each in modules for name, config in known.items()}
    return found


def marked_unread(source: Source, use: ClipUse, known: Mapping[str, ClipConfig]) -> ClipUse:
    """Mark a clip of unknown effect if no code of its file reads the variable with the configuration.

    Code elsewhere can read an attribute, such as `self.clip`, and can use a configuration that has no variable.
    """
    variables = {name for name, config in known.items() if config is use.config}
    reads = [node for node in source.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    if not variables or not all(map(str.isidentifier, variables)) or any(node.id in variables for node in reads):
        return use
    return replace(use, config=None, why_unknown=UNREAD.format(name=min(variables)), unused=min(variables))


def calls(source: Source, path: Path, known: Mapping[str, ClipConfig]) -> Iterator[ClipUse]:
    """Yield the calls of a `ClipConfig` that clip nothing or only a part of the parameters.

    An example is `clip(gradients)` without a use of the result.
    """
    for call in source.calls:
        code = ast.unparse(call.func)
        name, _, method = (code, "", "__call__") if code in known else code.rpartition(".")
        if name not in known or method not in METHODS:
            continue
        use = ClipUse(path, call.lineno, call.col_offset + 1, f"{OWN}.ClipConfig.{method}", package=OWN)
        try:
            narrowed = effect.of_call(source, call, known[name], METHODS[method])
        except ConfigError as error:
            yield replace(use, why_unknown=str(error))
            continue
        if narrowed != known[name]:
            yield replace(use, config=narrowed)


def _own(source: Source, path: Path, name: str, node: ast.expr) -> ClipUse | None:
    call = source.parents[node]
    last = name.rpartition(".")[2]
    package = name.partition(".")[0] if name.partition(".")[0] in FRAMEWORKS else OWN
    use = partial(ClipUse, path, node.lineno, node.col_offset + 1, f"{OWN}.{name}", package=package)
    if not isinstance(call, ast.Call) or call.func is not node:
        is_passed_on = not isinstance(call, ast.Attribute | ast.Compare | ast.Expr)
        return use(why_unknown=NOT_CALLED) if is_passed_on and last.islower() and last in _own_functions() else None
    try:
        if (config := _created(source, path, call, name)) is not None:
            return use(config)
        if name in [f"ClipConfig.{maker}" for maker in MAKERS]:
            return use(why_unknown=CHANGED.format(code=ast.unparse(call)))
        if last in _own_functions():
            config = _config(source, call, last, _threshold(source, call, last))
            code = clipped_parameters.with_threshold_slot(
                call, positional_parameters(last), _own_functions()[last].limits
            )
            return use(effect.of_call(source, call, config, _own_functions()[last].kind), call=code)
    except ConfigError as error:
        return use(why_unknown=str(error), rule=_rule(source, call, last))
    return None


def _created(source: Source, path: Path, call: ast.Call, name: str) -> ClipConfig | None:
    if name == "ClipConfig":
        return ClipConfig(**source.arguments(call, list(ClipConfig.model_fields)).data)
    if name == "ClipConfig.loads":
        return ClipConfig.loads(**source.arguments(call, ["text", "kind"]).data)
    return ClipConfig.import_from(_file(source, path, call)) if name in LOADERS else None


def _rule(source: Source, call: ast.Call, name: str) -> ClipConfig | None:
    if name not in _own_functions():
        return None
    with contextlib.suppress(ConfigError):
        config = _config(source, call, name, {"threshold": 1.0})
        with contextlib.suppress(ConfigError):
            return effect.of_call(source, call, config, _own_functions()[name].kind)
        return config
    return None


def _file(source: Source, path: Path, call: ast.Call) -> Path:
    """Return the file that a call of `ClipConfig.load` or `import_from` reads.

    A relative path is searched in the directory of the source, and then in each parent directory.
    """
    passed = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "path")]
    if not passed:
        raise source.wrong(call, f"cannot infer the file of {ast.unparse(call)}. Pass the path as the first argument.")
    try:
        name = source_paths.path_of(source, passed[0], path)
    except UnknownValueError as unknown:
        raise source.wrong(call, RUN_TIME_PATH.format(call=ast.unparse(call), part=unknown)) from None
    file = next((folder / name for folder in path.absolute().parents if (folder / name).is_file()), None)
    if file is None:
        place = "" if name.is_absolute() else " in the directory of this source or a parent directory"
        raise source.wrong(call, f"cannot find the file of {ast.unparse(call)}{place}. Correct the path.")
    return file


def _config(source: Source, call: ast.Call, name: str, threshold: dict[str, Any]) -> ClipConfig:
    function, passed = _own_functions()[name], _passed(call, name)
    settings: dict[str, Any] = {} if function.rule == "value" else {"family": function.family}
    if "norm_type" in passed:
        settings["norm_type"] = source.constant(passed["norm_type"])
    if "error_if_nonfinite" in passed and source.constant(passed["error_if_nonfinite"]):
        settings["nonfinite"] = "raise"
    return ClipConfig(rule=function.rule, **settings, **threshold)


def _threshold(source: Source, call: ast.Call, name: str) -> dict[str, Any]:
    function, passed = _own_functions()[name], _passed(call, name)
    limits = [source.constant(passed[limit]) for limit in function.limits if limit in passed]
    if not limits:
        names = " and ".join(function.limits)
        raise source.wrong(call, f"cannot infer {names} of {ast.unparse(call)}. Pass {names} by name.")
    if len(limits) == 2 and limits[0] != -limits[1]:
        return dict(zip(("max", "min"), limits, strict=True))
    return {"threshold": limits[0]}


def _passed(call: ast.Call, name: str) -> dict[str, ast.expr]:
    passed = dict(zip(positional_parameters(name), call.args, strict=False))
    return passed | {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
