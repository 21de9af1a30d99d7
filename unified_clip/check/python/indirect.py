"""Find settings of clips that Python source passes indirectly: as strings, dicts, unpacked or excluding arguments."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...config.clip_config import ClipConfig
from ...config.documents import Document
from ...config.formats import FORMATS, convert, placement
from ...config.formats.python_source import Source, shortened
from ...config.formats.set_elsewhere import SetElsewhereError
from ...errors import ConfigError
from ...port.catalog import KERAS_OPTIMIZER
from .. import command_lines
from ..clip_use import ClipUse
from ..trainer_files import names_clip

MAY_SET = re.compile(rb"need_clip|_layerwise|lomo|max_norm|keras[\s\S]*\*\*")
COMMANDS = re.compile(r"(os\.)?(system|popen)|(subprocess\.)?(run|call|check_call|check_output|Popen)")
UPDATES = ("setattr", "update", "__setattr__")

BY_TEXT = (
    "This code sets a clip setting by its name, on an object that is only known at run time. Write the value into the "
    "trainer's file or arguments, or ignore it with a reason in [[check.ignore]]."
)
NEED_CLIP = (
    "need_clip excludes parameters from Paddle's clips, and this file does not show whether {config} excludes the same "
    "ones. Remove it, or ignore it with a reason in [[check.ignore]]."
).format(config="the clip configuration")
LAYERWISE = (
    "This optimizer updates each parameter during the backward pass, so that no norm of all gradients exists "
    "and max_grad_norm has no effect. Choose another optim, or ignore it with a reason in [[check.ignore]]."
)
UNPACKED = (
    "The arguments in {code} are only known at run time, and may set a clip. Pass the clip's argument by itself and "
    "the others by name, or ignore the call with a reason in [[check.ignore]]."
)


class Setting(NamedTuple):
    """A setting that a file passes indirectly: its place, its name in the report, and its effect or the reason."""

    node: ast.expr
    name: str
    config: ClipConfig | None = None
    why: str = ""


def read(path: Path) -> list[ClipUse]:
    """Return the clips that a Python file sets indirectly. Return [] for a file that is not valid Python.

    `source_files` reports files that name a clip and are not Python.
    """
    content = path.read_bytes()
    if not (MAY_SET.search(content) or names_clip(path)):
        return []
    try:
        source = Source(content.decode("utf-8", "replace"), path.name)
    except ConfigError:
        return []
    return [
        ClipUse(path, each.node.lineno, each.node.col_offset + 1, each.name, each.config, why_unknown=each.why)
        for node in source.nodes
        for find in FINDERS
        for each in find(source, node)
    ] + list(_in_command_lines(source, path))


def _is_clip(name: Any) -> bool:
    return isinstance(name, str) and bool(placement.clip_keys(Document("", "", "python", {name: 1.0})))


def _set_by_text(source: Source, node: ast.AST) -> Iterator[Setting]:
    """Yield a setting for setattr(args, "max_grad_norm", value) and OmegaConf.update(cfg, "clip_grad_norm", value)."""
    match node:
        case ast.Call(func=ast.Name(id=function) | ast.Attribute(attr=function), args=[_, ast.Constant(value=name), _]):
            if isinstance(name, str) and function in UPDATES and _is_clip(name.rpartition(".")[2]):
                yield Setting(node, f"{name} in {shortened(node)}", why=BY_TEXT)


def _excluding(source: Source, node: ast.AST) -> Iterator[Setting]:
    """Yield a setting for need_clip=False, p.need_clip = False and setattr(p, "need_clip", False)."""
    match node:
        case ast.keyword(arg="need_clip", value=value):
            place: ast.expr = value
        case ast.Assign(targets=[ast.Attribute(attr="need_clip") as place], value=value):
            pass
        case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value="need_clip"), value]):
            place = node
        case _:
            return
    if not (isinstance(value, ast.Constant) and value.value in (True, None)):
        yield Setting(place, f"need_clip = {shortened(value)}", why=NEED_CLIP)


def _layerwise(source: Source, node: ast.AST) -> Iterator[Setting]:
    match node:
        case ast.keyword(arg="optim", value=ast.Constant(value=str(name)) as value) if str(name).endswith(
            "_layerwise"
        ) or name in ("lomo", "adalomo"):
            yield Setting(value, f'optim = "{name}"', why=LAYERWISE)


def _unpacked(source: Source, node: ast.AST) -> Iterator[Setting]:
    """Yield a setting for an optimizer of Keras whose arguments are unpacked, as in keras.optimizers.Adam(**kwargs)."""
    if isinstance(node, ast.Call) and KERAS_OPTIMIZER.match(source.dotted(node.func)):
        for keyword in node.keywords:
            if keyword.arg is None and not isinstance(keyword.value, ast.Dict):
                name = ast.unparse(node.func)
                yield Setting(node, name, why=UNPACKED.format(code=f"**{shortened(keyword.value)}"))


def _engine_settings(source: Source, node: ast.AST) -> Iterator[Setting]:
    """Yield the effect of TrainingArguments(deepspeed={...}), and of torchtitan's TrainingConfig(max_norm=...)."""
    match node:
        case ast.keyword(arg="deepspeed", value=ast.Dict() as value):
            with contextlib.suppress(ValueError):
                yield from _read(value, "deepspeed", ast.literal_eval(value), "gradient_clipping")
        case ast.Call(func=function, keywords=keywords) if source.dotted(function).startswith("torchtitan."):
            for keyword in keywords:
                if keyword.arg == "max_norm" and source.dotted(function).endswith("TrainingConfig"):
                    yield from _of_torchtitan(source, keyword.value)
        case ast.Assign(targets=[ast.Attribute(value=ast.Attribute(attr="training"), attr="max_norm")], value=value):
            yield from _of_torchtitan(source, value)


def _of_torchtitan(source: Source, value: ast.expr) -> Iterator[Setting]:
    try:
        number = source.constant(value)
    except ConfigError as error:
        yield Setting(value, "torchtitan: training.max_norm", why=str(error))
        return
    yield from _read(value, "torchtitan", {"training": {"max_norm": number}}, "training.max_norm")


def _read(node: ast.expr, format_: str, data: dict[str, Any], key: str) -> Iterator[Setting]:
    """Yield the setting that a trainer's format reads in `data`. `key`: the key in words."""
    document = Document(f"line {node.lineno}", "", "python", data)
    if not placement.clip_keys(document):
        return
    name = f"{FORMATS[format_].title}: {key}"
    try:
        yield Setting(node, name, ClipConfig(**convert.settings((FORMATS[format_], document))))
    except SetElsewhereError:
        return
    except ConfigError as error:
        yield Setting(node, name, why=str(error))


def _in_command_lines(source: Source, path: Path) -> Iterator[ClipUse]:
    """Yield the clips of command lines: lists of strings, and strings that a function of COMMANDS runs."""
    for node in source.nodes:
        match node:
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                words = [part.value if isinstance(part, ast.Constant) else "$" for part in parts]
                text = " ".join(word if isinstance(word, str) and " " not in word else "$" for word in words)
            case ast.Call(func=function, args=[ast.Constant(value=str(text)), *_]):
                text = text if COMMANDS.fullmatch(source.dotted(function)) else ""
            case _:
                continue
        for use in command_lines.clips(path, text):
            yield ClipUse(path, node.lineno, node.col_offset + 1, use.clip, use.config, why_unknown=use.why_unknown)


FINDERS: tuple[Callable[[Source, ast.AST], Iterator[Setting]], ...] = (
    _set_by_text, _excluding, _layerwise, _unpacked, _engine_settings,
)  # fmt: skip
