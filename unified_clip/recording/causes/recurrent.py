"""Find differences between recurrent layers of Keras and of other frameworks."""

from __future__ import annotations

from collections.abc import Mapping

from ..._kit.display import enumeration
from ...causes.cause import Cause
from ..divergence import DivergencePoint
from ..pairs.calls import CallPair
from ..pairs.packed_parameters import unpaired_blocks

GRU_OF_KERAS, LSTM_OF_KERAS = "gru_cell", "lstm_cell"


def other_gates(pair: CallPair, orders: Mapping[str, str]) -> Cause | None:
    if (pair.a.framework == "tensorflow") == (pair.b.framework == "tensorflow"):
        return None
    text = {name: f"{name} {pair.names[name]}" for name in orders}
    if kept := [name for name in orders if GRU_OF_KERAS in text[name] and orders[name] in ("same", "transposed")]:
        sentence = (
            f"the gates of {enumeration(list(map(repr, kept)))} have the same order in both runs. But "
            "frameworks order the gates of a GRU differently: (z, r, h) in Keras, (r, z, n) in PyTorch and (r, z, c) "
            "in Paddle. Exchange the first third and the second third of these weights and of their biases"
        )
        return Cause("other initial weights", sentence)
    if moved := [name for name in orders if LSTM_OF_KERAS in text[name] and orders[name] == "rearranged"]:
        sentence = (
            f"the elements of {enumeration(list(map(repr, moved)))} have different orders in the runs. The gates of an "
            "LSTM have the same order in Keras, PyTorch and Paddle: input, forget, cell and output. "
            "Transpose these weights, and change nothing else"
        )
        return Cause("other initial weights", sentence)
    return None


def split_tensor(point: DivergencePoint, pair: CallPair) -> Cause | None:
    """Keras' GRU has one bias and PyTorch's GRU has two, so clipping per tensor gives different results."""
    if not pair.a.rule == pair.b.rule == "each":
        return None
    blocks = [block for block in unpaired_blocks(pair.a, pair.b, pair.names) if len(block[0]) != len(block[1])]
    if not blocks:
        return None
    left, right = blocks[0]
    run, whole, other, parts = (point.a, left, point.b, right) if len(left) == 1 else (point.b, right, point.a, left)
    names = enumeration(list(map(repr, parts)))
    sentence = (
        f"{run.name} clips {whole[0]!r} as one tensor. {other.name} splits this tensor into {names}, and "
        f"clips each part by its own norm. For the same clip in {other.name}, clip {names} together by their "
        "total norm, as GradientClipByGlobalNorm(c).clip_([...]) does. Clip each of the remaining tensors by its own "
        "norm"
    )
    if more := [name for block in blocks[1:] for name in min(block, key=len)]:
        sentence += f". Do the same for the parts of {enumeration(list(map(repr, more)))}"
    if point.first.stage == "gradient" and point.first.parameter is not None:
        sentence += f". The gradient of {point.first.parameter!r} differs, too: compare data, forward pass and loss"
    return Cause("another rule", sentence)
