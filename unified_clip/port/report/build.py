"""Build the report of ported code, and write it as JSON, text or HTML."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...config.explain import compare, describe
from ..clip_site import ClipSite, Meaning, PortedFile, Target, UnreadableFile, Verdict
from . import differences
from .model import VERSION, Report

Data = Mapping[str, Any]

VERDICTS: tuple[Verdict, ...] = ("rewritten", "flagged", "left")


TITLES = {
    "jax": "JAX",
    "keras": "Keras",
    "optax": "JAX",
    "paddle": "Paddle",
    "tensorflow": "TensorFlow",
    "tf_agents": "TensorFlow",
    "tf_keras": "Keras",
    "tf_slim": "TensorFlow",
}
"""Names of frameworks other than PyTorch, by package."""


class ReportError(ValueError):
    """A report cannot be written or read. The message says why, and what to do."""


def as_data(
    ported: Sequence[PortedFile],
    unread: Sequence[UnreadableFile],
    target: Target,
    native: bool,
    *,
    written: bool = False,
) -> dict[str, Any]:
    """Return the report as JSON data (see `model`). Infinities and NaN are strings.

    written: whether the files were changed.
    """
    tables = _Tables()
    files = [
        {
            "path": each.path.as_posix(),
            "changed": each.is_changed,
            "clips": [_clip(site, tables) for site in each.sites],
        }
        for each in ported
        if each.sites
    ]
    summary = _summary(ported, unread)
    return {
        "version": VERSION,
        "target": target,
        "native": native,
        "written": written,
        "headline": _headline(summary),
        "next": _next(summary, written, _left_to_port(ported, target)),
        "rounding": differences.rounding(),
        "summary": summary,
        "files": files,
        "unread": [{"path": each.path.as_posix(), "reason": each.reason} for each in unread],
        "meanings": tables.meanings.all,
        "comparisons": tables.comparisons.all,
        "known": tables.known.all,
    }


# -- files


def writer(path: Path) -> Callable[[Data], str]:
    """Return the function that formats a report for a file, by suffix. Call it before any other work.

    Raises:
        ReportError: The suffix or the directory does not exist.
    """
    made = WRITERS.get(path.suffix.lower())
    if made is None:
        raise ReportError(f"{path}: a report ends in {', '.join(WRITERS)}; name it so")
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a directory" if path.is_dir() else f"there is no directory {path.parent}"
        raise ReportError(f"{path} cannot be written: {why}; name another file")
    return made


def write(path: Path, data: Data) -> None:
    """Write a report: .txt, .json or .html.

    Raises:
        ReportError: The suffix is unknown, or the file cannot be written.
    """
    text = writer(path)(data)
    try:
        _replace(path.resolve(), text)
    except OSError as error:
        raise ReportError(f"{path} cannot be written: {error.strerror}; name another file") from None


def _replace(path: Path, text: str) -> None:
    """Write a file atomically: an interrupt leaves the old file, or none."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def read(path: Path) -> Any:
    """Read a report that was written as JSON.

    Raises:
        ReportError: The file cannot be read, or is no report of ported code.
    """
    remedy = "give a file that `unified-clip port --report port.json` wrote"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        Report.model_validate(data)
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}; {remedy}") from None
    except ValidationError as error:
        first = error.errors()[0]
        what = ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
        raise ReportError(f"{path} is no report of ported code: {what}; {remedy}") from None
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path} is no report of ported code: {error}; {remedy}") from None
    return data


def _as_text(data: Data) -> str:
    from . import terminal

    return terminal.as_text(data)


def as_json(data: Data) -> str:
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _as_html(data: Data) -> str:
    from ...parity.report import page

    return page.render_ported(data)


WRITERS: Mapping[str, Callable[[Data], str]] = {".txt": _as_text, ".json": as_json, ".html": _as_html}


# -- shared entries


class _Once:
    """Entries that clips share, numbered from 1."""

    def __init__(self) -> None:
        self._found: dict[Any, dict[str, Any]] = {}

    def number(self, key: Any, make: Callable[[], Mapping[str, Any]]) -> int:
        if key not in self._found:
            self._found[key] = {"number": len(self._found) + 1, **make()}
        number: int = self._found[key]["number"]
        return number

    @property
    def all(self) -> list[dict[str, Any]]:
        return list(self._found.values())


class _Tables:
    """The tables that clips refer to by number."""

    def __init__(self) -> None:
        self.meanings, self.comparisons, self.known = _Once(), _Once(), _Once()

    def meaning(self, found: Meaning | None) -> int | None:
        if found is None:
            return None
        config = found.config.dumps("json")
        return self.meanings.number((config, found.threshold), lambda: _meaning(found, config))

    def comparison(self, before: Meaning, after: Meaning) -> int:
        numbers = (self.meaning(before), self.meaning(after))
        return self.comparisons.number(numbers, lambda: _comparison(before, after, numbers))

    def known_of(self, function: str) -> list[int]:
        """Return the numbers of the known differences of a measured function."""
        if not function:
            return []
        return [self.known.number(each, partial(asdict, each)) for each in differences.of(function)]


