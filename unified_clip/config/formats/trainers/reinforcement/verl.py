"""The YAML format of verl. The actor and the critic each have a clip key: `grad_clip` or `optim.clip_grad`."""

from __future__ import annotations

from packaging.version import Version

from ....documents import Document
from ....documents.inheritance.hydra import Hydra
from ...base import SEVERAL_OPTIMIZERS, Format, Imported, default_note, paths

ACTOR, CRITIC = ("actor_rollout_ref", "actor"), ("critic",)
SKIPS_SINCE = Version("0.4")
SKIPS = "verl skips a step if the norm is not finite"


class Verl(Format):
    name, title = "verl", "verl"
    kinds = ("yaml",)
    source = "verl/workers/actor/dp_actor.py, verl/workers/critic/dp_critic.py, verl/workers/config"
    newest = "0.7.0"
    not_finite = f"From {SKIPS_SINCE} on, {SKIPS}."
    inheritance = Hydra()
    own_keys = (ACTOR,)
    clip_keys = paths("""
        actor_rollout_ref.actor.grad_clip critic.grad_clip actor_rollout_ref.actor.optim.clip_grad
        critic.optim.clip_grad
    """)
    written_keys = clip_keys[:2]
    vocabulary = frozenset({"actor_rollout_ref", "critic", "algorithm", "reward_model", "custom_reward_function"})
    zero = "zeros"
    off = float("inf")

    def read(self, document: Document, version: Version | None) -> Imported:
        notes: list[str] = []
        actor = self._threshold(document, ACTOR, notes)
        if document.has(*CRITIC) and document.get(*CRITIC, "enable") is not False:
            critic = self._threshold(document, CRITIC, notes)
            if critic != actor:
                raise document.wrong(CRITIC, f"the critic's threshold differs from the actor's: {SEVERAL_OPTIMIZERS}")
        return Imported(self.settings("global_norm", actor), notes, _not_finite(document, version))

    def _threshold(self, document: Document, part: tuple[str, ...], notes: list[str]) -> float | None:
        by_engine, by_worker = [*part, "optim", "clip_grad"], [*part, "grad_clip"]
        is_megatron = _is_megatron(document, part)
        place = by_engine if is_megatron or (not document.has(*by_worker) and document.has(*by_engine)) else by_worker
        values = [document.get(*keys) for keys in (by_engine, by_worker) if document.has(*keys)]
        if not is_megatron and len(values) == 2 and values[0] != values[1]:
            message = (
                "grad_clip differs from optim.clip_grad. Depending on the version, verl uses one of these keys. Set "
                "both to the same value."
            )
            raise document.wrong(by_worker, message)
        notes += default_note(document, place, "verl clips at 1.0")
        return self.read_threshold(document, place, 1.0, zero="off" if is_megatron else "zeros", null="error")


def _is_megatron(document: Document, part: tuple[str, ...]) -> bool:
    return bool(document.get(*part, "strategy") == "megatron")


def _not_finite(document: Document, version: Version | None) -> str:
    if _is_megatron(document, ACTOR):
        return ""
    if version is None:
        return Verl.not_finite
    return f"{SKIPS}." if version >= SKIPS_SINCE else ""
