"""Files of TOML, YAML and JSON as data, with the lines where keys stand, for messages; and the way back."""

from __future__ import annotations

import itertools
import json
import os
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
"""Of a table, or the index in a list."""


@dataclass(frozen=True)
class Document:
    """A file, or a text, that has been read."""

    name: str
    """For messages."""

    text: str
    kind: str
    """toml, yaml or json; of formats that are none of them, what the format says."""

    data: Any
    places: Mapping[tuple[Key, ...], int] = field(default_factory=dict)
    """The lines of a kind that a format reads by itself."""

    def line(self, keys: Sequence[Key]) -> int | None:
        """Where a key stands, or the table that it would stand in; None where the format does not tell."""
        find = {"toml": _toml_line, "yaml": _yaml_line, "json": _yaml_line}.get(self.kind)
        for length in range(len(keys), 0, -1):
            line = find(self.text, keys[:length]) if find else self.places.get(tuple(keys[:length]))
            if line is not None:
                return line
        return None

    def wrong(self, keys: Sequence[Key], message: str) -> ConfigError:
        """An error that says where."""
        line = self.line(keys)
        places = [self.name, f"line {line}" if line else "", dotted(keys)]
        return ConfigError(f"{', '.join(filter(None, places))}: {message}")

    def get(self, *keys: Key, default: Any = None) -> Any:
        """The value at a path of keys; the default where it, or a table on the way, is not there."""
        found = self.data
        for index, key in enumerate(keys):
            if found is None:
                return default
            if isinstance(found, list) and isinstance(key, int):
                found = found[key]
                continue
            if not isinstance(found, dict):
                raise self.wrong(keys[:index], f"it is {shown(found)}; it should be a table with {key!r} in it")
            if key not in found:
                return default
            found = found[key]
        return found


def read(path: str | os.PathLike[str]) -> Document:
    """A TOML, YAML or JSON file, told by its name."""
    path = Path(path)
    kind = kind_of(path)
    return parse(read_text(path), kind, path.name)


def kind_of(path: Path) -> str:
    """toml, yaml or json, by the name."""
    if path.suffix.lower() not in KINDS:
        raise ConfigError(f"{path}: its name ends in none of {', '.join(KINDS)}, so its format is not known; rename it")
    return KINDS[path.suffix.lower()]


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is no UTF-8; save the file as UTF-8") from None


def parse(text: str, kind: str, name: str) -> Document:
    """A text as data."""
    _check_kind(kind)
    try:
        data = {"toml": _toml, "yaml": _yaml, "json": _json}[kind](text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}, {_toml_error(error, text)}") from None
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{name}{line}: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        number, character = text[: error.position].count("\n") + 1, chr(error.character)
        raise ConfigError(f"{name}, line {number}: the character {character!r} is not allowed in YAML") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: {error}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name}, line {error.lineno}: {error.msg}") from None
    except _LongError as error:
        lines = text[: text.index(str(error))].count("\n")
        raise ConfigError(
            f"{name}, line {lines + 1}: a number has {len(str(error))} digits; give a shorter one"
        ) from None
    except RecursionError:
        raise ConfigError(f"{name}: its lists or tables are nested too deep") from None
    except _TwiceError as error:
        found = _twice_line(text)
        place = f"{name}, line {found}" if found else name
        raise ConfigError(f"{place}: the key {error} is there twice; remove one") from None
    return Document(name, text, kind, {} if data is None else data)


def dump(data: Any, kind: str) -> str:
    """Data as text."""
    _check_kind(kind)
    if kind == "toml":
        return tomlkit.dumps(data)
    if kind == "yaml":
        return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    return json.dumps(plain(data), indent=2, ensure_ascii=False) + "\n"


def shown(value: Any) -> str:
    """A value in a message: not all of it, however large it is."""
    try:
        return f"{_SHORT.repr(value):.60}"
    except ValueError:  # whole numbers of thousands of digits
        return f"a {type(value).__name__}"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def _check_kind(kind: str) -> None:
    if kind not in KINDS.values():
        raise ConfigError(f"there is no kind {kind!r}; give one of {', '.join(dict.fromkeys(KINDS.values()))}")


# -- reading


class _TwiceError(Exception):
    """A key that is there twice, of which JSON keeps the last."""


class _LongError(Exception):
    """A number that is longer than any."""


DIGITS = 400
"""Of a whole number; no float has more."""

SPARE = 100_000
"""How much larger than ten times its text data may be, which aliases of YAML can make as large as they like."""

INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # of int, which reads no more than 4300 digits
        raise _LongError(max(re.findall(r"[0-9_]+", text), key=len)) from None


