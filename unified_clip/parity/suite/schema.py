"""Pydantic models of the TOML files of a suite. An unknown key raises an error."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import Self

from ..._kit.coded_error import CodedError
from ...config import documents
from ...config.documents.model_errors import first_error
from ...config.documents.model_errors import no_such as no_such
from ...errors import ConfigError
from ...tensors.types import PARTS, STORAGE
from ..modes import Mode, OnRequest
from .call_form import CONTAINERS, CallForm

DEFAULT_FILE = Path("parity", "suite.toml")

TOLERANCE = 1e-5
"""Relative differences up to this size are treated as rounding. A suite can override this number with the key
`tolerance`."""

TIMEOUT = 120.0


class SuiteError(CodedError, code="UC301"):
    """The suite is invalid. The message names the file, the key and the remedy."""


class SuiteTable(BaseModel):
    """Base class for the tables of a suite's TOML files."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _accepted_by(test: Callable[[str], object], remedy: str) -> AfterValidator:
    def check(text: str) -> str:
        if not test(text):
            raise ValueError(remedy)
        return text

    return AfterValidator(check)


def _one_of(*names: str) -> AfterValidator:
    return _accepted_by(names.__contains__, f"give one of {', '.join(names)}")


PYTHON_FUNCTION = _accepted_by(
    re.compile(r".+\.py:[^:]+").fullmatch, "give a file and a function name, as in grads.py:gradients"
)
RELATIVE = _accepted_by(
    re.compile("[^/]").match, "give a pattern such as cases/*.toml, relative to the suite's directory"
)
Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Length = Annotated[int, Field(ge=0)]
Tolerance = Annotated[float, Field(ge=0, lt=1)]
Dtype = Annotated[str, _one_of(*STORAGE)]
REAL = STORAGE.keys() - PARTS.keys() - {"int64"}
RealDtype = Annotated[str, _one_of(*(name for name in STORAGE if name in REAL))]
Exponent = Annotated[int, Field(ge=-2000, le=2000)]
Number = float | int | Name | list[float | int | Name]
"""A number, a hexadecimal float such as "0x1p-149", or [n, x] for n copies of the number x."""


class TensorTable(SuiteTable):
    values: list[Number] | None = None
    random: int | None = None
    exponents: Annotated[list[Exponent], Field(min_length=2, max_length=2)] | None = None
    none: Literal[True] | None = None
    copies: Count = 1
    shape: list[Length] | None = None
    dtype: Dtype = "float32"
    rows: list[Length] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        keys = [name for name in ("values", "random", "none") if getattr(self, name) is not None]
        if len(keys) != 1:
            sources = " and ".join(keys) or "no numbers"
            raise ValueError(f"the tensor has {sources}. Give exactly one of `values`, `random` and `none = true`")
        if self.none and (unused := sorted(self.model_fields_set & {"shape", "dtype", "rows", "exponents"})):
            raise ValueError(f"a tensor with none = true has no {' or '.join(unused)}. Remove {' and '.join(unused)}")
        is_random, shape, rows = self.random is not None, self.shape, self.rows
        low, high = self.exponents or (0, 0)
        problems = {
            "`exponents` needs `random`. Remove `exponents`": bool(self.exponents) and not is_random,
            "`random` needs `exponents`. Add for example exponents = [-3, 3]": is_random and self.exponents is None,
            "`random` needs `shape`. Add for example shape = [2, 3]": is_random and shape is None,
            f"exponents = {self.exponents} has the larger exponent first. Swap the exponents": low > high,
            "`random` does not support int64. Choose another dtype": is_random and self.dtype == "int64",
            "`rows` needs `shape`, which begins with the number of rows. Add for example shape = [17, 32]": (
                rows is not None and not shape
            ),
            f"`rows` does not support {self.dtype}. Choose a real dtype": rows is not None and self.dtype in PARTS,
            f"`rows` has an index that is too large for shape = {shape}. Correct the index": (
                max(rows or [-1]) >= (shape or [0])[0]
            ),
        }
        for problem, is_wrong in problems.items():
            if is_wrong:
                raise ValueError(problem)
        return self


