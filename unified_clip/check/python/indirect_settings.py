"""Find clip settings that Python source passes indirectly, such as in strings, dicts or unpacked arguments."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..._kit.static_values import is_number
from ...config.clip_config import ClipConfig
from ...config.documents import Document
from ...config.formats import FORMATS, clip_key_names, convert, placement
from ...config.formats.base import SetElsewhereError
from ...config.formats.python_config.changes import ROOTS
from ...config.formats.python_source import MAX_ALIASES, Source, last_name, shortened
from ...config.formats.trainers.huggingface.training_arguments import NO_CLIP
from ...errors import ConfigError
from ...port.catalog import KERAS_OPTIMIZER
from .. import command_lines
from ..clip_use import ClipUse
from ..notebooks.cells import python_source, source_of
from ..trainer_files import names_clip

MAY_SET = re.compile(rb"(?i:need_clip|_layerwise|lomo|max_norm|keras[\s\S]*\*\*|deepspeed)")
COMMANDS = re.compile(
    r"(os\.)?(system|popen)|(subprocess\.)?(run|call|check_call|check_output|Popen|getoutput)|(shlex\.)?split"
)
PERCENT = re.compile(r"%(\(\w+\))?[-+#0-9.]*[a-z]")
BRACES = re.compile(r"\{[^{}]*\}")
RUN_TIME = "${...}"

TORCHTITAN = re.compile(r"torchtitan\..*TrainingConfig")
CLIPPING = "gradient_clipping"
PORTED = ("deepspeed", "accelerate")
UPDATES = ("setattr", "update", "__setattr__")

BY_TEXT = (
    "This code sets a clip setting by name, on an object that is only known at run time. Write the value into the "
    "trainer's file or arguments, or add the setting to check.ignore with a reason."
)
IN_ENVIRONMENT = (
    "This code sets an environment variable that is named like a clip setting. The code that reads the variable is "
    "unknown. Write the value into the trainer's file or arguments, or add the setting to check.ignore with a reason."
)
MISSPELT = (
    "The name of this setting is probably misspelt, so the setting has no effect. Correct the name. If the name is "
    "right, add the setting to check.ignore with a reason."
)
NEED_CLIP = (
    "need_clip excludes parameters from Paddle's clips. {config} has to exclude the same parameters, but this file "
    "does not show their names. Remove need_clip, or add this setting to check.ignore with a reason."
).format(config="The clip configuration")
LAYERWISE = (
    "This optimizer updates each parameter during the backward pass. So there is no norm of all gradients, and "
    "max_grad_norm has no effect. Set optim to another optimizer, or add optim to check.ignore with a reason."
)
NO_CLIPPING = f'{NO_CLIP} To clip at max_grad_norm, add "gradient_clipping": "auto".'
UNPACKED = (
    "The arguments in {code} are only known at run time. They might set a clip. Pass each argument by its name, or add "
    "the call to check.ignore with a reason."
)


NO_CLIP_IN_METHOD = (
    "This method replaces the clipping of Lightning's Trainer, and no code in this class clips. So gradient_clip_val "
    "has no effect. Remove the method, or clip in the method."
)


class IndirectSetting(NamedTuple):
    node: ast.expr | ast.stmt
    name: str
    config: ClipConfig | None = None
    why: str = ""


def read(path: Path) -> list[ClipUse]:
    """Return the clips in a Python file that `unified-clip port` does not find.

    An example is setattr(args, "max_grad_norm", 1.0).
    """
    may_set = MAY_SET.search(python_source(path)) is not None or names_clip(path)
    if not may_set or (source := source_of(path)) is None:
        return []
    return [
        ClipUse(path, each.node.lineno, each.node.col_offset + 1, each.name, each.config, why_unknown=each.why)
        for node in source.nodes
        for find in FINDERS
        for each in find(source, node)
    ] + list(_in_command_lines(source, path))


def _is_clip(name: Any) -> bool:
    return isinstance(name, str) and bool(placement.clip_keys(Document("", "", "python", {name: 1.0})))


def _set_by_text(source: Source, node: ast.AST) -> Iterator[IndirectSetting]:
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


def _misspelt(source: Source, node: ast.AST) -> Iterator[IndirectSetting]:
    """Yield assignments to an attribute with a misspelt name, such as args.max_grad_nrom = 1.0."""
    match node:
        case ast.Assign(targets=[ast.Attribute(attr=name) as target], value=ast.Constant(value=value)):
            if clip_key_names.is_misspelt(name) and is_number(value):
                yield IndirectSetting(target, f"{ast.unparse(target)} = {value!r}", why=MISSPELT)


def _in_table(source: Source, node: ast.AST) -> Iterator[IndirectSetting]:
    """Yield code such as cfg.clip_grad.params.max_norm = 1.0 or cfg.optim_wrapper.clip_grad = None.

    Leave out cfg.optim_wrapper.clip_grad = dict(...), because `unified_clip.port` finds this clip.
    """
    match node:
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript() as target], value=value):
            *tables, name = re.findall(r"\w+", ast.unparse(target))
            is_limit = name == "max_norm" and any(map(_is_clip, tables))
            is_clip = name in ("clip_grad", "grad_clip") and not isinstance(value, ast.Dict | ast.Call)
            if (is_limit or (is_clip and tables[-1] in ROOTS)) and tables[0] not in ROOTS:
                yield IndirectSetting(target, ast.unparse(target), why=BY_TEXT)


def _environment(source: Source, node: ast.AST) -> Iterator[IndirectSetting]:
    """Yield code such as os.environ["MAX_GRAD_NORM"] = value."""
    match node:
        case ast.Assign(targets=[ast.Subscript(value=table, slice=ast.Constant(value=name) as place)]):
            is_environment = source.dotted(table) == "os.environ"
        case ast.Call(func=function, args=[ast.Constant(value=name) as place, _]):
            is_environment = source.dotted(function) in ("os.environ.setdefault", "os.putenv")
        case _:
            return
    if is_environment and _is_clip(name):
        yield IndirectSetting(place, f"os.environ: {name!s}", why=IN_ENVIRONMENT)


def _excluding(source: Source, node: ast.AST) -> Iterator[IndirectSetting]:
    """Yield code that excludes a parameter from clipping, such as `p.need_clip = False`."""
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
        yield IndirectSetting(place, f"need_clip = {shortened(value)}", why=NEED_CLIP)


def _layerwise(source: Source, node: ast.AST) -> Iterator[IndirectSetting]:
    """Yield optimizers that clip per layer, as in optim="lomo"."""
    match node:
        case ast.keyword(arg="optim", value=value):
            choice = source.followed(value)
            name = str(getattr(choice, "value", "")) if isinstance(choice, ast.Constant) else last_name(choice).lower()
            if name.endswith("_layerwise") or name in ("lomo", "adalomo"):
                yield IndirectSetting(value, f'optim = "{name}"', why=LAYERWISE)


def _unpacked(source: Source, node: ast.AST) -> Iterator[IndirectSetting]:
    """Yield calls that pass unknown arguments to an optimizer, as in keras.optimizers.Adam(**kwargs)."""
    if isinstance(node, ast.Call) and KERAS_OPTIMIZER.match(source.dotted(node.func)):
        for keyword in node.keywords:
            if keyword.arg is None and not isinstance(keyword.value, ast.Dict):
                name = ast.unparse(node.func)
                yield IndirectSetting(node, name, why=UNPACKED.format(code=f"**{shortened(keyword.value)}"))


def _deepspeed(source: Source, node: ast.AST) -> Iterator[IndirectSetting]:
    """Yield code such as deepspeed={"gradient_clipping": 0.5}."""
    match node:
        case ast.keyword(arg="deepspeed", value=value):
            table = source.followed(value)
            is_complete = isinstance(table, ast.Dict) and None not in table.keys
            values = (node.value for node in source.nodes if isinstance(node, ast.Constant))
            if is_complete and _imports(source, "transformers") and CLIPPING not in values:
                yield IndirectSetting(value, f"deepspeed = {shortened(value)}", why=NO_CLIPPING)
        case ast.Dict():
            limits = [value for key, value in _items(node) if key == CLIPPING]
            for limit in limits[-1:]:
                yield from _clipping(source, limit, node)
        case (
            ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value="gradient_clipping"))], value=value)
            | ast.keyword(arg="gradient_clipping", value=value)
        ):
            yield from _clipping(source, value)


def _items(table: ast.Dict) -> Iterator[tuple[Any, ast.expr]]:
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant):
            yield key.value, value


def _constants(source: Source, table: ast.Dict) -> dict[str, Any]:
    constants = {}
    for key, value in _items(table):
        with contextlib.suppress(ConfigError):
            constants[key] = _constants(source, value) if isinstance(value, ast.Dict) else source.constant(value)
    return constants


def _clipping(source: Source, value: ast.expr, table: ast.Dict | None = None) -> Iterator[IndirectSetting]:
    if _imports(source, "transformers") and not _imports(source, *PORTED):
        others = _constants(source, table) if table else {}
        yield from _of_number(source, value, "deepspeed", CLIPPING, lambda number: {**others, CLIPPING: number})


def _imports(source: Source, *packages: str) -> bool:
    return not source.packages.isdisjoint(packages)


def _torchtitan(source: Source, node: ast.AST) -> Iterator[IndirectSetting]:
    match node:
        case ast.Call(func=function, keywords=keywords) if TORCHTITAN.fullmatch(source.dotted(function)):
            values = [each.value for each in keywords if each.arg == "max_norm"]
        case ast.Assign(targets=[ast.Attribute(value=ast.Attribute(attr="training"), attr="max_norm")], value=value):
            values = [value]
        case _:
            return
    key = "training.max_norm"
    for value in values:
        yield from _of_number(source, value, "torchtitan", key, lambda number: {"training": {"max_norm": number}})


def _of_number(
    source: Source, value: ast.expr, format_: str, key: str, data: Callable[[Any], dict[str, Any]]
) -> Iterator[IndirectSetting]:
    name = f"{FORMATS[format_].title}: {key}"
    try:
        document = Document(f"line {value.lineno}", "", "python", data(source.constant(value)))
        if placement.clip_keys(document):
            yield IndirectSetting(value, name, ClipConfig(**convert.settings((FORMATS[format_], document))))
    except SetElsewhereError:
        return
    except ConfigError as error:
        yield IndirectSetting(value, name, why=str(error))


def _in_command_lines(source: Source, path: Path) -> Iterator[ClipUse]:
    for node in source.nodes:
        match node:
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                words = [_text(source, part) for part in parts]
                text = " ".join(word if " " not in word else RUN_TIME for word in words)
            case ast.Call(func=ast.Attribute(value=value, attr="split"), args=[] | [ast.Constant(value=None | " ")]):
                text = _text(source, value)
            case ast.Call(func=function, args=[argument, *_]) if COMMANDS.fullmatch(source.dotted(function)):
                text = _text(source, argument)
            case _:
                continue
        for use in command_lines.clips(path, text):
            yield replace(use, line=node.lineno, column=node.col_offset + 1)


def _text(source: Source, node: ast.expr, around: tuple[ast.expr, ...] = ()) -> str:
    value = source.followed(node)
    is_endless = value in around or len(around) > MAX_ALIASES
    around += (value,) * (value is not node)
    match value:
        case ast.Constant(value=str(text)):
            return text
        case _ if is_endless:
            return RUN_TIME
        case ast.JoinedStr(values=parts):
            return "".join(_text(source, part, around) for part in parts)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return _text(source, left, around) + _text(source, right, around)
        case ast.BinOp(op=ast.Mod(), left=left):
            return PERCENT.sub(RUN_TIME, _text(source, left, around))
        case ast.Call(func=ast.Attribute(value=template, attr="format")):
            return BRACES.sub(RUN_TIME, _text(source, template, around))
    return RUN_TIME


def _overriding(source: Source, node: ast.AST) -> Iterator[IndirectSetting]:
    """Find classes that override Lightning's clip method, but clip nothing."""
    match source.parents.get(node), node:
        case ast.ClassDef() as owner, ast.FunctionDef(name="configure_gradient_clipping" as name):
            called = [last_name(each.func).lower() for each in ast.walk(owner) if isinstance(each, ast.Call)]
            if not any("clip" in each or each == "attach_to" for each in called):
                yield IndirectSetting(node, name, why=NO_CLIP_IN_METHOD)


FINDERS: tuple[Callable[[Source, ast.AST], Iterator[IndirectSetting]], ...] = (
    _set_by_text, _misspelt, _in_table, _environment, _excluding, _layerwise, _unpacked,
    _deepspeed, _torchtitan, _overriding,
)  # fmt: skip
