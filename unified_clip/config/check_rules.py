"""The table `check` of a clip configuration."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .fields import ConfigModel, Name, Threshold

GLOB = (
    "Give a path relative to the clip configuration. The wildcard * matches any text without a slash, and ** matches "
    "any number of directories"
)


class Ignore(ConfigModel):
    """An entry of `check.ignore`: which findings to ignore, and why."""

    path: Name = Field(description=f"the files in which to ignore findings. {GLOB}")
    clip: Name | None = Field(
        default=None,
        description="the name of the clip, such as clip_grad_value_, or a part of the name. The wildcard * matches "
        "any text. By default, the entry applies to all clips in the files",
    )
    threshold: Threshold | None = Field(
        default=None,
        description="the threshold that the ignored clips must have. If you set rule but not threshold, the default is "
        "this configuration's threshold",
    )
    rule: Literal["none", "value", "norm", "global_norm"] | None = Field(
        default=None,
        description='the rule that the ignored clips must have, or "none" if they must be off. If you set threshold '
        "but not rule, the default is this configuration's rule",
    )
    reason: Name = Field(description="why the ignored clips are allowed to differ from this configuration")


class DeclaredKey(ConfigModel):
    """An entry of `check.key`: a key that holds the threshold of a clip in files of no known trainer."""

    path: Name = Field(description=f"the files with the key. {GLOB}")
    key: Name = Field(
        description='the last names of the key, joined by dots, such as "optim.grad_clip". The name * matches any '
        "name. In Python source, the key can be an attribute, an entry of a dict, an argument or a command line option",
    )
    rule: Literal["value", "norm", "global_norm"] = Field(description="the rule by which your code clips")
    off: list[float | bool | str] = Field(
        default=[],
        description='values with which your code does not clip, such as [0, -1] or ["none"]. The value null always '
        "switches the clip off",
    )
    family: Literal["pytorch", "tensorflow", "paddle"] | None = Field(
        default=None,
        description="the family of the framework's function that your code calls. By default, the family of this "
        "configuration",
    )


class CheckRules(ConfigModel):
    """Settings of `unified-clip config check`. These settings do not change how gradients are clipped."""

    require: list[Name] = Field(
        default=[],
        description='patterns such as ["nlp/**", "vision/**"]. For each pattern, at least one matching file must '
        f"have a clip. {GLOB}",
    )
    each: list[Name] = Field(
        default=[],
        description="Python files that must have a clip, in the file or in a file that it imports, if they compute "
        f"gradients. {GLOB}",
    )
    nearest: list[Name] = Field(
        default=[],
        description="files in which the family and eps of a clip may differ from this configuration. The option "
        f"--nearest allows these differences in all files. {GLOB}",
    )
    ignore: list[Ignore] = []
    key: list[DeclaredKey] = []
    formats: dict[Name, Name] = Field(
        default={},
        description=f'a table from paths to formats, such as {{"configs/ds_*.json" = "deepspeed@0.19.6"}}. {GLOB}',
    )
