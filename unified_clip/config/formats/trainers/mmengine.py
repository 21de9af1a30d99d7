"""The Python format of mmengine, with the key `optim_wrapper.clip_grad`. The Python code is parsed, and never run."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ....facts.trainer_rows import Trainer, tests_of
from ...documents import Document, PartialTable
from ...schema import Settings, is_off
from .. import engines
from ..base import SEVERAL_OPTIMIZERS, Imported, OwnFormat, name_format, read_norm_type
from ..python_config import source as python_config
from ..python_config.bases import ConfigBases

CLIP = ("optim_wrapper", "clip_grad")
MMCV = ("optimizer_config", "grad_clip")
WRAPPER_ARGUMENTS = {"type", "optimizer", "paramwise_cfg", "constructor", "accumulative_counts", "loss_scale", "dtype"}
"""A dict `optim_wrapper` with any other key can contain several optimizers."""

OTHER_CLIP = (
    "with this strategy, {engine} clips by its own setting, and clip_grad is not read. Write a clip configuration with "
    "the value of that setting."
)
NO_KEY = (
    "clips of type {kind!r} do not have this key. Use one of {keys}, or remove the key. If a base file has the key, "
    "add _delete_=True to clip_grad instead."
)
DELETE = "_delete_"
NO_BASE = "no base file sets this dict, so _delete_ makes training fail. Remove _delete_."
CLIP_ARGUMENTS = {
    "norm": {"max_norm", "norm_type", "error_if_nonfinite", "foreach"},
    "value": {"clip_value", "foreach"},
}


class MMEngine(OwnFormat):
    def __init__(self, row: Trainer) -> None:
        super().__init__(row)
        self.inheritance = ConfigBases()

    def parse(self, text: str, name: str) -> Document:
        return python_config.parse(text, name)

    def recognises(self, document: Document) -> bool:
        return super().recognises(document) and self.names_own_key(document)

    def names_own_key(self, document: Document) -> bool:
        """Return whether the text contains a key. Otherwise, every script with `exec(code)` would be recognised."""
        own = [key[0] for when in self.row.recognise for test in tests_of(when) for key in test.key]
        return any(key in document.text for key in (*own, *self.inheritance.keys, "read_base"))

    def read(self, document: Document, version: Version | None) -> Imported:
        strategy = document.get("strategy") if document.shows("strategy") else None
        if document.shows(CLIP[0], DELETE):
            raise document.wrong([CLIP[0], DELETE], NO_BASE)
        if (engine := engines.of_strategy(strategy)) in engines.UNREACHABLE:
            raise document.wrong(["strategy"], OTHER_CLIP.format(engine=engine))
        if not document.has(*CLIP):
            return self._without_clip(document)
        clip = document.get(*CLIP)
        if clip is None:
            return Imported({"rule": "none"})
        if not isinstance(clip, dict) or (not clip and not isinstance(clip, PartialTable)):
            raise document.wrong(CLIP, f"{clip!r:.60} makes training fail. Set None, or a dict with a threshold.")
        notes = check_known(document, CLIP)
        kind = clip.get("type", "norm")
        if not isinstance(kind, str) or kind not in CLIP_ARGUMENTS:
            raise document.wrong([*CLIP, "type"], f"{kind!r:.60} is not a type of clip in mmengine. Set norm or value.")
        if unknown := sorted(clip.keys() - CLIP_ARGUMENTS[kind] - {"type"}):
            problem = NO_KEY.format(kind=kind, keys=", ".join(sorted(CLIP_ARGUMENTS[kind])))
            raise document.wrong([*CLIP, unknown[0]], NO_BASE if unknown[0] == DELETE else problem)
        key = [*CLIP, "max_norm" if kind == "norm" else "clip_value"]
        if not document.shows(*key):
            raise document.wrong(CLIP, f"the type {kind!r} needs {key[-1]}. Set {key[-1]}.")
        if kind == "norm":
            return self.by_norm(document, CLIP, notes)
        return Imported(self.settings("value", self.read_threshold(document, key, null="error")), notes)

    def by_norm(self, document: Document, path: tuple[str, ...], notes: list[str]) -> Imported:
        threshold = self.read_threshold(document, [*path, "max_norm"], null="error")
        settings = self.settings("global_norm", threshold, read_norm_type(document, [*path, "norm_type"]))
        raises = document.get(*path).get("error_if_nonfinite")
        return Imported(settings | ({"nonfinite": "raise"} if raises else {}), notes)

    def _without_clip(self, document: Document) -> Imported:
        if document.shows(MMCV[0]) and document.has(*MMCV):
            raise document.wrong(
                MMCV,
                f"mmengine ignores this key of mmcv 1. If mmcv 1 reads the file, {name_format('mmcv')}. Otherwise, "
                "remove the key. To clip by mmengine, set optim_wrapper = dict(clip_grad=...).",
            )
        wrapper = document.get("optim_wrapper", default={})
        if not isinstance(wrapper, dict):
            advice = "Set a dict, such as dict(optimizer=..., clip_grad=dict(max_norm=1.0))."
            raise document.wrong(["optim_wrapper"], f"{wrapper!r:.60} is not a dict. {advice}")
        for name, value in wrapper.items():
            if name not in WRAPPER_ARGUMENTS:
                document.get("optim_wrapper", name)  # raises if the value is unknown
            if isinstance(value, dict) and "clip_grad" in value:
                raise document.wrong(["optim_wrapper", name, "clip_grad"], SEVERAL_OPTIMIZERS)
        return Imported({"rule": "none"}, ["The file does not set clip_grad. By default, mmengine clips nothing."])

    def write(self, settings: Settings, version: Version) -> Any:
        threshold = self.export_threshold(settings)
        raises = {"error_if_nonfinite": True} if settings.nonfinite == "raise" else {}
        if raises and settings.rule == "value" and not is_off(settings):
            problem = 'it does not support `nonfinite = "raise"` with `rule = "value"`.'
            raise self.not_exported(f"{problem} Remove `nonfinite`. This changes the clip.{self.in_python}")
        if threshold is None:
            return {"max_norm": float("inf"), **raises} if raises else None
        if settings.rule == "value":
            return {"type": "value", "clip_value": threshold}
        norm_type = {} if settings.norm_type in (None, 2.0) else {"norm_type": settings.norm_type}
        return {"max_norm": threshold, **norm_type, **raises}

    def dump(self, data: Any) -> str:
        return f"optim_wrapper = dict(clip_grad={clip_source(data)})\n"


SCHEDULE = ("lr_config", "checkpoint_config", "runner", "total_epochs")
"""A file of mmcv 1 sets at least one of these variables."""

REPLACED = ("optim_wrapper", "param_scheduler", "train_dataloader", "default_hooks")
"""Variables of mmengine that replace variables of mmcv 1."""


class MMCV1(MMEngine):
    def recognises(self, document: Document) -> bool:
        names = document.data if isinstance(document.data, dict) else {}
        has_optimizer = any(isinstance(names.get(name), dict) for name in ("optimizer", MMCV[0]))
        has_schedule = any(isinstance(names.get(name), dict | int) for name in SCHEDULE)
        is_replaced = any(name in names for name in REPLACED)
        return has_optimizer and has_schedule and not is_replaced and self.names_own_key(document)

    def read(self, document: Document, version: Version | None) -> Imported:
        if not document.has(*MMCV):
            return Imported({"rule": "none"}, ["The file does not set grad_clip. By default, mmcv 1 clips nothing."])
        clip = document.get(*MMCV)
        if clip is None:
            return Imported({"rule": "none"})
        if not isinstance(clip, dict) or not document.shows(*MMCV, "max_norm"):
            raise document.wrong(MMCV, f"{clip!r:.60} makes training fail. Set None, or a dict with max_norm.")
        notes = check_known(document, MMCV)
        if unknown := sorted(clip.keys() - CLIP_ARGUMENTS["norm"]):
            raise document.wrong(
                [*MMCV, unknown[0]], "clip_grad_norm_ of PyTorch does not have this argument. Remove the argument."
            )
        return self.by_norm(document, MMCV, notes)

    def dump(self, data: Any) -> str:
        return f"optimizer_config = dict(grad_clip={clip_source(data)})\n"


def check_known(document: Document, path: tuple[str, ...]) -> list[str]:
    clip = document.get(*path)
    for name in clip:
        document.get(*path, name)
    is_partial = isinstance(clip, PartialTable)
    return [f"{clip.unread} A file that was not read might set more keys of {path[-1]}."] if is_partial else []


def clip_source(data: dict[str, Any] | None) -> str:
    if data is None:
        return "None"
    sources = {key: "float('inf')" if value == float("inf") else repr(value) for key, value in data.items()}
    return f"dict({', '.join(f'{key}={source}' for key, source in sources.items())})"
