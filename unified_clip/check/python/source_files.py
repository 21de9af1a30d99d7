"""Find the clips in Python source: the frameworks' own, and unified_clip's."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from ..._static_values import UnknownValueError
from ...config.clip_config import ClipConfig
from ...config.formats.python_source import Source
from ...config.formats.trainers.paddle.paddle import ARGUMENTS, Paddle, has_groups
from ...config.schema import is_off
from ...errors import ConfigError
from ...port.catalog import (
    ENGINE_METHODS,
    FRAMEWORKS,
    ClipFunction,
    clip_function,
    clip_functions,
    positional_parameters,
    settings,
)
from ...port.clip_site import SET_OUTSIDE, ClipSite, PortedFile, UnreadableFile
from ...port.source_files import port_all
from ..clip_use import ONE_PER_GROUP, ClipUse
from ..trainer_files import names_clip
from . import (
    call_site,
    engine_methods,
    engines_in_source,
    indirect,
    lookalikes,
    optax_order,
    overrides,
    source_paths,
    twice,
    unused,
)
from .calls import effect, own

PACKAGE = "unified_clip"
MEASURES = ("get_total_norm", "global_norm")
"""Functions that measure the norm, and clip nothing."""

LOADERS = ("ClipConfig.load", "ClipConfig.import_from")

OFF = "argument.leave_off"
"""The rule of `port` for a trainer's argument that switches clipping off."""

LINE = re.compile(r"^Line (\d+)")

ADVICE = re.compile(r"^Port |by hand")
"""Matches sentences in a reason of `port` that advise how to port."""

ONE_BOUND = (
    "The call clamps by one bound only, so it may limit the coefficient of a clip that code computes by hand. Compare "
    "that code with the clip configuration by hand, and ignore the call with a reason in check.ignore."
)
NOT_CALLED = (
    "The effect of this clip is unknown, since the function is not called here. In the code that calls the function, "
    "write its full name, and a number as its threshold. Or ignore this clip with a reason in check.ignore."
)
RUN_TIME = (
    "The effect of this clip is unknown, since an argument is only known at run time. Write its value instead, or "
    "ignore the clip with a reason in check.ignore."
)

RUN_TIME_PATH = (
    "{part} is only known at run time, so that the file of {call} is unknown. Write a path relative to the source, "
    'such as ClipConfig.load(Path(__file__).parent / "clip.toml"). Or ignore the clip with a reason in '
    "check.ignore."
)


def read(paths: list[Path], advance: Any = lambda count: None, configurations: Collection[Path] = ()) -> list[ClipUse]:
    """Return the clips in Python files: those of frameworks and of unified_clip.

    A file without either is an unknown clip if it has a setting that is named like a clip, or if it names a clip and
    is not valid Python.

    advance: Called with the number of files that were just read. configurations: The files in `paths` that are
    trainers' configurations, which were read as such. Arguments of trainers, and settings with the name of a clip, are
    not read there.
    """
    ported, unreadable = port_all(paths, "drop-in", advance=advance)
    uses: list[ClipUse | None] = []
    own_uses = {path: _own_uses(path) for path in paths}
    for file in ported:
        uses += _native_uses(file, configurations, is_replaced=bool(own_uses[file.path]))
    own_uses_all = list(itertools.chain.from_iterable(own_uses[file.path] for file in ported))
    resolved = list(unused.resolved(own_uses_all, paths))
    uses += [*resolved, *_calls_of_configurations(resolved)]
    uses += [_unreadable(file) for file in unreadable]
    uses += itertools.chain.from_iterable(map(indirect.read, paths))
    known = {*configurations, *(use.path for use in uses if use is not None)}
    others = [path for path in paths if path not in known and names_clip(path)]
    uses += itertools.chain.from_iterable(map(lookalikes.read, others))
    return _without_measures([use for use in uses if use is not None])


def _without_measures(uses: list[ClipUse]) -> list[ClipUse]:
    """Return the clips without calls whose threshold is infinite, in files with another clip: these measure a norm."""
    known = [use for use in uses if use.config is not None and not is_off(use.config) and not use.unused]
    clipping = {path for use in known for path in (use.path, *use.users)}
    return [use for use in uses if not (use.call and use.config and is_off(use.config) and use.path in clipping)]


