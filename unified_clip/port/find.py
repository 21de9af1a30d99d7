"""Find the clips in a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import libcst as cst

from . import hidden, trainer_arguments
from .catalog import (
    KERAS_RULES,
    LIKE_CLIP,
    METHODS,
    ClipFunction,
    Engine,
    clip_function,
    is_keras_optimizer,
    last_names,
)
from .clip_call import Arguments, FoundClip, Imports
from .source.module import Module
from .source.syntax_tree import Target

CHECKS = ("isinstance", "issubclass")
ENGINES = {"torch", "accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "fairscale"}
"""Packages with engines that clip, and packages used together with them."""

UNKNOWN = "Which optimizer this is cannot be seen."
MADE_OF_DICT = "Which optimizer takes it cannot be seen."


def find(module: Module) -> list[FoundClip]:
    """Return all clips, in order."""
    imports = Imports(module)
    found = [each for node in module.nodes for each in _at(module, imports, node)]
    replaced = set(_replaced(module))
    return [
        dataclasses.replace(each, unsure="The file assigns something else to its name.")
        if each.function in replaced
        else each
        for each in found
    ]


def _replaced(module: Module) -> Iterator[ClipFunction]:
    """Yield the functions that the file replaces: torch.nn.utils.clip_grad_norm_ = mine."""
    for node in module.nodes:
        name = ""
        if isinstance(node, cst.Attribute) and node.attr.value in last_names() and module.is_target(node):
            name = module.full_name(node)
        elif isinstance(node, cst.Call) and module.code(node.func).endswith(("setattr", "patch", "patch.object")):
            texts = [each.value for each in node.args[:2] if isinstance(each.value, cst.SimpleString)]
            owner = [module.full_name(each.value) for each in node.args[:1] if each.value not in texts]
            name = ".".join([*owner, *(str(each.evaluated_value) for each in texts)])
        known = clip_function(name)
        if known is not None:
            yield known


def _at(module: Module, imports: Imports, node: cst.CSTNode) -> Iterator[FoundClip]:
    if isinstance(node, cst.Name | cst.Attribute):
        yield from _named(module, imports, node)
    elif isinstance(node, cst.Call):
        yield from _keyword_arguments(module, imports, node)
        yield from _method(module, imports, node)
        yield from _of_tensor(module, node)
        yield from hidden.got_by_name(module, node)
        yield from trainer_arguments.in_call(module, imports, node)
    elif isinstance(node, cst.ClassDef):
        yield from trainer_arguments.derived(module, node)
    elif isinstance(node, cst.AssignTarget):
        if "paddle" in imports.packages and _is_set_false(module, node):
            yield FoundClip(node.target, "need_clip")
        if imports.has_keras:
            yield from _set_limit(module, node.target)
        yield from trainer_arguments.set_on(module, imports, node.target)
    elif isinstance(node, cst.DictElement):
        if imports.has_keras:
            yield from _entry(node, node.key)
        yield from trainer_arguments.entry(imports, node, node.key, node.value)


def _entry(node: cst.CSTNode, key: cst.CSTNode) -> Iterator[FoundClip]:
    """Yield a limit of Keras in a dict, which an optimizer may take."""
    if isinstance(key, cst.SimpleString) and key.evaluated_value in KERAS_RULES:
        yield FoundClip(node, f"{{{key.evaluated_value!r}:}}", unsure=MADE_OF_DICT)


def _set_limit(module: Module, target: cst.CSTNode) -> Iterator[FoundClip]:
    """Yield kwargs["clipnorm"] = 1.0, and optimizer.clipnorm = 1.0."""
    if isinstance(target, cst.Subscript) and isinstance(target.slice[0].slice, cst.Index):
        yield from _entry(target, target.slice[0].slice.value)
    elif isinstance(target, cst.Attribute) and target.attr.value in KERAS_RULES:
        owner = module.code(target.value)
        if "opt" in owner.lower():
            yield FoundClip(target, f"{owner}.{target.attr.value}", unsure="It is set after the optimizer was created.")


def _named(module: Module, imports: Imports, node: Target) -> Iterator[FoundClip]:
    last = node.attr.value if isinstance(node, cst.Attribute) else node.value
    parent = module.parents.get(node)
    is_alias = isinstance(node, cst.Name) and last in imports.aliases
    is_known = is_alias or (last in last_names() and (last != "clip" or imports.has_clip or imports.has_clamp))
    if not (is_known or LIKE_CLIP.search(last)) or _is_no_read(module, node, parent):
        return
    names = module.full_names(node)
    found = [clip_function(name) for name in sorted(names)]
    known = next((each for each in found if each is not None), None)
    if known is None:
        yield from hidden.named(module, imports, node, names)
        return
    if last == "clip" and not is_alias and not known.quiet and not imports.has_clip:
        return
    call = parent if isinstance(parent, cst.Call) and parent.func is node else None
    name = min(filter(clip_function, names), key=lambda name: (not name.endswith(f".{known.replacement}"), len(name)))
    if known.needs:
        yield from _by_argument(module, node, known, name)
        return
    same = all(
        each is not None and (each.framework, each.replacement) == (known.framework, known.replacement)
        for each in found
    )
    unsure = "" if same else "Its name stands for another function, too, if another import succeeds."
    yield FoundClip(node, name, known, call, unsure or _used_as(module, node, known))


def _by_argument(module: Module, node: cst.CSTNode, known: ClipFunction, name: str) -> Iterator[FoundClip]:
    """Yield a function that clips only with an argument, in its call or in functools.partial."""
    call = module.enclosing(node, cst.Call)
    if not isinstance(call, cst.Call):
        return
    arguments = Arguments(call, known.parameters if call.func is node else ())
    told = arguments.given.get(known.needs)
    if told is not None:
        yield FoundClip(told, f"{name}({known.needs}=)", known, call)
    elif any(each.startswith("*") for each in arguments.unknown):
        yield FoundClip(
            node, f"{name}({known.needs}=)", known, call, f"Whether {known.needs}= is passed cannot be seen."
        )


def _is_no_read(module: Module, node: Target, parent: cst.CSTNode | None) -> bool:
    """Return whether a name is part of a longer one, a keyword, or a target of an assignment."""
    if isinstance(parent, cst.Attribute):
        return parent.attr is node
    if isinstance(parent, cst.Arg) and parent.keyword is node:
        return True
    if isinstance(
        parent,
        cst.ImportAlias | cst.ImportFrom | cst.NameItem | cst.AsName | cst.Param | cst.AssignTarget | cst.FunctionDef,
    ):
        return not isinstance(parent, cst.Param) or parent.name is node
    if module.is_target(node):
        return True
    return module.enclosing(node, cst.Import, cst.ImportFrom) is not None


def _used_as(module: Module, node: cst.CSTNode, known: ClipFunction) -> str:
    """Return why a function or class that is only named cannot be ported; '' if it can."""
    parent = module.parents.get(node)
    outer = module.parents.get(parent) if parent is not None else None
    if isinstance(outer, cst.ClassDef) and isinstance(parent, cst.Arg) and parent in outer.bases:
        return f"A class is derived from {known.name}, and may change what it does."
    checks = module.enclosing(node, cst.Call)
    if isinstance(checks, cst.Call) and checks.func is not node and module.code(checks.func) in CHECKS:
        return "A test here expects what other files create: port them together."
    return ""


def _keyword_arguments(module: Module, imports: Imports, call: cst.Call) -> Iterator[FoundClip]:
    """Yield clips that are an argument of an optimizer."""
    for argument in call.args:
        keyword = argument.keyword.value if argument.keyword else ""
        if keyword in KERAS_RULES:
            name = module.full_name(call.func)
            if is_keras_optimizer(name):
                yield FoundClip(argument, f"{name}({keyword}=)", call=call)
            elif imports.has_keras:
                yield FoundClip(argument, f"{name or '?'}({keyword}=)", call=call, unsure=UNKNOWN)
        elif keyword == "need_clip" and _is_false(argument.value):
            name = module.full_name(call.func) or module.code(call.func)
            if "paddle" in imports.packages and clip_function(name) is None:
                yield FoundClip(argument, f"{name}(need_clip=)", call=call)


def _is_set_false(module: Module, node: cst.AssignTarget) -> bool:
    """Return whether a statement is parameter.need_clip = False."""
    assign = module.parents[node]
    is_attribute = isinstance(node.target, cst.Attribute) and node.target.attr.value == "need_clip"
    return is_attribute and isinstance(assign, cst.Assign) and _is_false(assign.value)


def _is_false(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value == "False"


def _method(module: Module, imports: Imports, call: cst.Call) -> Iterator[FoundClip]:
    """Yield methods of engines that clip."""
    if isinstance(call.func, cst.Attribute) and call.func.attr.value in METHODS and imports.packages & ENGINES:
        names = module.full_names(call.func)
        if names == {""} and not any(hidden.named(module, imports, call.func, names)):
            name = module.code(call.func)
            yield FoundClip(call, name, call=call, unsure="A method of an engine clips the engine's own parameters.")


def _of_tensor(module: Module, call: cst.Call) -> Iterator[FoundClip]:
    """Yield p.grad.clamp_(-1, 1), and other methods that clamp a tensor."""
    if not isinstance(call.func, cst.Attribute):
        return
    known = clip_function(f"Tensor.{call.func.attr.value}")
    if known is not None and module.full_names(call.func) == {""}:
        yield FoundClip(call, module.code(call.func), known, call, tensor=call.func.value)


def is_tested(module: Module, engine: Engine) -> bool:
    """Return whether an engine that the file uses may test the class of a clip."""
    if not engine.argument:
        return True
    values = [_passed(call, engine) for call in module.nodes if isinstance(call, cst.Call)]
    return any(value is not None and _constant(value) not in engine.harmless for value in values)


def _passed(call: cst.Call, engine: Engine) -> cst.BaseExpression | None:
    """Return the value of an engine's argument in a call; None if it is not passed."""
    keywords = [each.value for each in call.args if each.keyword is not None and each.keyword.value == engine.argument]
    if keywords or not isinstance(call.func, cst.Attribute) or call.func.attr.value != engine.method:
        return keywords[0] if keywords else None
    return next((each.value for i, each in enumerate(call.args) if each.star or i == engine.position), None)


def _constant(node: cst.BaseExpression) -> str:
    """Return the text of a string, a name, or the entry "level" of a dict; '' for any other expression."""
    if isinstance(node, cst.SimpleString):
        return str(node.evaluated_value)
    if isinstance(node, cst.Dict):
        entries = [each for each in node.elements if isinstance(each, cst.DictElement)]
        if len(entries) < len(node.elements):
            return ""
        levels = [each.value for each in entries if _constant(each.key) == "level"]
        return _constant(levels[0]) if levels else "None"
    return node.value if isinstance(node, cst.Name) else ""
