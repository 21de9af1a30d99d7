"""Find names that might be clips, although their module is unknown."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from ..source.local_imports import file_of
from ..source.module import SELF, Module
from ..source.tree import Target, arguments_of, is_name, keywords_of, last_name, text_of
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
from .gradient_flow import Gradients

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
        if call.func is not node and isinstance(call.func, ast.Name) and CLIP_NAME.search(call.func.id):
            return  # the clip is yielded for the variable by which the code calls the function
        for package, last in sorted((name.rpartition(".")[0], name.rpartition(".")[2]) for name in names):
            is_known = not package or package.startswith(".") or package.partition(".")[0] == "unified_clip"
            looks_like_clip = CLIP_NAME.search(last) or CLIP_NAME.search(last_name(node))
            if looks_like_clip and not is_known and not _is_in_project(module, package):
                yield FoundClip(node, f"{package}.{last}", why_not=UNKNOWN_FUNCTION.format(f"{package}.{last}"))
                return


def _of_wrapper(module: Module, node: Target, names: set[str], call: ast.Call | None) -> Iterator[FoundClip]:
    code, package = module.code(node), min(names).rpartition(".")[0]
    function, is_known = clip_function(code), package.partition(".")[0] in {*FRAMEWORKS, "numpy", "unified_clip"}
    if function is not None and function.rule in ("norm", "global_norm") and not is_known:
        why_not = OF_WRAPPER.format(code.partition(".")[0], package, function.name)
        yield FoundClip(node, code, function, call, why_not)


def _is_in_project(module: Module, package: str) -> bool:
    return module.path is not None and file_of(package, module.path)[0] is not None


def _from_star(module: Module, imports: Imports, node: Target, call: ast.Call | None) -> Iterator[FoundClip]:
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
    elif call is not None and CLIP_NAME.search(last_name(node)):
        yield FoundClip(node, code, call=call, why_not=why_not)


def _of_unknown_object(module: Module, imports: Imports, node: Target, call: ast.Call | None) -> Iterator[FoundClip]:
    """Find calls such as import_module("paddle.nn").ClipGradByNorm(1.0)."""
    if call is None or not isinstance(node, ast.Attribute):
        return
    owner, last = module.code(node.value), node.attr
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


def got_by_name(module: Module, call: ast.Call) -> Iterator[FoundClip]:
    if not is_name(call.func, "getattr") or len(arguments_of(call)) < 2:
        return
    owner, name = (argument.value for argument in arguments_of(call)[:2])
    package, pattern = module.full_name(owner), _pattern(name)
    names = [name for name in last_names() if re.fullmatch(pattern, name)] if package else []
    clips = [function for name in names if (function := clip_function(f"{package}.{name}")) is not None]
    if not clips:
        return
    has_word = "clip" in words_around(module, call).lower()
    if has_word or _may_be_clip(module, call, clips):
        yield FoundClip(call, f"getattr({package}, ...)", call=call, why_not=BY_NAME if has_word else MAY_BE_CLIP)


def _may_be_clip(module: Module, call: ast.Call, clips: Sequence[ClipFunction]) -> bool:
    calls = calls_of(module, call)
    gradients = Gradients(module)
    if any("clip" in keyword for call in calls for keyword in keywords_of(call)):
        return True
    tensors = [argument.value for call in calls for argument in arguments_of(call)[:1]]
    if any(map(gradients.may_be_gradient, tensors)):
        return True
    own = [function for function in clips if function.kind not in ("any tensor", "functional")]
    if not own or not all(any(_accepts(function, call) for function in own) for call in calls):
        return False
    outer = module.enclosing(call, ast.ClassDef)  # a layer of Paddle creates no optimizer, so it creates no clip
    is_in_layer = outer is not None and any(module.code(base).endswith("Layer") for base in outer.bases)
    return not is_in_layer and not _is_named_otherwise(module, call)


def calls_of(module: Module, node: ast.AST, depth: int = 0) -> list[ast.Call]:
    call = module.call_of(node)
    calls = [] if call is None else [call]
    for read in module.assigned(node).reads if depth < MAX_ALIASES else ():
        calls += calls_of(module, read, depth + 1)
    return calls


def _accepts(function: ClipFunction, call: ast.Call) -> bool:
    names = {*function.parameters, *function.renamed}
    number = len(arguments_of(call))
    is_short = not function.parameters or number <= len(names)
    return bool(number) and keywords_of(call).keys() <= names and is_short


def _is_named_otherwise(module: Module, call: ast.Call) -> bool:
    match arguments_of(call)[1].value:
        case ast.Attribute(attr=words):
            pass
        case ast.Subscript(slice=name) | name:
            words = module.code(name)
    function = module.enclosing_definition(call)
    around = function.name if function is not None else ""
    return any(map(LAYER_NAMES.search, (words, around))) or OTHER_NAMES.search(words) is not None


def _pattern(node: ast.expr) -> str:
    """Return a regular expression that matches every possible value of a Python expression."""
    match node:
        case ast.Constant(value=str(text)):
            return re.escape(text)
        case ast.JoinedStr(values=parts):
            texts = map(text_of, parts)
            return "".join(".*" if text is None else re.escape(text) for text in texts)
        case ast.BinOp(left=left, right=right, op=ast.Add()):
            return _pattern(left) + _pattern(right)
    return ".*"


def words_around(module: Module, node: ast.AST) -> str:
    words = [module.code(each.node) for each in arguments_of(node)[1:]] if isinstance(node, ast.Call) else []
    for outer in module.ancestors(node):
        match outer:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.keyword(arg=str(name)):
                words.append(name)
            case ast.Assign(targets=targets):
                words += map(module.code, targets)
    return " ".join(words)
