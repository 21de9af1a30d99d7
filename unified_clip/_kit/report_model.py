"""The base class of reports. Commands write and read reports as JSON."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, WithJsonSchema

from ..recorder.lines import plain_json

Real = Annotated[
    float,
    BeforeValidator(lambda value: float(value) if value in ("inf", "-inf", "nan") else value),
    PlainSerializer(plain_json, return_type=float | str, when_used="json"),  # pydantic 2.10 cannot infer the type
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"], "type": "string"}]}),
]
"""A number. NaN and infinities are strings in JSON."""


class ReportModel(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True, strict=True)

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def json_schema(model: type[ReportModel], title: str) -> str:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    schema |= {key: value for key, value in model.model_json_schema(mode="serialization").items() if key != "title"}
    return json.dumps(schema, indent=1) + "\n"
