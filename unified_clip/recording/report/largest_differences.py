"""Describe the largest differences between two runs."""

from __future__ import annotations

from ..._kit.display import counted
from ...causes.cause import names_text
from ..causes.order_of_calls import RULES_FOR_GLOBAL
from ..causes.run_causes import SIZES
from ..compare import RecordingComparison
from ..divergence import Agreement
from ..rounding import ROUNDING, Distance

MOST_ULPS = 512
"""Larger differences are not given in ULP."""

STAGE_NAMES = {"weight": "Weights", "gradient": "Gradients' norms", "norm": "Norms", "coefficient": "Coefficients"}


def agreements(comparison: RecordingComparison) -> list[str]:
    """If only some calls or tensors were compared, and no cause explains why, the first sentence describes them."""
    described = [_format_agreement(each, comparison) for each in comparison.agreements]
    limits = [text for text in (_limits(comparison),) if text and described and not comparison.findings]
    stages = {each.stage for each in comparison.agreements}
    if "norm" not in stages and any(each.kind in RULES_FOR_GLOBAL for each in comparison.findings):
        described.append("Norms and coefficients were not compared, because the clips have different norms.")
    return [*limits, *described]


def largest_differences(comparison: RecordingComparison) -> list[str]:
    if comparison.first is not None or not any(each.greatest_ulps for each in comparison.agreements):
        return []
    return agreements(comparison)


def _format_agreement(agreement: Agreement, comparison: RecordingComparison) -> str:
    name = STAGE_NAMES[agreement.stage]
    most = Distance(agreement.greatest_ulps, agreement.greatest_relative)
    if comparison.first is None and comparison.max_ulp is None and most.ulps:
        text = f"{name} differ by rounding, by at most {format_distance(*most)}."
    elif agreement.differs_at_step is None:
        of = f" of {SIZES[agreement.stage]}" if most.ulps > (comparison.max_ulp or 0.0) else ""
        text = f"{name} are equal {_where(comparison)}"
        text += format_greatest(most, agreement.greatest_at_step, comparison, of)
    else:
        is_first = agreement.differs_at_step == comparison.pairs[0].a.step
        since = "the first step" if is_first else f"step {agreement.differs_at_step}"
        text = f"{name} differ from {since} on, by at most {format_distance(*most)}."
        beyond = agreement.beyond_rounding_at_step
        if beyond is not None and beyond > agreement.differs_at_step:
            text += f" From step {beyond} on, they differ by more than {ROUNDING} ULP."
    return f"{text} Rounding noise of {names_text(agreement.noise)} is ignored." if agreement.noise else text


def format_greatest(most: Distance, step: int | None, comparison: RecordingComparison, of: str = "") -> str:
    if not most.ulps:
        return "."
    largest = format_distance(*most)
    return f"{allowed(comparison)}{of}. The largest difference is {largest}, at step {step}."


def format_distance(ulps: float, relative: float | None) -> str:
    texts = [f"{ulps:g} ULP"] if ulps <= MOST_ULPS or relative is None else []
    return " or ".join([*texts, *([] if relative is None else [format_relative(relative)])])


def format_relative(relative: float) -> str:
    if relative < 1e-4:
        return f"{relative:.2g} relatively"
    if relative >= 10:
        return f"{relative:.3g} times"
    return f"{100 * relative:.2g} %" if relative < 0.995 else f"{100 * relative:.0f} %"


def _where(comparison: RecordingComparison) -> str:
    count = len(comparison.pairs)
    return f"in all {counted(count, 'call')} that were compared" if count > 1 else "in the one call that was compared"


def _limits(comparison: RecordingComparison) -> str:
    count, totals = len(comparison.pairs), [len(run.lines) for run in comparison.runs]
    tensors = sum(len(pair.names) for pair in comparison.pairs)
    most = sum(max(len(pair.a.parameters), len(pair.b.parameters)) for pair in comparison.pairs)
    some_tensors = f"{tensors} of {most} tensors" if 0 < tensors < most else ""
    if max(totals) == count:
        return f"Only {some_tensors} were compared." if some_tensors else ""
    of = f"{totals[0]}" if totals[0] == totals[1] else f"{totals[0]} and {totals[1]}"
    were = "was" if count == 1 else "were"
    return f"Only {counted(count, 'call')} (of {of}) {were} compared{some_tensors and f', with {some_tensors}'}."


def allowed(comparison: RecordingComparison) -> str:
    every = (difference for logged in comparison.logged for difference in logged.differences)
    has_differences = any(each.greatest_ulps or each.noise for each in comparison.agreements)
    if comparison.max_ulp is None and (has_differences or any(each.ulps for each in every)):
        return ", up to rounding"
    return f", up to {comparison.max_ulp:g} ULP" if comparison.max_ulp else ""
