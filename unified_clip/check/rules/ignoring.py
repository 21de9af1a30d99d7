"""Apply the entries of `check.ignore` to the findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...config.check_rules import Ignore
from ...config.clip_config import ClipConfig
from ...config.families import family_difference
from ...config.schema import is_off
from ..clip_use import ClipUse, with_threshold
from ..model import Finding
from . import patterns

NOT_APPROVED = (
    "The entry {index} of check.ignore approves only {approved}, and the clip has another or an unknown effect. If you "
    "intend the effect of this clip, change rule and threshold of that entry. To accept every threshold of a rule, "
    "write only the rule. To accept the clip whatever its effect is, write neither."
)


def matching(rules: Sequence[Ignore], use: ClipUse, root: Path) -> list[int]:
    """Return the indices of the entries that match the file and the name of a clip."""
    return [index for index, rule in enumerate(rules) if _applies(rule, use, root)]


def _applies(rule: Ignore, use: ClipUse, root: Path) -> bool:
    is_clip = rule.clip is None or patterns.as_regex(rule.clip, ".*").search(use.clip) is not None
    return is_clip and patterns.matches(rule.path, use.path, root)


def applied(
    rules: Sequence[Ignore], use: ClipUse, finding: Finding, config: ClipConfig, root: Path, used: set[int]
) -> Finding:
    """Add the reason of the first `check.ignore` entry that approves a finding.

    If no entry approves the effect of the clip, add advice about the first one that matches.
    """
    indices = matching(rules, use, root)
    used.update(indices)
    for index in indices:
        if approves(rules[index], use, config):
            return finding.model_copy(update={"ignored": rules[index].reason})
    if not indices:
        return finding
    why = NOT_APPROVED.format(index=indices[0] + 1, approved=approval(rules[indices[0]], config))
    return finding.model_copy(update={"edit": f"{why}\n{finding.edit}"})


def shows_clip(rules: Sequence[Ignore], use: ClipUse, root: Path) -> bool:
    if use.config is not None:
        return not is_off(use.config)
    entries = [rules[index] for index in matching(rules, use, root)]
    return any(each.threshold is not None or each.rule not in (None, "none") for each in entries)


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
