"""Find the clips of frameworks and of unified_clip in Python source."""

from __future__ import annotations

import ast
import contextlib
import itertools
import math
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..._kit.parse import decoded
from ..._kit.static_values import is_number
from ...config.clip_config import ClipConfig
from ...config.documents import format_value
from ...config.formats.python_source import FUNCTIONS, Source
from ...config.formats.trainers.paddle import ARGUMENTS, PADDLE, has_groups
from ...config.schema import is_off
from ...errors import ConfigError
from ...port.catalog import ENGINE_METHODS, FRAMEWORKS, ClipFunction, clip_function, settings
from ...port.port_files import port_all
from ...port.ported_clip import SET_OUTSIDE, PortedClip, PortedFile, UnreadableFile
from ...port.rules.function import MADE_OF_GRADIENT
from ...source import unused_result
from ...source.module import is_of_self
from ...source.project import Project
from ...source.values import value_of
from .. import patterns
from ..clip_use import MAX_GRAD_NORM, ONE_PER_GROUP, ClipUse, NamedValue
from ..notebooks import clips_in_notebooks
from ..notebooks.cells import parsed, python_source, source_of
from ..trainer_files import may_name_clip
from . import (
    clipped_parameters,
    engine_methods,
    engine_of_clip,
    indirect_settings,
    possible_clips,
    setting_readers,
)
from .calls import effect, unified_clip_calls
from .calls.unified_clip_calls import NOT_CALLED
from .trainers import deepspeed

MEASURES = ("get_total_norm", "global_norm")

OFF = "argument.leave_off"

LINE = re.compile(r"^Line (\d+)")

ADVICE = re.compile(r"^Port |^Then change |by hand")
ONE_BOUND = (
    "The call has only one bound, so the clamped value might be the coefficient of a hand-written clip. Compare the "
    "code with the clip configuration by hand, and add the call to check.ignore with a reason."
)
MAY_BE_GRADIENT = (
    "The clamped expression contains a gradient, but might not be a gradient itself, as in "
    "gradient.norm().clamp(0, 10). "
    "Compare the code with the clip configuration by hand, and add the call to check.ignore with a reason."
)
RUN_TIME = (
    "The effect of this clip is unknown, since an argument is only known at run time. Pass a constant value, or add "
    "the clip to check.ignore with a reason."
)


def read(
    paths: list[Path],
    advance: Any = lambda count: None,
    configurations: Collection[Path] = (),
    *,
    root: Path,
) -> list[ClipUse]:
    """Return the clips of frameworks and of unified_clip in Python files.

    configurations: The Python files that are read as configurations of trainers.
    root: The folder of the clip configuration.
    """
    ported, unreadable = port_all(paths, "drop-in", advance=advance, read=python_source, edit=False)
    project = Project(paths, python_source)
    own_uses, own_names = _own_uses([file.path for file in ported])
    uses: list[ClipUse | None] = [use for each in own_uses.values() for use in each]
    for file in ported:
        native = _native_uses(file, configurations, project, is_replaced=bool(own_uses[file.path]))
        uses += [use for use in native if use is None or not _is_own(use, own_names[file.path])]
        if names := own_names[file.path]:
            uses += unified_clip_calls.calls(parsed(file.path), file.path, names)
    uses += [_unreadable(file) for file in unreadable]
    uses += itertools.chain.from_iterable(map(indirect_settings.read, paths))
    known = {*configurations, *(use.path for use in uses if use is not None)}
    uses += itertools.chain.from_iterable(map(clips_in_notebooks.clips_outside_python, paths))
    clips = _without_measures([use for use in uses if use is not None])
    settings_of_files: list[ClipUse] = []
    for path in filter(may_name_clip, paths):
        near = [other for other in paths if patterns.is_near(other, path, root)]
        is_known = path in known and b"ml_collections" not in python_source(path)
        settings_of_files += possible_clips.read(path, near, clips, is_known=is_known)
    compared = {place for use in clips for place in use.origins}
    others = [use for use in settings_of_files if (use.path, use.line) not in compared]
    return list(clips_in_notebooks.with_cells([*clips, *others]))


