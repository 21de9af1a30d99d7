"""Parse YAML once, to values and to nodes that have the lines of keys in YAML and JSON."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import yaml

from .keys import MAX_DIGITS, NOT_VALID, TOO_LONG, Duplicate, Key, Parsed, ParseError, Unknown

ALIAS_ALLOWANCE = 100_000
"""The size of YAML data is limited to 10 * len(text) + ALIAS_ALLOWANCE, because nested aliases could fill the memory.
"""

STANDARD = "tag:yaml.org,2002:"
INT, FLOAT = f"{STANDARD}int", f"{STANDARD}float"
YAML_12 = "!number"
MERGE = f"{STANDARD}merge"
BOOL, STR = f"{STANDARD}bool", f"{STANDARD}str"
TEXT = ("!", "python/str", "python/unicode")

COMPUTED = ("python/object", "python/name", "python/module")
"""Values with these tags are only known at run time, except values with the tag `ORDERED`."""

ORDERED = "python/object/apply:collections.OrderedDict"
"""A node with this tag has one element: a list of all (key, value) pairs."""


class Yaml12Number(float):
    """A number such as 1e-3. YAML 1.1 and so PyYAML read it as text."""

    text: str


class _Yaml(yaml.SafeLoader):
    """A YAML loader that reads numbers as YAML 1.2 does."""

    yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in resolvers if tag not in (INT, FLOAT)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.merged: dict[int, int] = {}
        """For each table, the number of entries from the tables of `<<`. These entries come first in the node."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key.tag != MERGE and not isinstance(key, yaml.ScalarNode):
                advice = "Give a string. Replace a template such as {{ x }} by its value."
                raise _marked(f"a key is a list or a table. {advice}", key)
            if key.tag == BOOL and key.value.lower() not in ("true", "false"):
                key.tag = STR  # in YAML 1.2, the key `off` is a text
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge the tables of `<<`. If several tables have a key, YAML uses the first value, PyYAML 6.0.4 the last."""
        merged: list[tuple[yaml.Node, yaml.Node]] = []
        for key, value in node.value:
            if key.tag == MERGE:
                for table in reversed(_tables(value)):
                    self.flatten_mapping(table)
                    merged += table.value
        self.merged.setdefault(id(node), len(merged))
        node.value = merged + [entry for entry in node.value if entry[0].tag != MERGE]

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            # deep: otherwise PyYAML fills tables later, outside this `try`
            return super().construct_object(node, deep=True)
        except (ValueError, LookupError, AttributeError) as error:  # from values with !!int, !!bool, ...
            advice = "Correct the value. If the value is text, quote the text, and remove a tag such as !!int."
            raise _marked(f"cannot read this value: {error}. {advice}", node) from None

    def whole_number(self, node: yaml.ScalarNode) -> int:
        digits = str(self.construct_scalar(node)).replace("_", "")
        if len(digits) > MAX_DIGITS:
            raise _marked(f"{TOO_LONG.format(len(digits))} Also remove a tag such as !!int.", node)
        return int(digits, {"0o": 8, "0x": 16}.get(digits[:2], 10))

    def number(self, node: yaml.ScalarNode) -> Yaml12Number:
        number = Yaml12Number(self.construct_yaml_float(node))
        number.text = node.value
        return number


def _tables(merged: yaml.Node) -> list[yaml.MappingNode]:
    nodes = merged.value if isinstance(merged, yaml.SequenceNode) else [merged]
    tables = [node for node in nodes if isinstance(node, yaml.MappingNode)]
    if len(tables) < len(nodes):
        raise _marked("<< merges a value that is not a table. Name a table, as in <<: *defaults.", merged)
    return tables


def _marked(problem: str, node: yaml.Node) -> ParseError:
    return ParseError(node.start_mark.line + 1, problem)


def _without_tag(loader: yaml.SafeLoader, _: str, node: yaml.Node) -> Any:
    """Return the value of a node with an unknown tag. For `!include base.yaml`, return an `Unknown`."""
    tag = node.tag.removeprefix(STANDARD)
    if tag == ORDERED and isinstance(node, yaml.SequenceNode) and len(node.value) == 1:
        pairs = loader.construct_object(node.value[0], deep=True)
        if isinstance(pairs, list) and all(_is_pair(entry) for entry in pairs):
            return dict(pairs)
    if isinstance(node, yaml.MappingNode) and not tag.startswith(COMPUTED):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode) and not tag.startswith(COMPUTED):
        return loader.construct_sequence(node, deep=True)
    text = node.value if isinstance(node, yaml.ScalarNode) else ""
    if tag in TEXT:
        return text
    name = tag if tag == node.tag else f"!!{tag}"
    return Unknown(f"{name} {text}".strip(), "Write the value instead.")


def _is_pair(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)


_Yaml.add_multi_constructor(None, _without_tag)  # None: all tags without a constructor
_Yaml.add_constructor(INT, _Yaml.whole_number)
_Yaml.add_implicit_resolver(INT, re.compile(r"^([-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789"))
_Yaml.add_implicit_resolver(
    FLOAT,
    re.compile(r"^((\.[0-9]+|[-+]?[0-9][0-9_]*\.[0-9_]*)([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"),
    list("-+.0123456789"),
)
_Yaml.add_constructor(YAML_12, _Yaml.number)
_Yaml.add_implicit_resolver(
    YAML_12, re.compile(r"^[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?$"), list("-+.0123456789")
)


BREAKS = re.compile("[\x85\u2028\u2029]")
"""YAML 1.1 begins a new line at these characters, so text needs escape sequences for them."""


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that quotes texts such as "1e-6", which some versions of YAML read as a number."""

    yaml_implicit_resolvers = {
        first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, ()), *resolvers]
        for first, resolvers in (yaml.SafeDumper.yaml_implicit_resolvers | _Yaml.yaml_implicit_resolvers).items()
    }

    def quoted_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar(f"{STANDARD}str", text, style='"' if BREAKS.search(text) else None)


