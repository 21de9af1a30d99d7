"""Suggest code that the user can write in place of a flagged clip."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from typing import cast

from ..source.module import Module
from ..source.tree import arguments_of, keywords_of, sorted_nodes
from . import trainer_arguments
from .catalog import KERAS_RULES, TrainerSetting, clip_function, same_positions
from .found_clip import Arguments, FoundClip, entries_of, number_of
from .gradient_flow import Gradients
from .ported_clip import Target
from .to_config import UnsureError, has_several_limits, meaning, rule_of, uses_other_norm

SELECTING_ARGUMENTS = {
    "need_clip": "need_clip= selects the parameters to clip. Clip only these parameters by hand, before each "
    "optimizer.step().",
    "group_name": "group_name= is used in static programs only. Remove group_name=.",
    "auto_skip_clip": "With auto_skip_clip=, Paddle clips only if the norm exceeds the threshold or is NaN. Remove "
    "auto_skip_clip=.",
}
"""{argument that only Paddle's clips have: why a clip with this argument is flagged}"""

STATIC = re.compile(
    r"paddle\.(enable_static$|static\.(Executor|program_guard|Program|CompiledProgram|data|nn|amp|append_backward|gradients)\b"
    r"|fluid\.(program_guard|Executor|ParallelExecutor|CompiledProgram|data\b|layers\.data\b|Program))"
)
DEFAULT_PROGRAM = re.compile(r"paddle\.(fluid|static)\.default_(main|startup)_program$")

CLASSES = {"norm": "GradientClipByNorm", "global_norm": "GradientClipByGlobalNorm", "value": "GradientClipByValue"}
WITHOUT_EFFECT = ("name", "foreach", "program")
OPTAX_SELECTIONS = ("optax.masked", "optax.multi_transform", "optax.partition")
NOT_FIRST = "# optax applies other transformations before this clip: port them too, and clip their result"
CLIPS_UPDATES = "# this clip gets the results of other transformations: to clip gradients, put this clip first"
UNKNOWN_POSITION = "# these lines are correct only if no other transformation changes the gradients before this clip"
STEP = ["optimizer.zero_grad()", "loss.backward()"]


def suggested_lines(module: Module, clip: FoundClip, target: Target, gradients: Gradients) -> list[str]:
    try:
        meaning(module, clip)
    except UnsureError:
        return []  # unified_clip rejects an argument
    if has_several_limits(module, clip):
        return []
    if clip.setting is not None:
        return _for_setting(module, clip, clip.setting)
    rule, _, values = rule_of(module, clip)
    if not rule:
        return _for_entry(module, clip) or _same_call(module, clip)
    if target == "torch" and (clip.arguments.passed.keys() - _expressed(clip) or other_variable(gradients, clip)):
        return _same_call(module, clip)
    limits = ", ".join(module.code(value) for value in values if value is not None) or "threshold"
    if clip.function.lines and (target != "torch" or clip.function.has_lines_for_all):
        passed = {name: clip.arguments.value(name) for name in clip.function.parameters}
        passed |= dict(zip(clip.function.limits, values, strict=True))
        codes = {name: module.code(value) if value is not None else name for name, value in passed.items()}
        namespace = "torch" if target == "torch" else clip.function.framework
        return [line.format(**codes, limits=limits, namespace=namespace) for line in clip.function.lines]
    if target == "torch":
        factor = loss_scale_of(module, clip)
        advice = f"# unscale the gradients before the clip, and do not multiply the threshold by {factor}"
        return [*([advice] if factor else []), *(_attached(module, clip) or _in_pytorch(module, clip, limits))]
    if clip.function.framework == "optax":
        is_late = _in_optax(module, clip)[0] == NOT_FIRST
        return [*([CLIPS_UPDATES] if is_late else []), "import unified_clip", f"{_config(module, clip)}.as_optax()"]
    if clip.argument is not None and clip.is_optimizer_argument:
        optimizer = _variable(module, clip.call)
        return [
            "import unified_clip",
            f"{_config(module, clip)}.attach_to({optimizer})  # and remove {clip.argument.keyword}=",
        ]
    return []


def other_variable(gradients: Gradients, clip: FoundClip) -> str:
    """Return the code of the input whose gradient is clipped, or '' if the clip may be of parameters' gradients."""
    if clip.call is None or clip.kind not in ("functional", "any tensor"):
        return ""
    tensor = clip.tensor or clip.arguments.value(clip.function.clipped)
    return gradients.other_variable(tensor, clip.call) if tensor is not None else ""


def _expressed(clip: FoundClip) -> set[str]:
    """Return the arguments that suggested lines express, or that have no effect."""
    function = clip.function
    known = (*function.limits, *WITHOUT_EFFECT, *SELECTING_ARGUMENTS, "use_norm")
    return {*function.parameters[:1], function.tensor, *known}


def _same_call(module: Module, clip: FoundClip) -> list[str]:
    """Return the statement of the old call, with a call of unified_clip's function and the same arguments."""
    function = clip.function
    if clip.call is None or not function.replacement:
        return []
    codes = []
    for position, argument in enumerate(arguments_of(clip.call)):
        name = argument.keyword or (function.parameters[position] if position >= same_positions(function) else "")
        name = function.renamed.get(name, name)
        codes.append(f"{name}={module.code(argument.value)}" if name else argument.star + module.code(argument.value))
    call = f"unified_clip.torch.{function.replacement}({', '.join(codes)})"
    statement = module.simple_statement(clip.call)
    old, code = module.code(clip.call), module.code(statement) if statement is not None else ""
    return ["import unified_clip.torch", code.replace(old, call) if old in code else call]


def _for_setting(module: Module, clip: FoundClip, setting: TrainerSetting) -> list[str]:
    if trainer_arguments.is_uncertain(setting, clip.limit):
        return []
    limit = module.code(clip.limit) if clip.limit is not None else setting.default or "threshold"
    rule, chosen = (
        trainer_arguments.rule_of_argument(module, clip, setting),
        trainer_arguments.chosen_rules(module, clip, setting),
    )
    code, advice = f'"{rule or setting.rule}"', []
    if not rule and len(chosen) == 1 and clip.call is not None:
        code = f'"value" if {chosen.pop()} == "value" else "{setting.rule}"'
    elif setting.rule_keyword and (not rule or clip.limit is None):
        advice = [f'# write rule="value" if {setting.rule_keyword} is "value"']
    return [*(advice if setting.lines else []), *(line.format(limit=limit, rule=code) for line in setting.lines)]


def _for_entry(module: Module, clip: FoundClip) -> list[str]:
    entries = entries_of(module, module.parents[clip.node])
    entry = next((each for each in entries if each.node is clip.node), None)
    if entry is None or entry.keyword not in KERAS_RULES:
        return []
    limit = number_of(module, entry.value)
    if limit is not None and limit <= 0:
        return []  # most versions of Keras then clip nothing
    if entry.keyword == "clipnorm" and any(name.startswith("keras.") for name in module.used_names):
        return []  # its rule depends on the version of Keras
    rule = KERAS_RULES[entry.keyword]
    shape = "" if rule == "value" else ', family="tensorflow"'
    config = f'unified_clip.ClipConfig(rule="{rule}", threshold={module.code(entry.value)}{shape})'
    return ["import unified_clip", f"{config}.attach_to({entry.owner or 'optimizer'})  # and remove {entry.keyword}"]


def _config(module: Module, clip: FoundClip) -> str:
    rule, family, values = rule_of(module, clip)
    codes = [module.code(value) for value in values if value is not None]
    limits = f"threshold={(codes or ['threshold'])[0]}"
    if len(codes) == 2 and codes[1].replace(" ", "") != f"-{codes[0]}":
        limits = f"min={codes[1]}, max={codes[0]}"
    shape = "" if rule == "value" else f', family="{family}"'
    return f'unified_clip.ClipConfig(rule="{rule}", {limits}{shape})'


# -- the clip of an optimizer in PyTorch


def _attached(module: Module, clip: FoundClip) -> list[str]:
    """Return the lines that attach a clip to an optimizer of PyTorch."""
    is_limit = clip.argument is not None and clip.is_optimizer_argument
    if not is_limit:
        is_created = clip.kind == "class" and clip.call is not None and not clip.why_not
        selects = any(name in clip.arguments.passed for name in SELECTING_ARGUMENTS)
        if not is_created or selects or _setting_call(module, clip) is not None or is_static(module):
            return []
    optimizer = clip.call if is_limit else _optimizer_of(module, clip)
    name, config = _variable(module, optimizer), _config(module, clip)
    argument = keywords_of(optimizer).get("parameters") if optimizer is not None else None
    code = module.code(argument.value) if argument is not None else ""
    may_be_grouped = "parameters()" not in code or "{" in code
    if is_limit or clip.function.rule != "global_norm" or not may_be_grouped:
        return ["import unified_clip", f"{config}.attach_to({name})  # once, before the first step"]
    variable = _clip_variable(config)
    return [
        "import unified_clip",
        f"{variable} = {config}",
        f"{variable}.attach_to({name})  # call once, before the first step, if the optimizer has one parameter group",
        "# Paddle clips each group separately. For several groups, write this loop before every step instead:",
        f"# for group in {name}.param_groups:",
        f'#     {variable}.clip_(group["params"])',
    ]


def _clip_variable(code: str) -> str:
    """Return a name for a clip that is created by `code`. The threshold can be a variable with the name `clip`."""
    return "gradient_clip" if re.search(r"(?<![\w.])clip\b", code) else "clip"


def _optimizer_of(module: Module, clip: FoundClip) -> ast.Call | None:
    value: ast.AST | None = clip.call
    if isinstance(module.parents.get(value) if value is not None else None, ast.IfExp):
        value = module.parents[cast(ast.AST, value)]
    for place in [value, *module.assigned(value).reads] if value is not None else ():
        passed = module.argument(place)
        if passed is not None and passed[1].keyword == "grad_clip":
            return passed[0]
    return None


def _variable(module: Module, call: ast.Call | None) -> str:
    match module.parents.get(call) if call is not None else None:
        case ast.Assign(targets=[target, *_]) | ast.AnnAssign(target=target):
            return module.code(target)
    return "optimizer"


def loss_scale_of(module: Module, clip: FoundClip) -> str:
    for bound in (bound for limit in clip.limits for bound in module.binding(limit).bounds):
        statement = bound.node
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Mult):
            factor = module.code(statement.value)
            if "scal" in factor.lower():
                return factor
    return ""