def _meaning(found: Meaning, config: str) -> dict[str, Any]:
    return {
        "sentences": describe.sentences(found.config, found.threshold),
        "threshold": found.threshold,
        "config": json.loads(config),
        "worked": compare.as_data(compare.explain(found.config, ""))["worked"],
    }


def _comparison(before: Meaning, after: Meaning, numbers: Sequence[int | None]) -> dict[str, Any]:
    data = compare.as_data(compare.compare(before.config, after.config, ("before", "after")))
    return {
        "before": numbers[0],
        "after": numbers[1],
        "differences": list(map(_sides, data["differences"])),
        "compared": list(map(_sides, data["compared"])),
        "summary": data["summary"],
    }


def _sides(found: Mapping[str, Any]) -> dict[str, Any]:
    return {{"a": "before", "b": "after"}.get(key, key): value for key, value in found.items()}


# -- clips


def _clip(site: ClipSite, tables: _Tables) -> dict[str, Any]:
    before, after = site.meaning, site.becomes_meaning
    is_old_keras = site.name.endswith("(clipnorm=)") and (before is None or before.config.rule != "norm")
    measured = "" if site.verdict == "left" or is_old_keras else differences.measured_as(site.name)
    same = _same(before, after)
    comparison = tables.comparison(before, after) if before and after and not same else None
    return {
        "line": site.line,
        "column": site.column,
        "name": site.name,
        "text": site.text,
        "verdict": site.verdict,
        "becomes": site.becomes,
        "meaning": tables.meaning(before),
        "becomes_meaning": tables.meaning(after),
        "same": same,
        "difference": _difference(before, after, tables, comparison),
        "comparison": comparison,
        "measured_as": measured,
        "known": tables.known_of(measured),
        "becomes_known": tables.known_of(differences.measured_as(site.becomes)),
        "reason": site.reason,
        "suggestion": list(site.suggestion),
        "checks": list(site.checks),
    }


def _same(before: Meaning | None, after: Meaning | None) -> bool | None:
    if before is None or after is None:
        return None
    return bool(before.config.meaning == after.config.meaning) and before.threshold == after.threshold


def _difference(before: Meaning | None, after: Meaning | None, tables: _Tables, comparison: int | None) -> str:
    if before is None or after is None:
        return ""
    if comparison is None:
        return "The same rule, and the same numbers but for rounding."
    found: str = tables.comparisons.all[comparison - 1]["summary"]
    if before.threshold == after.threshold:
        return found
    limits = [each.threshold or describe.limits(each.config) for each in (before, after)]
    return f"The threshold was {limits[0]}, and is {limits[1]}. {found}"


# -- summary


def _summary(ported: Sequence[PortedFile], unread: Sequence[UnreadableFile]) -> dict[str, int]:
    verdicts = [site.verdict for each in ported for site in each.sites]
    return {
        "files": len(ported),
        "changed": sum(each.is_changed for each in ported),
        "clips": len(verdicts),
        **{verdict: verdicts.count(verdict) for verdict in VERDICTS},
        "unread": len(unread),
    }


def _headline(summary: Mapping[str, int]) -> str:
    parts = ", ".join(f"{summary[verdict]} {verdict}" for verdict in VERDICTS)
    found = f"{_count(summary['clips'], 'clip')} found" + (f": {parts}" if summary["clips"] else "")
    lost = f"; {_count(summary['unread'], 'file')} could not be read" if summary["unread"] else ""
    return f"{_count(summary['files'], 'file')} read, {found}{lost}."


def _next(summary: Mapping[str, int], written: bool, left_to_port: Sequence[str]) -> str:
    todo = []
    if summary["unread"]:
        todo.append("mend what could not be read")
    if summary["changed"] and not written:
        todo.append("look at the changes with --diff, and make them with --write")
    if summary["flagged"]:
        todo.append("write by hand what is flagged")
    if summary["changed"] and left_to_port:
        code = " and ".join(left_to_port)
        todo.append(f"port the rest of the {code} code to PyTorch by hand (layers, optimizer, training step)")
    if summary["changed"] and written:
        todo.append("look at what is to be checked, and run the tests")
    return f"Next: {'; then '.join(todo)}." if todo else "There is nothing to do."


def _left_to_port(ported: Sequence[PortedFile], target: Target) -> list[str]:
    """Return the frameworks, other than the target, of the code around the clips that are rewritten."""
    if target != "torch":
        return []
    packages = {site.name.partition(".")[0] for each in ported for site in each.sites if site.verdict == "rewritten"}
    return sorted({TITLES[package] for package in packages & TITLES.keys()})


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
