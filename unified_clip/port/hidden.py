"""Find names that may stand for a clip: from `import *`, from `getattr`, and from unknown packages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from .catalog import LIKE_CLIP, METHODS, ClipFunction, clip_function, clip_functions, last_names
from .clip_call import FoundClip, Imports
from .source.gradient_flow import Gradients
from .source.module import SELF, Module
from .source.syntax_tree import Target

FROM_STAR = "It comes from {} import *. Import it by name."
MAY_BE_FROM_STAR = "Its name is not bound in this file and may come from {} import *. Import it by name."
BY_NAME = "Which function getattr returns is only known at run time. Write its name."
MAY_BE_CLIP = "getattr may return a clip, which is only known at run time. Write the name."
UNKNOWN_OWNER = "Its name is that of a gradient clip, but what {} is cannot be seen."
UNKNOWN_PACKAGE = "Its name is that of a gradient clip, but it comes from {}, which this command does not support."

LAYERS = re.compile(
    r"(?i)(?<![a-z])(act|activations?|nonlinearity|(norm_)?layers?|conv|pool|pooling|pad|padding|rnn)(?![a-z])"
)
"""Names of layers and activations, and of functions that create them."""

OTHER = re.compile(
    r"(?i)(?<![a-z])(dtype|device|cell|loss|criterion|initializer|optimizer|optim|opt|scheduler|schedule)(?![a-z])"
)
"""Names of other things than clips."""


def named(module: Module, imports: Imports, node: Target, names: set[str]) -> Iterator[FoundClip]:
    """Yield a name that may stand for a clip."""
    call = module.parents.get(node)
    code = module.code(node)
    if not isinstance(call, cst.Call) or call.func is not node:
        call = None
    if names == {""}:
        found = [*_from_star(module, imports, node, code, call)]
        yield from found or _of_unknown_object(module, node, call)
    elif call is not None and LIKE_CLIP.search(code.rpartition(".")[2]):
        yield from _of_unknown_package(module, node, names)


def _from_star(module: Module, imports: Imports, node: Target, code: str, call: cst.Call | None) -> Iterator[FoundClip]:
    for package in imports.stars:
        if found := clip_function(f"{package}.{code}"):
            yield FoundClip(node, f"{package}.{code}", found, None, FROM_STAR.format(package))
            return
    if not imports.stars or not module.is_unbound(node):
        return
    known = clip_functions()
    full_name = next((name for name in known if name == code or name.endswith(f".{code}")), "")
    specific = "." in code or LIKE_CLIP.search(code)
    if full_name and specific:
        yield FoundClip(node, code, known[full_name], call, MAY_BE_FROM_STAR.format(imports.stars[-1]))
    elif call is not None and LIKE_CLIP.search(code.rpartition(".")[2]):
        yield FoundClip(node, code, None, call, MAY_BE_FROM_STAR.format(imports.stars[-1]))


def _of_unknown_object(module: Module, node: Target, call: cst.Call | None) -> Iterator[FoundClip]:
    """Yield a clip of a module that is imported at run time: import_module("paddle.nn").ClipGradByNorm(1.0)."""
    if call is None or not isinstance(node, cst.Attribute) or node.attr.value in METHODS:
        return
    owner = module.code(node.value)
    known = next((each for name, each in clip_functions().items() if name.endswith(f".{node.attr.value}")), None)
    if known is None or known.kind == "any tensor" or not LIKE_CLIP.search(node.attr.value) or owner in SELF:
        return
    if node.attr.value not in module.function_names:
        yield FoundClip(node, module.code(node), None, call, UNKNOWN_OWNER.format(owner))


def _of_unknown_package(module: Module, node: Target, names: set[str]) -> Iterator[FoundClip]:
    packages = sorted(name.rpartition(".")[0] for name in names if name and not name.startswith("."))
    if packages and not packages[0].startswith("unified_clip") and not module.is_in_project(packages[0]):
        yield FoundClip(
            node, f"{packages[0]}.{module.code(node).rpartition('.')[2]}", unsure=UNKNOWN_PACKAGE.format(packages[0])
        )


def got_by_name(module: Module, call: cst.Call) -> Iterator[FoundClip]:
    """Yield getattr(paddle.nn, name), unless the name cannot be that of a clip."""
    if not isinstance(call.func, cst.Name) or call.func.value != "getattr" or len(call.args) < 2:
        return
    owner = module.full_name(call.args[0].value)
    names = last_names() if owner else ()
    named = {name: known for name in names if (known := clip_function(f"{owner}.{name}")) is not None}
    pattern = _pattern(call.args[1].value)
    clips = [known for name, known in named.items() if re.fullmatch(pattern, name)]
    if not clips:
        return
    said = "clip" in _words_around(module, call).lower()
    if said or _may_be_clip(module, call, clips):
        yield FoundClip(call, f"getattr({owner}, ...)", call=call, unsure=BY_NAME if said else MAY_BE_CLIP)


def _may_be_clip(module: Module, call: cst.Call, clips: Sequence[ClipFunction]) -> bool:
    """Return whether getattr may return one of some clips, judged by how the result is used.

    A function that also serves for other tensors than gradients counts only where it is called with a gradient.
    """
    calls = _calls_of(module, call)
    gradients = Gradients(module)
    if any(each.keyword is not None and "clip" in each.keyword.value for call in calls for each in call.args):
        return True
    tensors = [each.args[0].value for each in calls if each.args]
    if any(gradients.is_gradient(tensor) or gradients.has_gradient_name(tensor) for tensor in tensors):
        return True
    others = [each for each in clips if each.kind not in ("any tensor", "functional")]
    if not all(any(_accepts(known, each) for known in others) for each in calls):
        return False
    return bool(others) and not _is_in_layer(module, call) and not _is_named_otherwise(module, call)


def _calls_of(module: Module, call: cst.Call) -> list[cst.Call]:
    """Return the calls of what getattr returns, directly or through a variable."""
    parent = module.parents[call]
    places: list[cst.CSTNode] = [call]
    if isinstance(parent, cst.Assign):
        binding = module.binding(parent.targets[0].target)
        places = list(binding.reads) if binding is not None else []
    outer = [(place, module.parents.get(place)) for place in places]
    return [each for place, each in outer if isinstance(each, cst.Call) and each.func is place]


def _accepts(known: ClipFunction, call: cst.Call) -> bool:
    """Return whether a clip accepts these arguments. Every clip takes at least one."""
    if not call.args:
        return False
    names = {*known.parameters, *known.renamed}
    keywords = [each.keyword.value for each in call.args if each.keyword is not None]
    return all(name in names for name in keywords) and (not known.parameters or len(call.args) <= len(names))


def _is_in_layer(module: Module, call: cst.Call) -> bool:
    """Return whether a call is inside a layer of Paddle, which creates no optimizer."""
    outer = module.enclosing(call, cst.ClassDef)
    bases = outer.bases if isinstance(outer, cst.ClassDef) else ()
    return any(module.code(base.value).endswith("Layer") for base in bases)


def _is_named_otherwise(module: Module, call: cst.Call) -> bool:
    """Return whether getattr looks up a name that belongs to something other than a clip, as cfg["act"].

    Only the last part counts: `opt.type` is an option.
    """
    name: cst.CSTNode = call.args[1].value
    if isinstance(name, cst.Attribute):
        name = name.attr
    elif isinstance(name, cst.Subscript):
        name = name.slice[0]
    function = module.enclosing(call, cst.FunctionDef)
    around = function.name.value if isinstance(function, cst.FunctionDef) else ""
    words = module.code(name)
    return any(map(LAYERS.search, (words, around))) or OTHER.search(words) is not None


def _pattern(node: cst.BaseExpression) -> str:
    """Return a pattern of the texts that an expression can have."""
    if isinstance(node, cst.SimpleString):
        return re.escape(str(node.evaluated_value))
    if isinstance(node, cst.FormattedString):
        parts = [each.value if isinstance(each, cst.FormattedStringText) else None for each in node.parts]
        return "".join(".*" if part is None else re.escape(part) for part in parts)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        return _pattern(node.left) + _pattern(node.right)
    return ".*"


def _words_around(module: Module, call: cst.Call) -> str:
    """Return the words around a call of getattr: arguments, assigned names and enclosing functions."""
    outer = [each for each in module.ancestors(call) if isinstance(each, cst.FunctionDef | cst.Assign | cst.Arg)]
    words = [module.code(argument) for argument in call.args[1:]]
    for each in outer:
        if isinstance(each, cst.FunctionDef):
            words.append(each.name.value)
        elif isinstance(each, cst.Assign):
            words += [module.code(target.target) for target in each.targets]
        elif each.keyword is not None:
            words.append(each.keyword.value)
    return " ".join(words)
