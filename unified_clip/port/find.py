"""Find the clips in a Python file: functions, classes, arguments and methods."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Sequence

from ..source.module import SELF, Module
from ..source.tree import Target, arguments_of, is_name, keywords_of, last_name, method_of, text_of
from . import catalog, clip_coefficients, possible_clips, trainer_arguments
from .catalog import CLIP_NAME, KERAS_OPTIMIZER, KERAS_RULES, ClipFunction, clip_function, clip_packages, last_names
from .found_clip import CLAMP_PACKAGES, Arguments, FoundClip, Imports, SettingEntry, entries_of

MAX_TEXT = 100
CHECKS = ("isinstance", "issubclass")
UNKNOWN_OPTIMIZER = "The optimizer that gets this argument cannot be inferred."


def find(module: Module) -> list[FoundClip]:
    imports = Imports(module)
    clips = [clip for node in module.nodes for clip in _at(module, imports, node)]
    replaced = set(_replaced(module))
    reason = (
        "In this file, an assignment, setattr or patch replaces the clip function with another function. Port the "
        "other function by hand. If both functions have the same effect, remove the other function instead."
    )
    return [dataclasses.replace(clip, why_not=reason) if clip.function in replaced else clip for clip in clips]


def _replaced(module: Module) -> Iterator[ClipFunction]:
    for node in module.nodes:
        name = ""
        if isinstance(node, ast.Attribute) and node.attr in last_names() and module.is_target(node):
            name = module.full_name(node)
        elif isinstance(node, ast.Call) and module.code(node.func).endswith(("setattr", "patch", "patch.object")):
            values = [argument.value for argument in arguments_of(node)[:2]]
            texts = [text for value in values if (text := text_of(value)) is not None]
            owner = [module.full_name(value) for value in values[:1] if text_of(value) is None]
            name = ".".join([*owner, *texts])
        if (function := clip_function(name)) is not None:
            yield function


def _at(module: Module, imports: Imports, node: ast.AST) -> Iterator[FoundClip]:
    if isinstance(node, ast.Name | ast.Attribute):
        yield from _named(module, imports, node)
    elif isinstance(node, ast.Call):
        yield from _keyword_arguments(module, imports, node)
        yield from _method(module, imports, node)
        yield from possible_clips.got_by_name(module, node)
        yield from trainer_arguments.clips_in_call(module, imports, node)
        yield from clip_coefficients.clip_coefficient_in_call(module, node)
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        yield from clip_coefficients.clip_coefficients(module, node)
    elif isinstance(node, ast.ClassDef) and imports.has_trainers:
        yield from trainer_arguments.clips_in_bases(module, node)
    for entry in entries_of(module, node):
        yield from _assigned_limit(imports, entry)
        yield from trainer_arguments.clips_in_entry(imports, entry)


def _assigned_limit(imports: Imports, entry: SettingEntry) -> Iterator[FoundClip]:
    """Find settings such as parameter.need_clip = False, optimizer.clipnorm = 1.0, or {"clipnorm": 1.0}."""
    if entry.keyword == "need_clip" and entry.owner and is_name(entry.value, "False") and "paddle" in imports.packages:
        yield FoundClip(entry.node, "need_clip")
    elif entry.keyword in KERAS_RULES and imports.has_keras and not entry.owner:
        advice = "Pass the argument in the call of the optimizer's class, as in keras.optimizers.Adam(clipnorm=1.0)."
        why_not = f"{UNKNOWN_OPTIMIZER} {advice}"
        yield FoundClip(entry.node, entry.name, why_not=why_not)
    elif entry.keyword in KERAS_RULES and imports.has_keras and "opt" in entry.owner.lower():
        why_not = (
            "The threshold is set after the optimizer was created. If the threshold never changes, pass the "
            "threshold to the optimizer's class. Otherwise, clip the gradients by hand before each step."
        )
        yield FoundClip(entry.node, entry.name, why_not=why_not)


def _named(module: Module, imports: Imports, node: Target) -> Iterator[FoundClip]:
    last = last_name(node)
    is_alias = isinstance(node, ast.Name) and last in imports.aliases
    is_known = is_alias or (
        last in last_names() and (last != "clip" or imports.packages & (clip_packages() | CLAMP_PACKAGES))
    )
    if not (is_known or CLIP_NAME.search(last)) or isinstance(node.ctx, ast.Store):
        return
    names = module.full_names(node)
    functions = {name: clip_function(name) for name in sorted(names)}
    function = next(filter(None, functions.values()), None)
    if function is None:
        yield from possible_clips.possible_clips_named(module, imports, node, names)
        return
    if last == "clip" and not is_alias and not function.quiet and not imports.packages & clip_packages():
        return
    known = [name for name, function in functions.items() if function is not None]
    name = min(known, key=lambda name: (not name.endswith(f".{function.replacement}"), len(name)))
    if function.needs:
        yield from _by_argument(module, node, function, name)
        return
    replacements = {function and (function.framework, function.replacement) for function in functions.values()}
    why_not = _use_problem(module, node, function)
    if len(replacements) > 1:
        why_not = "In this file, this name can refer to several functions. Import each function under a separate name."
    yield FoundClip(node, name, function, module.call_of(node), why_not)


def _by_argument(module: Module, node: ast.AST, function: ClipFunction, name: str) -> Iterator[FoundClip]:
    call = module.enclosing(node, ast.Call)
    if call is None:
        return
    arguments = Arguments(call, function.parameters if call.func is node else ())
    full_name = f"{name}({function.needs}=)"
    if function.needs in arguments.passed:
        argument = arguments.passed[function.needs]
        yield FoundClip(argument.node, full_name, function, call, argument=argument)
    elif any(argument.startswith("*") for argument in arguments.unknown):
        why_not = (
            f"A starred argument might contain {function.needs}=. If the argument contains {function.needs}=, write "
            f"{function.needs}=... in the call. Otherwise, there is nothing to port by hand."
        )
        yield FoundClip(node, full_name, function, call, why_not)


def _use_problem(module: Module, node: ast.AST, function: ClipFunction) -> str:
    parent = module.parents.get(node)
    if isinstance(parent, ast.ClassDef) and node in parent.bases:
        return f"This subclass of {function.name} may clip differently. Port the subclass by hand."
    call = module.enclosing(node, ast.Call)
    if call is not None and call.func is not node and module.code(call.func) in CHECKS:
        problem = f"This line tests whether an object is a {function.name}."
        return f"{problem} Port the code that creates the object. Then test for the class of the new object."
    return ""


def _keyword_arguments(module: Module, imports: Imports, call: ast.Call) -> Iterator[FoundClip]:
    passed = keywords_of(call)
    name = module.full_name(call.func) if passed.keys() & {*KERAS_RULES, "need_clip"} else ""
    for keyword, argument in passed.items():
        if keyword in KERAS_RULES and (imports.has_keras or KERAS_OPTIMIZER.match(name)):
            why_not = (
                ""
                if KERAS_OPTIMIZER.match(name)
                else f"{UNKNOWN_OPTIMIZER} For an optimizer of Keras, write the name of its class, as in "
                "keras.optimizers.Adam(clipnorm=1.0). For a class of your own, port this argument by hand."
            )
            full_name = f"{name or module.code(call.func)}({keyword}=)"
            yield FoundClip(argument.node, full_name, call=call, why_not=why_not, argument=argument)
        elif keyword == "need_clip" and is_name(argument.value, "False"):
            owner = name or module.code(call.func)
            if "paddle" in imports.packages and clip_function(owner) is None:
                yield FoundClip(argument.node, f"{owner}(need_clip=)", call=call, argument=argument)


def _method(module: Module, imports: Imports, call: ast.Call) -> Iterator[FoundClip]:
    function = clip_function(f"Tensor.{method_of(call)}")
    is_of_engine = method_of(call) in catalog.ENGINE_METHODS and imports.packages & catalog.ENGINE_PACKAGES
    if not isinstance(call.func, ast.Attribute) or not (function or is_of_engine):
        return
    if module.code(call.func.value) in SELF and method_of(call) in module.function_names:
        return  # the file has the method's own code
    names = module.full_names(call.func)
    if function is not None and names == {""}:
        yield FoundClip(call, module.code(call.func), function, call, tensor=call.func.value)
    elif names == {""} and not any(possible_clips.possible_clips_named(module, imports, call.func, names)):
        yield FoundClip(call, module.code(call.func), call=call, why_not=possible_clips.OF_ENGINE)


def identifiers(module: Module) -> set[str]:
    """Return the names and short strings of a file. Omit `getattr` if no call of getattr can return a clip."""
    names = {name for node in module.nodes for name in _identifiers_of(node)}
    return names if "getattr" not in names or _looks_up_attributes(module) else names - {"getattr"}


def _identifiers_of(node: ast.AST) -> Sequence[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
            return [name]
        case ast.alias(name=name) | ast.ImportFrom(module=str(name)):
            return name.split(".")
        case ast.Constant(value=str(text)) if len(text) < MAX_TEXT:
            return [text]
    return ()


def _looks_up_attributes(module: Module) -> bool:
    owners = [
        arguments_of(call)[0].value for call in module.calls if is_name(call.func, "getattr") and _is_variable(call)
    ]
    return any(module.full_names(owner) != {""} for owner in owners)


def _is_variable(call: ast.Call) -> bool:
    return len(arguments_of(call)) > 1 and not isinstance(arguments_of(call)[1].value, ast.Constant)
