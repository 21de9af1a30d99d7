"""Read the recordings that `unified-clip record` and `unified_clip.record` write."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from .._coded_error import CodedError
from .._report_model import Real
from .lines import READABLE

__all__ = [
    "Header", "LoggedNumbers", "OptimizerStep", "Parameter", "RecordedCall", "RecordedProcess", "RecordedRun",
    "RunError", "read",
]  # fmt: skip


class RunError(CodedError, code="UC501"):
    """A recording is invalid, or two recordings cannot be compared. The message contains the reason and the remedy."""


Number = TypeVar("Number", float, float | None)
PASS = "Pass a file that unified-clip record or unified_clip.record wrote."
AGAIN = "Record the run again."


class RecordedTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Parameter(RecordedTable):
    """The recorded norm and shape of a gradient before clipping, and the norm of its weight."""

    shape: tuple[Annotated[int, Field(ge=0, lt=2**63)] | None, ...] = ()
    norm: Real
    """The norm of the gradient, with the `norm_type` of the call. For a clip by value, this is the 2-norm."""

    weight: Real | None = None
    """The norm of the weight, or None if the norm is unknown."""

    fingerprints: Annotated[tuple[Real, ...], Field(min_length=2)] | None = None
    sums: tuple[Real, Real] | None = None
    """Fingerprints of the weight's elements, as in `tensors/arrangement.py`. `sums` contains the sum of the elements
    and the sum of their cubes. Only the first call that clips the weight's gradient has these fields."""

    @property
    def elements(self) -> int | None:
        """The number of elements, or None if the number is unknown."""
        lengths = [length for length in self.shape if length is not None]
        return math.prod(lengths) if len(lengths) == len(self.shape) else None


NORMS_OF: dict[str | None, type] = {"global": float, "each": list, "slices": list}


class RecordedCall(RecordedTable):
    """A line of a recording about a clip call. A call with several parameter groups can have several lines."""

    step: Annotated[int, Field(ge=1, lt=2**63)]
    call: str
    framework: str | None = None
    rule: str | None = None
    """The clip rule. "global" uses one norm of all gradients. "each" uses one norm for each gradient. "slices" uses one
    norm for each slice. "value" uses no norm."""

    threshold: Real | tuple[Real, Real] | None = None
    """The threshold of the norm, or the bounds of a clip by value. None: the threshold is not a single number."""

    norm_type: Real | None = None
    eps: Real | None = None
    dtype: str = "float32"
    """The dtype of the norm."""

    count: Annotated[int, Field(ge=0)] | None = None
    """The number of gradients that the call clips."""

    norm: Real | list[Real] | None = None
    """The norm before the clip: a number for the rule "global", else a list in the order of the gradients."""

    coef: Real | list[Real | None] | None = None
    """The coefficient in float64: a number for the rule "global", a list for "each" and "slices", None for "value". An
    unknown coefficient is None, for example if no factor explains the results."""

    clipped: bool | None = None
    nan: int | None = None
    inf: int | None = None
    """`nan` is the number of NaN elements, and `inf` is the number of infinite elements. Unknown numbers are None."""

    seconds: Real | None = None
    """The duration of the call on the host, in seconds. The field is None in a graph, and for a framework's own
    function."""

    parameters: dict[str, Parameter] = {}
    """The norms and shapes of the gradients, by name. The dict is empty if no norms were recorded."""

    gradients: str | None = None
    """The name of a file beside the recording. The file contains the gradients before clipping."""

    ranks: int | None = None
    rank: int | None = None
    """The world size and the rank if several ranks own the gradients, else None."""

    layout: dict[str, int] = {}
    """Maps each layout of shards over ranks to the number of gradients with this layout."""

    loss_scale: Real | None = None
    """The loss scale of the gradients, or None if no loss scale is known."""

    repeated: int = 0
    """The number of repeated parameters in the call."""

    sparse: int = 0
    """The number of sparse gradients that a framework's function clips."""

    watched: bool = False
    """Whether the recorded function belongs to a framework, not to unified_clip. In recordings of `verify`, the
    coefficient of such a call has rounding errors, because it is computed from clipped gradients."""

    returned_norm: Real | None = None
    """The norm that a framework's function returned. If the gradients' norms are recorded, `norm` is the exact norm."""

    passed_norm: Real | None = None
    """The norm that the caller passed. If the gradients' norms are recorded, `norm` is the exact norm."""

    stored_norm: Real | list[Real] | None = None
    """The norm over the stored rows of sparse gradients, or None if each row is stored once. If a framework's function
    returns no norm, `coef` follows from this norm."""

    after: str | None = None
    """The file with the gradients after the clip, for a watched call."""

    is_gradient: bool | None = None
    """Whether a watched call clipped gradients, or None if the answer is unknown."""

    error: str | None = None
    """The exception that the call raised. After an exception, all fields about the clip are missing."""

    process: Annotated[int, Field(ge=0)] = 0  # the index in `processes` of the header

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

    @property
    def order(self) -> float:
        """The `norm_type` of the norms, or 2 if none was recorded."""
        return 2.0 if self.norm_type is None else self.norm_type

    def norms(self) -> list[float]:
        return _listed(self.norm)

    def known_norms(self) -> list[float]:
        """Return the norms of the clip. If the clip has no norm, return the norms of its gradients."""
        return self.norms() or [parameter.norm for parameter in self.parameters.values()]

    def used_norms(self) -> list[float]:
        """Return the norms from which the coefficients were computed."""
        others = (self.passed_norm, self.returned_norm, self.stored_norm)
        return _listed(next((norm for norm in others if norm is not None), self.norm))

    def coefs(self) -> list[float | None]:
        """Return the coefficients, with None for each unknown coefficient."""
        return [None] if self.rule == "global" and self.coef is None else _listed(self.coef)

    def known_coefs(self) -> list[float]:
        """Return the coefficients, or [] if a coefficient is unknown."""
        coefs = [coef for coef in self.coefs() if coef is not None]
        return coefs if len(coefs) == len(self.coefs()) else []


