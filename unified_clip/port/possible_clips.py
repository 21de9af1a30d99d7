"""Find names that might be clips, although their module is unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from .catalog import (
    CLIP_NAME,
    ENGINE_METHODS,
    ENGINE_PACKAGES,
    FRAMEWORKS,
    ClipFunction,
    clip_function,
    clip_functions,
    last_names,
)
from .found_clip import FoundClip, Imports
from .source.gradient_flow import Gradients
from .source.module import SELF, Module
from .source.syntax_tree import Target, is_name, keywords_of

BY_NAME = (
    "getattr looks this clip up by its name. Write the function or class instead of getattr. If the name varies, use "
    "an if statement."
)
MAY_BE_CLIP = (
    "getattr might return a clip here. If getattr returns a clip, write the function or class instead of getattr. "
    "Otherwise, there is nothing to port by hand."
)
UNKNOWN_OWNER = (
    "The name of this call suggests a gradient clip, but the type of {} cannot be inferred. If the call clips, port "
    "the call by hand."
)
UNKNOWN_FUNCTION = (
    "The name of this call suggests a gradient clip, but unified-clip port does not support {}. If the call clips, "
    "port the call by hand."
)
OF_WRAPPER = (
    "{0} comes from {1}. If this line uses the framework's function {2}, import {0} directly from the framework, and "
    "run unified-clip port again. Otherwise, port the call by hand."
)
OF_ENGINE = (
    "This may be a method of a training engine, such as Accelerator. Such a method clips the gradients of the engine's "
    "parameters. If you keep the engine, keep this call. Otherwise, clip with unified_clip.torch between backward() "
    "and step(). For a method of your own, port the code of the method by hand."
)
MAX_ALIASES = 4

LAYER_NAMES = re.compile(
    r"(?i)(?<![a-z])(act|activations?|nonlinearity|(norm_)?layers?|conv|pool|pooling|pad|padding|rnn)(?![a-z])"
)

OTHER_NAMES = re.compile(
    r"(?i)(?<![a-z])(dtype|device|cell|loss|criterion|initializer|optimizer|optim|opt|scheduler|schedule)(?![a-z])"
)


def possible_clips_named(module: Module, imports: Imports, node: Target, names: set[str]) -> Iterator[FoundClip]:
    call = next(iter(calls_of(module, node)), None)
    if names == {""}:
        yield from [*_from_star(module, imports, node, call)] or _of_unknown_object(module, imports, node, call)
    elif wrapped := list(_of_wrapper(module, node, names, call)):
        yield from wrapped
    elif call is not None:
        if call.func is not node and isinstance(call.func, cst.Name) and CLIP_NAME.search(call.func.value):
            return  # the clip is yielded for the variable by which the code calls the function
        for package, last in sorted((name.rpartition(".")[0], name.rpartition(".")[2]) for name in names):
            is_known = not package or package.startswith(".") or package.partition(".")[0] == "unified_clip"
            looks_like_clip = CLIP_NAME.search(last) or CLIP_NAME.search(_last(node))
            if looks_like_clip and not is_known and not module.is_in_project(package):
                yield FoundClip(node, f"{package}.{last}", why_not=UNKNOWN_FUNCTION.format(f"{package}.{last}"))
                return


def _of_wrapper(module: Module, node: Target, names: set[str], call: cst.Call | None) -> Iterator[FoundClip]:
    code, package = module.code(node), min(names).rpartition(".")[0]
    function, is_known = clip_function(code), package.partition(".")[0] in {*FRAMEWORKS, "numpy", "unified_clip"}
    if function is not None and function.rule in ("norm", "global_norm") and not is_known:
        why_not = OF_WRAPPER.format(code.partition(".")[0], package, function.name)
        yield FoundClip(node, code, function, call, why_not)


def _last(node: Target) -> str:
    return node.attr.value if isinstance(node, cst.Attribute) else node.value


def _from_star(module: Module, imports: Imports, node: Target, call: cst.Call | None) -> Iterator[FoundClip]:
    code = module.code(node)
    for package in imports.stars:
        if function := clip_function(f"{package}.{code}"):
            name = code.partition(".")[0]
            why_not = f"This name comes from `from {package} import *`. Add an import: from {package} import {name}"
            yield FoundClip(node, f"{package}.{code}", function, call, why_not)
            return
    if not imports.stars or not module.is_unbound(node):
        return
    functions = clip_functions()
    full_name = next((name for name in functions if name == code or name.endswith(f".{code}")), "")
    name, star = code.partition(".")[0], f"from {imports.stars[-1]} import *"
    why_not = f"This name might come from `{star}`. Import the name: from MODULE import {name}"
    if full_name and ("." in code or CLIP_NAME.search(code)):
        yield FoundClip(node, code, functions[full_name], call, why_not)
    elif call is not None and CLIP_NAME.search(_last(node)):
        yield FoundClip(node, code, call=call, why_not=why_not)


def _of_unknown_object(module: Module, imports: Imports, node: Target, call: cst.Call | None) -> Iterator[FoundClip]:
    """Find calls such as import_module("paddle.nn").ClipGradByNorm(1.0)."""
    if call is None or not isinstance(node, cst.Attribute):
        return
    owner, last = module.code(node.value), node.attr.value
    if last in ENGINE_METHODS:
        is_own = owner in SELF and last in module.function_names
        if call.func is not node and not is_own and imports.packages & ENGINE_PACKAGES:
            yield FoundClip(node, module.code(node), call=call, why_not=OF_ENGINE)
        return
    function = next((function for name, function in clip_functions().items() if name.endswith(f".{last}")), None)
    if function is None or function.kind == "any tensor" or not CLIP_NAME.search(last) or owner in SELF:
        return
    if last not in module.function_names:
        yield FoundClip(node, module.code(node), call=call, why_not=UNKNOWN_OWNER.format(owner))


def got_by_name(module: Module, call: cst.Call) -> Iterator[FoundClip]:
    if not is_name(call.func, "getattr") or len(call.args) < 2:
        return
    owner = module.full_name(call.args[0].value)
    pattern = _pattern(call.args[1].value)
    names = [name for name in last_names() if re.fullmatch(pattern, name)] if owner else []
    clips = [function for name in names if (function := clip_function(f"{owner}.{name}")) is not None]
    if not clips:
        return
    has_word = "clip" in words_around(module, call).lower()
    if has_word or _may_be_clip(module, call, clips):
        yield FoundClip(call, f"getattr({owner}, ...)", call=call, why_not=BY_NAME if has_word else MAY_BE_CLIP)


def _may_be_clip(module: Module, call: cst.Call, clips: Sequence[ClipFunction]) -> bool:
    calls = calls_of(module, call)
    gradients = Gradients(module)
    if any("clip" in keyword for call in calls for keyword in keywords_of(call)):
        return True
    tensors = [call.args[0].value for call in calls if call.args]
    if any(map(gradients.may_be_gradient, tensors)):
        return True
    own = [function for function in clips if function.kind not in ("any tensor", "functional")]
    if not own or not all(any(_accepts(function, call) for function in own) for call in calls):
        return False
    outer = module.enclosing(call, cst.ClassDef)  # a layer of Paddle creates no optimizer, so it creates no clip
    is_in_layer = outer is not None and any(module.code(base.value).endswith("Layer") for base in outer.bases)
    return not is_in_layer and not _is_named_otherwise(module, call)


def calls_of(module: Module, node: cst.CSTNode, depth: int = 0) -> list[cst.Call]:
    call = module.call_of(node)
    calls = [] if call is None else [call]
    for read in module.assigned(node).reads if depth < MAX_ALIASES else ():
        calls += calls_of(module, read, depth + 1)
    return calls


def _accepts(function: ClipFunction, call: cst.Call) -> bool:
    names = {*function.parameters, *function.renamed}
    is_short = not function.parameters or len(call.args) <= len(names)
    return bool(call.args) and keywords_of(call).keys() <= names and is_short


def _is_named_otherwise(module: Module, call: cst.Call) -> bool:
    match call.args[1].value:
        case cst.Attribute(attr=name) | cst.Subscript(slice=[name, *_]) | name:
            words = module.code(name)
    function = module.enclosing(call, cst.FunctionDef)
    around = function.name.value if function is not None else ""
    return any(map(LAYER_NAMES.search, (words, around))) or OTHER_NAMES.search(words) is not None


def _pattern(node: cst.BaseExpression) -> str:
    """Return a regular expression that matches every possible value of a Python expression."""
    match node:
        case cst.SimpleString():
            return re.escape(str(node.evaluated_value))
        case cst.FormattedString(parts=parts):
            texts = [part.value if isinstance(part, cst.FormattedStringText) else None for part in parts]
            return "".join(".*" if text is None else re.escape(text) for text in texts)
        case cst.BinaryOperation(left=left, right=right, operator=cst.Add()):
            return _pattern(left) + _pattern(right)
    return ".*"


def words_around(module: Module, node: cst.CSTNode) -> str:
    words = [module.code(argument) for argument in getattr(node, "args", ())[1:]]
    for outer in module.ancestors(node):
        match outer:
            case cst.FunctionDef(name=name) | cst.Arg(keyword=cst.Name() as name):
                words.append(name.value)
            case cst.Assign(targets=targets):
                words += [module.code(target.target) for target in targets]
    return " ".join(words)
