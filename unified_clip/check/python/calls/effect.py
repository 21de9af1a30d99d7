"""Judge a clip call by its place in the code: the same rules for the frameworks' calls and for unified_clip's."""

from __future__ import annotations

import ast

from ....config.clip_config import ClipConfig
from ....config.formats.python_source import Source
from .. import call_site
from . import order, result


def of_call(source: Source, call: ast.Call, config: ClipConfig, kind: str) -> ClipConfig:
    """Return the effect of a clip call: `config`, with the parameters that the call selects.

    config: The effect of the call on its own parameters. kind: "in place", "functional" for a function that returns
    gradients, "class" for a class or transformation, or "attached" for `attach_to`.

    ConfigError: the call clips nothing, or its effect is unknown. The message has the reason.
    """
    order.check_runs(source, call)
    if kind == "attached":
        order.check_attached(source, call)
    if kind in ("in place", "functional"):
        order.check(source, call)
    if kind in ("functional", "class"):
        result.check(source, call)
    if kind in ("attached", "class"):
        return config
    return call_site.narrowed(source, call, config)
