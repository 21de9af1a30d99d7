"""Read and write TOML, YAML and JSON. Find the lines of keys for error messages."""

from __future__ import annotations

import itertools
import json
import re
import reprlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomlkit
import tomlkit.exceptions
import tomlkit.items
import yaml

from .._json import plain
from ..errors import ConfigError

KINDS = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}

Key = str | int
"""A key of a table, or an index of a list."""


@dataclass(frozen=True)
class Document:
    """A parsed TOML, YAML or JSON file, or a trainer's file, with its text."""

    name: str
    """The name of the file in messages."""

    text: str
    kind: str
    """toml, yaml, json, or another kind of file that a trainer's format reads, such as python."""

    data: Any
    places: Mapping[tuple[Key, ...], int] = field(default_factory=dict)
    """The line of each path of keys. Only for other kinds than toml, yaml and json."""

    def line(self, keys: Sequence[Key]) -> int | None:
        """Return the line of a key. If it is unknown, return the line of the nearest table around the key, or else
        None.
        """
        find = {"toml": _toml_line, "yaml": _yaml_line, "json": _yaml_line}.get(self.kind)
        for length in range(len(keys), 0, -1):
            line = find(self.text, keys[:length]) if find else self.places.get(tuple(keys[:length]))
            if line is not None:
                return line
        return None

    def place(self, keys: Sequence[Key], name: str = "") -> str:
        """Return the place of a key as text, such as "clip.toml, line 3, threshold.start".

        Unknown parts are left out.
        """
        line = self.line(keys)
        return ", ".join(filter(None, [name, f"line {line}" if line else "", dotted(keys)]))

    def wrong(self, keys: Sequence[Key], message: str) -> ConfigError:
        """Return an error whose message has the file's name, and the line and path of a key."""
        return ConfigError(f"{self.place(keys, self.name)}: {message}")

    def get(self, *keys: Key, default: Any = None) -> Any:
        """Return the value at a path of keys. Return `default` if the key or a table of the path is missing."""
        value = self.data
        for index, key in enumerate(keys):
            if value is None:
                return default
            if isinstance(value, list) and isinstance(key, int):
                value = value[key]
                continue
            if not isinstance(value, dict):
                raise self.wrong(keys[:index], f"it is {format_value(value)}. Give keys with values, such as {key}.")
            if key not in value:
                return default
            value = value[key]
        return value

    def has(self, *keys: Key) -> bool:
        """Return whether the file sets a path of keys, even if to null."""
        table = self.data
        try:
            for key in keys:
                table = table[key]
        except (LookupError, TypeError):
            return False
        return True


def kind_of(path: Path) -> str:
    """Return toml, yaml or json, which the suffix of a path shows. ConfigError: another suffix."""
    if path.suffix.lower() not in KINDS:
        raise ConfigError(f"{path}: the suffix is not one of {', '.join(KINDS)}. Use one of these.")
    return KINDS[path.suffix.lower()]


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}. Check its path and permissions.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8. Save the file as UTF-8.") from None


def parse(text: str, kind: str, name: str) -> Document:
    """Parse TOML, YAML or JSON. ConfigError: the text is invalid. `name`: the name of the file, for errors."""
    _check_kind(kind)
    try:
        data = {"toml": _toml, "yaml": _yaml, "json": _json}[kind](text)
    except _UnreadableError as error:
        line = f", line {error.line}" if error.line else ""
        raise ConfigError(f"{name}{line}: {error}") from None
    except RecursionError:
        raise ConfigError(f"{name}: lists or tables are nested too deep. Remove some levels.") from None
    return Document(name, text, kind, {} if data is None else data)


def dump(data: Any, kind: str) -> str:
    """Return data as TOML, YAML or JSON."""
    _check_kind(kind)
    if kind == "toml":
        return tomlkit.dumps(data)
    if kind == "yaml":
        return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    return json.dumps(plain(data), indent=2, ensure_ascii=False) + "\n"


