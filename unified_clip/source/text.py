"""The text of a Python file: offsets of `ast` positions, tokens, line ends and indentation."""

from __future__ import annotations

import ast
import bisect
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from .._kit.parse import UnreadableSourceError, decoded

LINE_END = re.compile(r"\r\n?|\n")
BLANK = " \t\f"
SPACES = " \t\f\r\n\\"

Span = tuple[int, int]
"""The first offset in the text, and the offset after the last character."""


class Token(NamedTuple):
    start: int
    end: int
    text: str
    kind: int


SPACE = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING)


class Text:
    """Python's own parser counts columns in UTF-8 bytes. Here, offsets count characters from the start of the file."""

    def __init__(self, source: str | bytes) -> None:
        self.encoding = "utf-8"
        if isinstance(source, bytes):
            self.text = decoded(source)
            self.encoding = tokenize.detect_encoding(io.BytesIO(source).readline)[0]
        else:
            self.text = source
        ends = [match.span() for match in LINE_END.finditer(self.text)]
        self._starts = [0, *(end for _, end in ends)]
        self._ends = [*(start for start, _ in ends), len(self.text)]
        self.newline = self.text[slice(*ends[0])] if ends else "\n"

    def to_bytes(self, text: str) -> bytes:
        return text.encode(self.encoding)

    def line(self, number: int) -> str:
        return self.text[slice(*self.line_span(number))]

    def line_span(self, number: int) -> Span:
        """Return the span of a line, counted from 1, without its line end."""
        return self._starts[number - 1], self._ends[number - 1]

    def line_at(self, offset: int) -> int:
        return bisect.bisect_right(self._starts, offset)

    def next_line(self, offset: int) -> int:
        """Return the offset after the end of the line at `offset`."""
        line = self.line_at(offset)
        return self._starts[line] if line < len(self._starts) else len(self.text)

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a line, counted from 1, and of a column in UTF-8 bytes, counted from 0."""
        text = self.line(line)
        return self._starts[line - 1] + (column if text.isascii() else len(text.encode()[:column].decode()))

    def column(self, line: int, column: int) -> int:
        """Return a column in characters, counted from 1."""
        return self.offset(line, column) - self._starts[line - 1] + 1

    def span(self, node: ast.AST) -> Span:
        """Return the span of a node, without parentheses around it."""
        place: ast.expr = node  # type: ignore[assignment]
        start, end = self.offset(place.lineno, place.col_offset), self.offset(*_end(place))
        return start, end

    @cached_property
    def tokens(self) -> Sequence[Token]:
        """The tokens without white space. Comments are tokens."""
        lines = (
            self.text[start:end] for start, end in zip(self._starts, [*self._starts[1:], len(self.text)], strict=True)
        )
        tokens = []
        try:
            for each in tokenize.generate_tokens(lambda: next(lines, "")):
                if each.type not in SPACE:
                    start, end = (self._starts[line - 1] + column for line, column in (each.start, each.end))
                    tokens.append(Token(start, end, each.string, each.type))
        except (tokenize.TokenError, IndentationError) as error:
            raise UnreadableSourceError(f"The file cannot be split into tokens: {error}. Correct the file.") from None
        return tokens

    @cached_property
    def _token_starts(self) -> Sequence[int]:
        return [token.start for token in self.tokens]

    def after(self, offset: int) -> Iterator[Token]:
        """Yield the tokens from an offset on. Omit comments."""
        for number in range(bisect.bisect_left(self._token_starts, offset), len(self.tokens)):
            if self.tokens[number].kind != tokenize.COMMENT:
                yield self.tokens[number]

    def before(self, offset: int) -> Iterator[Token]:
        """Yield the tokens before an offset, backwards. Omit comments."""
        for number in range(bisect.bisect_left(self._token_starts, offset) - 1, -1, -1):
            if self.tokens[number].kind != tokenize.COMMENT:
                yield self.tokens[number]

    def may_be_parenthesized(self, start: int) -> bool:
        """Return whether the text before an offset may end in a parenthesis. This is faster than to read tokens."""
        last = start - 1
        while last >= 0 and self.text[last] in SPACES:
            last -= 1
        is_far = "\n" in self.text[last + 1 : start] or "\r" in self.text[last + 1 : start]
        return last >= 0 and (self.text[last] == "(" or (is_far and "#" in self.line(self.line_at(last))))

    def comments(self, start: int, end: int) -> list[str]:
        between = self.tokens[
            bisect.bisect_left(self._token_starts, start) : bisect.bisect_left(self._token_starts, end)
        ]
        return [token.text for token in between if token.kind == tokenize.COMMENT]

    def indentation(self, offset: int) -> str | None:
        """Return the white space between the start of the line and `offset`, or None if there is other text."""
        before = self.text[self._starts[self.line_at(offset) - 1] : offset]
        return None if before.strip(BLANK) else before

    def starts_line(self, offset: int) -> bool:
        line = self.line_at(offset)
        return self.indentation(offset) is not None and not (line > 1 and self.line(line - 1).endswith("\\"))


def _end(node: ast.expr) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def on_one_line(code: str) -> str:
    """Join code into one line without comments. Line breaks in strings remain."""
    if "\n" not in code and "\r" not in code and "#" not in code:
        return code
    parts: list[str] = []
    end = (1, 1)
    try:
        for token in tokenize.generate_tokens(io.StringIO(f"({code}\n)").readline):
            if token.type in (tokenize.COMMENT, *SPACE):
                continue
            if parts and token.start != end and not parts[-1].endswith(("(", "[", "{")) and token.string not in ")]},":
                parts.append(" ")
            parts.append(token.string)
            end = token.end
    except (tokenize.TokenError, IndentationError):
        return " ".join(code.split())  # a statement
    return "".join(parts)[1:-1].strip()
