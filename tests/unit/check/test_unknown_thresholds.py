"""`unified-clip config check` on clips whose threshold is only known at run time: the rule may differ all the same."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, Check, only_finding

NEAREST = CLIP_CONFIG + '\n[check]\nnearest = ["**"]\n'

PARL = """import paddle
import parl


class PPO(parl.Algorithm):
    def __init__(self, model, max_grad_norm):
        clip = paddle.nn.ClipGradByNorm(max_grad_norm)
        self.optimizer = paddle.optimizer.Adam(parameters=model.parameters(), grad_clip=clip)
"""
OTHER_RULES = [
    PARL,
    "import torch\n\ntorch.nn.utils.clip_grad_value_(model.parameters(), args.clip)\n",
    "import torch\n\ntorch.nn.utils.clip_grad_norm_(model.parameters(), args.clip, norm_type=1)\n",
    "import unified_clip.torch as uc\n\nuc.clip_grad_value_(model.parameters(), args.clip)\n",
    "import tensorflow as tf\n\ngrads = [tf.clip_by_norm(g, args.clip) for g in grads]\n",
    "import tensorflow as tf\n\nopt = tf.keras.optimizers.Adam(clipnorm=args.clip)\n",
    "import accelerate\n\naccelerator = accelerate.Accelerator()\naccelerator.clip_grad_value_(ps, args.clip)\n",
    "from lightning import Trainer\n\nTrainer(gradient_clip_val=args.clip, gradient_clip_algorithm='value')\n",
]


@pytest.mark.parametrize("source", OTHER_RULES)
def test_another_rule_is_a_drift_even_if_the_threshold_is_unknown(check: Check, source: str) -> None:
    finding = only_finding(check({"a.py": source}, NEAREST))
    assert finding.kind == "drift"
    assert finding.differences
    assert "threshold" not in [each.about for each in finding.differences]
    assert "only known at run time" in finding.does
    assert "With the threshold of clip.toml: " in finding.does


def test_the_reason_names_the_rule_and_the_threshold(check: Check) -> None:
    finding = only_finding(check({"a.py": PARL}, NEAREST))
    assert finding.does.startswith(
        "The threshold, max_grad_norm, is only known at run time. No call in the project passes"
    )
    assert finding.differences[0].about == "rule"


@pytest.mark.parametrize(
    "source",
    [
        "import torch\n\ntorch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)\n",
        "import unified_clip.torch as uc\n\nuc.clip_grad_norm_(model.parameters(), args.clip)\n",
        "import accelerate\n\naccelerator = accelerate.Accelerator()\naccelerator.clip_grad_norm_(ps, args.clip)\n",
    ],
)
def test_the_same_rule_with_an_unknown_threshold_is_unknown(check: Check, source: str) -> None:
    assert only_finding(check({"a.py": source})).kind == "unknown"


def test_a_family_differs_unless_the_nearest_rule_is_accepted(check: Check) -> None:
    source = "import tensorflow as tf\n\ngrads, _ = tf.clip_by_global_norm(grads, args.clip)\n"
    assert only_finding(check({"a.py": source})).kind == "drift"
    assert only_finding(check({"a.py": source}, CLIP_CONFIG + '\n[check]\nnearest = ["**"]\n')).kind == "unknown"


def test_a_schedule_is_compared_by_its_rule(check: Check) -> None:
    clip = 'rule = "global_norm"\nthreshold = { schedule = "piecewise", values = [5.0, 1.0], boundaries = [9] }\n'
    assert only_finding(check({"a.py": OTHER_RULES[1]}, clip)).kind == "drift"
    same = "import torch\n\ntorch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)\n"
    assert only_finding(check({"a.py": same}, clip)).kind == "unknown"


@pytest.mark.parametrize(
    ("source", "threshold", "settings"),
    [
        (PARL, "max_grad_norm", "rule, eps"),
        (
            "import optax\n\ntx = optax.chain(optax.clip_by_global_norm(args.clip), optax.sgd(1.0))\n",
            "args.clip",
            "eps",
        ),
    ],
)
def test_the_effect_has_no_norm_of_an_unknown_threshold(
    check: Check, source: str, threshold: str, settings: str
) -> None:
    finding = only_finding(check({"a.py": source}))
    assert finding.kind == "drift"
    assert finding.effect.startswith(f"The threshold, {threshold}, is only known at run time. ")
    assert finding.effect.endswith(f"Whatever the threshold is, these settings differ: {settings}.")


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("import transformers\n\ntransformers.TrainingArguments('o', max_grad_norm='1.0')\n", "'1.0'"),
        ("import transformers\n\nLIMIT = '1.0'\ntransformers.TrainingArguments('o', max_grad_norm=LIMIT)\n", "'1.0'"),
        ("import torch\n\ntorch.nn.utils.clip_grad_norm_(model.parameters(), '1.0')\n", "'1.0'"),
    ],
)
def test_a_threshold_that_is_not_a_number_is_unknown_with_its_value(check: Check, source: str, value: str) -> None:
    finding = only_finding(check({"a.py": source}))
    assert finding.kind == "unknown"
    assert finding.does.startswith(f"The threshold is {value}, which is not a number. The call fails, or converts")
