"""Models of a suite's TOML files."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ...config import documents
from ...config.validation import first_error
from ...config.validation import no_such as no_such
from ...errors import ConfigError
from ...tensors.types import PARTS, STORAGE
from ..modes import Mode, OnRequest
from .call_form import CONTAINERS, CallForm

TOLERANCE = 1e-5
"""Relative difference of a framework's function up to which it is rounding, unless a suite sets `tolerance`."""


class SuiteError(Exception):
    """The error for an invalid suite. The message has the place and the remedy."""


class Table(BaseModel):
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
    re.compile(r".+\.py:[^:]+").fullmatch, "give a file and its function, as in grads.py:gradients"
)
RELATIVE = _accepted_by(
    re.compile("[^/]").match, "give a pattern of files relative to this directory, as in cases/*.toml"
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
"""A number, a hexadecimal float, or [n, x] for n times x."""


class TensorTable(Table):
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
        if sum(source is not None for source in (self.values, self.random, self.none)) != 1:
            raise ValueError("give one of values, random and none")
        if self.none and {"shape", "dtype", "rows", "exponents"} & self.model_fields_set:
            raise ValueError("none = true takes no shape, dtype, rows or exponents. Remove them")
        if (self.random is None) != (self.exponents is None) or (self.random is not None and self.shape is None):
            raise ValueError("random needs exponents and shape, and exponents needs random. Add the missing one")
        if self.exponents and self.exponents[0] > self.exponents[1]:
            raise ValueError("the low exponent is above the high one. Swap them")
        if self.dtype == "int64" and self.random is not None:
            raise ValueError("random does not support int64. Choose another dtype, or give values")
        if self.rows is not None and (
            not self.shape or self.dtype in PARTS or max(self.rows, default=0) >= self.shape[0]
        ):
            raise ValueError("rows needs a real dtype and a shape, and rows below its first length. Correct it")
        return self


class GradientsTable(Table):
    name: Name
    tensors: list[TensorTable] | None = None
    file: Name | None = None
    function: Annotated[str, PYTHON_FUNCTION] | None = None
    framework: Name | None = None
    only: list[Name] = []

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.tensors, self.file, self.function)) != 1:
            raise ValueError("give one of tensors, file and function")
        for key, source in (("only", "file"), ("framework", "function")):
            if getattr(self, key) and getattr(self, source) is None:
                raise ValueError(f"{key} needs {source}. Remove {key}, or add {source}")
        return self


class CallsTable(Table):
    gradients: Annotated[list[Name], Field(min_length=1)]
    calls: list[dict[str, Any]] = []
    rules: list[Name] = []
    thresholds: list[Annotated[float, Field(ge=0)] | Length] = []
    configs: list[Name] = []
    dtypes: list[RealDtype] | None = None
    frameworks: list[Name] = []
    modes: list[Mode] = []
    raises: str = ""
    warns: bool = False
    update: bool = False
    subnormal: bool = False

    @model_validator(mode="after")
    def _some_calls(self) -> Self:
        if not self.calls and not self.rules and not self.configs:
            raise ValueError("give calls, rules and thresholds, or configs")
        if bool(self.rules) != bool(self.thresholds):
            raise ValueError("rules and thresholds need each other. Add the one that is missing, or use calls")
        return self


class CasesTable(CallForm, CallsTable):
    """A `[[cases]]` table: the calls, the lists of gradients, and the form of the calls."""

    container: Annotated[str, _one_of(*CONTAINERS)] = "list"


class CasesFile(Table):
    gradients: list[GradientsTable] = []
    cases: list[CasesTable] = []


CaseKind = Literal["sparse", "in place", "raises", "groups", "hook", "long"]


class Framework(Table):
    """A `[frameworks.NAME]` table: how to run a framework."""

    title: Annotated[str, Field(min_length=1)] = ""
    python: Name = sys.executable
    """Its interpreter. In a file relative to the suite, or a virtual environment."""

    missing: Literal["allowed"] | None = None
    modes: Annotated[list[Mode], Field(min_length=1)] = ["host", "device", "native"]
    left_out: dict[OnRequest, list[CaseKind]] = {}
    flushes: bool = False
    tolerance: Tolerance = TOLERANCE

    def leaves_out(self, mode: str) -> Sequence[CaseKind]:
        """Return the kinds of cases that the suite leaves out of a mode."""
        return next((kinds for each, kinds in self.left_out.items() if each == mode), ())


class SuiteFile(CasesFile):
    files: list[Annotated[str, RELATIVE]] = []
    known: Name | None = None
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 120.0
    tolerance: Tolerance = TOLERANCE
    memory: Any = None
    frameworks: Annotated[dict[str, Framework], Field(min_length=1)]

    @field_validator("memory")
    @classmethod
    def _removed(cls, value: Any) -> Any:
        raise ValueError("this setting was removed. Limit the memory of the command with `ulimit -v` or a cgroup")


Model = TypeVar("Model", bound=Table)


def read(path: Path, model: type[Model]) -> Model:
    """Return a TOML file of a suite as a model. SuiteError: its first error, with file, line, key and remedy."""
    if not path.is_file():
        raise SuiteError(f"{path} is not a file. Pass the suite to --suite, or write one: unified-clip parity init")
    try:
        document = documents.parse(documents.read_text(path), "toml", path.name)
        return model.model_validate(document.data)
    except ConfigError as error:
        raise SuiteError(str(error)) from None
    except ValidationError as error:
        raise SuiteError(str(first_error(error, document, model))) from None
