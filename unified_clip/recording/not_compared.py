"""List the recorded fields that differ between two runs, and that the comparison does not judge."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from .losses import is_loss, logged_numbers
from .optimizers.settings import same_setting
from .pairs.calls import CallPair
from .recorded_run import Header, OptimizerStep, Parameter, RecordedCall, RecordedRun, RecordedTable
from .rounding import same

STAGES = {
    "step.backward_calls": "backward passes", "step.cleared": "gradients cleared", "step.clips": "clips",
    "step.rates": "lr", "call.eps": "another eps of the clip", "step.decayed": "number of elements with weight decay",
}  # fmt: skip


def not_compared(a: RecordedRun, b: RecordedRun, pairs: Sequence[CallPair], reported: Collection[object]) -> list[str]:
    """Return names such as "call.seconds" and "step.settings.eps". The divergences have the names in `reported`."""
    steps = list(zip(a.optimizer_steps, b.optimizer_steps, strict=False))
    calls = [(pair.a, pair.b) for pair in pairs]
    parameters = [
        (pair.a.parameters[name], pair.b.parameters[other]) for pair in pairs for name, other in pair.names.items()
    ]
    numbers = logged_numbers(a), logged_numbers(b)
    logged = sorted({*numbers[0], *numbers[1]})
    return [
        *_differing("header", Header, [(a.header, b.header)]),
        *(name for name in _differing("call", RecordedCall, calls) if STAGES.get(name) not in reported),
        *_differing("parameter", Parameter, parameters),
        *(name for name in _differing("step", OptimizerStep, steps) if STAGES.get(name) not in reported),
        *(f"step.settings.{name}" for name in _differing_settings(steps) if name not in reported),
        *(f"logged.{name}" for name in logged if not _is_judged(name, *(side.get(name) for side in numbers))),
    ]


def _differing(kind: str, table: type[RecordedTable], both: Sequence[tuple[RecordedTable, RecordedTable]]) -> list[str]:
    names = table.fields_not_judged()
    return [f"{kind}.{name}" for name in names if not all(same(getattr(a, name), getattr(b, name)) for a, b in both)]


def _differing_settings(steps: Iterable[tuple[OptimizerStep, OptimizerStep]]) -> list[str]:
    names = {
        name: None
        for a, b in steps
        for name in {**a.settings, **b.settings}
        if not same_setting(a.settings.get(name, False), b.settings.get(name, False))
    }
    return list(names)


def _is_judged(name: str, a: object, b: object) -> bool:
    return a == b or (is_loss(name) and None not in (a, b))
