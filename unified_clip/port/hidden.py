"""Names behind which a clip may be hidden: of `import *`, of `getattr`, and of packages that are not known."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from .found import Found, Imports
from .module import Module, Target
from .names import LIKE_CLIP, last_names, native, natives

FROM_STAR = "it comes from {} import *; import it by name"
MAY_BE_FROM_STAR = "its name is not bound in this file and may come from {} import *; import it by name"
BY_NAME = "which one it is shows only when it runs; write the name"
MAY_BE_CLIP = "it is a clip if the name is that of one, which shows only when it runs; write the name"
UNKNOWN_PACKAGE = "it is called like a clip of gradients, and comes from {}, which this command does not know"


def named(module: Module, imports: Imports, node: Target, names: set[str]) -> Iterator[Found]:
    """Yield a name that is no known clip, and may be one."""
    call = module.parents.get(node)
    code = module.code(node)
    if not isinstance(call, cst.Call) or call.func is not node:
        call = None
    if names == {""}:
        yield from _from_star(module, imports, node, code, call)
    elif call is not None and LIKE_CLIP.search(code.rpartition(".")[2]):
        yield from _of_unknown_package(module, node, names)


def _from_star(module: Module, imports: Imports, node: Target, code: str, call: cst.Call | None) -> Iterator[Found]:
    for package in imports.stars:
        if found := native(f"{package}.{code}"):
            yield Found(node, f"{package}.{code}", found, None, FROM_STAR.format(package))
            return
    if not imports.stars or not module.is_unbound(node):
        return
    known = natives()
    full_name = next((name for name in known if name == code or name.endswith(f".{code}")), "")
    specific = "." in code or LIKE_CLIP.search(code)
    if full_name and specific:
        yield Found(node, code, known[full_name], call, MAY_BE_FROM_STAR.format(imports.stars[-1]))
    elif call is not None and LIKE_CLIP.search(code.rpartition(".")[2]):
        yield Found(node, code, None, call, MAY_BE_FROM_STAR.format(imports.stars[-1]))


def _of_unknown_package(module: Module, node: Target, names: set[str]) -> Iterator[Found]:
    packages = sorted(name.rpartition(".")[0] for name in names if name and not name.startswith("."))
    if packages and not packages[0].startswith("unified_clip") and not module.is_beside(packages[0]):
        yield Found(
            node, f"{packages[0]}.{module.code(node).rpartition('.')[2]}", unsure=UNKNOWN_PACKAGE.format(packages[0])
        )


def got_by_name(module: Module, call: cst.Call) -> Iterator[Found]:
    """Yield getattr(paddle.nn, name)."""
    if not isinstance(call.func, cst.Name) or call.func.value != "getattr" or len(call.args) < 2:
        return
    owner = module.full_name(call.args[0].value)
    clips = [name for name in last_names() if owner and native(f"{owner}.{name}")]
    if not any(re.fullmatch(_pattern(call.args[1].value), name) for name in clips):
        return
    said = "clip" in _said_of(module, call).lower()
    yield Found(call, f"getattr({owner}, ...)", call=call, unsure=BY_NAME if said else MAY_BE_CLIP)


def _pattern(node: cst.BaseExpression) -> str:
    """A pattern of the texts that an expression may be."""
    if isinstance(node, cst.SimpleString):
        return re.escape(str(node.evaluated_value))
    if isinstance(node, cst.FormattedString):
        parts = [each.value if isinstance(each, cst.FormattedStringText) else None for each in node.parts]
        return "".join(".*" if part is None else re.escape(part) for part in parts)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        return _pattern(node.left) + _pattern(node.right)
    return ".*"


def _said_of(module: Module, call: cst.Call) -> str:
    """The words around a call of getattr: its arguments, what it is assigned to, and the functions that it is in."""
    outer = [each for each in module.around(call) if isinstance(each, cst.FunctionDef | cst.Assign | cst.Arg)]
    words = [module.code(argument) for argument in call.args[1:]]
    for each in outer:
        if isinstance(each, cst.FunctionDef):
            words.append(each.name.value)
        elif isinstance(each, cst.Assign):
            words += [module.code(target.target) for target in each.targets]
        elif each.keyword is not None:
            words.append(each.keyword.value)
    return " ".join(words)
