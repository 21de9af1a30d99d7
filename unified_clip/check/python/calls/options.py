"""Find thresholds that a script reads from its command line."""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ...._kit import atomic_files
from ...._kit.parse import UnreadableSourceError, parse_expression
from ...._kit.static_values import is_number
from ....config.clip_config import ClipConfig
from ....config.documents.script_options import COMMENT
from ....config.formats.python_source import Source, last_name
from ....config.formats.trainers.huggingface.training_arguments import UNDER_DEEPSPEED
from ....errors import ConfigError
from ...clip_use import ClipUse, shown
from ...command_lines import CommandLineSetting, is_clip
from . import parsed_arguments

DEFINITIONS = ("DEFINE_float", "DEFINE_integer")

SCRIPT = re.compile(r"(?<![\w.-])[\w-][\w.-]*\.py(?!\w|\.\w)")


ARGUMENT = re.compile(
    r"(?<=\.py)(?:\s+[^\s;&|-][^\s;&|]*\.py)+(?!\w)|--?[\w.-]*(?:config|cfg)[\w-]*[\s=]+\S+\.py(?!\w)"
)
"""Matches files that a command passes to its script, as in `train.py config.py`."""

OF_SCRIPT = (
    "The command passes this option to {script}, which is not checked. Also check {script}, or add this file to "
    "check.ignore with a reason."
)
OF_CHECKED_SCRIPT = (
    "The command passes this option to {script}, and no clip in {script} reads the option. Other code might read it. "
    "Compare the value with the clip configuration by hand, and add this file to check.ignore with a reason."
)


class Option(NamedTuple):
    name: str
    """The name in Python, such as "max_grad_norm", or '' if the option's `type` or `action` might change the value."""

    shown: str
    """The name in messages: "--max-grad-norm" for an option, "Args.max_grad_norm" for a field of a class."""

    default: float | None
    is_clip: bool


class _Definition(NamedTuple):
    names: list[str]
    default: ast.expr
    is_plain: bool = True

    owner: str = ""


def find(source: Source, code: str) -> Option | None:
    """Return the option that an expression such as `args.max_grad_norm` reads.

    Return None if code might change the parsed value.
    """
    try:
        node = source.followed(parse_expression(code))
    except UnreadableSourceError:
        return None
    flag = source.followed(node.value) if isinstance(node, ast.Attribute) and node.attr == "value" else node
    if isinstance(flag, ast.Call) and (name := _flag(flag)[0]):
        node = parse_expression(f"{parsed_arguments.FLAGS[0]}.{name}")
    definitions = list(_definitions(source, node.attr)) if isinstance(node, ast.Attribute) else []
    if not isinstance(node, ast.Attribute) or len(definitions) != 1:
        return None
    (option,) = definitions
    if not parsed_arguments.is_unchanged(source, node, option.owner):
        return None
    unclear = [name for name in option.names if not _is_clip(name)]
    shown = (unclear or option.names)[0]
    default = _number(source, option.default)
    return Option(node.attr if option.is_plain else "", shown, default, is_clip=not unclear)


def defaults_of_field(source: Source, name: str) -> list[float | None]:
    return [_number(source, each.default) for each in _definitions(source, name) if each.owner]


def _number(source: Source, node: ast.expr) -> float | None:
    with contextlib.suppress(ConfigError, OverflowError):
        constant = source.constant(node)
        return float(constant) if is_number(constant) else None
    return None


def _is_clip(name: str) -> bool:
    return is_clip(CommandLineSetting(1, name.rpartition(".")[2].lstrip("-"), 1.0, False))


def passed(uses: Sequence[ClipUse], sources: Sequence[Path]) -> list[ClipUse]:
    """Return all clips. For a threshold on a command line, take the clip rule from the script that reads the threshold.

    If the command line names no script, take the scripts that other lines of the file name.
    """
    readers = [use for use in uses if use.package and use.option]
    names = {path.name for path in sources}
    passed = [_as_read(use, readers, names) if use.option and not use.package else use for use in uses]
    return list(_changed(passed, sources)) if readers else passed


def _changed(uses: Sequence[ClipUse], sources: Sequence[Path]) -> Iterator[ClipUse]:
    """Yield the clips. If an imported module sets the option of a clip, the effect of the clip becomes unknown."""
    readers = [use for use in uses if use.package and use.option and use.config is not None]
    texts = {path: atomic_files.read_text(path, errors="replace") for path in sources} if readers else {}
    for use in uses:
        for path, text in texts.items() if use in readers else ():
            is_imported = re.search(
                rf"^[ \t]*(from|import)\b.*\b{re.escape(path.stem)}\b", texts[use.path], re.MULTILINE
            )
            if is_imported and re.search(rf"(?<!self)\.{use.option}\s*=(?!=)", text):
                why = f"{shown(path)} sets {use.option}, so the threshold is only known at run time."
                name = use.clip.partition(" by default:")[0]
                use = replace(use, config=None, rule=use.config, why_unknown=why, clip=name)
                break
        yield use