def _own_uses(paths: Sequence[Path]) -> tuple[dict[Path, list[ClipUse]], dict[Path, dict[str, ClipConfig]]]:
    """Return the clips of unified_clip in each file, and the variables that hold them in this and other files."""
    uses = {path: unified_clip_calls.uses(path) for path in paths}
    names = {path: unified_clip_calls.names(parsed(path), uses[path]) if uses[path] else {} for path in paths}
    users: dict[Path, set[Path]] = {path: set() for path in paths}
    for path, known in [(path, dict(known)) for path, known in names.items() if known]:
        module = path.resolve().parent.name if path.stem == "__init__" else path.stem
        for other in paths:
            source = source_of(other) if other != path and module.encode() in python_source(other) else None
            if source is not None and (imported := unified_clip_calls.imported(source, module, known)):
                names[other] |= imported
                users[path].add(other)
    for path in (path for path in paths if uses[path]):
        others = tuple(sorted(users[path]))
        of_path = [replace(use, users=others) for use in uses[path]]
        unread = partial(unified_clip_calls.marked_unread, parsed(path), known=names[path])
        uses[path] = of_path if others else [unread(use) for use in of_path]
    return uses, names


def _is_own(use: ClipUse, names: Collection[str]) -> bool:
    """Return whether a clip is a call of a `ClipConfig`, such as `grad_clip(gradients)`."""
    return any(use.clip == name or use.clip.startswith(f"{name}.") for name in names)


def _without_measures(uses: list[ClipUse]) -> list[ClipUse]:
    """Leave out calls that only measure a norm (threshold inf), if another clip in the file is on."""
    known = [use for use in uses if use.config is not None and not is_off(use.config) and not use.unused]
    clipping = {path for use in known for path in (use.path, *use.users)}
    return [use for use in uses if not (use.call and use.config and is_off(use.config) and use.path in clipping)]


def _native_uses(
    file: PortedFile, configurations: Collection[Path], project: Project, *, is_replaced: bool
) -> list[ClipUse | None]:
    """Return the frameworks' own clips in a file. An item is None for a place that does not clip.

    is_replaced: Whether the file also clips with unified_clip.
    """
    if not file.sites:
        return []
    source = parsed(file.path)
    calls = unused_result.calls(source, decoded(file.before))
    is_read = file.path not in configurations
    sites = [site for site in file.sites if is_read or clip_function(site.name) is not None]
    uses = [
        _native(file.path, site, is_replaced, source, calls.get((site.line, site.column)), project) for site in sites
    ]
    return [use for use in uses if use is None or not _is_set_by_code(source, use)]


