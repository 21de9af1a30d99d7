"""Find command lines in Python source, such as `subprocess.run(["python", "train.py", "--clip", "1.0"])`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ...source.constants import followed
from ...source.module import MAX_ALIASES, Module

COMMANDS = re.compile(
    r"(os\.)?(system|popen)|(subprocess\.)?(run|call|check_call|check_output|Popen|getoutput)|(shlex\.)?split"
)
PERCENT = re.compile(r"%(\(\w+\))?[-+#0-9.]*[a-z]")
BRACES = re.compile(r"\{[^{}]*\}")
RUN_TIME = "${...}"


def command_texts(module: Module) -> Iterator[tuple[ast.expr, str]]:
    """Yield (node, command line). Parts that only a run knows become `${...}`."""
    for node in module.nodes:
        match node:
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                words = [_text(module, part) for part in parts]
                yield node, " ".join(word if " " not in word else RUN_TIME for word in words)
            case ast.Call(func=ast.Attribute(value=value, attr="split"), args=[] | [ast.Constant(value=None | " ")]):
                yield node, _text(module, value)
            case ast.Call(func=function, args=[argument, *_]) if COMMANDS.fullmatch(module.dotted(function)):
                yield node, _text(module, argument)


def _text(module: Module, node: ast.expr, around: tuple[ast.expr, ...] = ()) -> str:
    value = followed(module, node)
    is_endless = value in around or len(around) > MAX_ALIASES
    around += (value,) * (value is not node)
    match value:
        case ast.Constant(value=str(text)):
            return text
        case _ if is_endless:
            return RUN_TIME
        case ast.JoinedStr(values=parts):
            return "".join(_text(module, part, around) for part in parts)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return _text(module, left, around) + _text(module, right, around)
        case ast.BinOp(op=ast.Mod(), left=left):
            return PERCENT.sub(RUN_TIME, _text(module, left, around))
        case ast.Call(func=ast.Attribute(value=template, attr="format")):
            return BRACES.sub(RUN_TIME, _text(module, template, around))
    return RUN_TIME
