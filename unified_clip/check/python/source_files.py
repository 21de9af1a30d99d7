"""Find the clips of frameworks and of unified_clip in Python source."""

from __future__ import annotations

import ast
import contextlib
import math
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from ..._kit.parse import UnreadableSourceError, parse_expression
from ..._kit.static_values import is_number
from ...config.clip_config import ClipConfig
from ...config.documents import format_value
from ...config.formats import FORMATS
from ...config.schema import is_off
from ...errors import ConfigError
from ...port.catalog import ENGINE_METHODS, FRAMEWORKS, ClipFunction, clip_function, is_like_gradient, settings
from ...port.port_files import port_all
from ...port.ported_clip import OFF, SET_OUTSIDE, Meaning, PortedClip, PortedFile
from ...port.verdicts import MADE_OF_GRADIENT
from ...source.constants import constant, followed, name_of
from ...source.module import Module
from ...source.project import Project
from ...source.tree import FUNCTIONS, last_name, shortened
from ...source.values import Passed, Value, value_of
from ..clip_use import (
    ARGUMENT_FORMATS,
    MAX_GRAD_NORM,
    THRESHOLD,
    ClipUse,
    of_unread_file,
    shown,
    with_threshold,
)
from . import clip_calls, notebooks, own_clips
from .clip_calls import calls_at
from .own_clips import NOT_CALLED, RUN_TIME

MEASURES = ("get_total_norm", "global_norm")


SCALES = ("div_", "mul_")

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
HUGGING_FACE = ("transformers", "trl")
DEEPSPEED = (
    "The settings of DeepSpeed, {code}, decide whether max_grad_norm has an effect. Write them into a JSON file with "
    '"gradient_clipping": "auto", pass its path as a string, and also check the file. Or add the clip to check.ignore '
    "with a reason."
)
AUTO = (
    'With "auto", max_grad_norm of TrainingArguments sets the threshold. Without Trainer, Accelerate clips at 1.0, and '
    'DeepSpeed rejects "auto". Write the threshold instead of "auto", or add the clip to check.ignore with a reason.'
)
UNKNOWN_THRESHOLD = "The threshold, {code}, is only known at run time."
NO_NUMBER = "The threshold is {value}, which is not a number. The call fails, or converts the value. Write a number."
UNPACKED = (
    "{call} unpacks arguments, and the check does not read which ones. It compares a threshold in a mapping where the "
    "mapping is written. Pass each argument by name, or add the clip to check.ignore with a reason."
)


def read(
    project: Project, paths: Sequence[Path], advance: Any = lambda count: None, configurations: Collection[Path] = ()
) -> list[ClipUse]:
    """Return the clips of frameworks and of unified_clip in Python files.

    configurations: The Python files that are read as configurations of trainers.
    """
    ported, unreadable = port_all(paths, "drop-in", advance=advance, edit=False, project=project)
    own = own_clips.read(project, [file.path for file in ported])
    clipping = {use.path for use in own.uses}
    uses = [*own.uses]
    for file in (file for file in ported if file.sites):
        native = _native_uses(project, file, configurations, is_replaced=file.path in clipping)
        uses += [use for use in native if (use.path, use.line, use.column) not in own.calls]
    uses += [of_unread_file(file.path, "Python source", file.reason) for file in unreadable]
    for path in paths:
        uses += notebooks.clips_outside_python(path)
    return _without_measures(uses)


def _without_measures(uses: list[ClipUse]) -> list[ClipUse]:
    """Leave out calls that only measure a norm (threshold inf), if another clip in the file is on."""
    known = [use for use in uses if use.config is not None and not is_off(use.config)]
    clipping = {path for use in known for path in (use.path, *use.users)}
    return [use for use in uses if not (use.call and use.config and is_off(use.config) and use.path in clipping)]


def _native_uses(
    project: Project, file: PortedFile, configurations: Collection[Path], *, is_replaced: bool
) -> list[ClipUse]:
    """Return the frameworks' own clips in a file.

    is_replaced: Whether the file also clips with unified_clip.
    """
    module = project.module(file.path)
    calls: dict[tuple[int, int], list[ast.Call]] = {}
    for call in module.calls:
        calls.setdefault(module.position(call), []).append(call)
    is_read = file.path not in configurations
    sites = [site for site in file.sites if is_read or clip_function(site.name) is not None]
    sites = [site for site in sites if (site.line, site.column) not in module.annotated]
    return [
        use
        for site in sites
        for use in _native(project, module, site, _call_of(site, calls.get((site.line, site.column), [])), is_replaced)
    ]


