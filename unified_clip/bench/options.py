"""The options of a benchmark. This module does not import NumPy, which keeps `--help` fast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._kit.coded_error import CodedError
from .lists import LISTS, LISTS_ON_GPU, Shape

DTYPES = ("float32", "bfloat16")

DTYPES_OF: Mapping[str, Sequence[str]] = {
    "torch": DTYPES,
    "tensorflow": DTYPES,
    "paddle": DTYPES,
    "jax": DTYPES,
    "numpy": ("float32",),
}


class OptionsError(CodedError, code="UC203"):
    """An option has an invalid value."""


DEVICES: dict[str, dict[str, Any]] = {
    "cpu": {},
    "cuda": {"frameworks": ["torch"], "lists": list(LISTS_ON_GPU)},
}
"""{device: its defaults for fields of `Options`}."""


@dataclass(frozen=True)
class Measurement:
    shapes: Sequence[Shape]
    dtype: str
    labels: Mapping[str, Any]  # keys of the entry in bench.json


@dataclass(frozen=True)
class Options:
    frameworks: Sequence[str] = tuple(DTYPES_OF)
    lists: Sequence[str] = tuple(LISTS)
    dtypes: Sequence[str] = DTYPES
    threads: int = 2
    seconds: float = 1.0
    """The time to measure one pair of functions. Slow functions take longer, because each function runs at least 7
    times."""

    device: str = "cpu"
    own_lists: Mapping[str, Sequence[Shape]] = field(default_factory=dict)
    """Lists of shapes from files of the user, as {name: shapes}. `lists` also contains these names."""

    def __post_init__(self) -> None:
        for option, known, more in (
            ("frameworks", DTYPES_OF, ""),
            ("lists", {**LISTS, **self.own_lists}, ", or pass the path of a file with weights or gradients"),
            ("dtypes", DTYPES, ""),
        ):
            if unknown := [name for name in getattr(self, option) if name not in known]:
                names = ", ".join(map(repr, unknown))
                raise OptionsError(f"--{option} has {names}. Choose from {', '.join(known)}{more}.")
        if self.device not in DEVICES:
            raise OptionsError(f"--device is {self.device!r}. Choose from {', '.join(DEVICES)}.")
        if self.device == "cuda" and set(self.frameworks) != {"torch"}:
            raise OptionsError("--device cuda measures torch only. Pass --frameworks torch, or leave --frameworks out.")
        if not any(True for name in self.frameworks for _ in self.measurements(name)):
            names, dtypes = ", ".join(self.frameworks), ", ".join(self.dtypes)
            supported = dict.fromkeys(dtype for name in self.frameworks for dtype in DTYPES_OF[name])
            raise OptionsError(f"{names} cannot be measured with {dtypes}. Pass --dtypes {','.join(supported)}.")
        if not 1 <= self.threads <= 1024:
            raise OptionsError(f"--threads is {self.threads}. Pass 1 to 1024.")
        if not 0 <= self.seconds < float("inf"):
            raise OptionsError(f"--seconds is {self.seconds}. Pass a finite number that is at least 0.")

    def measurements(self, framework: str) -> Iterator[Measurement]:
        for name in self.lists:
            for dtype in DTYPES_OF[framework]:
                if dtype in self.dtypes:
                    shapes = self.own_lists.get(name) or LISTS[name]
                    yield Measurement(shapes, dtype, {"list": name, "dtype": dtype})
