"""Record the gradients of real training steps, as input for the parity suite.

This script trains three small PyTorch models on scikit-learn's digits for a few steps of SGD. Then it stores the
gradients of the next step as `loss.backward()` returns them:

- `convnet.safetensors`: convolutions with batch normalisation, and a linear head
- `transformer.safetensors`: the 64 pixels as tokens, with a sparse gradient of the embedding
- `mlp.safetensors`: a multi-layer perceptron

A dense gradient has the name of its parameter. A sparse gradient is stored as `<name>.indices` (int64 rows, some
repeated) and `<name>.values` (a float32 row for each index).

A second run on one machine writes the same files. Another processor or version of PyTorch can round differently.

Usage: python tools/record_gradients.py [--out DIR]
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import Tensor, nn

SEED = 20
WARM_UP_STEPS = 5
PIXELS = 64
INTENSITIES = 17
CLASSES = 10


class ConvNet(nn.Module):
    """Three convolutions with batch normalisation and a linear head, on 8 x 8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, stride=2)
        self.norm2 = nn.BatchNorm2d(32)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1, stride=2)
        self.norm3 = nn.BatchNorm2d(64)
        self.head = nn.Linear(64 * 2 * 2, CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        x = pixels.reshape(-1, 1, 8, 8).float() / (INTENSITIES - 1)
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        x = torch.relu(self.norm3(self.conv3(x)))
        logits: Tensor = self.head(x.flatten(1))
        return logits


class Transformer(nn.Module):
    """Two encoder layers over the pixels as tokens; the token embedding has sparse gradients."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(INTENSITIES, width, sparse=True)
        self.position = nn.Parameter(0.1 * torch.randn(PIXELS, width))
        # Without dropout the step depends on the seed only through the initial weights.
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embedding(pixels) + self.position
        logits: Tensor = self.head(self.encoder(x).mean(dim=1))
        return logits


class MLP(nn.Module):
    """A 64-256-128-10 multi-layer perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(PIXELS, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, CLASSES)
        )

    def forward(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.layers(pixels.float() / (INTENSITIES - 1))
        return logits


@dataclass(frozen=True)
class Recording:
    name: str
    build: Callable[[], nn.Module]
    batch_size: int
    learning_rate: float


RECORDINGS = (
    Recording("convnet", ConvNet, batch_size=32, learning_rate=0.05),
    Recording("transformer", Transformer, batch_size=24, learning_rate=0.05),
    Recording("mlp", MLP, batch_size=32, learning_rate=0.1),
)


def load_pixels_and_labels() -> tuple[Tensor, Tensor]:
    """Return the digits as int64: pixels of shape [images, 64] from 0 to 16, and labels of shape [images]."""
    data, target = load_digits(return_X_y=True)
    return torch.from_numpy(data).long(), torch.from_numpy(target).long()


def backward(model: nn.Module, pixels: Tensor, labels: Tensor) -> float:
    model.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model(pixels), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item()


def train_to_recorded_step(recording: Recording, pixels: Tensor, labels: Tensor) -> tuple[nn.Module, float]:
    torch.manual_seed(SEED)
    model = recording.build().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=recording.learning_rate)
    batches = list(
        zip(torch.split(pixels, recording.batch_size), torch.split(labels, recording.batch_size), strict=True)
    )
    for batch in batches[:WARM_UP_STEPS]:
        backward(model, *batch)
        optimizer.step()
    loss = backward(model, *batches[WARM_UP_STEPS])
    return model, loss


def collect_gradients(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """Return ({name: tensor to store}, {name of a sparse gradient: dense shape})."""
    tensors: dict[str, Tensor] = {}
    sparse_shapes: dict[str, list[int]] = {}
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        if grad is None:
            raise RuntimeError(f"parameter {name} has no gradient")
        if grad.is_sparse:
            # The public accessors demand a coalesced tensor, and coalescing would merge the repeated rows.
            tensors[f"{name}.indices"] = grad._indices()[0].contiguous()
            tensors[f"{name}.values"] = grad._values().contiguous()
            sparse_shapes[name] = list(grad.shape)
        else:
            tensors[name] = grad.contiguous()
    return tensors, sparse_shapes


def describe(
    recording: Recording, model: nn.Module, sparse_shapes: dict[str, list[int]], loss: float
) -> dict[str, str]:
    first = WARM_UP_STEPS * recording.batch_size
    return {
        "framework": f"torch {torch.__version__.partition('+')[0]}",
        "model": (model.__doc__ or "").strip(),
        "data": "sklearn.datasets.load_digits",
        "batch": f"images {first} to {first + recording.batch_size - 1}, in the data set's order",
        "warm_up": f"{WARM_UP_STEPS} steps of SGD, learning rate {recording.learning_rate}, on the images before",
        "loss": f"mean cross-entropy, {loss:.6f}",
        "seed": str(SEED),
        "sparse": json.dumps(sparse_shapes),
    }


def serialize(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    raw = save(tensors, metadata)
    # safetensors writes the metadata in a random order. Offsets count from the end of the header, so they stay valid.
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    padded = text.ljust(-(-len(text) // 8) * 8)
    return len(padded).to_bytes(8, "little") + padded + raw[8 + length :]


def record(recording: Recording, pixels: Tensor, labels: Tensor, out: Path) -> Path:
    model, loss = train_to_recorded_step(recording, pixels, labels)
    tensors, sparse_shapes = collect_gradients(model)
    path = out / f"{recording.name}.safetensors"
    path.write_bytes(serialize(tensors, describe(recording, model, sparse_shapes, loss)))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the gradients of three small models.")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).parents[1] / "parity" / "data",
        help="where to write (default: parity/data)",
    )
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    pixels, labels = load_pixels_and_labels()
    for recording in RECORDINGS:
        path = record(recording, pixels, labels, out)
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