def _call_of(site: PortedClip, calls: Sequence[ast.Call]) -> ast.Call | None:
    """Return the call of a clip: in `mask.mean().clamp_(min=1.0)`, two calls begin at the same place."""
    named = [call for call in calls if site.name.endswith(f".{last_name(call.func)}")]
    return next(iter([*named, *reversed(calls)]), None)


def _native(
    project: Project, module: Module, site: PortedClip, call: ast.Call | None, is_replaced: bool
) -> list[ClipUse]:
    """Return nothing for a place that does not clip."""
    function = clip_function(site.name)
    method = clip_calls.engine_method(module, call) if function is None else None
    package = method.package if method else _package(site.name)
    assert module.path is not None
    written = call or next(calls_at(module, site.line, site.column), None)
    code = module.code(written) if written is not None else ""
    use = partial(ClipUse, module.path, site.line, site.column, site.name, package=package, code=code)
    if site.verdict == "left":
        is_off = site.rule == OFF and not is_replaced
        return [_under_deepspeed(module, use(ClipConfig(rule="none")))] if is_off else []
    if function is not None and function.replacement in MEASURES:
        return []
    if function is not None and function.kind == "program" and _passes_class(module, call):
        return []
    if site.meaning and math.inf in (site.meaning.config.max, -(site.meaning.config.min or 0)):
        return [] if _scales_other(module, call) else [use(why_unknown=ONE_BOUND)]
    if site.reason == MADE_OF_GRADIENT:
        return [use(why_unknown=MAY_BE_GRADIENT)]
    meaning = site.meaning
    threshold = meaning.threshold if meaning else ""
    if threshold.strip("\"'") == "auto":
        return [use(why_unknown=AUTO)]
    if not threshold:
        try:
            if meaning is None and call is not None and method is not None:
                meaning = clip_calls.meaning_of_method(module, call, method)
            if not (meaning and meaning.threshold):
                config = meaning.config if meaning else None
                return [_with_settings(site, module, call, function, config, use)]
        except ConfigError as error:
            return [use(why_unknown=str(error))]
    assert meaning is not None
    why = _of_unknown_threshold(module, call, meaning, clip_calls.kind_of(function) if function else "in place")
    return _with_value(project, use(why_unknown=why, rule=meaning.config), meaning.threshold)


def _of_unknown_threshold(module: Module, call: ast.Call | None, meaning: Meaning, kind: str) -> str:
    why = UNKNOWN_THRESHOLD.format(code=meaning.threshold)
    with contextlib.suppress(ConfigError, UnreadableSourceError):
        value = constant(module, parse_expression(meaning.threshold))
        why = why if is_number(value) else NO_NUMBER.format(value=format_value(value))
    try:
        if call is not None:
            clip_calls.check(module, call, meaning.config.rule, kind)
    except ConfigError as error:
        return f"{error} {why}"
    return why


def _scales_other(module: Module, call: ast.Call | None) -> bool:
    """Return whether a call is a factor of something else than gradients, as in Adafactor's `update.div_(factor)`."""
    outer = module.parents.get(call) if call is not None else None
    if not isinstance(outer, ast.Call) or not isinstance(outer.func, ast.Attribute):
        return False
    name = last_name(outer.func.value)
    return outer.func.attr in SCALES and name != "" and name != "grad" and not is_like_gradient(name)