def _in_pytorch(module: Module, clip: FoundClip, limits: str) -> list[str]:
    rule, family, _ = rule_of(module, clip)
    if clip.kind != "class" and family == "tensorflow" and rule == "global_norm":
        norm = clip.arguments.value("use_norm") if uses_other_norm(module, clip) else None
        use_norm = f", use_norm={module.code(norm)}" if norm is not None else ""
        return [
            "import unified_clip.torch",
            *STEP,
            "grads = [parameter.grad for parameter in parameters]  # where parameters = list(model.parameters())",
            f"grads, norm = unified_clip.torch.clip_by_global_norm(grads, {limits}{use_norm})",
            "for parameter, grad in zip(parameters, grads):",
            "    parameter.grad = grad",
            "optimizer.step()",
        ]
    name = (clip.kind == "class" and clip.function.replacement) or CLASSES[rule]
    advice, selected = _in_optax(module, clip) if clip.function.framework == "optax" else ("", "")
    selected = selected or (_selected(module, clip) if clip.kind == "class" else "")
    parameters = "parameters" if selected else "model.parameters()"
    which = f". Put only {selected} into parameters" if selected else ""
    if advice == NOT_FIRST:
        return [advice]
    variable = _clip_variable(limits)
    return [
        *([advice] if advice else []),
        "import unified_clip.torch",
        f"{variable} = unified_clip.torch.{name}({limits})  # once",
        *STEP,
        f"{variable}.clip_({parameters})  # before every step{which}",
        "optimizer.step()",
    ]