_Dumper.add_representer(str, _Dumper.quoted_text)
_Dumper.add_representer(Yaml12Number, _Dumper.represent_float)


def dump(data: Any) -> str:
    """Return YAML text that YAML 1.1 and YAML 1.2 read as the same data."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def parse(text: str) -> Parsed:
    try:
        loader = _Yaml(text)
        node = loader.get_single_node()
        if node is None:
            return Parsed(None)
        if _size(node, {}) > ALIAS_ALLOWANCE + 10 * len(text):
            raise _marked("the values of all aliases together are too large. Use fewer aliases.", node)
        data = loader.construct_document(node)
        return Parsed(data, tuple(_duplicates(loader, node)), partial(_line_of, loader, node))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise ParseError(mark.line + 1 if mark else None, NOT_VALID.format("YAML", error.problem)) from None
    except yaml.reader.ReaderError as error:
        line, character = text[: error.position].count("\n") + 1, chr(error.character)
        raise ParseError(line, f"the character {character!r} is not allowed in YAML. Remove it.") from None
    except yaml.YAMLError as error:
        raise ParseError(None, NOT_VALID.format("YAML", error)) from None


def _duplicates(loader: _Yaml, root: yaml.Node) -> Iterator[Duplicate]:
    waiting: list[tuple[tuple[Key, ...], yaml.Node]] = [((), root)]
    visited: set[int] = set()
    while waiting:
        path, node = waiting.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += [((*path, index), value) for index, value in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            own = node.value[loader.merged.get(id(node), 0) :]
            entries = [(loader.construct_object(key), key, value) for key, value in own if key.tag != MERGE]
            last = {name: value for name, _, value in entries}
            for name, key, value in entries:
                if last[name] is not value:
                    dropped = loader.construct_object(value, deep=True)
                    yield Duplicate((*path, name), key.start_mark.line + 1, dropped)
            waiting += [((*path, name), value) for name, value in last.items()]


def _size(node: yaml.Node, sizes: dict[int, int | None]) -> int:
    """Count the characters and values in a node after its aliases are expanded."""
    size = sizes.setdefault(id(node), None)
    if size is None and isinstance(node, yaml.ScalarNode):
        size = 1 + len(node.value)
    elif size is None:
        size = 1
        for child in itertools.chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value:
            if sizes.get(id(child), 0) is None:
                raise _marked("an alias refers to a value that contains the alias. Remove the alias.", node)
            size += _size(child, sizes)
    sizes[id(node)] = size
    return size


def _line_of(loader: _Yaml, node: yaml.Node, keys: Sequence[Key]) -> int | None:
    line = None
    for key in keys:
        if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            place = node = node.value[key]
        elif isinstance(node, yaml.MappingNode):
            # the last entry of a key has its value
            entries = (entry for entry in reversed(node.value) if str(loader.construct_object(entry[0])) == str(key))
            place, node = next(entries, (None, node))
        else:
            return None
        if place is None:
            return None
        line = place.start_mark.line + 1
    return line
