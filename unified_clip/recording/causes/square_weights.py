"""Decide whether a square weight needs a transpose."""

from __future__ import annotations

import re

from ..divergence import DivergencePoint, numbers
from ..pairs.calls import CallPair, orders_of
from ..rounding import ROUNDING, ulps_at
from ..rounding_noise import is_noise_of, total_norm
from .gradient_hints import losses_agree

EMBEDDING = re.compile(r"(?<![a-z])emb|Emb|embed|(?<![a-z])w[tp]e(?![a-z])")
"""Matches names of embeddings, such as "tok_emb", or "wte" in GPT, but not "ensemble"."""


def is_embedding(*names: str) -> bool:
    return any(map(EMBEDDING.search, names))


def is_right(point: DivergencePoint, pair: CallPair, name: str) -> bool:
    """Return whether equal gradients or losses prove that the weight needs no transpose."""
    other = pair.names[name]
    if is_embedding(name, other):
        return True
    total = max(map(total_norm, (pair.a, pair.b)))
    gradients = list(numbers(pair, "gradient"))
    if gradients and all(ulps_at(total, a, b) <= ROUNDING for _, a, b in gradients):
        return True
    norms = pair.a.parameters[name].norm, pair.b.parameters[other].norm
    has_effect = min(norms) > 0 and not is_noise_of(pair, name)
    return has_effect and losses_agree(point, pair)


def unknown_orders(point: DivergencePoint, pair: CallPair) -> list[str]:
    """Return the square weights that one run may transpose: their norms agree anyway."""
    orders, are_alike = orders_of(pair), pair.a.framework == pair.b.framework
    known = {name for each in point.pairs[: point.index] for name in each.names}  # earlier gradients agree
    known |= {name for name, order in orders.items() if order == ("same" if are_alike else "transposed")}
    names = [name for name in pair.names if name not in known and not is_right(point, pair, name)]
    shapes = {name: pair.a.parameters[name].shape for name in names}
    return [name for name, shape in shapes.items() if len(shape) == 2 and len({*shape}) == 1 and 1 not in shape]