def _as_read(use: ClipUse, readers: Sequence[ClipUse], checked: Set[str]) -> ClipUse:
    (name, value), *rules = use.values
    if scripts := SCRIPT.findall(ARGUMENT.sub("", _command(use).partition(f"--{name}")[0])):
        why = OF_CHECKED_SCRIPT if scripts[-1] in checked else OF_SCRIPT
        use = replace(use, why_unknown=why.format(script=scripts[-1]))
    readers = [each for each in readers if each.option == use.option]
    if any(each.is_set_outside for each in readers) and "--deepspeed" in _command(use):
        return replace(use, why_unknown=UNDER_DEEPSPEED)
    of_scripts = {
        script: [reader.config or reader.rule for reader in readers if reader.path.name == script]
        for script in (_scripts(use) if readers else ())
    }
    configs = {
        ClipConfig(**{**rule.data(), "threshold": value}).dumps("json")
        for rule in itertools.chain.from_iterable(of_scripts.values())
        if rule is not None and value > 0
    }
    is_known = all(of_scripts.values()) and len(configs) == 1 and not rules
    return replace(use, config=ClipConfig.loads(configs.pop(), "json"), why_unknown="") if is_known else use


def _scripts(use: ClipUse) -> set[str]:
    command, file = (ARGUMENT.sub("", text) for text in (_command(use), "\n".join(_lines(use.path))))
    return {*(SCRIPT.findall(command) or SCRIPT.findall(file))}


def _lines(path: Path) -> list[str]:
    return [COMMENT.sub("", line) for line in atomic_files.read_text(path, errors="replace").splitlines()]


def _command(use: ClipUse) -> str:
    lines = _lines(use.path)
    first = last = min(use.line, len(lines)) - 1
    while first > 0 and lines[first - 1].endswith("\\"):
        first -= 1
    while last < len(lines) - 1 and lines[last].endswith("\\"):
        last += 1
    return "\n".join(line.removesuffix("\\") for line in lines[first : last + 1])


def _definitions(source: Source, name: str) -> Iterator[_Definition]:
    for node in source.nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=names, keywords=keywords):
                definition = _of_argument(names, {each.arg: each.value for each in keywords}, name)
                if definition is not None:
                    yield definition
            case ast.Call() if name == (flag := _flag(node))[0]:
                yield _Definition([f"--{name}"], flag[1])
            case ast.ClassDef(name=owner, body=body):
                for line in body:
                    match line:
                        case ast.AnnAssign(target=target, value=value) | ast.Assign(targets=[target], value=value):
                            if last_name(target) == name:
                                yield _Definition([f"{owner}.{name}"], _field_default(value), owner=owner)


def _flag(call: ast.Call) -> tuple[str, ast.expr]:
    """Return (name, default) for a call of absl that defines a flag. For other calls, the name is ''."""
    if last_name(call.func) not in DEFINITIONS:
        return "", call
    passed = dict(zip(("name", "default"), call.args, strict=False)) | {each.arg: each.value for each in call.keywords}
    name = passed.get("name")
    return str(name.value) if isinstance(name, ast.Constant) else "", passed.get("default", ast.Constant(None))


def _of_argument(names: Sequence[ast.expr], given: dict[str | None, ast.expr], name: str) -> _Definition | None:
    texts = [each.value for each in names if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    option = next((text for text in texts if text.startswith("--")), "")
    destination = given.get("dest", ast.Constant(option.lstrip("-").replace("-", "_")))
    if not (isinstance(destination, ast.Constant) and destination.value == name):
        return None
    is_plain = last_name(given.get("type", ast.Name("float"))) in ("float", "int") and "action" not in given
    is_required = ast.unparse(given.get("required", ast.Constant(False))) != "False"
    default = ast.Constant(None) if is_required else given.get("default", ast.Constant(None))
    return _Definition(texts, default, is_plain)


def _field_default(value: ast.expr | None) -> ast.expr:
    if isinstance(value, ast.Call) and last_name(value.func) == "field":
        return next((each.value for each in value.keywords if each.arg == "default"), ast.Constant(None))
    return value or ast.Constant(None)