def _is_set_by_code(source: Source, use: ClipUse) -> bool:
    """Return whether code always sets the argument of a parser, as in `args.max_grad_norm = 1.0`."""
    argument = use.clip.rpartition("(")[2].removesuffix("=)")
    if not use.is_set_outside:
        return False
    stores = (node for node in source.nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    statements = (source.parents[node] for node in stores if node.attr == argument)
    return any(isinstance(source.parents[each], (*FUNCTIONS, ast.Module)) for each in statements)


def _unreadable(file: UnreadableFile) -> ClipUse:
    line = LINE.search(file.reason)
    return ClipUse(file.path, int(line[1]) if line else 1, 1, "Python source", why_unknown=file.reason)


def _native(
    path: Path, site: PortedClip, is_replaced: bool, source: Source, call: ast.Call | None, project: Project
) -> ClipUse | None:
    function = clip_function(site.name)
    method = engine_methods.of_call(source, call) if function is None else None
    package = method.package if method else _package(site.name)
    engine = engine_of_clip.of_site(source, site.line, site.column)
    use = partial(ClipUse, path, site.line, site.column, site.name, package=package, engine=engine)
    if site.verdict == "left":
        off = use(ClipConfig(rule="none"), is_replaced=is_replaced)
        return _under_deepspeed(source, off) if site.rule == OFF else None
    if function is not None and function.replacement in MEASURES:
        return None
    if function is not None and function.kind == "program" and _passes_class(source, call):
        return None
    if site.meaning and math.inf in (site.meaning.config.max, -(site.meaning.config.min or 0)):
        return use(why_unknown=ONE_BOUND)
    if site.reason == MADE_OF_GRADIENT:
        return use(why_unknown=MAY_BE_GRADIENT)
    meaning = site.meaning
    threshold = meaning.threshold if meaning else ""
    if threshold.strip("\"'") == "auto":
        return None if deepspeed.is_left_to_trainer(source) else use(why_unknown=deepspeed.AUTO)
    if not threshold:
        try:
            return _with_settings(site, source, call, function, use)
        except ConfigError as error:
            meaning = engine_methods.with_unknown_threshold(source, call) if call and not meaning else None
            if meaning is None:
                return use(why_unknown=str(error).removeprefix(f"{path.name}, line {site.line}: "))
    assert meaning is not None
    kind = effect.kind_of(function) if function else "in place"
    why, rule = effect.of_unknown_threshold(source, call, meaning, kind)
    return _with_value(project, use(why_unknown=why, rule=rule), meaning.threshold)


def _with_settings(
    site: PortedClip, source: Source, call: ast.Call | None, function: ClipFunction | None, use: partial[ClipUse]
) -> ClipUse | None:
    config = site.meaning.config if site.meaning else engine_methods.config(source, call)
    if config is None:
        reasons = [reason for reason in site.reason.split(". ") if reason and not ADVICE.search(reason)]
        unknown = NOT_CALLED if call is None else RUN_TIME
        why = ". ".join(reasons).rstrip(".") + "." if reasons else unknown
        if why == RUN_TIME and (both := effect.of_unknown_norm_type(source, call, function)):
            return use(why_unknown=both, rule=ClipConfig(rule="global_norm", family="pytorch", threshold=1.0))
        if not _is_set_outside(site, call):
            return use(why_unknown=why)
        option = site.name.rpartition("(")[2].rstrip("=)")
        rules = [each for each in settings() if each.keyword == option == MAX_GRAD_NORM]
        rule = next((each for each in rules if use.keywords["package"] in each.packages), None)
        config = ClipConfig(rule=rule.rule, family=rule.family, threshold=1.0) if rule and rule.rule else None
        defaults = _defaults_of_field(source, option) if rule else []
        defaults = defaults or ([float(rule.default)] if rule and rule.default else [])
        if defaults and None not in defaults:
            why = f"{why.partition('. ')[0]}. The default is {' or '.join(map(format_value, defaults))}."
        values = tuple(NamedValue(option, each) for each in defaults)
        return use(why_unknown=why, is_set_outside=True, option=option, rule=config, values=values)
    if call is not None and site.meaning is not None and site.name.endswith("=)"):  # a trainer without the argument
        trainer, _, argument = site.name.rstrip("=)").partition("(")
        default = replace(use(config, by_default=True), clip=f"{trainer} by default: {argument} is not set")
        return engine_of_clip.with_loss_scaling(source, _under_deepspeed(source, default))
    if call is None:  # an argument of a trainer
        return engine_of_clip.with_loss_scaling(source, _under_deepspeed(source, use(config)))
    _check_arguments(source, call, site.name)
    code = clipped_parameters.with_threshold_slot(call, function.parameters, function.limits) if function else ""
    return use(effect.of_call(source, call, config, effect.kind_of(function) if function else "in place"), call=code)


def _with_value(project: Project, use: ClipUse, code: str) -> ClipUse:
    """Take the threshold of a clip from the code that fixes it, such as the default of a command line option.

    If code also sets an attribute of this name, the threshold is compared where it is set: `possible_clips` does so. A
    default of 0 is ignored, because the value 0 often switches the clip off.
    """
    rule = use.rule
    if rule is None or use.why_unknown != effect.RUN_TIME.format(code=code):
        return use
    name, module, node = setting_readers.name_of(code), project.module(use.path), _node(project, use, code)
    use = replace(use, attribute=name)
    if node is None or any(not is_of_self(each) for _, each in project.stores_of(name, module)):
        return use
    value = value_of(project, module, node)
    defaults = [origin for origin in value.origins if origin.kind in ("option", "field", "parameter")]
    if options := [origin.name for origin in defaults if origin.kind != "parameter"]:
        use = replace(use, option=options[0].rpartition(".")[2].lstrip("-").replace("-", "_"))
    if value.why_unknown:
        return replace(use, why_unknown=f"{use.why_unknown} {value.why_unknown}")
    if not is_number(value.value) or abs(value.value) > sys.float_info.max:
        return use
    if value.value <= 0:
        shown = defaults[0].name if defaults else code
        return replace(use, why_unknown=f"{use.why_unknown} The default of {shown} is {format_value(value.value)}.")
    config = ClipConfig(**{**rule.data(), "threshold": float(value.value)})
    clip = f"{use.clip} by default: {defaults[0].name} is not passed" if defaults else use.clip
    origins = tuple((each.module.path, each.line) for each in value.origins if each.module.path)
    return replace(use, config=config, rule=None, why_unknown="", clip=clip, origins=origins)


def _node(project: Project, use: ClipUse, code: str) -> ast.expr | None:
    """Return the expression with this code in the call at the place of a clip."""
    calls = (node for node in project.module(use.path).nodes if isinstance(node, ast.Call))
    at_place = (call for call in calls if engine_of_clip.is_at(call, use.line, use.column))
    inner = (each for call in at_place for each in ast.walk(call) if isinstance(each, ast.expr))
    return next((each for each in inner if ast.unparse(each) == code), None)


def _defaults_of_field(source: Source, name: str) -> list[float | None]:
    """Return the defaults of the fields of this name, in classes of a file such as `class Own(TrainingArguments)`."""
    defaults: list[float | None] = []
    for node in source.nodes:
        match node:
            case ast.AnnAssign(target=ast.Name(id=field), value=ast.expr() as value) if field == name:
                defaults.append(None)
                with contextlib.suppress(ConfigError, OverflowError):
                    number = source.constant(value)
                    defaults[-1] = float(number) if is_number(number) else None
    return defaults


def _passes_class(source: Source, call: ast.Call | None) -> bool:
    passed = [*call.args, *(each.value for each in call.keywords)] if call is not None else []
    made = [source.followed(each) for each in passed]
    return len(made) == 1 and isinstance(made[0], ast.Call) and clip_function(source.dotted(made[0].func)) is not None


def _under_deepspeed(source: Source, use: ClipUse) -> ClipUse:
    if use.package not in deepspeed.TRAINERS or use.config is None:
        return use
    why, is_rejected = deepspeed.problem(source, use.path, use.line, use.column, use.config)
    if is_rejected:
        return replace(use, rejected=why)
    return replace(use, config=None, why_unknown=why) if why else use


def _check_arguments(source: Source, call: ast.Call, name: str) -> None:
    last = name.rpartition(".")[2]
    if not name.startswith("paddle.") or last not in ARGUMENTS:
        return
    PADDLE.settings_of(last, source.arguments(call, ARGUMENTS[last]))
    if last.endswith("GlobalNorm") and has_groups(source):
        raise ConfigError(ONE_PER_GROUP)


def _is_set_outside(site: PortedClip, call: ast.Call | None) -> bool:
    is_unpacked = call is not None and (
        any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords)
    )
    return SET_OUTSIDE in site.reason and not is_unpacked


def _package(name: str) -> str:
    function = name.partition("(")[0]
    for setting in settings():
        if function in setting.factories:
            return setting.packages[0]
    package = "keras" if ".keras." in name else name.partition(".")[0]
    is_of_engine = package not in FRAMEWORKS and name.rpartition(".")[2] in ENGINE_METHODS
    return "torch" if is_of_engine else package