def format_value(value: Any) -> str:
    """Return a value as text for messages, shortened to 60 characters."""
    try:
        return f"{_SHORT.repr(value):.60}"
    except ValueError:  # Python does not print integers with thousands of digits
        return f"a {type(value).__name__}"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def _check_kind(kind: str) -> None:
    if kind not in KINDS.values():
        raise ConfigError(f"{kind!r} is not a kind of file. Pass one of {', '.join(dict.fromkeys(KINDS.values()))}.")


# -- reading


class _UnreadableError(Exception):
    """The error for a text that cannot be parsed. It has the line, if the parser reports one."""

    def __init__(self, line: int | None, message: str) -> None:
        super().__init__(message)
        self.line = line


NOT_VALID = "this is not {}: {}. Correct it."

MAX_DIGITS = 400
"""Whole numbers with more digits are rejected: no float is that large."""

ALIAS_ALLOWANCE = 100_000
"""YAML data in which each alias is replaced by its value may have ten times the characters of the file, plus this many.
The limit stops files that would fill the memory."""

INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


def _too_long(text: str, digits: str) -> _UnreadableError:
    line = text[: text.index(digits)].count("\n") + 1
    return _UnreadableError(line, f"a number has {len(digits)} digits. Give a shorter one.")


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _toml_error(error, text) from None
    except ValueError:  # Python converts at most 4300 digits to an int
        raise _too_long(text, max(re.findall(r"[0-9_]+", text), key=len)) from None


def _toml_error(error: tomllib.TOMLDecodeError, text: str) -> _UnreadableError:
    """Return the parser's error with its line and, for a duplicate key, the key's name."""
    problem, _, place = str(error).rpartition(" (at ")
    message = NOT_VALID.format("TOML", problem)
    at = re.match(r"line (\d+)", place)  # without a line, the error is at the end of the document
    try:
        tomlkit.parse(text)
    except (tomlkit.exceptions.TOMLKitError, ValueError, RecursionError) as same:
        if repeated := re.match(r"Key .* already exists", str(same)):
            message = f"{repeated[0]}. Remove one."
    return _UnreadableError(int(at[1]) if at else text.rstrip().count("\n") + 1, message)


class _Yaml(yaml.SafeLoader):
    """A YAML loader that reads numbers as YAML 1.2 does, and rejects duplicate keys.

    PyYAML reads YAML 1.1, where 1e-6 is a string, 010 is 8 and 1:30 is 90.
    """

    yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in resolvers if tag not in (INT, FLOAT)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge":
                if not isinstance(key, yaml.ScalarNode):
                    raise _marked("a key is a list or a table. Give a string.", key)
                name = self.construct_object(key, deep=True)
                if name in names:
                    raise _marked(f"the key {format_value(name)} occurs twice. Remove one.", key)
                names.add(name)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            # deep: otherwise PyYAML fills tables later, outside this `try`
            return super().construct_object(node, deep=True)
        except (ValueError, LookupError, AttributeError) as error:  # from values with !!int, !!bool, ...
            raise _marked(f"cannot read this value: {error}. Correct it, or quote it if it is text.", node) from None

    def whole_number(self, node: yaml.ScalarNode) -> int:
        digits = str(self.construct_scalar(node)).replace("_", "")
        if len(digits) > MAX_DIGITS:
            raise _marked(f"a number has {len(digits)} digits. Give a shorter one.", node)
        return int(digits, {"0o": 8, "0x": 16}.get(digits[:2], 10))


def _marked(problem: str, node: yaml.Node) -> _UnreadableError:
    return _UnreadableError(node.start_mark.line + 1, problem)


def _without_tag(loader: yaml.SafeLoader, _: str, node: yaml.Node) -> Any:
    """Return the value of a node, ignoring its tag, such as !LinearWarmup in PaddleDetection."""
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node)  # type: ignore[arg-type]


_Yaml.add_multi_constructor("!", _without_tag)
_Yaml.add_constructor(INT, _Yaml.whole_number)
_Yaml.add_implicit_resolver(INT, re.compile(r"^([-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789"))
_Yaml.add_implicit_resolver(
    FLOAT,
    re.compile(r"^([-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"),
    list("-+.0123456789"),
)


