"""The JSON Schema of a configuration, for editors.

python -m unified_clip.config.json_schema > docs/clip_config.schema.json
"""

from __future__ import annotations

import json

from pydantic.json_schema import GenerateJsonSchema

from .schema import VERSION, Settings


def text() -> str:
    """Return the schema as JSON."""
    schema = Settings.model_json_schema()
    schema = {
        "$schema": GenerateJsonSchema.schema_dialect,
        "title": f"A clip configuration of unified_clip, version {VERSION}",
        **{key: value for key, value in schema.items() if key != "title"},
    }
    schema["properties"]["$schema"] = {"type": "string"}
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    print(text(), end="")
