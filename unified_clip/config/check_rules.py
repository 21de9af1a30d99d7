"""The table `check` of a clip configuration, with the settings of `unified-clip config check`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .fields import ConfigModel, Name, Threshold

GLOB = "a path relative to this file's directory; * matches within a directory, ** any number of directories"


class Ignore(ConfigModel):
    """An entry of `check.ignore`, which has findings to ignore and the reason."""

    path: Name = Field(description=f"the files: {GLOB}")
    clip: Name | None = Field(
        default=None,
        description="the name of the clip in the finding, such as clip_grad_value_; * matches any text; default: all "
        "clips in the files",
    )
    threshold: Threshold | None = Field(
        default=None,
        description="the approved threshold of the clips. If the entry has the key rule, the default is the threshold "
        "of this file, otherwise any threshold",
    )
    rule: Literal["none", "value", "norm", "global_norm"] | None = Field(
        default=None,
        description='the approved rule of the clips, where "none" is a clip that is off. If the entry has the key '
        "threshold, the default is the rule of this file, otherwise any rule",
    )
    reason: Name = Field(description="why these clips may differ from this file")


class CheckRules(ConfigModel):
    """Settings of `unified-clip config check`. These settings do not change how gradients are clipped."""

    require: list[Name] = Field(
        default=[],
        description=f'files, such as ["nlp/**", "vision/**"], in which at least one clip must exist: {GLOB}',
    )
    each: list[Name] = Field(
        default=[],
        description=f"Python files that must have a clip if they build an optimizer: {GLOB}",
    )
    explicit: list[Name] = Field(
        default=[],
        description=f"files that must set the trainer's clip key, even if its default has the same effect: {GLOB}",
    )
    nearest: list[Name] = Field(
        default=[],
        description="files whose clips may differ from this configuration in family and eps; the option --nearest "
        f"allows this in all files: {GLOB}",
    )
    off: list[Name] = Field(
        default=[],
        description="files of trainers whose own clip has to be off, since the training code clips by this file: "
        f"{GLOB}",
    )
    nonfinite: list[Name] = Field(
        default=[],
        description="files for which the check ignores the key nonfinite, whatever the clips do with norms that are "
        f"not finite: {GLOB}",
    )
    ignore: list[Ignore] = []
    formats: dict[Name, Name] = Field(
        default={},
        description=f'the format of files, such as {{"configs/ds_*.json" = "deepspeed@0.19.6"}}: {GLOB}',
    )
