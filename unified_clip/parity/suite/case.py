from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...tensors.types import Gradient, Sparse
from .call_form import PLAIN, CallForm
from .public_calls import CALLS, PublicCall
from .schema import CaseOptions

LONG = 100
DEFAULT_OPTIONS = CaseOptions()


@dataclass(frozen=True, eq=False)
class Case:
    name: str
    gradients_name: str
    gradients: Sequence[Gradient]
    call_name: str
    arguments: Mapping[str, Any]
    call_form: CallForm = PLAIN
    names: Sequence[str] = ()
    options: CaseOptions = DEFAULT_OPTIONS

    @property
    def call(self) -> PublicCall:
        return CALLS[self.call_name]

    @property
    def clipped_inputs(self) -> Sequence[Gradient]:
        """The gradients to clip.

        If the call clips by unit, the second half of `gradients` contains the parameters.
        """
        return self.gradients[: len(self.gradients) // 2] if self.call.style == "units" else self.gradients

    @property
    def elements(self) -> int:
        return sum(math.prod(gradient.shape) for gradient in self.gradients if gradient is not None)

    def is_for_framework(self, framework: str) -> bool:
        return not self.options.frameworks or framework in self.options.frameworks

    def is_for_graphs(self, left_out: Sequence[str]) -> bool:
        call_form = self.call_form
        needs_value = self.options.raises or self.call.style in ("class", "class in place", "hook")
        unknown = self._shares_memory or (call_form.tensor_arguments and needs_value)
        reports = self.options.warns or "error_if_nonfinite" in self.arguments
        return not (unknown or reports or self._is_any(left_out))

    def is_for_processes(self, left_out: Sequence[str]) -> bool:
        by_slice = "axes" in self.arguments or self.call.style == "units"
        return not (self._shares_memory or by_slice or self._is_any(left_out))

    @property
    def _shares_memory(self) -> bool:
        return self.call_form.expanded or self.call_form.overlapping

    def _is_any(self, kinds: Sequence[str]) -> bool:
        kinds_of_case = {
            "sparse": any(isinstance(gradient, Sparse) for gradient in self.gradients),
            "in place": self.call.in_place,
            "raises": bool(self.options.raises),
            "groups": bool(self.call_form.groups),
            "hook": self.call.style == "hook",
            "long": len(self.gradients) > LONG,
        }
        return any(kinds_of_case[kind] for kind in kinds)
