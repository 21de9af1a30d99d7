"""Compile the Triton kernels for a GPU that need not be there, and print what their code does, as JSON.

The argument is the compute capability: `python gpu_code.py 90`.

PTX is the assembly language of NVIDIA's GPUs. A loop of a kernel handles LANES elements, so its loads and stores of
16 bytes in each of 128 threads give the bytes per element.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from unified_clip._backends.torch.gpu import kernels, table

WARPS = 4
LIST = {"table": "*i64", "tensors": "i32", "first_chunk": "i32"}
STATES = {"states": "*i64"}
CHANGE = {**LIST, "coefs": "*fp64", "low": "i32", "high": "i32"}
LOOP = {"chunk_size": table.CHUNK, "width": table.LANES}


def signatures(dtype: Any) -> dict[str, tuple[str, dict[str, str], dict[str, Any]]]:
    """Each kernel by the name of a variant: its name, the types of its arguments, and its constants, as launched."""
    loop = {"dtype": dtype, **LOOP}
    product = {"aligned": True, "in_place": True, "per_tensor": False, "clamps": False, "by_bits": False, **loop}
    return {
        "add": ("add", {**LIST, "sums": "*fp64"}, {"order": 2, "aligned": True, **loop}),
        "add, inf": ("add", {**LIST, "sums": "*fp64"}, {"order": 0, "aligned": True, **loop}),
        "round_sums": (
            "round_sums",
            {"groups": "*i64", "sums": "*fp64", "norms": "*fp64", **STATES},
            {"error": table.ERROR, "order": 2, "width": table.SUM_LANES},
        ),
        "add_exactly": (
            "add_exactly", {**LIST, "end_chunk": "i32", **STATES}, {"order": 2, "per_tensor": False, **loop}
        ),
        "decide": ("decide", {**STATES, "norms": "*fp64"}, {"order": 2}),
        "change": ("change", CHANGE, product),
        "change, new tensors": ("change", CHANGE, {**product, "in_place": False}),
        "change, clamped": ("change", {**CHANGE, "coefs": "*i64"}, {**product, "clamps": True}),
    }  # fmt: skip


def code(name: str, dtype: Any, architecture: int) -> dict[str, Any]:
    kernel, types, constants = signatures(dtype)[name]
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(types.values()) if kind.startswith("*")}
    source = ASTSource(
        fn=getattr(kernels, kernel), signature={**types, **dict.fromkeys(constants, "constexpr")}, constexprs=constants,
        attrs=aligned,
    )  # fmt: skip
    target = GPUTarget("cuda", architecture, 32)
    ptx = triton.compile(source, target=target, options={"num_warps": WARPS, **table.OPTIONS}).asm["ptx"]
    found = re.findall(r"^\s*(@!?%p\d+ )?([a-z]\w*(?:\.\w+(?:::\w+)?)+)\s", ptx, re.MULTILINE)
    instructions = [instruction for _, instruction in found]
    vectors = {kind: sum(each.startswith(f"{kind}.global.v4.b32") for each in instructions) for kind in ("ld", "st")}
    per_vector = 16 * 32 * WARPS / table.LANES
    return {
        "bytes read": vectors["ld"] * per_vector,
        "bytes written": vectors["st"] * per_vector,
        "conditional": sorted({instruction for condition, instruction in found if condition}),
        "instructions": sorted(set(instructions)),
    }


DTYPES = {"float32": tl.float32, "bfloat16": tl.bfloat16, "float16": tl.float16}

if __name__ == "__main__":
    print(json.dumps({
        f"{name} {dtype}": code(name, DTYPES[dtype], int(sys.argv[1]))
        for name in signatures(None) for dtype in (DTYPES if name not in ("round_sums", "decide") else ["float32"])
    }))  # fmt: skip
