"""Find calls of unified_clip's functions and of `ClipConfig` in Python source."""

from __future__ import annotations

import ast
import contextlib
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from ...._kit.static_values import UnknownValueError
from ....config.clip_config import ClipConfig
from ....config.formats.python_source import Source
from ....errors import ConfigError
from ....port.catalog import FRAMEWORKS, clip_functions, positional_parameters
from ...clip_use import OWN, ClipUse
from ...notebooks.cells import parsed, python_source
from .. import (
    changed_configurations,
    clipped_parameters,
    clipped_twice,
    optax_order,
    source_paths,
    unused_configurations,
)
from . import effect

LOADERS = ("ClipConfig.load", "ClipConfig.import_from")


NOT_CALLED = (
    "The effect of this clip is unknown, because this line names the function but does not call it. Where you call the "
    "function, write its full name, and pass a number as the threshold. Or add this clip to check.ignore with a reason."
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
    own_calls = [(OWN, *each) for each in changed_configurations.read(source)]
    own_calls += [("optax", *each) for each in optax_order.own(source)]
    return own + [
        ClipUse(
            path,
            call.lineno,
            call.col_offset + 1,
            f"{OWN}.{name}",
            why_unknown=why,
            package=package,
            changes_nonfinite=changed_configurations.changes_nonfinite(call),
        )
        for package, call, name, why in own_calls
    ]


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
            marked = unused_configurations.mark_unused(source, use(config), call)
            if not marked.unused:
                changed_configurations.check_replaced(source, call)
            return marked
        if name in clipped_twice.CALLBACKS:
            callback = unused_configurations.mark_unused(source, use(), call)
            return callback if callback.unused else None
        if name in [f"ClipConfig.{maker}" for maker in changed_configurations.MAKERS]:
            return use(why_unknown=changed_configurations.WHY.format(code=ast.unparse(call)))
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
