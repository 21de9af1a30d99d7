"""Keep the norm of a process group on the GPUs, so that no rank waits for its GPU.

At the first call with a new list of parameters, the host reads the norm, and decides whether later norms stay on
the GPU. If ranks make different calls later, the norm is NaN, and the next call raises an error.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .._core.distributed import Measure, PartialSums
from .._core.exact import WORDS
from .._core.types import Deferred, Scalar, Tensor
from . import waiting
from .digests import PIECES
from .integers import equal_summands

FLAGS = WORDS + 1 + 3 + 3 * PIECES
"""The first all-reduce has two flags from this index: whether norms can stay on the GPU, and whether this norm does."""

TAGS = FLAGS + 2

TAG = 1
"""Must be equal to `consensus.ADDS`."""

WINDOWS = 178
"""The number of integers in the last all-reduce: one that flags NaN and inf, and 177 windows of an exact sum."""

REMEDY = (
    "Set UNIFIED_CLIP_TRITON=0, and restart all ranks from the same checkpoint. Then all ranks raise an error "
    "that shows how their calls differ"
)

MIXED = f"ranks make different calls. If the norm of a rank stays on its GPU, this norm is NaN. {REMEDY}"


class NormOnDevice(NamedTuple):
    norm: Scalar
    added: Deferred | None
    """The integers that `check_last_call` reads, or None inside a CUDA graph."""


class Terms(NamedTuple):
    values: Sequence[Tensor]
    length: int
    flatten: Callable[[], Tensor]
    """Returns the partial sums of this rank as one float64 tensor."""

    round: Callable[[Tensor], Sequence[Tensor]]
    """Converts the sum over all ranks back to gradients."""

    owned: Sequence[int]
    measure: Measure


class NormRequest(NamedTuple):
    tensors: Sequence[Tensor]
    p: float
    own: PartialSums
    numbers: Sequence[int]
    """The integers of the first all-reduce. The first WORDS + 1 integers are placeholders for the sum of this rank."""

    dtype: str
    terms: Terms | None
    """The `Partial` gradients. They are not in `tensors`."""


class Agreement(NamedTuple):
    dtype: str
    terms: int
    """The number of elements of `Partial` gradients."""


_AGREED: weakref.WeakKeyDictionary[Any, dict[int, Agreement]] = weakref.WeakKeyDictionary()
"""{process group: {digest of a parameter list: agreement}}."""

_UNREAD: weakref.WeakKeyDictionary[Any, tuple[int, Deferred]] = weakref.WeakKeyDictionary()


def agreed_dtype(group: Any, parameters: int) -> str | None:
    """Return the dtype of a norm that stays on the device, or None if the host reads the norm."""
    agreement = _AGREED.get(group, {}).get(parameters)
    return None if agreement is None else agreement.dtype


def most_terms(group: Any) -> int:
    """Return the largest number of `Partial` elements of any earlier call.

    All ranks send this number of elements, even if they pass different gradients by mistake.
    """
    return max((agreement.terms for agreement in _AGREED.get(group, {}).values()), default=0)


def agree(group: Any, parameters: int, agreement: Agreement | None) -> None:
    kept = _AGREED.setdefault(group, {})
    if agreement is None:
        kept.pop(parameters, None)
    else:
        kept[parameters] = agreement


def store(group: Any, number: int, added: Deferred | None) -> None:
    """Store the integers that `check_last_call` reads at the next call."""
    if added is not None:
        _UNREAD[group] = number, added


def check_last_call(group: Any, size: int, message: Callable[[], str]) -> None:
    if group not in _UNREAD:  # for example None, the key of Paddle's default group
        return
    number, added = _UNREAD.pop(group)
    with waiting.logged(waiting.PATIENCE, logging.WARNING, message):
        (flags,) = added.values()
    can, stays, tags, rejected, *compared = flags
    length = 1 + 2 * PIECES
    digests = [compared[start : start + length] for start in range(0, len(compared), length)]
    if rejected:
        raise ValueError(
            f"a rank raised an error at call {number} on this process group, so this call returned NaN as the norm. "
            "Restart all ranks from the same checkpoint with UNIFIED_CLIP_TRITON=0. Then all ranks raise the error"
        )
    if stays == size and can < size:
        raise ValueError(
            f"at call {number} on this process group, a gradient was complex, so this call returned NaN as the "
            "norm. At the first call with these parameters, no gradient was complex. Set UNIFIED_CLIP_TRITON=0, or "
            "give these gradients the dtypes of the first call"
        )
    if stays != size or tags != TAG * size or not all(map(equal_summands, digests)):
        raise ValueError(f"the ranks made different calls at call {number} on this process group. {REMEDY}")