def _with_settings(
    site: PortedClip,
    module: Module,
    call: ast.Call | None,
    function: ClipFunction | None,
    config: ClipConfig | None,
    use: partial[ClipUse],
) -> ClipUse:
    if config is None:
        reasons = [reason for reason in site.reason.split(". ") if reason and not ADVICE.search(reason)]
        unknown = NOT_CALLED if call is None else RUN_TIME
        why = ". ".join(reasons).rstrip(".") + "." if reasons else unknown
        if function is not None and call is not None and _is_unpacked(call):
            return _unpacked(function, use(why_unknown=UNPACKED.format(call=shortened(call))))
        if not _is_set_outside(site, call):
            return use(why_unknown=why)
        option = site.name.rpartition("(")[2].rstrip("=)")
        rules = [each for each in settings() if each.keyword == option == MAX_GRAD_NORM]
        rule = next((each for each in rules if use.keywords["package"] in each.packages), None)
        config = ClipConfig(rule=rule.rule, family=rule.family, threshold=1.0) if rule and rule.rule else None
        return use(why_unknown=why, option=option, rule=config)
    if call is not None and site.meaning is not None and site.name.endswith("=)"):  # a trainer without the argument
        trainer, _, argument = site.name.rstrip("=)").partition("(")
        default = replace(use(config, by_default=True), clip=f"{trainer} by default: {argument} is not set")
        return _with_loss_scaling(module, _under_deepspeed(module, default))
    if call is None:  # an argument of a trainer
        return _with_loss_scaling(module, _under_deepspeed(module, use(config)))
    if function is not None and _is_unpacked(call):
        return use(why_unknown=UNPACKED.format(call=shortened(call)))
    if function is not None and function.kind == "class" and function.framework == "paddle":
        clip_calls.check_class_of_paddle(module, call, function, config)
    code = clip_calls.with_threshold_slot(call, function.parameters, function.limits) if function else ""
    clip_calls.check(module, call, config.rule, clip_calls.kind_of(function) if function else "in place")
    return use(config, call=code)


def _with_value(project: Project, use: ClipUse, code: str) -> list[ClipUse]:
    """Take the threshold of a clip from the code that fixes it, such as the default of a command line option.

    If the calls of a function pass different thresholds, or one of them is unknown, return a clip for each of them.
    """
    if use.rule is None or use.why_unknown != UNKNOWN_THRESHOLD.format(code=code):
        return [use]
    module = project.module(use.path)
    node = _node(module, use, code)
    if node is None:
        return [use]
    value = value_of(project, module, node)
    settled = [
        (each.path, *each.position(at))
        for each, at in [*value.unused, *((passed.module, passed.node) for passed in value.passed)]
        if each.path is not None
    ]
    use = replace(use, condition=_condition(module, node), settled=tuple(settled))
    is_passed = bool(value.passed)
    uses = []
    for each, at, found in value.passed or [Passed(module, node, value)]:
        own = replace(use, attribute=name_of(each, at), reader=each.path if is_passed else None)
        uses.append(_with_known_value(own, found, each, at, is_passed))
    kinds = [(each.attribute, each.reader, each.why_unknown, each.written_at, each.threshold) for each in uses]
    return list(dict(zip(kinds, uses, strict=True)).values())


def _with_known_value(use: ClipUse, value: Value, module: Module, node: ast.AST, is_passed: bool) -> ClipUse:
    """Return a clip with the value of its threshold: of `node`, which a call can pass. A default of 0 is ignored,
    because the value 0 often switches the clip off."""
    rule = cast("ClipConfig", use.rule)
    defaults = [origin for origin in value.origins if origin.kind in ("option", "field", "parameter")]
    if options := [origin.name for origin in defaults if origin.kind != "parameter"]:
        use = replace(use, option=options[0].rpartition(".")[2].lstrip("-").replace("-", "_"))
    origins = [(each.module.path, each.line) for each in value.origins if each.module.path]
    place = ""
    if is_passed:
        at = use.read_in, module.position(node)[0]
        origins.insert(0, at)
        what = "default" if isinstance(module.parents[node], ast.arguments) else "call"
        what = "parameter" if isinstance(node, ast.arg) else what
        place = f"the {what} in {_place(*at) if at[0] != use.path else f'line {notebooks.line_of(*at)}'}"
    if value.why_unknown:
        return replace(use, why_unknown=f"{use.why_unknown} {value.why_unknown}{f' See {place}.' if place else ''}")
    number = value.value if is_number(value.value) and abs(value.value) <= sys.float_info.max else None
    if number is None or (number <= 0 and defaults and not use.is_off_at(number)):
        what = f"The default of {defaults[0].name}" if defaults else f"The value of {place}" if place else "The value"
        return replace(use, why_unknown=f"{use.why_unknown} {what} is {format_value(value.value)}.")
    try:
        config = ClipConfig(rule="none") if use.is_off_at(number) else with_threshold(rule, float(number))
    except ConfigError as error:
        return replace(use, why_unknown=str(error))
    by = f"the default of {defaults[0].name}" if defaults else place
    clip, written_at = f"{use.clip} by {by}" if by else use.clip, _place(*origins[-1]) if origins else ""
    return replace(use, config=config, why_unknown="", clip=clip, origins=tuple(origins), written_at=written_at)


