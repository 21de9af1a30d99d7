"""Read and write the files of a trainer as its row says."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from packaging.version import Version

from ..._kit.display import enumeration
from ...adaptive.rules import AGC
from ...facts.trainer_rows import Clip, Default, Layout, Note, NotFinite, Refusal, Test, trainers
from ..documents import Document, Key, infinity, python_text, script_options
from ..schema import DEFAULT_FAMILY, FAMILIES, Settings
from . import engines
from .base import (
    Format,
    Imported,
    OtherFamilyError,
    OwnFormat,
    Path,
    SetElsewhereError,
    name_format,
    read_norm_type,
    rules_of,
)
from .conditions import ANY, TYPE, Context, is_in_range, is_one_of, tests_of

AS = re.compile(r"\{as ([^}]+)\}")


class RowFormat(Format):
    def read(self, document: Document, version: Version | None) -> Imported:
        layout, context = self.layout(document), self.context(document, version)
        sections = _sections(layout, context)
        results = [_Reading(self, layout, context.at(section)).read() for section in sections]
        for section, result in zip(sections, results, strict=True):
            if result.settings != results[0].settings:
                raise document.wrong(section, layout.differ.format(other=_dotted(sections[0])))
        names: dict[str, list[str]] = {}
        for section, result in zip(sections, results, strict=True):
            for note in result.notes:
                names.setdefault(note, []).extend(map(str, section[-1:]))
        notes = [note.replace("{section}", enumeration(sections)) for note, sections in names.items()]
        optimizer, threshold = self.second_clip(document)
        if self.row.second_clip is not None and threshold is not None:
            notes.insert(0, _said(self.row.second_clip.note, {"optimizer": optimizer, "threshold": str(threshold)}))
        by_default = any(result.by_default for result in results)
        return dataclasses.replace(results[0], notes=notes, by_default=by_default)

    def write(self, settings: Settings, version: Version) -> Any:
        export, agc = self.row.export, None
        if export.none_since and version >= Version(export.none_since):
            raise self.not_exported(export.none)
        ways = [way for way in self.row.clip if way.export and way.key]
        if self.row.agc:
            agc = exported_agc(self, settings, self.row.agc, refused=export.no_agc)
        rule = "agc" if agc else settings.rule
        way = next((each for each in ways if rule in rules_of(each)), ways[0])
        threshold = agc.clip_factor if agc else self._threshold(settings, ways, way)
        raises = settings.nonfinite == "raise"
        threshold = math.inf if raises and threshold is None else threshold
        if raises and not way.raises:
            problem = f'it does not support `nonfinite = "raise"` with `rule = "{rule}"`.'
            raise self.not_exported(f"{problem} Remove `nonfinite`. This changes the clip.{self.in_python}")
        data: dict[str, Any] = {}
        _put_all(data, export.constants if threshold is not None else export.constants_off)
        for section in self._written_sections():
            for key in [key for each in ways if export.nulls for key in each.key[:1]]:
                put(data, (*section, *key), None)
            path = (*section, *way.key[0])
            if threshold is not None:
                put(data, path, threshold)
            elif export.off == "nothing":
                data = data or {str(path[0]): {}}
            else:
                put(data, path, self.off)
            if threshold is not None and way.by:
                put(data, (*section, *way.by.key), _name_of(way.by.rules, rule))
            if threshold is not None and way.norm_type_key and settings.norm_type not in (None, 2.0):
                put(data, (*section, *way.norm_type_key), settings.norm_type)
            if raises:
                put(data, (*section, *way.raises), True)
        return data

    def _threshold(self, settings: Settings, ways: Sequence[Clip], way: Clip) -> float | None:
        rules = dict.fromkeys(rule for each in ways for rule in rules_of(each) if rule != "agc")
        return self.export_threshold(
            settings,
            rules=[rule for rule in self.rules if rule in rules],
            zero=way.zero,
            norm_types=bool(way.norm_type_key),
        )

    def _written_sections(self) -> Sequence[Path]:
        if self.row.export.at is not None:
            return [self.row.export.at]
        sections = self.row.layout[-1].at
        return sections if self.row.export.everywhere else sections[:1]


class SourceFormat(RowFormat, OwnFormat):
    """Reads and writes a configuration in Python."""

    def parse(self, text: str, name: str) -> Document:
        return python_text.parse(text, name, [key[0] for key in self.clip_keys])


class ScriptFormat(RowFormat, OwnFormat):
    """Also reads shell scripts. A script can set a nested key by an override.

    Examples are `optimization.clip_norm=1.0` and `--opt-kwargs eps=0.1 max_grad_norm=2`.
    """

    def parse(self, text: str, name: str) -> Document:
        document = script_options.parse(text, name, has_underscores=self.row.has_underscores)
        code, data, places = script_options.without_comments(text), dict(document.data), dict(document.places)
        for table, *keys in (*self.clip_keys, *self.foreign_keys):
            option = rf"--{re.sub('[-_]', '[-_]', table)}[\s\\=\"']+(?:\w+=\S+[\s\\]+)*?"
            for key in keys[:1]:
                found = list(re.finditer(rf"(?<![\w.-])(?:{re.escape(table)}\.|{option}){re.escape(key)}=(\S+)", code))
                values = script_options.parse(" ".join(f"--{key} {each[1]}" for each in found), name).data
                if found:
                    data[table] = values
                    places[table, key] = code.count("\n", 0, found[-1].start()) + 1
        return dataclasses.replace(document, data=data, places=places)


def _sections(layout: Layout, context: Context) -> list[Path]:
    """Return the sections that a file has. If there is none, return the first section of the layout."""
    document = context.document
    finder = dataclasses.replace(context, only_shows=context.only_shows or bool(layout.single))
    found = [path for pattern in layout.at if pattern for path in finder.expand(pattern)]
    found = [path for path in found if not (layout.unless and context.at(path).holds(layout.unless))]
    if not any({ANY, TYPE} & {*pattern} for pattern in layout.at):
        for pattern in layout.at:
            if document.shows(*pattern[:1]):
                document.get(*pattern)  # raises unless it is in a table
    if layout.differ and layout.at[0] not in found and not {ANY, TYPE} & {*layout.at[0]}:
        found.insert(0, layout.at[0])
    if not found and layout.empty:
        outer = list(itertools.takewhile(lambda key: key != ANY, layout.at[0]))
        raise document.wrong(outer, _said(layout.empty, {}))
    if len(found) > 1 and layout.single:
        raise document.wrong(found[1], layout.single.format(other=_dotted(found[0])))
    in_lists: list[Path] = [path for path in layout.at if ANY in path and _is_list(document, path[: path.index(ANY)])]
    return found or in_lists[:1] or [layout.at[0]]


def _is_list(document: Document, path: Path) -> bool:
    return document.shows(*path) and isinstance(document.get(*path), list)


class _Reading:
    """Reads one section of a file."""

    def __init__(self, trainer: RowFormat, layout: Layout, context: Context) -> None:
        self.trainer, self.row, self.document, self.context = trainer, trainer.row, context.document, context
        ways = [way for way in self.row.clip if way.layout in ("", layout.name)]
        self.keys = [key[-1] for way in ways for key in way.key[:1]]
        self.way = next((way for way in ways if context.holds(way.when)), Clip())
        keys = list(map(context.resolve, self.way.key))
        self.place: Path = next(filter(context.has, keys), keys[0] if keys else ())
        self.context = context.at(context.section, self.place)
        self.effect, self.is_set = "", False

    def read(self) -> Imported:
        row, way = self.row, self.way
        if not {ANY, TYPE} & {*self.place}:
            self.document.get(*self.place)  # raises unless it is in a table
        self._refuse("any")
        threshold, notes = self._threshold() if self.place else self._switched_off()
        settings = self._settings(threshold)
        effect: Any = "off" if settings["rule"] == "none" else "clip"
        self._refuse(effect)
        for note in (*way.note, *row.note):
            if note.on in ("any", effect) and self.context.holds(note.when):
                notes.append(self._said(note))
        not_finite = self._not_finite() if effect == "clip" else {}
        return Imported(settings, notes, by_default=not self.is_set, **not_finite)

    def _refuse(self, on: str) -> None:
        for refusal in (*self.row.refuse, *self.way.refuse):
            if refusal.on != on or not self.context.holds(refusal.when):
                continue
            if refusal.needs_version:
                self.trainer.require_version(None, self.document)
            keys: Sequence[Key] = self.context.first(refusal.when) or ()
            if refusal.at is not None:
                keys = self.context.resolve(refusal.at)
            if refusal.elsewhere:
                place = self.document.place(keys, self.document.name)
                raise SetElsewhereError(place, self._said(refusal), refusal.elsewhere)
            raise self.document.wrong(keys, self._said(refusal), refusal.code)

    def _threshold(self) -> tuple[float | None, list[str]]:
        way, document = self.way, self.document
        value = document.get(*self.place)
        is_set = document.has(*self.place) and not is_one_of(value, way.as_unset)
        self.is_set = is_set and not (value is None and way.null == "unset")
        if self.is_set:
            return self._read(), []
        default: Default
        if isinstance(way.default, tuple):
            version = self.trainer.require_version(self.context.version, document, str(self.place[-1]))
            default = next(each.value for each in way.default if is_in_range(version, "", each.before))
        else:
            default = way.default
        if default == "error":
            raise document.wrong(self.place, way.unset or "training fails without this key. Set a number.")
        return (None if default == "off" else float(default)), self._unset(default)

    def _switched_off(self) -> tuple[None, list[str]]:
        self.is_set = any(True for test in tests_of(self.way.when) for _ in self.context.found(test))
        return None, self._unset("off")

    def _read(self) -> float | None:
        way = self.way
        null: Any = "off" if way.null == "off" else "error"
        return self.trainer.read_threshold(
            self.document, self.place, zero=way.zero, negative=way.negative, null=null, infinite=way.infinite
        )

    def _unset(self, default: Any) -> list[str]:
        """Return a note about the default."""
        if not self.place and not self.way.unset:
            return []
        others = [name for name in dict.fromkeys(self.keys) if not self.document.has(*self.context.section, name)]
        names = others if default == "off" and self.place and self.place[-1] in others else self.place[-1:]
        self.effect = "clips nothing" if default in ("off", 0) else f"clips at {default}"
        text = self.way.unset
        if not text and self.place:
            versioned = " {version}" if isinstance(self.way.default, tuple) else ""
            text = f"The file does not set {' or '.join(map(str, names))}. "
            text += f"By default, {{program}}{versioned} {{effect}}."
        return [_said(text, self._words())] if text else []

    def _settings(self, threshold: float | None) -> dict[str, Any]:
        way, trainer = self.way, self.trainer
        rule = self._rule() if way.by else way.rule
        if rule == "agc":
            return agc_settings(threshold, self.row.agc)  # type: ignore[arg-type]
        norm_type = way.norm_type
        raises = bool(way.raises) and self.document.get(*self.context.resolve(way.raises))
        if way.norm_type_key and rule != "value":
            norm_type = read_norm_type(self.document, self.context.resolve(way.norm_type_key))
        settings = trainer.settings(rule, threshold, norm_type)
        return {**settings, "nonfinite": "raise"} if raises and threshold is not None else settings

    def _rule(self) -> Any:
        by, keys = self.way.by, self.context.resolve(self.way.by.key)  # type: ignore[union-attr]
        assert by is not None
        value = self.document.get(*keys)
        is_set = self.document.has(*keys) and not (value is None and by.null_is_default)
        name = value if is_set else by.default
        name = str(name).lower() if by.ignores_case else name
        if not isinstance(name, str) or name not in by.rules:
            raise self.document.wrong(keys, _said(by.wrong, {"value": f"{value!r:.60}", "names": _in_words(by.rules)}))
        return by.rules[name]

    def _not_finite(self) -> dict[str, Any]:
        rules: Sequence[NotFinite] = self.row.not_finite_if
        if not rules:
            return {"not_finite": self.row.not_finite}
        row, context = self.row, dataclasses.replace(self.context, only_shows=True)
        rule = next((each for each in rules if context.holds(each.when)), NotFinite(acts="family"))
        if rule.of:
            row, context = trainers()[rule.of], context.at(context.resolve(rule.at))
            rule = next(each for each in row.not_finite_if if context.holds(each.when))
        text = "" if rule.acts == "family" else row.not_finite
        return {"not_finite": rule.say or text, "acts_as": rule.acts or "family"}

    def _said(self, rule: Note | Refusal) -> str:
        path = self.context.first(rule.when)
        value = self.document.get(*path) if path is not None and self.context.has(path) else None
        value = engines.strategy_name(value) if isinstance(value, dict) else value
        words = {"value": f"{value!r:.60}", "text": f"{value:.60}" if isinstance(value, str) else f"{value!r:.60}"}
        others = [self.context.other(test) for test in rule.when if isinstance(test, Test) and test.differs]
        words |= {"found": str(path[-1]) if path else "", "other": f"{next(iter(others), None)!r:.60}"}
        return _said(rule.say, self._words() | words)

    def _words(self) -> dict[str, str]:
        return {
            "program": self.row.program or self.row.title,
            "effect": self.effect,
            "version": str(self.context.version),
            "key": str(self.place[-1]) if self.place else "",
            "section_path": _dotted(self.context.section),
            "inf": infinity(self.document.kind),
            "stem": self.document.name.rpartition(".")[0].lower(),
        }


def _said(text: str, words: Mapping[str, str]) -> str:
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    return AS.sub(lambda match: name_format(match[1]), text)


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))


def _in_words(names: Any) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _name_of(rules: Mapping[str, str], rule: str) -> str:
    return next(name for name, each in rules.items() if each == rule)


def _put_all(data: dict[str, Any], values: Mapping[str, Any]) -> None:
    for path, value in values.items():
        put(data, tuple(path.split(".")), value)


def put(data: dict[str, Any], path: Sequence[Key], value: Any) -> None:
    *outer, last = path
    for key in outer:
        data = data.setdefault(str(key), {})
    data[str(last)] = value


Convention = Literal["timm", "optax", "composer"]


def agc_settings(clip_factor: float | None, convention: Convention) -> dict[str, Any]:
    """Return the settings for a `clip_factor`. None and inf switch clipping off."""
    if clip_factor is None or clip_factor == math.inf:
        return {"rule": "none"}
    table = {"rule": "agc", "clip_factor": clip_factor, "convention": convention}
    return {"rule": "norm", "eps": 0.0, "adaptive": table}


def exported_agc(
    trainer: Format, settings: Settings, convention: Convention, *, has_eps: bool = False, refused: str = ""
) -> AGC | None:
    """Return the AGC rule to export, or None for settings without AGC. `refused` is why AGC is not exported."""
    table = settings.adaptive
    if table is None or table.rule != "agc":
        return None
    if refused:
        raise trainer.not_exported(refused + trainer.in_python)
    rule: AGC = table.make()
    if problem := trainer.unsupported_keys(settings):
        raise trainer.not_exported(problem)
    if settings.threshold is not None:
        problem = "it does not support `threshold` together with adaptive clipping. Remove `threshold`."
    if problem := problem or _problem(rule, convention, has_eps=has_eps):
        raise trainer.not_exported(problem + trainer.in_python)
    family = FAMILIES[settings.family or DEFAULT_FAMILY, "norm"]
    added = family.eps if settings.eps is None else settings.eps
    if added != 0:
        problem = f"its adaptive clipping adds no eps to the norm, but your configuration adds {added:g}. "
        raise OtherFamilyError(str(trainer.not_exported(f"{problem}Set `eps` (not `adaptive.eps`) to 0.")), "paddle")
    return rule


def _problem(rule: AGC, convention: Convention, *, has_eps: bool) -> str:
    same = f"Set `adaptive.convention` to {convention!r}."
    if (rule.convention == "optax") != (convention == "optax"):
        return f"it does not support `adaptive.convention = {rule.convention!r}`. {same}"
    floors = list(zip(("eps", "smallest_norm"), rule.floors, AGC(convention=convention).floors, strict=True))
    for name, value, own in floors[1 if has_eps else 0 :]:
        if value != own:
            remedy = f"Remove `adaptive.{name}`." if rule.convention == convention else same
            problem = f"it always uses `adaptive.{name} = {own:g}`, but your configuration has {value:g}."
            return f"{problem} {remedy}"
    return ""
