"""The format of recordings: every line, its fields, and whether a comparison judges them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self

from .._kit.report_model import Real
from ..recorder.steps import SETTINGS

Number = TypeVar("Number", float, float | None)


class RecordedTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RecordedLine(RecordedTable):
    step: Annotated[int, Field(ge=1, lt=2**63)]
    process: Annotated[int, Field(ge=0)] = 0  # the index in `processes` of the header


class Parameter(RecordedTable):
    """The norm of a gradient before the clip, its shape, and the norm of its weight."""

    shape: tuple[Annotated[int, Field(ge=0, lt=2**63)] | None, ...]
    norm: Real
    """The norm of the gradient, of the `norm_type` of the call. For a clip by value, the 2-norm."""

    weight: Real | None = None

    sample: tuple[Real, ...] | None = None
    weight_sample: tuple[Real, ...] | None = None
    update_sample: tuple[Real, ...] | None = None
    raw_sample: tuple[Real, ...] | None = None
    raw_norm: Real | None = None
    """Some elements of the gradient before the clip, of the weight, and of its change by the step.
    `recipes/samples.py` chooses them. Only `verify` has the change. `raw_sample` and `raw_norm` describe the gradient
    after the backward pass, if the script's own code changed it before the step."""

    sums: tuple[Real, Real] | None = None
    """The sum of the weight's elements and the sum of their cubes. Only the first clip of a gradient records `sums`."""

    fingerprints: tuple[Real, ...] | None = None  # only in recordings of schema 2

    @property
    def elements(self) -> int | None:
        lengths = [length for length in self.shape if length is not None]
        return math.prod(lengths) if len(lengths) == len(self.shape) else None


NORMS_OF: dict[str | None, type] = {"global": float, "each": list, "slices": list}

OF_A_CLIP = (
    "framework", "rule", "threshold", "norm_type", "eps", "dtype", "count", "norm", "coef", "clipped", "nan", "inf",
)  # fmt: skip
"""The fields of every call that clipped a gradient. A call without a gradient, or that raised, has none of them."""


