"""Judge a clip call by its place in the code: the same rules for the frameworks' calls and for unified_clip's."""

from __future__ import annotations

import ast

from ....config.clip_config import ClipConfig
from ....config.formats.python_source import Source
from ....errors import ConfigError
from ....port.catalog import ClipFunction
from ....port.clip_site import Meaning
from .. import call_site
from ..steps import scaled
from . import order, result


def of_call(source: Source, call: ast.Call, config: ClipConfig, kind: str, *, has_names: bool = False) -> ClipConfig:
    """Return the effect of a clip call: `config`, with the parameters that the call selects.

    config: The effect of the call on its own parameters. kind: "in place", "functional" for a function that returns
    gradients, "class" for a class or transformation, or "attached" for `attach_to`. has_names: Whether the call has the
    parameters' names in the whole model, as a clipper does.

    ConfigError: the call clips nothing, or its effect is unknown. The message has the reason.
    """
    order.check_runs(source, call)
    if kind == "attached":
        order.check_attached(source, call)
    if kind in ("in place", "functional"):
        order.check(source, call)
        scaled.check(source, call)
    if kind in ("functional", "class"):
        result.check(source, call)
    if kind in ("attached", "class"):
        return config
    if has_names and config.uses_names:
        call_site.narrowed(source, call, ClipConfig(rule="global_norm", threshold=1.0))
        return config
    return call_site.narrowed(source, call, config)


def of_unknown_threshold(source: Source, call: ast.Call | None, meaning: Meaning, kind: str) -> tuple[str, ClipConfig]:
    """Return (reason, settings) of a clip whose threshold is only known at run time. In the settings, 1 stands for it.

    call: The call that clips, or None for an argument of a trainer. meaning: The effect, from `unified-clip port`.
    kind: "in place", "functional", "class" or "attached", as `of_call` describes them.
    """
    why = f"The threshold, {meaning.threshold}, is only known at run time."
    if call is None:
        return why, meaning.config
    try:
        return why, of_call(source, call, meaning.config, kind)
    except ConfigError as error:
        return f"{why} {error}", meaning.config


def kind_of(function: ClipFunction) -> str:
    """Return the kind of a function, with "class" for optax's, and "functional" for those that return gradients."""
    if function.name.startswith("optax."):
        return "class"
    return "functional" if function.name.rpartition(".")[2].startswith("clip_by_") else function.kind
