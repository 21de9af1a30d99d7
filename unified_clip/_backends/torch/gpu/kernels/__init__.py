"""The Triton kernels. They compute correctly rounded norms for p of 1, 2 and inf, and multiply or clamp gradients.

A program is one instance of a kernel. Each program reads one chunk, which is a range of elements of one tensor. A table
has the addresses of all tensors, so one launch handles many tensors. Programs do not wait for each other, and their
number does not change the sums.

For a float64 norm (`wide`), each sum is stored as two float64 numbers. For other norms, each sum is one float64 number,
or two float32 numbers on a GPU with slow float64. If the error of the sum could change the rounded
norm, `add_exactly` computes the exact sum in windows of 24 bits, and `decide` rounds the norm.
"""

from .exact_sums import STATE, add_exactly, decide, flag
from .norm_over_ranks import pack_largest, pack_sums, round_largest, round_words
from .scale_and_clamp import change
from .shared import INF
from .sums import add, round_sums

__all__ = [
    "INF",
    "STATE",
    "add",
    "add_exactly",
    "change",
    "decide",
    "flag",
    "pack_largest",
    "pack_sums",
    "round_largest",
    "round_sums",
    "round_words",
]