def _calls_of_configurations(uses: Sequence[ClipUse]) -> Iterator[ClipUse]:
    """Yield each call of a `ClipConfig` whose effect is not that of the configuration. `uses`: the configurations."""
    paths = dict.fromkeys(use.path for use in uses if use.config is not None)
    sources = {path: _source(path) for path in (*paths, *(user for use in uses for user in use.users))}
    known = {path: own.configurations(sources[path], [use for use in uses if use.path == path]) for path in paths}
    for use in uses:
        for user in use.users:
            names = own.imported(sources[user], use.path.stem, known[use.path])
            known[user] = {**names, **known.get(user, {})}
    for path, configurations in known.items():
        yield from own.read(sources[path], path, configurations)


def _source(path: Path) -> Source:
    return Source(path.read_bytes().decode("utf-8", "replace"), path.name)


def _native_uses(file: PortedFile, configurations: Collection[Path], *, is_replaced: bool) -> list[ClipUse | None]:
    """Return the frameworks' own clips in a file. None stands for a use that is no clip, as `_native` describes.

    If the file is not valid Python, return one unknown clip.

    configurations: Trainers' configurations, where arguments of trainers are not read. is_replaced: Whether the file
    clips by unified_clip, so that trainers' own clips should be switched off.
    """
    if not file.sites:
        return []
    text = file.before.decode("utf-8", "replace")
    try:
        source = Source(text, file.path.name)
    except ConfigError as error:
        return [ClipUse(file.path, 1, 1, "Python source", why_unknown=str(error))]
    calls = call_site.calls(source, text)
    is_read = file.path not in configurations
    sites = [site for site in file.sites if is_read or clip_function(site.name) is not None]
    uses = [_native(file.path, site, is_replaced, source, calls.get((site.line, site.column))) for site in sites]
    misplaced = {(call.lineno, call.col_offset + 1): why for call, why in optax_order.misplaced(source).items()}
    uses = [_misplaced(use, misplaced.get((use.line, use.column), "")) if use else None for use in uses]
    if not is_replaced:
        return uses
    try:
        return [*twice.marked(source, [use for use in uses if use is not None])]
    except ConfigError:  # names of unified_clip are only known at run time: `_own_uses` reports it
        return uses


def _misplaced(use: ClipUse, why: str) -> ClipUse:
    """Return a clip of optax unchanged, or as an unknown clip if it clips no gradients.

    why: The reason why it clips no gradients. '': it clips gradients.
    """
    return replace(use, config=None, why_unknown=why) if why else use


def _unreadable(file: UnreadableFile) -> ClipUse:
    line = LINE.search(file.reason)
    return ClipUse(file.path, int(line[1]) if line else 1, 1, "Python source", why_unknown=file.reason)


def _native(path: Path, site: ClipSite, is_replaced: bool, source: Source, call: ast.Call | None) -> ClipUse | None:
    """Return a framework's own clip, with the reason if its effect is unknown.

    Return None if the code measures a norm only, or clips no gradients. A trainer's clip that is switched off has the
    rule "none".

    site: The clip as `unified-clip port` finds it. is_replaced: Whether the file clips by unified_clip. call: The call
    at `site`, or None if there is none.
    """
    function = clip_function(site.name)
    method = engine_methods.of_call(source, call) if function is None else None
    package = method.package if method else _package(site.name)
    engine = engines_in_source.of_site(source, site.line, site.column)
    use = partial(ClipUse, path, site.line, site.column, site.name, package=package, engine=engine)
    if site.verdict == "left":
        return use(ClipConfig(rule="none"), is_replaced=is_replaced) if site.rule == OFF else None
    if function is not None and function.replacement in MEASURES:
        return None
    threshold = site.meaning.threshold if site.meaning else ""
    if threshold:
        return use(why_unknown=f"The threshold, {threshold}, is only known at run time.")
    try:
        config = site.meaning.config if site.meaning else engine_methods.config(source, call)
        if config is None:
            reasons = [reason for reason in site.reason.split(". ") if reason and not ADVICE.search(reason)]
            unknown = NOT_CALLED if call is None else RUN_TIME
            why = ". ".join(reasons).rstrip(".") + "." if reasons else unknown
            return use(why_unknown=why, is_set_outside=_is_set_outside(site, call))
        if math.inf in (config.max, -(config.min or 0)):
            return use(why_unknown=ONE_BOUND)
        if call is not None and site.meaning is not None and site.name.endswith("=)"):  # a trainer without the argument
            trainer, _, argument = site.name.rstrip("=)").partition("(")
            return replace(use(config, by_default=True), clip=f"{trainer} by default: {argument} is not set")
        if call is None:  # an argument of a trainer
            return use(config)
        _check_arguments(source, call, site.name)
        code = call_site.with_threshold_slot(call, function.parameters, function.limits) if function else ""
        return use(effect.of_call(source, call, config, _kind(function) if function else "in place"), call=code)
    except ConfigError as error:
        return use(why_unknown=str(error).removeprefix(f"{path.name}, line {site.line}: "))


