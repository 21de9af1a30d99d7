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
from unified_clip._distributed.digests import PIECES
from unified_clip._distributed.on_device import FLAGS, TAG, TAGS

WARPS = 4
LIST = {"table": "*i64", "tensors": "i32", "first_chunk": "i32"}
STATES = {"states": "*i64"}
CHANGE = {**LIST, "coefs": "*fp64", "low": "i64", "high": "i64"}
DTYPES = {"float64": tl.float64, "float32": tl.float32, "bfloat16": tl.bfloat16, "float16": tl.float16}

Variant = tuple[str, dict[str, str], dict[str, Any]]
"""A kernel's name, the types of its arguments, and its constants, as launched."""


def of_norms(wide: bool) -> dict[str, Variant]:
    sums = {"": ("*fp64", table.WIDE_ERROR)} if wide else {
        "": ("*fp64", table.ERROR), " of float32 sums": ("*fp32", table.NARROW_ERROR)
    }  # fmt: skip
    return {
        **{
            f"round_sums, order {p}{name}": (
                "round_sums",
                {"groups": "*i64", "sums": kind, "norms": "*fp64", **STATES},
                {"order": p, "error": error, "width": table.SUM_LANES, "wide": wide},
            )
            for p in table.ORDERS.values()
            for name, (kind, error) in sums.items()
        },
        **{
            f"decide, order {p}{' over ranks' if over_ranks else ''}": (
                "decide",
                {**STATES, "norms": "*fp64"},
                {"order": p, "wide": wide, "over_ranks": over_ranks},
            )
            for p in (1, 2)
            for over_ranks in (False, True)
        },
        **of_ranks(wide),
    }


def of_ranks(wide: bool) -> dict[str, Variant]:
    error = table.WIDE_ERROR if wide else table.ERROR
    constants = {"error": error, "wide": wide, "flags": FLAGS, "tags": TAGS, "tag": TAG, "pieces": PIECES}
    words = {"words": "*i64", "norms": "*fp64", **STATES, "ranks": "i32"}
    packed_largest = {"sums": "*fp64", "chunks": "i32"}
    packed = {**packed_largest, "words": "*i64"}
    return {
        "pack_sums": ("pack_sums", packed, {"width": table.SUM_LANES, "wide": wide}),
        "pack_largest": ("pack_largest", {**packed_largest, **STATES}, {"width": table.SUM_LANES}),
        "round_largest": ("round_largest", {**STATES, "norms": "*fp64"}, {}),
        **{f"round_words, order {p}": ("round_words", words, {"order": p, **constants}) for p in table.ORDERS.values()},
    }


def of_gradients(dtype: str) -> dict[str, Variant]:
    loop = {"dtype": DTYPES[dtype], "chunk_size": table.CHUNK, "width": table.LANES}
    product = {"in_place": True, "per_tensor": False, "clamps": False, "by_bits": False, **loop}
    variants: dict[str, Variant] = {
        "change": ("change", CHANGE, product),
        "change, per tensor": ("change", CHANGE, {**product, "per_tensor": True}),
        "change, new tensors": ("change", CHANGE, {**product, "in_place": False}),
        "change, clamped": ("change", {**CHANGE, "coefs": "*i64"}, {**product, "clamps": True}),
    }
    for wide in (True,) if dtype == "float64" else (True, False):
        of_list = " of a float64 list" if wide and dtype != "float64" else ""
        for p in table.ORDERS.values():
            constants = {"order": p, "wide": wide, **loop}
            variants[f"add, order {p}{of_list}"] = ("add", {**LIST, "sums": "*fp64"}, constants)
            if not wide:
                variants[f"add, order {p} in float32"] = ("add", {**LIST, "sums": "*fp32"}, constants)
        for p, per_tensor in ((1, False), (2, False), (2, True)):
            variants[f"add_exactly, order {p}{', per tensor' if per_tensor else ''}{of_list}"] = (
                "add_exactly", {**LIST, "end_chunk": "i32", **STATES},
                {"order": p, "wide": wide, "per_tensor": per_tensor, **loop},
            )  # fmt: skip
    return variants


def code(variant: Variant, architecture: int) -> dict[str, Any]:
    kernel, types, constants = variant
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(types.values()) if kind.startswith("*")}
    source = ASTSource(
        fn=getattr(kernels, kernel), signature={**types, **dict.fromkeys(constants, "constexpr")}, constexprs=constants,
        attrs=aligned,
    )  # fmt: skip
    target = GPUTarget("cuda", architecture, 32)
    ptx = triton.compile(source, target=target, options={"num_warps": WARPS, **table.OPTIONS}).asm["ptx"]
    matches = re.findall(r"^\s*(@!?%p\d+ )?([a-z]\w*(?:\.\w+(?:::\w+)?)+)\s", ptx, re.MULTILINE)
    instructions = [instruction for _, instruction in matches]
    vectors = {
        kind: sum(name.startswith((f"{kind}.global.v4.b32", f"{kind}.global.v2.b64")) for name in instructions)
        for kind in ("ld", "st")
    }
    per_vector = 16 * 32 * WARPS / table.LANES
    return {
        "bytes read": vectors["ld"] * per_vector,
        "bytes written": vectors["st"] * per_vector,
        "conditional": sorted({instruction for condition, instruction in matches if condition}),
        "instructions": sorted(set(instructions)),
    }


def all_code(architecture: int) -> dict[str, Any]:
    summaries: dict[str, Any] = {}
    for wide in (True, False):
        dtype = "float64" if wide else "float32"
        summaries |= {
            f"{name}, {dtype}": {**code(kernel, architecture), "dtype": ""} for name, kernel in of_norms(wide).items()
        }
    for dtype in DTYPES:
        variants = of_gradients(dtype)
        summaries |= {
            f"{name}, {dtype}": {**code(kernel, architecture), "dtype": dtype} for name, kernel in variants.items()
        }
    return summaries


if __name__ == "__main__":
    print(json.dumps(all_code(int(sys.argv[1]))))