def _in_optax(module: Module, clip: FoundClip) -> tuple[str, str]:
    """Return (comment about the position in optax.chain, description of the clipped parameters)."""
    node: ast.AST | None = clip.node
    advice, selected = UNKNOWN_POSITION, ""
    while node is not None and not isinstance(node, ast.stmt) and advice != NOT_FIRST:
        if (passed := module.argument(node)) is not None:
            name = module.full_name(passed[0].func)
            if name == "optax.chain":
                before = itertools.takewhile(lambda each: clip.node not in sorted_nodes(each), _chained(passed[0]))
                advice = "" if all(_is_optax_clip(module, each) for each in before) else NOT_FIRST
            elif name in OPTAX_SELECTIONS:
                selected = f"the parameters that {name} selects"
        node = module.parents.get(node)
    return advice, selected


def _chained(chain: ast.Call) -> Iterator[ast.expr]:
    for argument in arguments_of(chain):
        if argument.star and isinstance(argument.value, ast.List | ast.Tuple):
            yield from argument.value.elts
        else:
            yield argument.value


def _is_optax_clip(module: Module, node: ast.expr) -> bool:
    function = clip_function(module.full_name(node.func)) if isinstance(node, ast.Call) else None
    return function is not None and function.framework == "optax"


def _selected(module: Module, clip: FoundClip) -> str:
    if (need_clip := clip.arguments.value("need_clip")) is not None:
        return f"the parameters that {module.code(need_clip)} selects"
    call = _setting_call(module, clip)
    function = clip_function(module.full_name(call.func)) if call is not None else None
    value = Arguments(call, function.parameters).value("param_list") if function is not None else None
    return module.code(value) if value is not None and module.code(value) != "None" else ""


def _setting_call(module: Module, clip: FoundClip) -> ast.Call | None:
    for place in [clip.call, *module.assigned(clip.call).reads] if clip.call is not None else ():
        passed = module.argument(place)
        function = clip_function(module.full_name(passed[0].func)) if passed is not None else None
        if passed is not None and function is not None and "param_list" in function.parameters:
            return passed[0]
    return None


def is_static(module: Module) -> bool:
    """Return whether a file uses static programs, as in paddle.fluid without dygraph."""
    used = module.used_names
    in_fluid = any(name.startswith("paddle.fluid.") for name in used)
    eager = any(name.startswith("paddle.fluid.dygraph") for name in used)
    return any(map(STATIC.match, used)) or _uses_default_program(module) or (in_fluid and not eager)


def _uses_default_program(module: Module) -> bool:
    """Ignore the attribute random_seed, because code in dynamic mode sets random_seed, too."""
    calls = [call for call in module.calls if DEFAULT_PROGRAM.match(module.full_name(call.func))]
    parents = [module.parents[call] for call in calls]
    return any(not isinstance(parent, ast.Attribute) or parent.attr != "random_seed" for parent in parents)