class RecordedCall(RecordedLine):
    """A line of a recording: a clip call. A call with several parameter groups can have several lines."""

    call: str
    framework: str | None = None
    rule: str | None = None
    """The clip rule. "global": one norm of all gradients, "each": a norm for each gradient, "slices": a norm for each
    slice, "value": no norm."""

    threshold: Real | tuple[Real, Real] | None = None
    """The threshold of the norm, or the bounds of a clip by value. None if the threshold is an array."""

    norm_type: Real | None = None
    eps: Real | None = None
    dtype: str = "float32"
    """The dtype of the norm."""

    place: str | None = None
    """The line of the user's code that made the call, such as "train.py:12", or None if it is unknown."""

    count: Annotated[int, Field(ge=0)] | None = None

    norm: Real | list[Real] | None = None
    """The norm before the clip: a number for the rule "global", and otherwise a list in the order of the gradients."""

    coef: Real | list[Real | None] | None = None
    """The coefficient in float64: a number for the rule "global", a list for "each" and "slices", and None for "value".
    A coefficient is also None if it is unknown, for example because the clipped gradient is not a
    multiple of the gradient."""

    clipped: bool | None = None
    nan: int | None = None
    inf: int | None = None
    """The numbers of NaN and infinite elements (`nan` and `inf`), or None if they are unknown."""

    seconds: Real | None = None
    """The duration of the call on the host, in seconds. None in a graph, and for a framework's own function."""

    parameters: dict[str, Parameter] = {}
    """Maps names to gradients. Empty if no norms were recorded."""

    gradients: str | None = None
    """The name of the file with the gradients before clipping, in the directory of the recording."""

    ranks: int | None = None
    rank: int | None = None
    """`ranks` is the world size. None unless several ranks own the gradients."""

    layout: dict[str, int] = {}
    """{placements, such as "Shard(dim=0) over dp=4": number of gradients with these placements}."""

    loss_scale: Real | None = None
    late: bool = False  # whether the optimizer had already got these gradients

    repeated: int = 0

    sparse: int = 0
    """The number of sparse gradients that a framework's function clips."""

    watched: bool = False
    """True for a framework's function, and False for a function of unified_clip. `verify` computes the coefficient of a
    framework's function from clipped gradients, so the coefficient has rounding errors."""

    returned_norm: Real | None = None
    """The norm that a framework's function returned. This norm can differ from `norm`, which is exact if the gradients'
    norms are recorded."""

    passed_norm: Real | None = None
    """The norm that the caller passed to the clip function. This norm can differ from `norm`, which is exact if the
    gradients' norms are recorded."""

    stored_norm: Real | list[Real] | None = None
    """For sparse gradients with repeated rows, the norm over the stored rows. If a framework's function returns no
    norm, `coef` is computed from `stored_norm`."""

    after: str | None = None
    """The file with the gradients after the clip. Recorded only for frameworks' functions."""

    is_gradient: bool | None = None
    """Whether the tensors of the call are gradients, or None if that is unknown."""

    error: str | None = None
    """The exception that the call raised. After an exception, the fields about the clip are missing."""

    @model_validator(mode="after")
    def _has_its_norms(self) -> Self:
        for what, value in (("norm", self.norm), ("coef", self.coef)):
            is_unknown = what == "coef" and value is None and self.rule == "global" and self.watched
            if self.rule in NORMS_OF and not is_unknown and not isinstance(value, NORMS_OF[self.rule]):
                raise ValueError(f"{what} is {value!r}, which does not fit the rule {self.rule!r}")
        if self.rule in NORMS_OF and self.norm_type is None:
            raise ValueError(f"norm_type is missing, but the rule {self.rule!r} needs it")
        if self.norm_type is not None and not self.norm_type > 0 and not self.watched:
            raise ValueError(f"norm_type is {self.norm_type}, but must be above 0")
        return self

    def missing_field(self) -> str | None:
        missing = [name for name in OF_A_CLIP if name not in self.model_fields_set]
        return missing[0] if 0 < len(missing) < len(OF_A_CLIP) else None

    @property
    def order(self) -> float:
        """The `norm_type` of the norms, or 2 if none was recorded."""
        return 2.0 if self.norm_type is None else self.norm_type

    def norms(self) -> list[float]:
        return _listed(self.norm)

    def known_norms(self) -> list[float]:
        return self.norms() or [parameter.norm for parameter in self.parameters.values()]

    def used_norms(self) -> list[float]:
        others = (self.passed_norm, self.returned_norm, self.stored_norm)
        return _listed(next((norm for norm in others if norm is not None), self.norm))

    def coefs(self) -> list[float | None]:
        return [None] if self.rule == "global" and self.coef is None else _listed(self.coef)

    def known_coefs(self) -> list[float]:
        """Return the coefficients, or [] if a coefficient is unknown."""
        coefs = [coef for coef in self.coefs() if coef is not None]
        return coefs if len(coefs) == len(self.coefs()) else []


Setting = bool | Real | tuple[Real, ...]


def _known_setting(name: str) -> str:
    if name not in SETTINGS:
        raise ValueError(f"unknown setting. The settings are {', '.join(SETTINGS)}")
    return name


