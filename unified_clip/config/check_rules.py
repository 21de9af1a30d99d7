"""The table `check` of a clip configuration, with the settings of `unified-clip config check`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .fields import ConfigModel, Name, Threshold

GLOB = (
    "Give a path relative to this file's directory. The wildcard * matches any text without a slash, and ** matches "
    "any number of directories"
)


class Ignore(ConfigModel):
    """An entry of `check.ignore`. The entry describes findings, and has the reason to ignore these findings."""

    path: Name = Field(description=f"the files with these findings. {GLOB}")
    clip: Name | None = Field(
        default=None,
        description="the name of the clip in the finding, such as clip_grad_value_. The wildcard * matches any text. "
        "By default, the entry is for all clips in the files",
    )
    threshold: Threshold | None = Field(
        default=None,
        description="the approved threshold of the clips. If the entry sets only the key rule, the threshold of this "
        "configuration is approved. If the entry sets neither key, every threshold is approved",
    )
    rule: Literal["none", "value", "norm", "global_norm"] | None = Field(
        default=None,
        description='the approved rule of the clips. The rule "none" approves clips that are off. If the entry sets '
        "only the key threshold, the rule of this configuration is approved. If the entry sets neither key, every rule "
        "is approved",
    )
    reason: Name = Field(description="the reason why these clips can differ from this configuration")


class CheckRules(ConfigModel):
    """Settings of `unified-clip config check`. These settings do not change how gradients are clipped."""

    require: list[Name] = Field(
        default=[],
        description='files that must have a clip. With ["nlp/**", "vision/**"], each of the two directories must have '
        f"at least one clip. {GLOB}",
    )
    each: list[Name] = Field(
        default=[],
        description=f"Python files that must have a clip if they build an optimizer. {GLOB}",
    )
    explicit: list[Name] = Field(
        default=[],
        description="files that must set the trainer's clip key, even if the trainer's default has the same effect. "
        f"{GLOB}",
    )
    nearest: list[Name] = Field(
        default=[],
        description="files in which the check accepts clips with a different family or eps. The option --nearest "
        f"accepts these clips in all files. {GLOB}",
    )
    off: list[Name] = Field(
        default=[],
        description="files in which the trainer's own clip must be off, because the training code clips by this "
        f"configuration. {GLOB}",
    )
    nonfinite: list[Name] = Field(
        default=[],
        description=f"files in which clips can differ from this configuration in the key nonfinite. {GLOB}",
    )
    ignore: list[Ignore] = []
    formats: dict[Name, Name] = Field(
        default={},
        description=f'the format of files, such as {{"configs/ds_*.json" = "deepspeed@0.19.6"}}. {GLOB}',
    )