def _kind(function: ClipFunction) -> str:
    """Return the kind of a function, with "class" for optax's, and "functional" for those that return gradients."""
    if function.name.startswith("optax."):
        return "class"
    return "functional" if function.name.rpartition(".")[2].startswith("clip_by_") else function.kind


def _check_arguments(source: Source, call: ast.Call, name: str) -> None:
    """Check a call of a Paddle class that clips. Other calls are not checked.

    ConfigError: the call has an argument that `unified-clip config import` rejects, or the file passes several groups
        of parameters, for which a global norm is one for each group.
    """
    last = name.rpartition(".")[2]
    if not name.startswith("paddle.") or last not in ARGUMENTS:
        return
    Paddle().settings_of(last, source.arguments(call, ARGUMENTS[last]))
    if last.endswith("GlobalNorm") and has_groups(source):
        raise ConfigError(ONE_PER_GROUP)


def _is_set_outside(site: ClipSite, call: ast.Call | None) -> bool:
    """Return whether a trainer reads its clip from a file or the command line, and not from unpacked arguments."""
    is_unpacked = call is not None and (
        any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords)
    )
    return SET_OUTSIDE in site.reason and not is_unpacked


def _package(name: str) -> str:
    """Return the package of a clip from its full name: "torch" for `torch.nn.utils.clip_grad_norm_`.

    Return "keras" if a part of the name is `keras`, as in `tf.keras`. Return "torch" for a method of a training engine,
    and "lightning" for a factory that creates Lightning's trainer, such as `hydra.utils.instantiate`.
    """
    function = name.partition("(")[0]
    for setting in settings():
        if function in setting.factories:
            return setting.packages[0]
    package = "keras" if ".keras." in name else name.partition(".")[0]
    is_of_engine = package not in FRAMEWORKS and name.rpartition(".")[2] in ENGINE_METHODS
    return "torch" if is_of_engine else package


# -- unified_clip's own functions


class OwnFunction(NamedTuple):
    """A function or class of unified_clip: its kind, rule and family, and the parameters that set the threshold."""

    kind: str
    rule: str
    family: str
    limits: tuple[str, ...]


@cache
def _own_functions() -> dict[str, OwnFunction]:
    """Return {name: function} for unified_clip's functions and classes that clip.

    Each has the rule and family of the framework's function that it replaces.
    """
    native = (function for function in clip_functions().values() if function.replacement and function.rule)
    own: dict[str, OwnFunction] = {}
    for function in native:
        limits = tuple(function.renamed.get(name, name) for name in function.limits)
        own.setdefault(function.replacement, OwnFunction(_kind(function), function.rule, function.family, limits))
    return own


def _own_uses(path: Path) -> list[ClipUse]:
    """Return the clips by unified_clip in a Python file: the uses of its functions and of `ClipConfig`.

    If the file names unified_clip and is not valid Python, return one unknown clip. Do so as well if names are only
    known at run time, because of `import *` or `getattr`.
    """
    text = path.read_bytes().decode("utf-8", "replace")
    if PACKAGE not in text:
        return []
    try:
        source = Source(text, path.name)
        used = list(source.named(PACKAGE))
    except ConfigError as error:
        return [ClipUse(path, 1, 1, PACKAGE, why_unknown=str(error), package=PACKAGE)]
    uses = [use for name, node in used if (use := _own(source, path, name, node)) is not None]
    found = [(PACKAGE, *each) for each in overrides.read(source)]
    found += [("optax", *each) for each in optax_order.own(source)]
    return uses + [
        ClipUse(
            path,
            call.lineno,
            call.col_offset + 1,
            f"{PACKAGE}.{name}",
            why_unknown=why,
            package=package,
            changes_nonfinite=overrides.changes_nonfinite(call),
        )
        for package, call, name, why in found
    ]


