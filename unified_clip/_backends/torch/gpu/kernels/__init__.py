"""The Triton kernels for correctly rounded norms of order 1, 2 and inf, for products, and for clamped values.

A program is one instance of a kernel. It reads a chunk: some elements of one tensor, at an address from a table. So the
number of launches does not depend on the number of tensors, and sums do not depend on the number of programs. No
program waits for another program: the next kernel reads the results of all programs.

Sums are computed in float64. They are two float64 numbers if the norm is float64 (`wide`), and two float32 numbers on
GPUs with slow float64. The relative error of a sum is bounded. A norm is in doubt if, within this bound, it could be
rounded to different numbers. Then `add_exactly` and `decide` round the exact sum. The exact sum is an integer in parts
of 24 bits, the windows.
"""

from .changes import change
from .exact import STATE, add_exactly, decide, flag
from .numbers import INF
from .ranks import pack_largest, pack_sums, round_largest, round_words
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
