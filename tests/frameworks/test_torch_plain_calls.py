"""A call on plain parameters is one call of the kernels, with few Python functions around it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed.fsdp  # both add checks to a call
from support.tiers import TRACES_WORLD

import unified_clip.torch as uc

MOST_FUNCTIONS = 15


def parameters(norm: float) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.zeros(4)) for _ in range(10)]
    for parameter in made:
        parameter.grad = torch.full((4,), norm / 40**0.5)
    return made


def is_of_dynamo(frame: FrameType) -> bool:
    """Also what its functions ask of `torch.compiler`."""
    caller = frame.f_back.f_code.co_filename if frame.f_back else ""
    file = frame.f_code.co_filename
    return "_dynamo" in file or ("_dynamo" in caller and Path(file).parent.name == "compiler")


def python_functions(call: Callable[[], Any]) -> list[str]:
    """Return the names of the Python functions that a call runs, without those that keep the call out of graphs."""
    names: list[str] = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and not is_of_dynamo(frame):
            names.append(frame.f_code.co_qualname)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names[1:]  # without `call` itself


@TRACES_WORLD
@pytest.mark.parametrize("max_norm", [1.0, 100.0], ids=["clipped", "not clipped"])
def test_few_functions_run(max_norm: float) -> None:
    given = parameters(10.0)
    uc.clip_grad_norm_(given, 1e9)
    names = python_functions(lambda: uc.clip_grad_norm_(given, max_norm))
    assert len(names) <= MOST_FUNCTIONS, names