Setting = bool | Real | tuple[Real, ...]


class OptimizerStep(RecordedTable):
    """A line of a recording: a step of an optimizer. A field is None if its value is unknown."""

    step: Annotated[int, Field(ge=1, lt=2**63)]
    optimizer: str  # the class, such as `torch.optim.SGD`

    settings: dict[str, Setting] = {}
    """The learning rate (`lr`) and other settings. If parameter groups have different values, the value is a tuple."""

    backward_calls: int | None = None  # the number of backward passes since the previous step
    cleared: bool | None = None  # whether all gradients were None or zero at the first of these backward passes

    changed: Annotated[int, Field(ge=0)] | None = None
    """The number of gradients that code other than recorded clips changed after the last backward pass."""

    empty_clips: Annotated[int, Field(ge=0)] = 0  # how many clips got no gradient, as before the backward pass

    decayed: tuple[int, int] | None = None
    """(number of elements with weight decay, number of elements of all changed parameters). The field is set only if
    some parameters have no weight decay."""

    undecayed: tuple[str, ...] = ()  # the names of the parameters without weight decay, if `decayed` is set

    clips: Annotated[int, Field(ge=0)] | None = None
    """The number of clip calls since the previous step. If calls are reported in order, the field is None."""

    repeated_rows: Annotated[int, Field(ge=0)] | None = None
    """The number of IndexedSlices that contain a row more than once, or None if the number is unknown."""

    losses: tuple[Real, ...] = ()
    """The losses of the backward passes since the previous step. The losses do not contain the loss scale."""

    process: Annotated[int, Field(ge=0)] = 0
    calls: int = 0
    run: str = ""
    """`calls` is the number of clip calls before the step. `run` is the name of the run. `read` sets both fields."""


class LoggedNumbers(RecordedTable):
    """A line of a recording: the numbers of a call of `Recording.log`."""

    step: Annotated[int, Field(ge=1, lt=2**63)]
    logged: dict[str, Real]
    process: Annotated[int, Field(ge=0)] = 0


class RecordedProcess(RecordedTable):
    """A recorded Python process of `unified-clip record`."""

    rank: int | None = None
    ranks: int | None = None
    """The rank and the world size of the process. Both are None if the values are unknown."""

    pid: int | None = None
    arguments: tuple[str, ...] = ()
    incomplete_line: bool = Field(default=False, validation_alias=AliasChoices("incomplete_line", "torn"))
    """Whether the process ended while it wrote a line. The incomplete line is left out."""


class Header(RecordedTable):
    unified_clip: str
    schema_: Annotated[int, Field(alias="schema")]
    started: str
    norms: bool = False
    processes: tuple[RecordedProcess, ...] = ()
    """The processes in the order of their ranks. Only files from `unified-clip record` have processes."""


