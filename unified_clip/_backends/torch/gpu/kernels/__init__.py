"""The Triton kernels. They compute correctly rounded norms for p of 1, 2 and inf, and they multiply or clamp gradients.

A program is one instance of a kernel. Each program reads one chunk, which is a range of elements of one tensor. A table
has the addresses of all tensors, so one launch handles many tensors. Any number of programs returns the same sums.
Programs do not wait for each other.

Each sum is a float64 number, with two exceptions. For a float64 norm (`wide`), each sum is two float64 numbers. For any
other norm on a GPU with slow float64, each sum is two float32 numbers. A norm is in doubt if two different rounded
norms are possible within the error bound of the sum. In this case, `add_exactly` computes the exact sum, and `decide`
rounds the norm. The exact sum is an integer that is stored in windows of 24 bits.
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
