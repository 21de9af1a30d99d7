"""Find clip settings that Python source passes indirectly, such as in strings, dicts or unpacked arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..._kit.static_values import is_number
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
UPDATES = ("setattr", "update", "__setattr__")

BY_TEXT = (
    "This code sets a clip setting by name, on an object that is only known at run time. Write the value into the "
    "trainer's file or arguments, or add the setting to check.ignore with a reason."
)
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

    An example is setattr(args, "max_grad_norm", 1.0).
    """
    text = project.read(path)
    may_set = MAY_SET.search(text) is not None or text_names_clip(text)
    if not may_set or (module := project.readable(path)) is None:
        return []
    found = (each for node in module.nodes for find in FINDERS for each in find(module, node))
    return [
        ClipUse(path, *module.position(each.node), each.name, each.config, why_unknown=each.why) for each in found
    ] + list(_in_command_lines(module, path))


def _is_clip(name: Any) -> bool:
    return isinstance(name, str) and bool(placement.clip_keys(Document("", "", "python", {name: 1.0})))


def _set_by_text(module: Module, node: ast.AST) -> Iterator[IndirectSetting]:
    """Yield code such as setattr(args, "max_grad_norm", value)."""
    match node:
        case ast.Call(func=ast.Name(id=function) | ast.Attribute(attr=function)) if (
            function in UPDATES and len(node.args) + len(node.keywords) > 1
        ):
            named = [keyword.value for keyword in node.keywords if keyword.arg == "key"]
            for argument in [*node.args[:2], *named]:
                name = argument.value if isinstance(argument, ast.Constant) else None
                if isinstance(name, str) and _is_clip(name.rpartition(".")[2]):
                    yield IndirectSetting(node, f"{name} in {shortened(node)}", why=BY_TEXT)


def _in_optimizer(module: Module, node: ast.AST) -> Iterator[IndirectSetting]:
    """Yield code such as cfg.optim_wrapper.clip_grad = None. `settings` and `port` find numbers, dicts and calls."""
    match node:
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript() as target], value=value):
            names = re.findall(r"\w+", ast.unparse(target))
            is_found = isinstance(value, ast.Dict | ast.Call) or is_number(getattr(value, "value", None))
            if names[-1] in ("clip_grad", "grad_clip") and "optim" in " ".join(names[-2:-1]) and not is_found:
                yield IndirectSetting(target, ast.unparse(target), why=BY_TEXT)


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


FINDERS: tuple[Callable[[Module, ast.AST], Iterator[IndirectSetting]], ...] = (
    _set_by_text, _in_optimizer, _of_trainer,
)  # fmt: skip
