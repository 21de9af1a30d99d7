"""Find the clips of frameworks and of unified_clip in Python source."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..._kit.parse import decoded
from ...config.clip_config import ClipConfig
from ...config.documents import format_value
from ...config.formats.python_source import Source, shortened
from ...config.formats.trainers.paddle.paddle import ARGUMENTS, Paddle, has_groups
from ...config.schema import is_off
from ...errors import ConfigError
from ...port.catalog import ENGINE_METHODS, FRAMEWORKS, ClipFunction, clip_function, settings
from ...port.port_files import port_all
from ...port.ported_clip import SET_OUTSIDE, PortedClip, PortedFile, UnreadableFile
from ...port.rules.function import MADE_OF_GRADIENT
from ...port.source import unused_result
from .. import patterns
from ..clip_use import ONE_PER_GROUP, OWN, ClipUse, NamedValue
from ..notebooks import clips_in_notebooks
from ..notebooks.cells import parsed, python_source
from ..trainer_files import may_name_clip
from . import (
    clipped_parameters,
    clipped_twice,
    engine_methods,
    engine_of_clip,
    indirect_settings,
    optax_order,
    possible_clips,
    setting_readers,
    unused_configurations,
)
from .calls import attributes, config_calls, effect, never_runs, options, parsed_arguments, unified_clip_calls
from .calls.unified_clip_calls import NOT_CALLED
from .steps import base_classes, scaled_gradients, steps_without_clip
from .steps.gradient_events import Place
from .trainers import deepspeed

_Known = tuple[Source, Mapping[str, config_calls.ConfigVariable]]

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
OTHER_OBJECT = (
    "{name} is not the object with the training arguments, so this line sets no clip. Set max_grad_norm of the "
    "training arguments, or remove the line."
)
OWN_LOOP = (
    "This file creates a Trainer, but never calls its method train. Instead, a loop with {step} in line {line} trains "
    "without a clip. Clip in the loop, or call train."
)
RUN_TIME = (
    "The effect of this clip is unknown, since an argument is only known at run time. Pass a constant value, or add "
    "the clip to check.ignore with a reason."
)


def read(
    paths: list[Path],
    advance: Any = lambda count: None,
    configurations: Collection[Path] = (),
    precisions: Mapping[Path, Mapping[str, str]] = MappingProxyType({}),
    *,
    root: Path,
) -> list[ClipUse]:
    """Return the clips of frameworks and of unified_clip in Python files.

    configurations: The Python files that are read as configurations of trainers.
    precisions: `precisions[file][name]` is the `mixed_precision` of the Accelerate file `name` near the Python `file`.
    root: The folder of the clip configuration.
    """
    ported, unreadable = port_all(paths, "drop-in", advance=advance, read=python_source, edit=False)
    uses: list[ClipUse | None] = []
    own_uses = {path: unified_clip_calls.uses(path) for path in paths}
    for file in ported:
        uses += _native_uses(file, configurations, paths, is_replaced=bool(own_uses[file.path]))
    own_uses_all = list(itertools.chain.from_iterable(own_uses[file.path] for file in ported))
    resolved = list(unused_configurations.resolved(own_uses_all, paths))
    known_own = _own_configurations(resolved)
    clippers = [
        each
        for path, (source, known) in known_own.items()
        for each in config_calls.unused_clippers(source, path, known)
    ]
    uses = _without_own(uses, known_own)
    uses += [*resolved, *unused_configurations.resolved(clippers, paths)]
    uses += [each for path, (source, known) in known_own.items() for each in config_calls.read(source, path, known)]
    uses += [_unreadable(file) for file in unreadable]
    uses += itertools.chain.from_iterable(map(indirect_settings.read, paths))
    known = {*configurations, *(use.path for use in uses if use is not None)}
    uses += itertools.chain.from_iterable(map(clips_in_notebooks.clips_outside_python, paths))
    clips = _without_measures([use for use in uses if use is not None])
    clips_and_steps = list(_in_steps(clips, paths, known_own, precisions))
    for path in filter(may_name_clip, paths):
        near = [other for other in paths if patterns.is_near(other, path, root)]
        is_known = path in known and b"ml_collections" not in python_source(path)
        clips_and_steps += possible_clips.read(path, near, clips, is_known=is_known)
    return list(clips_in_notebooks.with_cells(clips_and_steps))


def _in_steps(
    uses: Sequence[ClipUse],
    paths: Sequence[Path],
    known_own: Mapping[Path, _Known],
    precisions: Mapping[Path, Mapping[str, str]],
) -> Iterator[ClipUse]:
    """Yield all clips. For a file that clips, also yield its optimizers and steps that have no clip."""
    by_path: dict[Path, list[ClipUse]] = {path: [] for path in known_own}
    for use in uses:
        by_path.setdefault(use.path, []).append(use)
    for path, clips in by_path.items():
        try:
            source = parsed(path)
        except ConfigError:  # the file is not Python: another function reports that
            yield from clips
            continue
        clips = [use for use in clips if not never_runs.is_switched_off(source, _place(use), paths)]
        own = _own_calls(known_own.get(path), config_calls.CLIPPING)
        named = set(map(_place, clips))
        if len(named | own) == 1:
            clips = [_if_called(use, source, paths) for use in clips]
        reasons = scaled_gradients.by_accelerate(source, named | own, precisions.get(path, {}))
        for use in clips:
            why = reasons.get(_place(use), "") if use.package == "torch" and not use.engine else ""
            yield _under_accelerate(use, why) if why else use
        for line, column in own & reasons.keys() - named:
            use = ClipUse(path, line, column + 1, f"{OWN}.ClipConfig", package=OWN)
            yield _under_accelerate(use, reasons[line, column])
        if clips:
            yield from steps_without_clip.read(source, path, named | own)


def _place(use: ClipUse) -> Place:
    return use.line, use.column - 1


def _if_called(use: ClipUse, source: Source, paths: Sequence[Path]) -> ClipUse:
    why = never_runs.why_uncalled(source, _place(use), paths) if use.config is not None and use.call else ""
    return replace(use, config=None, why_unknown=why) if why else use


def _under_accelerate(use: ClipUse, why: str) -> ClipUse:
    why = " ".join(filter(None, [use.why_unknown, why]))
    return replace(use, config=None, why_unknown=why, package="accelerate")


def _without_measures(uses: list[ClipUse]) -> list[ClipUse]:
    """Leave out calls that only measure a norm (threshold inf), if another clip in the file is on."""
    known = [use for use in uses if use.config is not None and not is_off(use.config) and not use.unused]
    clipping = {path for use in known for path in (use.path, *use.users)}
    return [use for use in uses if not (use.call and use.config and is_off(use.config) and use.path in clipping)]


def _own_configurations(uses: Sequence[ClipUse]) -> dict[Path, _Known]:
    paths = dict.fromkeys(use.path for use in uses if use.config is not None)
    sources = {path: parsed(path) for path in (*paths, *(user for use in uses for user in use.users))}
    of_path = {path: [use for use in uses if use.path == path] for path in sources}
    known = {path: config_calls.configurations(source, of_path[path]) for path, source in sources.items()}
    imported: dict[Path, dict[str, config_calls.ConfigVariable]] = {}
    for use in uses:
        for user in use.users:
            names = config_calls.imported(sources[user], use.path.stem, known[use.path])
            imported[user] = {**imported.get(user, {}), **names}
    for path, names in imported.items():
        known[path] = config_calls.configurations(sources[path], of_path[path], names)
    return {path: (sources[path], known[path]) for path in sources}


def _without_own(uses: Sequence[ClipUse | None], known_own: Mapping[Path, _Known]) -> list[ClipUse | None]:
    """Leave out calls of unified_clip's methods, such as `clip_`, which only look like clips of a framework."""
    places = {path: _own_calls(known, config_calls.METHOD_KINDS) for path, known in known_own.items()}
    return [use for use in uses if use is None or (use.line, use.column - 1) not in places.get(use.path, ())]


