"""Random and adversarial lists for the CUDA kernels, and their results by exact arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from support import reference
from support.kits import TorchKit

import unified_clip.torch as uc

DTYPES = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64,
    "complex64": torch.complex64, "complex128": torch.complex128,
}  # fmt: skip
SHARES = [0.3, 0.25, 0.25, 0.07, 0.1, 0.03]
"""The probability of each dtype."""

EXPONENTS = {"float32": (-140, 120), "bfloat16": (-100, 120), "float16": (-20, 14), "float64": (-1060, 1000)}

SMALLEST = {"float32": 2.0**-149, "bfloat16": 2.0**-126, "float16": 2.0**-24, "float64": 5e-324}
PARTS = {"complex64": "float32", "complex128": "float64"}
INTEGERS = {2: np.int16, 4: np.int32, 8: np.int64}


def numbers(random: np.random.Generator, dtype: str, chunk: int) -> np.ndarray:
    if dtype in PARTS:
        parts = [numbers(random, PARTS[dtype], chunk) for _ in range(2)]
        length = min(map(len, parts))
        return np.stack([part[:length] for part in parts], 1).view(dtype)[:, 0]
    # around the 16 bytes of a load and around a chunk
    length = int(random.choice([1, 2, 3, 7, 8, 9, 16, 17, chunk - 1, chunk, 4 * chunk + 1, 9 * chunk]))
    scale = 2.0 ** random.uniform(*EXPONENTS[dtype])
    kind = random.integers(9)
    values = random.normal(0, scale, length)
    if kind == 0:  # equal numbers, for which sums are exact: ties
        values = np.full(length, scale)
    elif kind == 1:  # one large number and small ones: halfway between two float32 numbers, or nearly
        values = np.full(length, scale * (2.0**-26 if dtype == "float64" else 2.0**-12))
        values[0] = scale
    elif kind == 2:  # legs of triangles whose hypotenuse needs one bit more than a norm has
        legs = np.array([(3, 4), (5, 12), (8, 15)])[random.integers(3)]
        hypotenuse = int(math.hypot(*legs))
        values = np.zeros(length)
        largest = 2**54 if dtype == "float64" else 2**25
        values[: min(2, length)] = (legs * ((largest - 1) // hypotenuse | 1) * 2.0**-20)[:length]
    elif kind == 3:
        values *= 2.0 ** random.uniform(-60, 0, length)
    elif kind == 4:
        values = np.zeros(length) * -1
    elif kind == 5:
        values[random.integers(length)] = random.choice([math.nan, math.inf, -math.inf])
    elif kind == 6:  # the largest numbers
        values = np.full(length, float(reference.LARGEST[dtype]))
    elif kind == 7:
        values = np.full(length, SMALLEST[dtype])
    return reference.array(values, dtype)


def tensor(random: np.random.Generator, array: np.ndarray, device: str) -> torch.Tensor:
    start = int(random.integers(4))
    memory = torch.zeros(len(array) + start, dtype=DTYPES[array.dtype.name], device=device)
    result = memory[start:]
    parts = torch.view_as_real(result) if np.iscomplexobj(array) else result
    if np.iscomplexobj(array):
        array = array.view(array.real.dtype).reshape(-1, 2)
    bits = torch.from_numpy(array.view(INTEGERS[array.itemsize]))
    parts.view(bits.dtype).copy_(bits)
    return result


def same(got: torch.Tensor, expected: np.ndarray) -> bool:
    got = got.cpu()
    if np.iscomplexobj(expected):
        got, expected = torch.view_as_real(got), np.ascontiguousarray(expected).view(expected.real.dtype).reshape(-1, 2)
    kind = INTEGERS[expected.itemsize]
    result = got.view(torch.from_numpy(np.empty(0, kind)).dtype).numpy()
    is_nan = np.isnan(expected.astype(np.float64))
    return bool(got.isnan().numpy().tolist() == is_nan.tolist() and ((result == expected.view(kind)) | is_nan).all())


parameters = TorchKit().in_place


def check(random: np.random.Generator, operation: str, chunk: int, device: str = "cpu") -> None:
    """Compare an operation on a random list with exact arithmetic. chunk: The kernels' chunk of numbers."""
    names = list(DTYPES)[: 6 if operation in FOR_COMPLEX else 4]
    shares = np.array(SHARES[: len(names)]) / sum(SHARES[: len(names)])
    dtypes = random.choice(names, 1 if random.random() < 0.7 else 3, p=shares).tolist()
    arrays = [numbers(random, str(random.choice(dtypes)), chunk) for _ in range(random.integers(1, 5))]
    tensors = [tensor(random, array, device) for array in arrays]
    p: Any = {"norm of order 1": 1, "norm of order inf": math.inf}.get(operation, 2)
    norm = reference.norm(arrays, p)
    factor = float(random.choice([0.3, 0.999, 1.0, 2.0, 0.0]))
    threshold = float(np.float32(min(factor * (norm if math.isfinite(norm) else 1.0), 3e38)))
    got: list[torch.Tensor] = tensors
    expected: list[np.ndarray] = arrays
    if operation.startswith("norm"):
        assert same(
            uc.get_total_norm(tensors, p).reshape(1),
            np.array([norm], reference.norm_dtype(a.dtype.name for a in arrays)),
        )
    elif "values" in operation:
        low, high = sorted(float(np.float32(random.choice([random.normal(), 0.0]))) for _ in range(2))
        low, high = (-0.0 if low == 0 else low), high
        expected = [reference.clamped(array, low, high) for array in arrays]
        if "new" in operation:
            got = [uc.clip_by_value(each, low, high) for each in tensors]
        else:
            uc.GradientClipByValue(high, low).clip_(parameters(tensors))
    elif "per tensor" in operation:
        coefs = [reference.coefficient(reference.norm([array]), threshold) for array in arrays]
        expected = [reference.scaled(array, coef) for array, coef in zip(arrays, coefs, strict=True)]
        uc.GradientClipByNorm(threshold).clip_(parameters(tensors))
    else:
        eps, gives_nan = (0.0, True) if "new" in operation else (1e-6, False)
        coef = reference.coefficient(norm, threshold, eps, infinite_gives_nan=gives_nan)
        expected = [reference.scaled(array, coef) for array in arrays]
        if "new" in operation:
            got = uc.clip_by_global_norm(tensors, threshold)[0]
        else:
            uc.clip_grad_norm_(parameters(tensors), threshold)
    assert all(same(one, other) for one, other in zip(got, expected, strict=True))


OPERATIONS = (
    "norm of order 1", "norm of order 2", "norm of order inf", "products", "new products", "products per tensor",
    "values", "new values",
)  # fmt: skip
FOR_COMPLEX = ("norm of order 2", "products", "new products", "products per tensor")
