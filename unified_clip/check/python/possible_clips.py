from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..._kit.static_values import Target, UnknownValueError, evaluate, is_number
from ...config.clip_config import ClipConfig
from ...config.documents import Document, format_value
from ...config.formats import placement
from ...config.formats.python_source import last_name, shortened
from ...errors import ConfigError
from ..clip_use import ClipUse, inner_values
from ..command_lines import MAX_NORM, MAY_BE_CLIP
from ..notebooks.cells import source_of
from ..rules.declared_keys import is_dict, named_values, options
from ..trainer_files import has_number
from . import setting_readers

WHY = (
    "This setting is named like a clip setting, but the code that reads the setting is unknown. Compare its value with "
    "the clip configuration by hand, and add the setting to check.ignore with a reason."
)
UNREAD = (
    "This setting is named like a clip setting, but no clip reads the setting. The name of the setting "
    "occurs nowhere else in the checked code."
)


def read(path: Path, near: Sequence[Path], clips: Sequence[ClipUse], *, is_known: bool) -> Iterator[ClipUse]:
    """Yield the settings that are named like a clip setting, such as grad_clip = 1.0.

    If a clip reads a setting, the `ClipUse` of the setting has the rule of this clip. One `ClipUse` contains
    the values of all other settings.

    near: The files whose code might read the settings.
    is_known: Whether `clips` contains a clip in the file `path`. If so, leave out the settings that no clip reads.
    """
    if (source := source_of(path)) is None:
        return  # `source_files` reports files that name a clip and are not Python
    of_options = {id(each[0]) for each in options(source)}
    values_of_file = [*named_values(source.nodes[0]), *options(source)]
    named = sorted(values_of_file, key=lambda each: (each[0].lineno, each[0].col_offset))
    others = []
    for node, names, code in named:
        name, table = names[-1], names[-2] if len(names) > 1 else ""
        value: Any = _value(code)
        is_assigned = isinstance(getattr(node, "ctx", None), ast.Store) and MAY_BE_CLIP.search(name)
        is_option = id(node) in of_options
        may_be_clip = is_assigned or is_option or _is_named_like_clip(path, table, name, 1.0)
        rule = setting_readers.clip_rule(name, clips, near) if may_be_clip else None
        with contextlib.suppress(ConfigError):
            value = source.constant(code) if rule else value
        if rule is not None and is_number(value) and 0 < value <= sys.float_info.max:
            config = ClipConfig(**{**rule.data(), "threshold": float(value)})
            yield _use(path, node, name, value, config=config, is_setting=True)
        elif (
            has_number(value)
            and not is_option
            and (rule or (not is_known and _is_named_like_clip(path, table, name, value)))
        ):
            others.append((node, name, value))
    values = tuple(leaf for _, name, value in others for leaf in inner_values(value, name))
    are_read = [setting_readers.is_read(source, node, name, near) for node, name, _ in others]
    if others and not any(are_read):
        yield _use(path, *others[0], why_unknown=UNREAD, values=values, unused=others[0][1])
    elif others:
        yield _use(path, *others[are_read.index(True)], why_unknown=WHY, values=values)


def _use(path: Path, node: ast.expr, name: str, value: object, **fields: Any) -> ClipUse:
    return ClipUse(path, node.lineno, node.col_offset + 1, f"{name} = {format_value(value)}", **fields)


def passed(path: Path) -> str:
    source = source_of(path)
    for call in source.calls if source is not None else ():
        for each in call.keywords:
            is_known = each.arg is None or isinstance(each.value, ast.Constant)
            if not is_known and _is_named_like_clip(path, last_name(call.func), str(each.arg), 1.0):
                return shortened(each)
    return ""


def _is_named_like_clip(path: Path, table: str, name: str, value: object) -> bool:
    if not table and MAX_NORM.fullmatch(name) and value != 0:  # 0 is where a search for the largest norm begins
        return True
    data = {table: {name: value}} if table else {name: value}
    return any(keys[-1] == name for keys, _ in placement.clip_keys(Document(path.name, "", "python", data)))


def _value(node: ast.expr) -> object:
    """Return the value of a literal, of `dict(name=value)`, or of arithmetic with numbers. For other code, return None.

    For `field(default=1.0)`, return 1.0.
    """
    match node:
        case ast.Call(func=ast.Name(id="field") | ast.Attribute(attr="field"), keywords=[ast.keyword(value=value)]):
            return _value(value.body if isinstance(value, ast.Lambda) else value)
        case ast.Call(keywords=keywords) if is_dict(node):
            return {keyword.arg or "**": _value(keyword.value) for keyword in keywords}
        case ast.Dict(keys=keys, values=values):
            return {getattr(key, "value", "**"): _value(value) for key, value in zip(keys, values, strict=True)}
    with contextlib.suppress(ValueError):
        return ast.literal_eval(node)
    with contextlib.suppress(UnknownValueError):
        return evaluate(node, _value_of, lambda name: "")
    return None


def _value_of(name: Target) -> object:
    raise UnknownValueError(name)