def _place(path: Path, line: int) -> str:
    return f"{shown(path)}:{notebooks.line_of(path, line)}"


def _condition(module: Module, node: ast.expr) -> str:
    """Return the condition of the innermost `if` that tests the threshold of a call, with THRESHOLD in its place."""
    code, inner = ast.unparse(node), cast("ast.AST", node)
    for outer in module.ancestors(node):
        if isinstance(outer, FUNCTIONS):
            break
        if isinstance(outer, ast.If) and any(inner is each for each in outer.body):
            test = re.sub(rf"(?<![\w.]){re.escape(code)}(?![\w.(\[])", THRESHOLD, ast.unparse(outer.test))
            if THRESHOLD in test:
                return test
        inner = outer
    return ""


def _node(module: Module, use: ClipUse, code: str) -> ast.expr | None:
    """Return the expression with this code in the call at the place of a clip."""
    calls = calls_at(module, use.line, use.column)
    inner = (each for call in calls for each in ast.walk(call) if isinstance(each, ast.expr))
    written = ast.unparse(parse_expression(code))
    return next((each for each in inner if ast.unparse(each) == written), None)


def _passes_class(module: Module, call: ast.Call | None) -> bool:
    passed = [*call.args, *(each.value for each in call.keywords)] if call is not None else []
    made = [followed(module, each) for each in passed]
    return len(made) == 1 and isinstance(made[0], ast.Call) and clip_function(module.dotted(made[0].func)) is not None


def _under_deepspeed(module: Module, use: ClipUse) -> ClipUse:
    """Add the file with the settings of DeepSpeed to a clip of TrainingArguments. Without a file, its effect is
    unknown."""
    if use.package not in HUGGING_FACE or use.config is None:
        return use
    for call in calls_at(module, use.line, use.column):
        for value in (followed(module, each.value) for each in call.keywords if each.arg == "deepspeed"):
            path = value.value if isinstance(value, ast.Constant) else value
            if path and not isinstance(path, str):
                return replace(use, config=None, why_unknown=DEEPSPEED.format(code=shortened(value)))
            use = replace(use, engine_file=path if isinstance(path, str) else "")
    return use


def _with_loss_scaling(module: Module, use: ClipUse) -> ClipUse:
    """Take other arguments of a trainer into account that change its action, such as fp16=True."""
    trainer = FORMATS.get(ARGUMENT_FORMATS.get(use.package, ""))
    if trainer is None or use.config is None:
        return use
    values: dict[str, Any] = {}
    for argument in (each for call in calls_at(module, use.line, use.column) for each in call.keywords):
        if argument.arg in trainer.fp16:
            with contextlib.suppress(ConfigError):  # a value that is only known at run time
                values[argument.arg] = constant(module, argument.value)
    scaling = trainer.loss_scaling(values)
    origin = {"provenance": {"format": trainer.name, **scaling}}
    return replace(use, config=use.config.model_copy(update=origin)) if scaling else use


def _is_set_outside(site: PortedClip, call: ast.Call | None) -> bool:
    return SET_OUTSIDE in site.reason and not _is_unpacked(call)


def _is_unpacked(call: ast.Call | None) -> bool:
    return call is not None and (
        any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords)
    )


def _unpacked(function: ClipFunction, use: ClipUse) -> ClipUse:
    """Return a clip that reads its threshold from a mapping, as in `clip_grad_norm_(parameters, **settings)`.

    The key of the threshold has the name of the parameter.
    """
    if not function.rule or len(function.limits) != 1:
        return use
    rule = ClipConfig(rule=function.rule, family=function.family, threshold=1.0)
    return replace(use, attribute=function.limits[0], rule=rule)


def _package(name: str) -> str:
    function = name.partition("(")[0]
    for setting in settings():
        if function in setting.factories:
            return setting.packages[0]
    package = "keras" if ".keras." in name else name.partition(".")[0]
    is_of_engine = package not in FRAMEWORKS and name.rpartition(".")[2] in ENGINE_METHODS
    return "torch" if is_of_engine else package