class RecordedRun(RecordedTable):
    """A recording: its header with time and version, its clip calls, optimizer steps and logged numbers."""

    path: Path
    header: Header
    lines: list[RecordedCall]
    """The clip calls. If several processes were recorded, the list contains the calls of the first process."""

    incomplete_line: bool
    """Whether the run ended while it wrote a line. The incomplete line is left out."""

    name: str
    """The name of the run in printed sentences."""

    recorded: int
    """The number of clip calls in the file. Merged calls of a loop are one call in `lines`."""

    others: tuple[tuple[RecordedCall, ...], ...] = ()
    """The clip calls of each process except the first process."""

    optimizer_steps: tuple[OptimizerStep, ...] = ()
    """The steps of optimizers in the first process, in order."""

    logged: tuple[LoggedNumbers, ...] = ()

    warnings: tuple[str, ...] = ()
    """The messages of all ClipWarnings, without duplicates."""


CHUNK = 1 << 20
"""The number of characters after which `read` reports its progress."""


def read(
    path: str | Path, name: str | None = None, advance: Callable[[int], None] = lambda chunks: None
) -> RecordedRun:
    """Read a recording. If the last line is incomplete, ignore the line.

    Args:
        path: The file from `unified_clip.record` or `unified-clip record`.
        name: The name of the run, as printed in sentences. If `name` is None, the name of the file is used.
        advance: A function for a progress bar. `read` calls `advance(1)` after each part of the file.

    Returns:
        The recording, with the clip calls, optimizer steps and logged numbers of the first process. The field `others`
        contains the clip calls of each process except the first process.

    Raises:
        RunError: The file cannot be read, or is not a valid recording.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import unified_clip
        >>> from unified_clip.recording import runs
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = Path(directory, "run.jsonl")
        ...     with unified_clip.record(path):
        ...         _ = unified_clip.clip_by_norm(np.array([3.0, 4.0], np.float32), 1.0)
        ...     recorded = runs.read(path)
        >>> [(line.call, line.threshold) for line in recorded.lines]
        [('clip_by_norm', 1.0)]
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}. {PASS}") from None
    except UnicodeDecodeError:
        raise RunError(f"{path} is not a recording: it is not text. {PASS}") from None
    whole, end, rest = text.rpartition("\n")
    if not end:
        raise RunError(
            f"{path} has no complete line. If a run still writes it, wait until the run has ended. Otherwise, record "
            "again, or pass another file."
        )
    top, *lines = whole.split("\n")
    header = _validated(path, 1, _json(path, 1, top), Header)
    if header.schema_ not in READABLE:
        readable = " and ".join(map(str, READABLE))
        raise RunError(
            f"{path} has the format version (schema) {header.schema_}, and this release reads {readable}. unified_clip "
            f"{header.unified_clip} wrote it: install that release or a later one to read it."
        )
    by_process: dict[int, list[RecordedCall]] = {number: [] for number in range(max(1, len(header.processes)))}
    steps: list[OptimizerStep] = []
    logged: list[LoggedNumbers] = []
    warnings: dict[str, None] = {}
    done = 0
    for number, line in enumerate(lines, start=2):
        done += len(line)
        if done >= CHUNK:
            done -= CHUNK
            advance(1)
        data = _json(path, number, line)
        fields = {*data} if isinstance(data, dict) else set()
        if "warning" in fields:
            warnings[str(data["warning"])] = None
        elif "logged" in fields:
            logged.append(_validated(path, number, data, LoggedNumbers))
        elif "optimizer" in fields:
            step = _validated(path, number, data, OptimizerStep)
            calls = len(by_process.setdefault(step.process, []))
            if step.clips is not None:
                calls = (steps[-1].calls if steps else 0) + step.clips
            steps += [step.model_copy(update={"calls": calls, "run": name or path.name})] * (step.process == 0)
        else:
            call = _validated(path, number, data, RecordedCall)
            by_process.setdefault(call.process, []).append(call)
    first, *others = by_process.values()
    return RecordedRun(
        path=path,
        header=header,
        lines=first,
        incomplete_line=bool(rest) or any(process.incomplete_line for process in header.processes[:1]),
        name=name or path.name,
        recorded=len(first),
        others=tuple(map(tuple, others)),
        optimizer_steps=tuple(steps),
        logged=tuple(each for each in logged if each.process == 0),
        warnings=tuple(warnings),
    )


def _json(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise RunError(f"{path}, line {number} is not JSON: {problem}. {PASS if number == 1 else AGAIN}") from None


def _validated(path: Path, number: int, data: Any, model: Any) -> Any:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        (first, *_) = error.errors()
        place = "".join(f", {key}" for key in first["loc"])
        problem = first["msg"].removeprefix("Value error, ")
        raise RunError(f"{path}, line {number}{place}: {problem}. {PASS if number == 1 else AGAIN}") from None


def _listed(value: Number | list[Number] | None) -> list[Number]:
    return value if isinstance(value, list) else [] if value is None else [value]