def _yaml(text: str) -> Any:
    try:
        loader = _Yaml(text)
        node = loader.get_single_node()
        if node is not None and _size(node, {}) > ALIAS_ALLOWANCE + 10 * len(text):
            raise _marked("the values of all aliases together are too large. Use fewer aliases.", node)
        return None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise _UnreadableError(mark.line + 1 if mark else None, NOT_VALID.format("YAML", error.problem)) from None
    except yaml.reader.ReaderError as error:
        line, character = text[: error.position].count("\n") + 1, chr(error.character)
        raise _UnreadableError(line, f"the character {character!r} is not allowed in YAML. Remove it.") from None
    except yaml.YAMLError as error:
        raise _UnreadableError(None, NOT_VALID.format("YAML", error)) from None


def _size(node: yaml.Node, sizes: dict[int, int | None]) -> int:
    """Return the number of characters of a node in which each alias is replaced by its value.

    sizes: Known sizes by `id` of the node.
    """
    size = sizes.setdefault(id(node), None)
    if size is None and isinstance(node, yaml.ScalarNode):
        size = 1 + len(node.value)
    elif size is None:
        size = 1
        for child in itertools.chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value:
            if sizes.get(id(child), 0) is None:
                raise _marked("an alias stands inside the value that it refers to. Remove it.", node)
            size += _size(child, sizes)
    sizes[id(node)] = size
    return size


def _json(text: str) -> Any:
    def unique_table(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in items]
        if len(set(names)) < len(names):
            name = next(name for name in names if names.count(name) > 1)
            raise _UnreadableError(_duplicate_line(text), f"the key {name!r} occurs twice. Remove one.")
        return dict(items)

    def short_int(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise _too_long(text, digits)
        return int(digits)

    try:
        return json.loads(text, object_pairs_hook=unique_table, parse_int=short_int)
    except json.JSONDecodeError as error:
        raise _UnreadableError(error.lineno, NOT_VALID.format("JSON", error.msg)) from None


def _duplicate_line(text: str) -> int | None:
    """Return the line of a duplicate key in JSON; None if no key occurs twice. The YAML parser finds the line."""
    try:
        _yaml(text.replace("\t", " "))
    except (_UnreadableError, RecursionError) as error:
        return getattr(error, "line", None)
    return None


# -- lines


def _toml_line(text: str, keys: Sequence[Key]) -> int | None:
    """Return the line of a key in TOML; None if it is not found.

    The function puts a mark at the key, writes the document as text, and counts the lines above the mark.
    """
    mark = "unified_clip_was_here"
    try:
        document = tomlkit.parse(text)
        table: Any = document
        for key in keys[:-1]:
            table = table[key]
        item = table[keys[-1]]
        is_table = isinstance(item, dict | tomlkit.items.AoT)
        first: Key | None = 0 if isinstance(item, tomlkit.items.AoT) else next(iter(item), None) if is_table else None
        if isinstance(item, tomlkit.items.Table):
            item.comment(mark)
        elif not is_table or isinstance(item, tomlkit.items.InlineTable):
            table[keys[-1]] = mark
        before, match, _ = tomlkit.dumps(document).partition(mark)
    except (LookupError, TypeError, AttributeError, tomlkit.exceptions.TOMLKitError):
        return None
    if not match and first is not None:  # a table without a header: the line of its first key
        return _toml_line(text, [*keys, first])
    return before.count("\n") + 1 if match else None


def _yaml_line(text: str, keys: Sequence[Key]) -> int | None:
    """Return the line of a key in YAML or JSON; None if it is not found."""
    try:
        node = yaml.compose(text.replace("\t", " "), yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return None
    line = None
    for key in keys:
        if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            node = node.value[key]
            line = node.start_mark.line
        elif isinstance(node, yaml.MappingNode):
            entries = [entry for entry in node.value if entry[0].value == key]
            if not entries:
                return None
            line, node = entries[0][0].start_mark.line, entries[0][1]
        else:
            return None
    return None if line is None else line + 1


def dotted(keys: Sequence[Key]) -> str:
    """Return a path of keys as text such as "threshold.start". List entries count from 1: "groups 2, threshold"."""
    text = ""
    for key in keys:
        separator = ", " if text[-1:].isdigit() else "." if text else ""
        text += f" {key + 1}" if isinstance(key, int) else f"{separator}{key}"
    return text
