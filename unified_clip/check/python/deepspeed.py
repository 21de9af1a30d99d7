"""Decide whether `max_grad_norm` of Hugging Face's Trainer has its usual effect under DeepSpeed."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from ..._kit.static_values import UnknownValueError
from ...config.clip_config import ClipConfig
from ...config.documents import DOCUMENT_KINDS, Document, parse, read_text
from ...config.formats import FORMATS, convert
from ...errors import ConfigError
from ...source.constants import followed
from ...source.module import Module
from .engine_methods import calls_at
from .paths import file_of

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


def problem(module: Module, line: int, column: int, config: ClipConfig) -> tuple[str, bool]:
    """Return the reason why DeepSpeed might change the clip, and whether the trainer rejects the clip."""
    values = [each.value for call in calls_at(module, line, column) for each in call.keywords if each.arg == KEY]
    choices = [followed(module, value) for value in values]
    for choice in choices:
        choices += [followed(module, each) for each in (choice.body, choice.orelse)] if _is_choice(choice) else []  # type: ignore[attr-defined]
    problems = (_problem_of(module, choice, config) for choice in choices if not _is_choice(choice))
    return next((problem for problem in problems if problem[0]), ("", False))


def _is_choice(node: ast.expr) -> bool:
    return isinstance(node, ast.IfExp)


def _problem_of(module: Module, node: ast.expr, config: ClipConfig) -> tuple[str, bool]:
    is_table = isinstance(node, ast.Dict) or (isinstance(node, ast.Call) and module.dotted(node.func) == "dict")
    if is_table or (isinstance(node, ast.Constant) and not node.value):
        return "", False
    code = ast.unparse(node)
    try:
        file = file_of(module, node)
    except UnknownValueError:
        return UNKNOWN_FILE.format(code=code), False
    if file is None or file.suffix.lower() not in DOCUMENT_KINDS or file.stat().st_size > LARGEST:
        return NO_FILE.format(code=code), False
    return _problem_of_file(file, 0.0 if config.rule == "none" else config.threshold)


def _problem_of_file(file: Path, threshold: Any) -> tuple[str, bool]:
    data: Any = None
    try:
        data = parse(read_text(file), DOCUMENT_KINDS[file.suffix.lower()], file.name).data
        document = Document(file.name, "", "python", {"max_grad_norm": threshold, KEY: data})
        convert.settings((FORMATS["hf"], document))
    except ConfigError as error:
        return str(error), isinstance(data, dict) and "gradient_clipping" in data
    return "", False


def is_left_to_trainer(module: Module) -> bool:
    """Return whether a file uses Trainer, which replaces the value "auto" of "gradient_clipping" by `max_grad_norm`."""
    return any(map(TRAINER.fullmatch, module.used_names))
