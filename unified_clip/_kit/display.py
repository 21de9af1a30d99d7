"""Make text safe to print. A line such as `::error::` in a file could control a CI system."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.text import Text

UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u2028\u2029"  # separators
    "\ud800-\udfff\ufffe\uffff"  # lone surrogates, and noncharacters
    # Unicode's Default_Ignorable_Code_Point: zero-width characters, overrides of the direction, fillers
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

LOG_COMMAND = re.compile(r"\A\s*:(?=:)|##(?=\w*\[)")
"""Matches the start of a command to a CI system, such as `::error::` or `##[error]` of GitHub, or `##vso[` of Azure."""

LAYOUT = "\n\t"

PROGRAM = "unified-clip"
TYPED = re.compile(f"(?:(?<=: )|(?<=`)){PROGRAM}(?= )")
"""Matches the program in a command to type, as in "run: unified-clip parity"."""


def safe(value: Any, keep: str = "", code: Collection[str] = ()) -> Any:
    r"""Escape control characters and invisible characters in texts, except those in `keep`.

    If `keep` is empty, escape also the starts of CI commands, such as `::error::`. Line breaks and tabs in
    the value of a dict stay unchanged if the key is in `code`.

    Example:
        >>> print(safe("a\x1b[2J[ab]"))
        a\x1b[2J[ab]
    """
    if isinstance(value, str):
        text = UNSAFE.sub(lambda match: match[0] if match[0] in keep else _escaped(match[0]), value)
        return text if keep else LOG_COMMAND.sub(lambda match: f"{match[0][:-1]}\\x{ord(match[0][-1]):x}", text)
    if isinstance(value, dict):
        return {safe(key): safe(item, LAYOUT if key in code else keep, code) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [safe(item, keep, code) for item in value]
    return value


def annotation(level: str, message: str, **properties: object) -> str:
    r"""Return a log line that GitHub Actions shows as an annotation of a pull request.

    Example:
        >>> print(annotation("error", "100 %\nwrong", file="a,b.py", line=3))
        ::error file=a%2Cb.py,line=3::100 %25%0Awrong
    """
    names = ",".join(f"{name}={_in_property(str(value))}" for name, value in properties.items())
    return f"::{level}{names and f' {names}'}::{_in_message(message)}"


def _in_message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _in_property(text: str) -> str:
    return _in_message(text).replace(":", "%3A").replace(",", "%2C")


def cell(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(safe(text), style)


def as_started(text: str) -> str:
    """Name the program in commands to type as the user started it, unless PATH finds it."""
    started = Path("".join(sys.argv[:1]))  # embedded Python may have no argv
    if started.parts[-2:] == ("unified_clip", "__main__.py"):
        words = [sys.executable, "-m", "unified_clip"]
    elif started.stem == PROGRAM:
        words = [str(started)]
    else:
        return text
    found = shutil.which(PROGRAM)
    is_found = found is not None and Path(found).parent.resolve() == Path(words[0]).parent.resolve()
    return text if is_found else TYPED.sub(lambda _: safe(shlex.join(words)), text)


def complain(message: str) -> None:
    _print(f"unified-clip: {safe(message)}")


def print_error(message: str, code: str) -> None:
    _print(f"unified-clip: {paint(f'error {code}:', BOLD_RED)} {safe(message)}")
    if sys.stderr is not None and sys.stderr.isatty():
        _print(paint(f"Explanation: unified-clip help {code}", DIM))


def _print(text: str) -> None:
    if sys.stderr is not None:  # None if the shell closed it, as with `2>&-`
        print(as_started(text), file=sys.stderr)


def flush_or_discard() -> None:
    """Flush stdout and stderr. Discard output that cannot be written, or Python would exit with status 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            with open(os.devnull, "wb") as null:  # noqa: PTH123
                os.dup2(null.fileno(), stream.fileno())


BOLD, BOLD_RED, DIM = "1", "1;31", "2"


def paint(text: str, style: str, stream: TextIO | None = None) -> str:
    """Return text in a style, such as BOLD, if the stream (by default stderr) is a terminal with colours."""
    return f"\x1b[{style}m{text}\x1b[0m" if has_colours(sys.stderr if stream is None else stream) else text


def has_colours(stream: TextIO | None) -> bool:
    if stream is None or os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (
        stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    )


def describe_exception(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def enumeration(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
