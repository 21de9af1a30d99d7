"""The model and the data of `examples/`, for tests of PyTorch's integrations."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import unified_clip
from unified_clip import ClipConfig, ClipWarning

EXAMPLES = Path(__file__).parents[3] / "examples"


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DATA = _load("data")
RATE = DATA.LEARNING_RATE
SCALE = 2.0**16


def config(**changes: Any) -> ClipConfig:
    return ClipConfig(**{**ClipConfig.load(EXAMPLES / "clip.toml").data(), **changes})


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(DATA.INPUTS, DATA.UNITS)
        self.output = torch.nn.Linear(DATA.UNITS, 1)
        self.load_state_dict({name: torch.from_numpy(array.T.copy()) for name, array in DATA.weights().items()})

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.output(torch.tanh(self.hidden(inputs)))

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self(inputs), targets)


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for inputs, targets in DATA.batches():
        yield torch.from_numpy(inputs), torch.from_numpy(targets)


def rows() -> torch.utils.data.Dataset[Any]:
    inputs, targets = zip(*batches(), strict=True)
    return torch.utils.data.TensorDataset(torch.cat(inputs), torch.cat(targets))


def recorded(path: Path, model: torch.nn.Module, train: Callable[[], object]) -> list[dict[str, Any]]:
    with unified_clip.record(path, norms=True, names=model, force=True):
        train()
    """Return the calls of unified_clip. A trainer's own calls, of which some only measure, count as steps."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    ours = [line for line in lines if "call" in line and not line.get("watched")]
    steps = {line["step"]: None for line in ours}
    return [
        {name: value for name, value in line.items() if name not in ("seconds", "place", "loss_scale")}
        | {"step": [*steps].index(line["step"]) + 1}
        for line in ours
    ]


def plain_records(path: Path) -> list[dict[str, Any]]:
    model, clip = Model(), config()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def train() -> None:
        for inputs, targets in batches():
            optimizer.zero_grad()
            model.loss(inputs, targets).backward()
            clip.clip_(model.named_parameters())
            optimizer.step()

    records = recorded(path, model, train)
    assert len(records) == DATA.STEPS
    assert len({line["threshold"] for line in records}) > 5
    assert {line["clipped"] for line in records} == {True, False}
    assert all(set(line["parameters"]) == {"hidden.weight", "output.weight"} for line in records)
    return records


def clip_warnings(call: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ClipWarning)
        call()
    return [str(each.message) for each in caught if each.category is ClipWarning]
