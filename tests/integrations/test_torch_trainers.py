"""Lightning, Transformers and Accelerate: what every trainer promises, with a callback or attached."""

from __future__ import annotations

import copy
import math
import pickle
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiers import is_at_least, quick
from support.trainers.kits import Accelerate, Lightning, Transformers
from support.trainers.torch_training import DATA, SCALE, config, plain_records

from unified_clip import ClipConfig

pytestmark = [
    pytest.mark.usefixtures("accelerate_state"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*resuming from a checkpoint"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:DeprecationWarning"),
]

of_each = pytest.mark.parametrize("trainer", [Lightning, Transformers, Accelerate])
quickly_of_lightning = pytest.mark.parametrize("trainer", quick([Lightning, Transformers, Accelerate], Lightning))
with_callbacks = pytest.mark.parametrize("trainer", [Lightning, Transformers])

ZCLIP = config(adaptive={"rule": "zclip", "warmup_steps": 3})


@of_each
@pytest.mark.parametrize("fused", quick([False, True], True))
def test_every_way_to_clip_makes_the_records_of_a_plain_loop(tmp_path: Path, trainer: Any, fused: bool) -> None:
    expected = plain_records(tmp_path / "plain.jsonl")
    for way, scaled in product(trainer.WAYS, trainer.SCALED):
        fit = trainer.fit(tmp_path, way=way, fused=fused, scaled=scaled)
        assert fit.records == expected, (way, scaled)


@quickly_of_lightning
def test_a_step_that_the_scaler_skips_is_not_clipped(tmp_path: Path, trainer: Any) -> None:
    for nonfinite, fused in product(("family", "raise", "skip", "zero"), (False, True)):
        fit = trainer.fit(tmp_path, config(nonfinite=nonfinite), fused=fused, scaled="by the trainer", overflow_at=1)
        assert [math.isfinite(line["norm"]) for line in fit.records] == [True] * (DATA.STEPS - 1), (nonfinite, fused)
        assert fit.scaler.get_scale() == SCALE / 2 * 2.0 ** ((DATA.STEPS - 2) // 3)


@of_each
def test_accumulated_gradients_are_clipped_once(tmp_path: Path, trainer: Any) -> None:
    steps = {"max_steps": DATA.STEPS // 4} if trainer is Transformers else {}
    for way in trainer.WAYS[:2]:
        fit = trainer.fit(tmp_path, way=way, **{trainer.ACCUMULATE: 4}, **steps)
        assert len(fit.records) == DATA.STEPS // 4


def in_order(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return records without their numbers, and without the sums that only the first call of a recording has."""
    for parameter in (each for line in records for each in line["parameters"].values()):
        parameter.pop("sums", None)
    return [line | {"step": 0} for line in records]


@quickly_of_lightning
def test_training_resumed_from_a_checkpoint_matches_an_uninterrupted_run(tmp_path: Path, trainer: Any) -> None:
    """The checkpoint has the step of the schedule, and the state of an adaptive threshold."""
    if trainer is Transformers and not is_at_least("torch", "2.6"):
        pytest.skip("with older releases of PyTorch, Transformers warns or refuses to resume")
    for clip, options in product((config(), ZCLIP), trainer.RESUMED):
        saved = tmp_path / f"{clip.rule}{clip.is_adaptive}{len(options)}"
        saved.mkdir()
        whole = trainer.fit(tmp_path, clip.model_copy(), epochs=2, **options)
        trainer.fit(tmp_path, clip.model_copy(), save=saved, **options)
        resumed = trainer.fit(tmp_path, clip.model_copy(), epochs=2, resume=saved, **options)
        assert len(resumed.records) >= DATA.STEPS
        assert in_order(resumed.records) == in_order(whole.records[-len(resumed.records) :])
        assert resumed.clip.state_dict() == whole.clip.state_dict()


@with_callbacks
def test_a_copied_callback_starts_with_a_new_state(tmp_path: Path, trainer: Any) -> None:
    clip = trainer.fit(tmp_path, max_steps=2).clip
    for copied in (copy.deepcopy(clip), pickle.loads(pickle.dumps(clip))):
        with pytest.raises(RuntimeError, match="nothing has been clipped"):
            _ = copied.last
        assert trainer.fit(tmp_path, copied).records == plain_records(tmp_path / "plain.jsonl")


@with_callbacks
def test_the_outcome_is_logged(tmp_path: Path, trainer: Any) -> None:
    fit = trainer.fit(tmp_path, config(exclude=[], threshold=1.0))
    logs = [line for line in fit.logs if "clip_coef" in line]
    assert len(logs) == len(fit.records) == DATA.STEPS
    for line, record in zip(logs, fit.records, strict=True):
        assert line.get("grad_norm", record["norm"]) == pytest.approx(record["norm"], rel=1e-6)
        assert line["grad_norm_clipped"] == pytest.approx(min(record["norm"], 1.0), rel=1e-5)
        assert line["clip_coef"] == pytest.approx(line["grad_norm_clipped"] / record["norm"], rel=1e-5)
    assert logs[0]["clip_rate"] == 1 > fit.clip.rate
    assert logs[-1]["clip_rate"] == pytest.approx(fit.clip.rate)


# -- rejections


@of_each
def test_a_second_clip_is_rejected_before_the_first_step(tmp_path: Path, trainer: Any) -> None:
    ways: dict[str, Any] = {"attached to this SGD already": {"way": trainer.WAYS[0]}}
    if trainer is not Accelerate:
        ways["two ClipCallbacks, which would clip"] = {"callbacks": [trainer.Callback(ClipConfig(rule="none"))]}
        ways[f"{trainer.OWN_LIMIT}=0.5"] = {trainer.OWN_LIMIT: 0.5}
    begin = torch.optim.SGD.__init__

    def attached(self: Any, *args: Any, **keywords: Any) -> None:
        begin(self, *args, **keywords)
        ClipConfig(rule="none").attach_to(self)

    for message, options in ways.items():
        model = trainer.Model()
        before = model.output.weight.detach().clone()
        with pytest.MonkeyPatch.context() as patch:
            if message.startswith("attached"):
                patch.setattr(torch.optim.SGD, "__init__", attached)
            with pytest.raises(ValueError, match=f"{message}.* twice"):
                trainer.fit(tmp_path, model=model, **options)
        assert torch.equal(model.output.weight, before)


@of_each
def test_the_declared_ownership_is_passed(tmp_path: Path, trainer: Any) -> None:
    with pytest.raises(ValueError, match="gradient elements together, and check_numel expects 1"):
        trainer.fit(tmp_path, declared={"process_group": None, "check_numel": 1})
