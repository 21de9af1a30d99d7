"""The YAML format of EasyR1, a fork of verl, with the keys `max_grad_norm` of the actor and the critic."""

from __future__ import annotations

from packaging.version import Version

from ....documents import Document
from ....documents.inheritance.hydra import Hydra
from ...base import SEVERAL_OPTIMIZERS, Format, Imported, default_note

KEY = "max_grad_norm"
ACTOR, CRITIC = ("worker", "actor", KEY), ("worker", "critic", KEY)


class EasyR1(Format):
    name, title = "easyr1", "EasyR1"
    kinds = ("yaml",)
    source = "verl/workers/actor/config.py, verl/workers/actor/dp_actor.py, verl/workers/critic, verl/trainer"
    newest = "0.3.2"
    not_finite = "EasyR1 skips a step if the norm is not finite."
    inheritance = Hydra()
    own_keys = (("worker", "actor"),)
    clip_keys = written_keys = (ACTOR, CRITIC)
    option_keys = (ACTOR,)
    vocabulary = frozenset({"worker", "algorithm"})
    zero = "zeros"
    off = float("inf")

    def read(self, document: Document, version: Version | None) -> Imported:
        notes = default_note(document, ACTOR, "EasyR1 clips at 1.0")
        actor = self.read_threshold(document, ACTOR, 1.0, null="error")
        if document.get("algorithm", "adv_estimator") == "gae":  # other estimators have no critic
            if not document.has(*CRITIC):
                notes.append(f"The file does not set {'.'.join(CRITIC)}. By default, EasyR1 clips the critic at 1.0.")
            if self.read_threshold(document, CRITIC, 1.0, null="error") != actor:
                raise document.wrong(CRITIC, f"the critic's threshold differs from the actor's: {SEVERAL_OPTIMIZERS}")
        return Imported(self.settings("global_norm", actor), notes, self.not_finite, "skip")