def _toml_error(error: tomllib.TOMLDecodeError, text: str) -> str:
    """The line and the message. tomllib has the line of a key that is there twice, and tomlkit its name."""
    message, _, place = str(error).rpartition(" (at ")
    at = re.match(r"line (\d+)", place)  # else the end of the document
    line = int(at[1]) if at else text.rstrip().count("\n") + 1
    try:
        tomlkit.parse(text)
    except (tomlkit.exceptions.TOMLKitError, ValueError, RecursionError) as same:
        if repeated := re.match(r"Key .* already exists", str(same)):
            message = f"{repeated[0]}; remove one"
    return f"line {line}: {message}"


class _Yaml(yaml.SafeLoader):
    """YAML 1.2, as far as numbers go: PyYAML reads 1.1, where 1e-6 is a string, 010 is 8 and 1:30 is 90.

    It also lets a key be there twice.
    """

    yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in resolvers if tag not in (INT, FLOAT)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge":
                if not isinstance(key, yaml.ScalarNode):
                    raise _marked("a key is a list or a table; give a string", key)
                name = self.construct_object(key, deep=True)
                if name in seen:
                    raise _marked(f"the key {shown(name)} is there twice; remove one", key)
                seen.add(name)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=True)  # else PyYAML fills a table later, out of this try
        except (ValueError, LookupError, AttributeError) as error:  # of Python, for what says !!int, !!bool, ...
            raise _marked(f"it cannot be read: {error}", node) from None

    def whole_number(self, node: yaml.ScalarNode) -> int:
        digits = str(self.construct_scalar(node)).replace("_", "")
        if len(digits) > DIGITS:
            raise _marked(f"a number has {len(digits)} digits; give a shorter one", node)
        return int(digits, {"0o": 8, "0x": 16}.get(digits[:2], 10))


def _marked(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _without_tag(loader: yaml.SafeLoader, _: str, node: yaml.Node) -> Any:
    """PaddleDetection's !LinearWarmup and the like, which are classes there, are the data that they hold."""
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
    loader = _Yaml(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > SPARE + 10 * len(text):
            raise _marked("aliases make it larger than can be meant; write it out", node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _size(node: yaml.Node, known: dict[int, int | None]) -> int:
    """How many characters it would have with its aliases written out."""
    size = known.setdefault(id(node), None)
    if size is None and not isinstance(node, yaml.ScalarNode):
        inner = itertools.chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        size = 1
        for each in inner:
            if known.get(id(each), 0) is None:
                raise _marked("an alias stands within what it means; write it out", node)
            size += _size(each, known)
    elif size is None:
        size = 1 + len(node.value)
    known[id(node)] = size
    return size


def _json(text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise _TwiceError(repr(next(name for name in names if names.count(name) > 1)))
        return found

    def short(digits: str) -> int:
        if len(digits) > DIGITS:
            raise _LongError(digits)
        return int(digits)

    return json.loads(text, object_pairs_hook=once, parse_int=short)


# -- lines


def _toml_line(text: str, keys: Sequence[Key]) -> int | None:
    """tomlkit keeps what it read as it was: a mark set at the key shows on its line."""
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
        before, found, _ = tomlkit.dumps(document).partition(mark)
    except (LookupError, TypeError, AttributeError, tomlkit.exceptions.TOMLKitError):
        return None
    if not found and first is not None:  # a table without a header of its own stands where its first key does
        return _toml_line(text, [*keys, first])
    return before.count("\n") + 1 if found else None


def _yaml_line(text: str, keys: Sequence[Key]) -> int | None:
    """JSON too, which is YAML but for tabs."""
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
            found = [pair for pair in node.value if pair[0].value == key]
            if not found:
                return None
            line, node = found[0][0].start_mark.line, found[0][1]
        else:
            return None
    return None if line is None else line + 1


def _twice_line(text: str) -> int | None:
    """Where JSON has a key twice; its reader does not tell, and YAML's does."""
    try:
        _yaml(text.replace("\t", " "))
    except yaml.MarkedYAMLError as error:
        return error.problem_mark.line + 1 if error.problem_mark else None
    except (yaml.YAMLError, RecursionError):
        return None
    return None


def dotted(keys: Sequence[Key]) -> str:
    """threshold.start; an entry of a list counted from 1: groups 2, threshold."""
    text = ""
    for key in keys:
        text += (
            f" {key + 1}" if isinstance(key, int) else f"{', ' if text[-1:].isdigit() else '.' if text else ''}{key}"
        )
    return text
