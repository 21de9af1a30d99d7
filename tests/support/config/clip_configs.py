"""A clip configuration in TOML, YAML and JSON, and invalid ones with their errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from unified_clip._kit.parse import tomllib

Write = Callable[[str, str], Path]

DOCS = Path(__file__).parents[3] / "docs"

CLIP = """\
version = 1
rule = "global_norm"
family = "paddle"
nonfinite = "skip"
exclude = ["*.bias", "norm.*"]

[threshold]
schedule = "linear"
start = 10.0
end = 1
steps = 1_000

[[groups]]
name = "embeddings"
include = ["embed.*"]
rule = "norm"
threshold = 0.1
norm_type = inf

[[groups]]
name = "head"
include = ["head.*"]
rule = "value"
min = -1.0
max = 0.5
"""

AS_YAML = """\
# the same
version: 1
rule: global_norm
family: paddle
nonfinite: skip
exclude: ["*.bias", norm.*]
threshold: {schedule: linear, start: 1e1, end: 1, steps: 1000}
groups:
  - name: embeddings
    include: [embed.*]
    rule: norm
    threshold: 1e-1
    norm_type: .inf
  - {name: head, include: [head.*], rule: value, min: -1, max: 0.5}
"""

AS_JSON = """\
{"$schema": "clip_config.schema.json",
 "version": 1, "rule": "global_norm", "family": "paddle", "nonfinite": "skip", "exclude": ["*.bias", "norm.*"],
 "threshold": {"schedule": "linear", "start": 10, "end": 1.0, "steps": 1000},
 "groups": [
   {"name": "embeddings", "include": ["embed.*"], "rule": "norm", "threshold": 0.1, "norm_type": "inf"},
   {"name": "head", "include": ["head.*"], "rule": "value", "min": -1.0, "max": 0.5}
 ]}
"""


def write_config(directory: Path, text: str, kind: str = "toml") -> Path:
    path = directory / f"clip.{kind}"
    path.write_text(text, encoding="utf-8")
    return path


DATA = Path(__file__).parents[2] / "data"

BAD = {
    each["what"]: (each["text"], each["message"])
    for each in tomllib.loads((DATA / "bad_configs.toml").read_text(encoding="utf-8"))["bad"]
}
