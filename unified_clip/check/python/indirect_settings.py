"""Find clip settings that Python source passes indirectly, such as in strings, dicts or unpacked arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ...config.clip_config import ClipConfig
from ...config.documents import Document
from ...config.formats import FORMATS, convert, placement
from ...config.formats.base import SetElsewhereError
from ...errors import ConfigError
from ...source.constants import constant, followed
from ...source.module import Module
from ...source.project import Project
from ...source.tree import shortened, text_of
from .. import command_lines
from ..clip_use import ClipUse
from ..command_lines import text_names_clip
from .commands import command_texts

MAY_SET = re.compile(rb"max_norm|deepspeed")
TORCHTITAN = re.compile(r"torchtitan\..*TrainingConfig")
CLIPPING = "gradient_clipping"
PORTED = ("deepspeed", "accelerate")
NO_CLIPPING = (
    "DeepSpeed's configuration does not set gradient_clipping. DeepSpeed then ignores max_grad_norm. DeepSpeed clips "
    'nothing before 0.19.3, and clips at 1.0 since 0.19.3. To clip at max_grad_norm, add "gradient_clipping": '
    '"auto".'
)


class IndirectSetting(NamedTuple):
    node: ast.expr | ast.stmt
    name: str
    config: ClipConfig | None = None
    why: str = ""


def read(project: Project, path: Path) -> list[ClipUse]:
    """Return the clips in a Python file that `unified-clip port` does not find.

    An example is deepspeed={"gradient_clipping": 1.0} under Trainer.
    """
    text = project.read(path)
    may_set = MAY_SET.search(text) is not None or text_names_clip(text)
    if not may_set or (module := project.readable(path)) is None:
        return []
    found = (each for node in module.nodes for each in _of_trainer(module, node))
    return [
        ClipUse(path, *module.position(each.node), each.name, each.config, why_unknown=each.why) for each in found
    ] + list(_in_command_lines(module, path))


def _of_trainer(module: Module, node: ast.AST) -> Iterator[IndirectSetting]:
    """Yield settings of DeepSpeed under Trainer, such as deepspeed={"gradient_clipping": 0.5}, and of torchtitan."""
    match node:
        case ast.keyword(arg="deepspeed", value=value) if _is_left_to_trainer(module):
            table = followed(module, value)
            is_complete = isinstance(table, ast.Dict) and None not in table.keys
            if is_complete and not any(text_of(each) == CLIPPING for each in module.nodes):
                yield IndirectSetting(value, f"deepspeed = {shortened(value)}", why=NO_CLIPPING)
        case ast.Dict(keys=keys, values=values) if _is_left_to_trainer(module):
            named = {text_of(key): value for key, value in zip(keys, values, strict=True)}
            if CLIPPING in named:
                others: dict[str, Any] = {key: {} for key in named if key}
                yield from _of_number(module, named[CLIPPING], "deepspeed", others, CLIPPING)
        case (
            ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value="gradient_clipping"))], value=value)
            | ast.keyword(arg="gradient_clipping", value=value)
        ) if _is_left_to_trainer(module):
            yield from _of_number(module, value, "deepspeed", {}, CLIPPING)
        case ast.keyword(arg="max_norm", value=value):
            call = module.parents[node]
            if isinstance(call, ast.Call) and TORCHTITAN.fullmatch(module.dotted(call.func)):
                yield from _of_number(module, value, "torchtitan", {}, "training", "max_norm")
        case ast.Assign(targets=[ast.Attribute(value=ast.Attribute(attr="training"), attr="max_norm")], value=value):
            yield from _of_number(module, value, "torchtitan", {}, "training", "max_norm")


def _is_left_to_trainer(module: Module) -> bool:
    return "transformers" in module.packages and module.packages.isdisjoint(PORTED)


def _of_number(
    module: Module, value: ast.expr, format_: str, others: dict[str, Any], *keys: str
) -> Iterator[IndirectSetting]:
    name = f"{FORMATS[format_].title}: {'.'.join(keys)}"
    try:
        data: Any = constant(module, value)
        for key in reversed(keys):
            data = {key: data}
        document = Document("", "", "python", {**others, **data})
        if placement.clip_keys(document):
            yield IndirectSetting(value, name, ClipConfig(**convert.settings((FORMATS[format_], document))))
    except SetElsewhereError:
        return
    except ConfigError as error:
        yield IndirectSetting(value, name, why=str(error))


def _in_command_lines(module: Module, path: Path) -> Iterator[ClipUse]:
    for node, text in command_texts(module):
        line, column = module.position(node)
        for use in command_lines.clips(path, text):
            yield replace(use, line=line, column=column)