def _own(source: Source, path: Path, name: str, node: ast.expr) -> ClipUse | None:
    """Return the clip of one use of a name in unified_clip, with the reason if its effect is unknown.

    Return None if the use clips nothing by itself. A function that is assigned or passed on, not called, is unknown.

    path: The file. name: The name within unified_clip, such as "torch.clip_grad_norm_". node: The place of the name.
    """
    call = source.parents[node]
    last = name.rpartition(".")[2]
    package = name.partition(".")[0] if name.partition(".")[0] in FRAMEWORKS else PACKAGE
    use = partial(ClipUse, path, node.lineno, node.col_offset + 1, f"{PACKAGE}.{name}", package=package)
    if not isinstance(call, ast.Call) or call.func is not node:
        is_passed_on = not isinstance(call, ast.Attribute | ast.Compare | ast.Expr)
        return use(why_unknown=NOT_CALLED) if is_passed_on and last.islower() and last in _own_functions() else None
    try:
        if name == "ClipConfig":
            config = ClipConfig(**source.arguments(call, list(ClipConfig.model_fields)).data)
            return unused.marked(source, use(config), call)
        if name in [f"ClipConfig.{maker}" for maker in overrides.MAKERS]:
            return use(why_unknown=overrides.WHY.format(code=ast.unparse(call)))
        if name == "ClipConfig.loads":
            document = source.arguments(call, ["text", "kind"])
            return unused.marked(source, use(ClipConfig.loads(**document.data)), call)
        if name in LOADERS:
            return unused.marked(source, use(ClipConfig.import_from(_file(source, path, call))), call)
        if last in _own_functions():
            config = _config(source, call, last)
            code = call_site.with_threshold_slot(call, positional_parameters(last), _own_functions()[last].limits)
            return use(effect.of_call(source, call, config, _own_functions()[last].kind), call=code)
    except ConfigError as error:
        return use(why_unknown=str(error))
    return None


def _file(source: Source, path: Path, call: ast.Call) -> Path:
    """Return the file that a call of `ClipConfig.load` or `import_from` reads.

    Look for it in the directory of the source `path`, and in those above it.

    ConfigError: the call passes no file, its path is only known at run time, or there is no such file.
    """
    passed = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "path")]
    if not passed:
        raise source.wrong(call, f"cannot infer the file of {ast.unparse(call)}. Pass its path as the first argument.")
    try:
        name = source_paths.path_of(source, passed[0], path)
    except UnknownValueError as unknown:
        raise source.wrong(call, RUN_TIME_PATH.format(call=ast.unparse(call), part=unknown)) from None
    file = next((folder / name for folder in path.absolute().parents if (folder / name).is_file()), None)
    if file is None:
        place = "" if name.is_absolute() else " in the directory of this source, or above it"
        raise source.wrong(call, f"cannot find the file of {ast.unparse(call)}{place}. Correct the path.")
    return file


def _config(source: Source, call: ast.Call, name: str) -> ClipConfig:
    """Return the clip configuration with the effect of a call of unified_clip's function. `name`: the function's name.

    ConfigError: an argument is only known at run time or not valid, or the call passes no threshold.
    """
    function, parameters = _own_functions()[name], positional_parameters(name)
    passed = dict(zip(parameters, call.args, strict=False))
    passed |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    limits = [source.constant(passed[limit]) for limit in function.limits if limit in passed]
    if not limits:
        names = " and ".join(function.limits)
        raise source.wrong(call, f"cannot infer {names} of {ast.unparse(call)}. Pass {names} by name.")
    settings: dict[str, Any] = {} if function.rule == "value" else {"family": function.family}
    if "norm_type" in passed:
        settings["norm_type"] = source.constant(passed["norm_type"])
    if "error_if_nonfinite" in passed and source.constant(passed["error_if_nonfinite"]):
        settings["nonfinite"] = "raise"
    if len(limits) == 2 and limits[0] != -limits[1]:
        settings["max"], settings["min"] = limits
    else:
        settings["threshold"] = limits[0]
    return ClipConfig(rule=function.rule, **settings)
