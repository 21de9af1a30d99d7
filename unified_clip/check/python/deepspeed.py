"""Decide whether `max_grad_norm` of Hugging Face's Trainer has its usual effect under DeepSpeed."""

from __future__ import annotations

import ast
import re
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


def problem(module: Module, line: int, column: int, config: ClipConfig) -> str:
    """Return the reason why DeepSpeed might change the clip, or ''."""
    values = [each.value for call in calls_at(module, line, column) for each in call.keywords if each.arg == KEY]
    threshold = 0.0 if config.rule == "none" else config.threshold
    return next(filter(None, (_problem_of(module, followed(module, value), threshold) for value in values)), "")


def _problem_of(module: Module, node: ast.expr, threshold: Any) -> str:
    if isinstance(node, ast.IfExp):
        return _problem_of(module, node.body, threshold) or _problem_of(module, node.orelse, threshold)
    is_table = isinstance(node, ast.Dict) or (isinstance(node, ast.Call) and module.dotted(node.func) == "dict")
    if is_table or (isinstance(node, ast.Constant) and not node.value):
        return ""
    code = ast.unparse(node)
    try:
        file = file_of(module, node)
    except UnknownValueError:
        return UNKNOWN_FILE.format(code=code)
    if file is None or file.suffix.lower() not in DOCUMENT_KINDS or file.stat().st_size > LARGEST:
        return NO_FILE.format(code=code)
    try:
        data = parse(read_text(file), DOCUMENT_KINDS[file.suffix.lower()], file.name).data
        convert.settings((FORMATS["hf"], Document(file.name, "", "python", {"max_grad_norm": threshold, KEY: data})))
    except ConfigError as error:
        return str(error)
    return ""


def is_left_to_trainer(module: Module) -> bool:
    """Return whether a file uses Trainer, which replaces the value "auto" of "gradient_clipping" by `max_grad_norm`."""
    return any(map(TRAINER.fullmatch, module.used_names))