class OptimizerStep(RecordedLine):
    """A line of a recording: a step of an optimizer. None means an unknown value."""

    optimizer: str  # the class, such as `torch.optim.SGD`
    instance: int | None = None  # the number of the optimizer, in the order of the first steps

    settings: dict[Annotated[str, AfterValidator(_known_setting)], Setting]
    """The learning rate (`lr`) and other settings. A setting that differs between parameter groups has a tuple of
    values."""

    backward_calls: int | None = None  # the number of backward passes since the previous step
    cleared: bool | None = None  # whether all gradients were None or zero at the first of these backward passes

    changed: Annotated[int, Field(ge=0)] | None = None
    """The number of gradients that unrecorded code changed after the last backward pass."""

    changed_after_clip: Annotated[int, Field(ge=0)] | None = None
    """The number of gradients that unrecorded code changed after the last clip."""

    empty_clips: Annotated[int, Field(ge=0)] = 0  # how many clips got no gradient, as before the backward pass
    lost_clips: Annotated[int, Field(ge=0)] = 0  # how many gradients a clip took, whose results the step did not get
    empty_because: str | None = None
    """Why a clip got no gradient: "no parameters" or "other parameters"."""

    hooks: Annotated[int, Field(ge=0)] = 0
    """The number of parameters with hooks of `Tensor.register_hook`, which can clip gradients in the backward pass."""

    norm_at_step: Real | None = None  # this and the next two only in recordings of schema 2
    decayed: tuple[int, int] | None = None
    undecayed: tuple[str, ...] = ()

    place: str | None = None  # the line of the user's code, such as "train.py:13"

    gradients: Annotated[int, Field(ge=0)] | None = None  # the number of parameters with a gradient
    parameters: tuple[str, ...] = ()  # their names, if all are known
    tensors: dict[str, Parameter] = {}  # the gradients and weights that the step gets, as far as they are known
    clip_counts: dict[int, int] | None = None
    """Maps a number of clips to the number of gradients with so many clips since their last backward pass."""

    clipped_early: Annotated[int, Field(ge=0)] = 0
    """The number of gradients that were clipped after the previous step, but before their last backward pass."""

    clip_calls: Annotated[int, Field(ge=0)] | None = None
    """The number of calls that made the last clips of the gradients, if it is above 1."""

    unclipped: tuple[str, ...] = ()  # the names of the parameters with 0 clips, if all are known
    clips: Annotated[int, Field(ge=0)] | None = None
    """The number of clip calls since the previous step. If None, `runs.read` counts their lines."""

    rates: dict[str, float] = {}
    """Maps each parameter to its learning rate. Empty if all parameters have the same learning rate."""

    repeated_rows: Annotated[int, Field(ge=0)] | None = None
    """The number of IndexedSlices that contain a row more than once, or None if it is unknown."""

    losses: tuple[Real, ...] = ()
    """The losses of the backward passes since the previous step, without a loss scale."""

    calls: int = Field(default=0, exclude=True)  # from the start of the run to the step, which `runs.read` counts


class LoggedNumbers(RecordedLine):
    """A line of a recording: the numbers that `Recording.log` got in one call."""

    logged: dict[str, Real]


class RecordedWarning(RecordedLine):
    """A line of a recording: a ClipWarning."""

    warning: str


class RecordedProcess(RecordedTable):
    """A Python process that `unified-clip record` recorded."""

    rank: int | None = None
    ranks: int | None = None
    """`ranks` is the world size. Both numbers are None if they are unknown."""

    pid: int | None = None
    arguments: tuple[str, ...] = ()
    incomplete_line: bool = False
    """Whether the process ended while it wrote its last line. The recording does not contain this line."""


class Header(RecordedTable):
    unified_clip: str
    schema_: Annotated[int, Field(alias="schema")]
    started: str
    norms: bool
    gradients_every: int | None = None
    exit_status: int | None = None
    """The exit status of the command that `unified-clip record` ran, or -N if signal N ended the command."""

    processes: tuple[RecordedProcess, ...] = ()
    """The processes in the order of their ranks. Empty unless `unified-clip record` wrote the file."""

    process: RecordedProcess | None = None
    """The process that wrote a part of a recording, while the command runs."""


class RecordedRun(RecordedTable):
    """A recording: its header with time and version, its clip calls, optimizer steps and logged numbers."""

    path: Path
    header: Header
    lines: list[RecordedCall]

    incomplete_line: bool
    """Whether the run ended while it wrote its last line. `runs.read` ignores this line."""

    name: str
    """The name of the run in printed sentences."""

    recorded: int
    """The number of recorded clip calls of the first process. In a comparison, `lines` can have fewer calls."""

    others: tuple[tuple[RecordedCall, ...], ...] = ()
    """The clip calls of all processes except the first one."""

    optimizer_steps: tuple[OptimizerStep, ...] = ()

    logged: tuple[LoggedNumbers, ...] = ()

    warnings: tuple[str, ...] = ()


def _listed(value: Number | list[Number] | None) -> list[Number]:
    return value if isinstance(value, list) else [] if value is None else [value]
