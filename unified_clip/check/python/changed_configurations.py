"""Find code that creates or changes a `ClipConfig` with settings that are only known at run time."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...config.clip_config import ClipConfig
from ...config.formats.python_source import FUNCTIONS, Source, last_name, runs_unknown_code, shortened
from ...errors import ConfigError

MAKERS = (
    "model_construct", "model_validate", "model_validate_json", "model_validate_strings", "construct", "from_orm",
    "parse_file", "parse_obj", "parse_raw", "validate",
)  # fmt: skip
"""Methods of pydantic models that create a `ClipConfig`."""

SCOPES = (*FUNCTIONS, ast.ClassDef)

COPIES = ("model_copy", "copy")
SETTINGS = {*ClipConfig.model_fields}

WHY = (
    "{code} may set or change settings of a clip configuration, so the effect of that configuration is unknown. Write "
    "the settings into a file, and load the file with ClipConfig.load. Or add this code to check.ignore with a reason."
)

REPLACED = (
    "The effect of {name} is unknown, because {code} in line {line} runs code that might replace {name}. Create {name} "
    "below line {line}."
)


def read(source: Source) -> Iterator[tuple[ast.Call, str, str]]:
    for call in source.calls:
        if name := _override(source, call):
            yield call, name, WHY.format(code=ast.unparse(call))


def check_replaced(source: Source, call: ast.Call) -> None:
    """Raise ConfigError if the file runs unknown code after `call`, as in `exec(open("config.py").read())`.

    Such code can replace a configuration that `call` creates at the top level.
    """
    match source.parents[call]:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if (
            source.function(call, SCOPES) is None
        ):
            later = [each for each in source.calls if each.lineno > call.lineno and runs_unknown_code(each)]
            for other in later:
                if source.function(other, SCOPES) is None:
                    raise ConfigError(REPLACED.format(code=shortened(other), line=other.lineno, name=name))


def changes_nonfinite(call: ast.Call) -> bool:
    updates = [each.value for each in call.keywords if each.arg in ("update", None)]
    keys = [key for update in updates for key in (update.keys if isinstance(update, ast.Dict) else [None])]
    names = {getattr(key, "value", None) for key in keys} | {each.arg for each in call.keywords}
    return all(isinstance(key, ast.Constant) for key in keys) and names & SETTINGS == {"nonfinite"}


def _override(source: Source, call: ast.Call) -> str:
    last = last_name(call.func)
    if last in COPIES and isinstance(call.func, ast.Attribute):
        update = [each.value for each in call.keywords if each.arg in ("update", None)]
        return last if any(map(_may_name_setting, update)) else ""
    is_replaced = source.dotted(call.func) == "copy.replace"
    return "copy.replace" if is_replaced and any(each.arg in (None, *SETTINGS) for each in call.keywords) else ""


def _may_name_setting(update: ast.expr) -> bool:
    if not isinstance(update, ast.Dict):
        return True
    return any(not isinstance(key, ast.Constant) or key.value in SETTINGS for key in update.keys)