def _own_calls(known: _Known | None, methods: Collection[str]) -> set[tuple[int, int]]:
    calls = config_calls.calls(*known) if known is not None else ()
    return {(call.lineno, call.col_offset) for call, method, _ in calls if method in methods}


def _native_uses(
    file: PortedFile, configurations: Collection[Path], paths: Sequence[Path], *, is_replaced: bool
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
    uses = [_native(file.path, site, is_replaced, source, calls.get((site.line, site.column)), paths) for site in sites]
    misplaced = {(call.lineno, call.col_offset + 1): why for call, why in optax_order.misplaced(source).items()}
    for index, use in enumerate(uses):  # a clip of optax that clips no gradients
        if use and (why := misplaced.get((use.line, use.column))):
            uses[index] = replace(use, config=None, why_unknown=why)
    uses = [use and _of_arguments(source, use) for use in uses if use is None or not _is_set_by_code(source, use)]
    if not is_replaced:
        return _with_own_loop(source, uses)
    try:
        return [*clipped_twice.marked(source, [use for use in uses if use is not None])]
    except ConfigError:  # names of unified_clip are only known at run time: `_own_uses` reports it
        return uses


def _is_set_by_code(source: Source, use: ClipUse) -> bool:
    argument = use.clip.rpartition("(")[2].removesuffix("=)")
    return use.is_set_outside and parsed_arguments.is_set_after_parsing(source, argument)


def _of_arguments(source: Source, use: ClipUse) -> ClipUse:
    for setting, target in parsed_arguments.attribute_settings(source):
        is_place = (setting.lineno, ast.unparse(target)) == (use.line, use.clip)
        is_argument = is_place and target.attr == parsed_arguments.MAX_GRAD_NORM
        if is_argument and parsed_arguments.is_other_object(source, target):
            return replace(use, config=None, why_unknown=OTHER_OBJECT.format(name=ast.unparse(target.value)))
        if is_argument and deepspeed.has_settings(source.followed(target.value)):
            return replace(use, config=None, why_unknown=deepspeed.TOO_LATE)
    return use


def _with_own_loop(source: Source, uses: Sequence[ClipUse | None]) -> list[ClipUse | None]:
    of_trainer = [use for use in uses if use and use.package in deepspeed.TRAINERS and use.config is not None]
    is_only = len(of_trainer) == len([use for use in uses if use]) > 0
    if not is_only or not (step := base_classes.step_of_own_loop(source)):
        return [*uses]
    why = OWN_LOOP.format(step=shortened(step.func), line=step.lineno)
    return [replace(use, config=None, why_unknown=why) if use in of_trainer else use for use in uses]


def _unreadable(file: UnreadableFile) -> ClipUse:
    line = LINE.search(file.reason)
    return ClipUse(file.path, int(line[1]) if line else 1, 1, "Python source", why_unknown=file.reason)


def _native(
    path: Path, site: PortedClip, is_replaced: bool, source: Source, call: ast.Call | None, paths: Sequence[Path]
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
    return _with_option(source, call, meaning.threshold, use(why_unknown=why, rule=rule), paths)


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
        rules = [each for each in settings() if each.keyword == option == parsed_arguments.MAX_GRAD_NORM]
        rule = next((each for each in rules if use.keywords["package"] in each.packages), None)
        config = ClipConfig(rule=rule.rule, family=rule.family, threshold=1.0) if rule and rule.rule else None
        defaults = [*options.defaults_of_field(source, option)] if rule else []
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


def _with_option(source: Source, call: ast.Call | None, code: str, use: ClipUse, paths: Sequence[Path]) -> ClipUse:
    """Take the threshold of a clip from the default of a command line option.

    A default of 0 is ignored, because the value 0 often switches the clip off.
    """
    rule, option = use.rule, options.find(source, code)
    if rule is None or use.why_unknown != effect.RUN_TIME.format(code=code):
        return use
    if option is not None:
        use = replace(use, option=option.name)
        name, default, is_clip = option.shown, option.default, option.is_clip
    else:
        others = [path for path in paths if path != use.path]
        name, default = attributes.find(source, call, code, others) or ("", None)
        is_clip = True
    if default is None:
        return use if option else replace(use, attribute=setting_readers.attribute(code))
    if default > 0 and is_clip:
        config = ClipConfig(**{**rule.data(), "threshold": default})
        clip = f"{use.clip} by default: {name} is not passed" if name else use.clip
        return replace(use, config=config, rule=None, why_unknown="", clip=clip)
    return replace(use, why_unknown=f"{use.why_unknown} The default of {name or code} is {format_value(default)}.")


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
    Paddle().settings_of(last, source.arguments(call, ARGUMENTS[last]))
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
