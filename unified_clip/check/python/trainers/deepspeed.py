"""Decide whether `max_grad_norm` of Hugging Face's Trainer has its usual effect under DeepSpeed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...._kit.static_values import UnknownValueError
from ....config.clip_config import ClipConfig
from ....config.documents import DOCUMENT_KINDS, Document, parse, read_text
from ....config.formats import FORMATS, convert
from ....config.formats.python_source import Source
from ....errors import ConfigError
from .. import source_paths
from ..engine_of_clip import calls_at

KEY = "deepspeed"
TRAINERS = ("transformers", "trl")
TRAINER = re.compile(r"transformers\.\w*TrainingArguments|trl\.\w+Config|(transformers|trl)\.\w*Trainer")

LARGEST = 1 << 20

UNKNOWN_FILE = (
    "The settings of DeepSpeed, {code}, are only known at run time. If these settings do not set "
    "gradient_clipping, max_grad_norm is ignored. Write the path of the file relative to the source, with "
    '"gradient_clipping": "auto" in the file. Or add the clip to check.ignore with a reason.'
)
NO_FILE = (
    "DeepSpeed's settings file, {code}, is not in the directory of this source or a parent directory. If the file does "
    "not set gradient_clipping, max_grad_norm is ignored. Correct the path, or add the clip to check.ignore with a "
    "reason."
)
AUTO = (
    'With "auto", max_grad_norm of TrainingArguments sets the threshold, but this file has no TrainingArguments. '
    'In that case, Accelerate clips at 1.0. If you do not use Accelerate, DeepSpeed rejects "auto". Write the '
    'threshold instead of "auto", or add the clip to check.ignore with a reason.'
)


def problem(source: Source, path: Path, line: int, column: int, config: ClipConfig) -> tuple[str, bool]:
    """Return the reason why DeepSpeed might change the clip, and whether the trainer rejects the clip."""
    values = [each.value for call in calls_at(source, line, column) for each in call.keywords if each.arg == KEY]
    choices = [choice for value in values for choice in _choices(source, value)]
    problems = (_problem_of(source, path, choice, config) for choice in choices)
    return next((problem for problem in problems if problem[0]), ("", False))


def _choices(source: Source, node: ast.expr) -> Iterator[ast.expr]:
    value = source.followed(node)
    if isinstance(value, ast.IfExp):
        yield from _choices(source, value.body)
        yield from _choices(source, value.orelse)
    else:
        yield value


def _problem_of(source: Source, path: Path, node: ast.expr, config: ClipConfig) -> tuple[str, bool]:
    is_table = isinstance(node, ast.Dict) or (isinstance(node, ast.Call) and source.dotted(node.func) == "dict")
    if is_table or (isinstance(node, ast.Constant) and not node.value):
        return "", False
    code = ast.unparse(node)
    try:
        name = source_paths.path_of(source, node, path)
    except UnknownValueError:
        return UNKNOWN_FILE.format(code=code), False
    file = next((folder / name for folder in path.absolute().parents if (folder / name).is_file()), None)
    if file is None or file.suffix.lower() not in DOCUMENT_KINDS or file.stat().st_size > LARGEST:
        return NO_FILE.format(code=code), False
    threshold = 0.0 if config.rule == "none" else config.threshold
    data: Any = None
    try:
        data = parse(read_text(file), DOCUMENT_KINDS[file.suffix.lower()], file.name).data
        document = Document(file.name, "", "python", {"max_grad_norm": threshold, KEY: data})
        convert.settings((FORMATS["hf"], document))
    except ConfigError as error:
        return str(error), isinstance(data, dict) and "gradient_clipping" in data
    return "", False


def is_left_to_trainer(source: Source) -> bool:
    """Return whether a file uses Trainer, which replaces the value "auto" of "gradient_clipping" by `max_grad_norm`."""
    return any(TRAINER.fullmatch(source.dotted(node)) for node in source.nodes)
