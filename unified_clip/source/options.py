"""Find the options of a command line, and the fields of configuration classes, with their defaults."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from .module import Module
from .tree import keywords_of, last_name, text_of

FLAG_DEFINITIONS = ("DEFINE_float", "DEFINE_integer", "DEFINE_bool", "DEFINE_boolean", "DEFINE_string", "DEFINE_enum")

FLAG_PACKAGES = ("absl.flags", "absl.app.flags", "tensorflow.app.flags", "tensorflow.compat.v1.app.flags")
FLAGS = frozenset(f"{package}.FLAGS" for package in FLAG_PACKAGES)

PARSES = ("parse_args", "parse_known_args", "parse_intermixed_args", "parse_known_intermixed_args")

PARSES_CLASSES = (
    "parse_args_into_dataclasses",
    "parse_args_and_config",
    "parse_dict",
    "parse_json_file",
    "parse_yaml_file",
)

PARSE_FUNCTIONS = ("tyro.cli", "simple_parsing.parse", "pyrallis.parse", "draccus.parse", "jsonargparse.CLI")


class Option(NamedTuple):
    """An option of the command line, or a field of a class."""

    module: Module
    node: ast.AST
    shown: str
    """The name in messages: "--max-grad-norm" for an option, "Args.max_grad_norm" for a field."""

    default: ast.expr | None

    @property
    def place(self) -> str:
        return f"{self.module.path.name if self.module.path else 'this file'}:{self.module.position(self.node)[0]}"


def options_named(module: Module, name: str) -> Iterator[Option]:
    """Yield the options that a file defines and that Python code reads as `args.name`, or as `name` with click."""
    for call in module.calls:
        method, passed = last_name(call.func), keywords_of(call)
        default = passed["default"].value if "default" in passed else None
        texts = [text for each in call.args if (text := text_of(each)) is not None]
        flags = [text for text in texts if text.startswith("-")]
        if method in FLAG_DEFINITIONS:
            named = [passed["name"].value] if "name" in passed else call.args[:1]
            defaults = [default] if default is not None else call.args[1:2]
            if [text_of(each) for each in named] == [name]:
                yield Option(module, call, f"--{name}", defaults[0] if defaults else None)
        elif method in ("add_argument", "option") and flags:
            long = next((flag for flag in flags if flag.startswith("--")), flags[0])
            destination = text_of(passed["dest"].value) if "dest" in passed else None
            names = [destination or long.lstrip("-").partition("/")[0].replace("-", "_")]
            if method == "option":  # click takes a name without dashes as the name of the parameter
                names = [text for text in texts if not text.startswith("-")] or names
            required = passed.get("required")
            if name in names:
                is_required = required is not None and ast.unparse(required.value) != "False"
                is_switch = default is None and "action" in passed
                yield Option(module, call, long, None if is_required or is_switch else default or ast.Constant(None))


def field_of(module: Module, owner: ast.ClassDef, name: str) -> Option | None:
    """Return the field that the body of a class sets, with its default."""
    for line in owner.body:
        match line:
            case ast.AnnAssign(target=ast.Name(id=found), value=value) if found == name:
                return Option(module, line, f"{owner.name}.{name}", _default(value))
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                return Option(module, line, f"{owner.name}.{name}", _default(value))
    return None


def _default(value: ast.expr | None) -> ast.expr | None:
    if isinstance(value, ast.Call) and last_name(value.func) in ("field", "Field", "Param"):
        passed = keywords_of(value)
        if "default_factory" in passed:
            factory = passed["default_factory"].value
            return factory.body if isinstance(factory, ast.Lambda) else ast.Call(factory, [], [])
        return passed["default"].value if "default" in passed else (value.args or [None])[0]  # type: ignore[list-item]
    return value
