"""The rules of docs/port.md about clips that are arguments of Keras optimizers, and their steps."""

from __future__ import annotations

import pytest
from support.port.snippets import KERAS, TAPE, ported, verdicts, with_lines


def test_another_optimizer_of_the_same_name_gets_no_clip() -> None:
    other_step = KERAS[KERAS.index("def train") :].replace("(model", "(optimizer, model").replace("train", "other")
    text, _ = ported(KERAS + "\n" + other_step)
    assert text.count("clip_(variables)") == 1
    assert text.endswith(other_step)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("optimizer.minimize(f, variables)", "may also make a step with this optimizer."),
        ("register(optimizer.apply_gradients)", "This optimizer also applies gradients outside of the training steps"),
        ("optimizer.apply(mean(x), y)", "This optimizer also applies gradients outside of the training steps"),
        ("optimizer = other", "The file assigns several values to optimizer."),
    ],
)
def test_an_optimizer_with_other_kinds_of_steps_keeps_its_clip(line: str, reason: str) -> None:
    text, sites = ported(f"{KERAS}\n{line}\n")
    assert text == f"{KERAS}\n{line}\n"
    assert reason in sites[0].reason


def test_an_optimizer_that_also_steps_other_variables_is_flagged() -> None:
    other_step = KERAS[KERAS.index("def train") :].replace("train", "other").replace("variables", "more")
    assert ported(f"{KERAS}\n{other_step}")[0] == f"{KERAS}\n{other_step}"


def test_an_optimizer_that_steps_other_variables_elsewhere_without_a_clip_is_flagged() -> None:
    other_step = (
        TAPE[TAPE.index("    with") :]
        .replace("variables", "more")
        .replace("    grads = [tf.clip_by_norm(g, 1.0) for g in grads]\n", "")
    )
    source = TAPE + other_step.replace("grads", "rest")
    assert ported(source)[0] == source
    assert verdicts(TAPE + other_step.replace("grads", "rest").replace("optimizer", "second")) == ["rewritten"]


def test_two_thresholds_of_one_optimizer_are_flagged() -> None:
    _, sites = ported(with_lines(KERAS, ("LIMIT", "1.0, clipvalue=0.5")))
    assert [(site.verdict, "ignores clipvalue" in site.reason, site.suggestion) for site in sites] == [
        ("flagged", True, []),
        ("flagged", True, []),
    ]


def test_a_threshold_of_none_beside_another_one_does_not_count() -> None:
    assert verdicts(with_lines(KERAS, ("LIMIT", "1.0, clipvalue=None"))) == ["rewritten", "left"]


def test_a_threshold_that_changes_is_flagged() -> None:
    source = with_lines(KERAS, ("optimizer = tf", "LIMIT = 1.0\noptimizer = tf")) + "LIMIT = 2.0\n"
    assert ported(source)[0] == source


KERAS_CLASS = """\
import tensorflow as tf

class Trainer:
    def __init__(self):
        self.limit = 1.0
        self.opt = tf.keras.optimizers.SGD(0.1, global_clipnorm=self.limit)

    def step(self, x, variables):
        with tf.GradientTape() as tape:
            loss = self.model(x)
        self.opt.apply_gradients(zip(tape.gradient(loss, variables), variables))
"""


@pytest.mark.parametrize(
    "code", ["    def set(self):\n        self.limit = 2.0\n", "def run(trainer):\n    trainer.opt.learning_rate = 1\n"]
)
def test_an_optimizers_clip_that_other_code_may_change_is_kept(code: str) -> None:
    assert verdicts(KERAS_CLASS) == ["rewritten"]
    assert ported(KERAS_CLASS + code)[0] == KERAS_CLASS + code


def test_an_optimizers_clip_becomes_a_line_of_its_steps() -> None:
    text, (site,) = ported(KERAS)
    assert "SGD(0.1)" in text
    assert "    unified_clip.torch.GradientClipByGlobalNorm(LIMIT).clip_(variables)\n    optimizer.step()\n" in text
    assert site.becomes == "unified_clip.torch.GradientClipByGlobalNorm"
    assert site.becomes_meaning is not None
    assert site.becomes_meaning.config.family == "paddle"  # which differs where the norm is not finite


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (("LIMIT", "0"), "flagged"),
        (("LIMIT", "None"), "left"),
        (("def train", "model.compile(optimizer)\n\ndef train"), "flagged"),
        (("optimizer = tf", "optimizer = other = tf"), "flagged"),
    ],
)
def test_an_optimizers_clip_with_an_unknown_threshold_or_step_is_kept(change: tuple[str, str], verdict: str) -> None:
    source = with_lines(KERAS, change)
    assert ported(source)[0] == source
    assert verdicts(source) == [verdict]


@pytest.mark.parametrize(("code", "verdict"), [("", "flagged"), ("keras.ops.mean(x)\n", "rewritten")])
def test_clipnorm_of_a_keras_that_may_be_old_is_flagged(code: str, verdict: str) -> None:
    source = with_lines(KERAS, ("tf.keras", "keras"), ("global_clipnorm=LIMIT", "clipnorm=1.0")).replace(
        "import tensorflow as tf\n", f"import keras\nimport tensorflow as tf\n{code}"
    )
    assert verdicts(source) == [verdict]