class GradientsTable(SuiteTable):
    name: Annotated[Name, Field(examples=['name = "NAME"'])]
    tensors: list[TensorTable] | None = None
    file: Name | None = None
    function: Annotated[str, PYTHON_FUNCTION] | None = None
    framework: Name | None = None
    only: Annotated[list[Name], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        keys = [name for name in ("tensors", "file", "function") if getattr(self, name) is not None]
        if len(keys) != 1:
            sources = " and ".join(keys) or "no gradients"
            raise ValueError(
                f"the list of gradients has {sources}. Give exactly one of `tensors`, `file` and `function`"
            )
        for key, source in (("only", "file"), ("framework", "function")):
            if getattr(self, key) and getattr(self, source) is None:
                raise ValueError(f"`{key}` needs `{source}`. Remove `{key}`, or set `{source}` instead of `{keys[0]}`")
        return self


class CaseOptions(SuiteTable):
    frameworks: list[Name] = []
    modes: list[Mode] = []
    """An empty list means all modes of the suite."""

    raises: str = ""
    """The class of the exception that the call must raise, or a base class. An empty text means that the call must
    not raise an exception."""

    warns: bool = False
    update: bool = False
    """Whether to also apply an SGD step with the clipped gradients, and compare the new parameters. If True, the
    gradients must be float32 or float64."""

    subnormal: bool = False
    """Whether the result depends on subnormal numbers. Operations of TensorFlow and XLA replace these numbers by 0."""


class CallsTable(SuiteTable):
    gradients: Annotated[
        list[Name], Field(min_length=1, examples=['gradients = ["NAME"] with the name of a [[gradients]] table'])
    ]
    calls: list[dict[str, Any]] = []
    rules: list[Name] = []
    thresholds: list[Annotated[float, Field(ge=0)] | Length] = []
    dtypes: list[RealDtype] | None = None

    @model_validator(mode="after")
    def _some_calls(self) -> Self:
        if not self.calls and not self.rules:
            raise ValueError("the table has no call. Give `calls`, or `rules` with `thresholds`")
        if self.rules and not self.thresholds:
            raise ValueError("`rules` needs `thresholds`. Add `thresholds`, or replace `rules` by `calls`")
        if self.thresholds and not self.rules:
            raise ValueError("`thresholds` needs `rules`. Add `rules`, or remove `thresholds`")
        return self


class CasesTable(CaseOptions, CallForm, CallsTable):
    container: Annotated[str, _one_of(*CONTAINERS)] = "list"


class CasesFile(SuiteTable):
    gradients: list[GradientsTable] = []
    cases: list[CasesTable] = []


CaseKind = Literal["sparse", "in place", "raises", "groups", "hook", "long"]


class FrameworkTable(SuiteTable):
    framework: Name = ""
    """The framework, if the table has another name. A suite can have several tables for one framework."""

    python: Name = sys.executable
    """The Python interpreter that runs the worker, or a virtual environment. The path is relative to the suite's
    directory."""

    graph: bool = False
    """Whether the functions of an old release run in a session of TensorFlow 1, or in a static program of Paddle 1."""

    missing: Literal["allowed"] | None = None
    """With "allowed", missing packages of the framework do not fail the run."""

    modes: Annotated[list[Mode], Field(min_length=1)] = ["host", "device", "native"]
    left_out: dict[OnRequest, list[CaseKind]] = {}
    """{mode: kinds of cases that do not run in this mode}"""

    functions: dict[str, Annotated[str, PYTHON_FUNCTION]] = {}
    """{public function: the corresponding function of the user, as FILE.py:FUNCTION}. Paths are relative to
    the suite's directory."""

    returns: dict[str, Literal["gradients", "nothing"]] = {}
    """{public function: what the corresponding function of the user returns}. Functions that return a norm have no key.

    - "gradients": only the clipped gradients
    - "nothing": None, because the function clips in place
    """

    flushes: bool = False
    tolerance: Tolerance = TOLERANCE

    def leaves_out(self, mode: str) -> Sequence[CaseKind]:
        return next((kinds for each, kinds in self.left_out.items() if each == mode), ())


class SuiteFile(CasesFile):
    files: list[Annotated[str, RELATIVE]] = []
    known: Name | None = None
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = TIMEOUT
    tolerance: Tolerance = TOLERANCE
    frameworks: Annotated[
        dict[str, FrameworkTable],
        Field(min_length=1, examples=["a table for each framework, such as [frameworks.torch]"]),
    ]


Model = TypeVar("Model", bound=SuiteTable)


def read(path: Path, model: type[Model]) -> Model:
    return validated(parsed(path), model)


def parsed(path: Path) -> documents.Document:
    if path.is_dir():
        raise SuiteError(f"{path} is a directory, not a TOML file. Correct the path or the pattern that names it")
    if not path.is_file():
        option = "" if path == DEFAULT_FILE else f" --suite {shlex.quote(str(path))}"
        raise SuiteError(
            f"{path} is not a file. Pass the suite to --suite, or write one: unified-clip parity init{option}"
        )
    try:
        return documents.parse(documents.read_text(path), "toml", str(path))
    except ConfigError as error:
        raise SuiteError(str(error), error.code) from None


def validated(document: documents.Document, model: type[Model]) -> Model:
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        raise SuiteError(str(first_error(error, document, model))) from None
