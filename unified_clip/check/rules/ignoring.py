"""Apply the entries of `check.ignore` to the findings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...config.check_rules import Ignore
from ...config.clip_config import ClipConfig
from ...config.families import family_difference
from ...config.schema import is_off
from ..clip_use import ClipUse, with_threshold
from ..model import Finding
from . import patterns
from .entries import Entries

NOT_APPROVED = (
    "The entry {index} of check.ignore approves only {approved}, and the clip has another or an unknown effect. If you "
    "intend the effect of this clip, change rule and threshold of that entry. To accept every threshold of a rule, "
    "write only the rule. To accept the clip whatever its effect is, write neither."
)


def _matching(entries: Entries, use: ClipUse) -> list[tuple[int, Ignore]]:
    """Return (index, entry) for each entry that matches the file and the name of a clip."""
    found = entries.of_file("ignore", use.path)
    return [
        (index, each) for index, each in found if not each.clip or patterns.as_regex(each.clip, ".*").search(use.clip)
    ]


def applied(entries: Entries, use: ClipUse, finding: Finding, config: ClipConfig) -> Finding:
    """Add the reason of the first `check.ignore` entry that approves a finding.

    If no entry approves the effect of the clip, add advice about the first one that matches.
    """
    found = _matching(entries, use)
    entries.use("ignore", *(index for index, _ in found))
    for _, entry in found:
        if approves(entry, use, config):
            return finding.model_copy(update={"ignored": entry.reason})
    for index, entry in found[:1]:
        why = NOT_APPROVED.format(index=index + 1, approved=approval(entry, config))
        return finding.model_copy(update={"edit": f"{why}\n{finding.edit}"})
    return finding


def shows_clip(entries: Entries, use: ClipUse) -> bool:
    if use.config is not None:
        return not is_off(use.config)
    return any(each.threshold is not None or each.rule not in (None, "none") for _, each in _matching(entries, use))


def approval(rule: Ignore, config: ClipConfig) -> str:
    """Return the effect that an entry approves, as text. Return '' if the entry has neither `rule` nor `threshold`."""
    parts = {"rule": rule.rule, "threshold": rule.threshold}
    text = ", ".join(f"{name} = {value!r}" for name, value in parts.items() if value is not None)
    return text if rule.rule or rule.threshold is None else f"{text} with the rule {config.rule}"


def approves(rule: Ignore, use: ClipUse, config: ClipConfig) -> bool:
    """Return whether an entry approves the effect of a clip.

    Settings that are not in the entry must agree with `config`. The family, the eps and the action for norms that are
    not finite can differ.
    """
    if rule.threshold is None and rule.rule is None:
        return True
    if use.rule_of_any_threshold and rule.threshold is None:
        use = replace(use, config=with_threshold(use.rule_of_any_threshold, config.threshold))
    if use.config is None:
        return False
    if rule.rule == "none":
        return is_off(use.config)
    of_norm = ("family", "norm_type") if (rule.rule or config.rule) in ("norm", "global_norm") else ()
    kept = ("include", "exclude", *of_norm)
    settings: dict[str, Any] = {key: value for key, value in config.data().items() if key in kept}
    threshold = config.threshold if rule.threshold is None else rule.threshold
    settings |= {"rule": rule.rule or config.rule, "threshold": threshold, "nonfinite": use.config.nonfinite}
    approved = ClipConfig(**settings)
    return family_difference(use.config, approved) is not None
