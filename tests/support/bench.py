"""Results of `unified-clip bench`, for its tests."""

from __future__ import annotations

from typing import Any

from unified_clip.bench.options import Options

OPTIONS = Options(frameworks=["numpy"], lists=["10x10"], seconds=0.0)

SCHEMA = {
    "results": {"framework", "list", "dtype", "what", "native", "repeats", "ours_ms", "native_ms", "ratio"},
    "limits": {"framework", "list", "dtype", "bytes", "read_ms", "read_write_ms"},
    "memory": {"framework", "list", "dtype", "native", "ours_bytes", "native_bytes"},
}

TIMES = {"ours_ms": [1.0, 2.0, 3.0], "native_ms": [2.0, 4.0, 6.0], "ratio": [1.5, 2.0, 2.5]}
LABELS = {"framework": "paddle", "list": "GPT-2", "dtype": "float32"}
ALONE = {"native": "", "repeats": 7, "ours_ms": [120.0, 1234.5, 1300.0], "native_ms": None, "ratio": None}
DATA: dict[str, Any] = {
    **{
        "threads": 2,
        "seconds": 1.0,
        "machine": {"architecture": "x86_64", "cpus": 8, "instruction_set": "AVX2", "other_load": 0.1},
    },
    **{"versions": {"python": "3.11.9"}, "compiled_kernels": {"paddle": True}, "missing": {}, "failed": {}},
    "results": [
        {**LABELS, "what": "clipped", "native": "paddle.a", "repeats": 9, **TIMES},
        {**LABELS, "what": "clipped", "native": "paddle.b", "repeats": 9, **TIMES, "ours_ms": [1.0, 1.5, 3.0]},
        {**LABELS, "what": "not clipped", "native": "paddle.a", "repeats": 9, **TIMES},
        {**LABELS, "what": "norm alone", **ALONE},
    ],
    "limits": [{**LABELS, "bytes": 1000, "read_ms": [1.0, 1.0, 1.0], "read_write_ms": [2.0, 2.0, 2.0]}],
    "memory": [{**LABELS, "native": "paddle.a", "ours_bytes": 1 << 20, "native_bytes": None}],
}


def check_schema(data: dict[str, Any]) -> None:
    assert set(data) == {"threads", "seconds", "machine", "versions", "compiled_kernels", "missing", "failed", *SCHEMA}
    assert set(data["machine"]) - {"other_load"} == {"architecture", "cpus", "instruction_set"}
    for key, fields in SCHEMA.items():
        assert all(set(each) == fields for each in data[key]), key
