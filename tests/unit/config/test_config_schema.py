"""The JSON schema of clip configurations, for editors."""

from __future__ import annotations

import json

import jsonschema
import pytest
from support.config.clip_configs import BAD, CLIP, DOCS

from unified_clip import ClipConfig
from unified_clip.config import documents
from unified_clip.config.schema import json_schema


def test_the_schema_requires_no_rule_of_a_group() -> None:
    rule = json.loads(json_schema())["$defs"]["Group"]["properties"]["rule"]
    assert rule["default"] is None
    assert rule["description"] == "the rule for these parameters. The default is the rule of the configuration"
    group = {"name": "a", "include": ["x"]}
    jsonschema.validate({"rule": "norm", "threshold": 1, "groups": [group]}, json.loads(json_schema()))


def test_the_published_schema_is_that_of_the_code() -> None:
    assert (DOCS / "clip_config.schema.json").read_text(encoding="utf-8") == json_schema()


@pytest.mark.parametrize(
    "text", [CLIP, 'rule = "global_norm"\nthreshold = 1.0', 'rule = "none"', 'rule = "value"\nmin = -1.0\nmax = 2.0']
)
def test_valid_configurations_fit_the_schema(text: str) -> None:
    schema = json.loads(json_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(ClipConfig.loads(text).dumps("json")), schema)


@pytest.mark.parametrize(
    "problem", ["a misspelt key", "a negative threshold", "an unknown rule", "an order of 0", "no rule"]
)
def test_the_schema_rejects_invalid_configurations(problem: str) -> None:
    data = documents.parse(BAD[problem][0], "toml", "").data
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, json.loads(json_schema()))
