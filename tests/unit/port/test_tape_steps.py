"""The rules of docs/port.md about steps with a gradient tape, which get the form of PyTorch."""

from __future__ import annotations

import pytest
from support.port.snippets import TAPE, ported, verdicts, with_lines


def test_a_step_gets_the_form_of_pytorch() -> None:
    text, _ = ported(TAPE)
    assert text.splitlines()[5:] == [
        "        loss = model(x)",
        "    optimizer.zero_grad()",
        "    loss.backward()",
        "    grads = [variable.grad for variable in variables]",
        "    grads = [unified_clip.torch.clip_by_norm(g, 1.0) for g in grads]",
        "    for grad, variable in zip(grads, variables):",
        "        variable.grad = grad",
        "    optimizer.step()",
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("    optimizer.apply", "    return optimizer.apply"), "The result of apply_gradients() is used"),
        (
            ("    optimizer.apply_gradients(zip(grads, variables))", "    return grads"),
            "This clip is not between gradient() and apply_gradients() of a training step",
        ),
        (("tape.gradient(loss, variables)", "tape.gradient(loss, variables, f)"), "has arguments besides the loss"),
        (("tape.gradient(loss, variables)", "tape.gradient(loss)"), "gradient() has no variables"),
        (("zip(grads, variables))", "zip(grads, variables), s)"), "only in the form apply_gradients(zip("),
        (("    optimizer.apply", "    if x:\n        optimizer.apply"), "are in different blocks"),
        (("tape.gradient(loss, variables)", "[g for g in tape.gradient(loss, variables)]"), "a line or an expression"),
        (("    grads = [tf", "    more = tape.gradient(loss, x)\n    grads = [tf"), "do not alternate"),
        (
            ("tf.GradientTape()", "tf.GradientTape(persistent=True)"),
            "A persistent tape may compute gradients several times",
        ),
        (("        loss = model(x)", "        loss = optimizer.get_scaled_loss(model(x))"), "The loss is scaled"),
        (
            ("import tensorflow as tf\n", "import tensorflow as tf\nimport horovod.tensorflow as hvd\nhvd.init()\n"),
            "Horovod averages",
        ),
        (
            ("import tensorflow as tf\n", "import tensorflow as tf\ns = tf.distribute.MirroredStrategy()\n"),
            "Each replica",
        ),
    ],
)
def test_a_step_without_a_form_in_pytorch_is_unchanged(change: tuple[str, str], reason: str) -> None:
    source = with_lines(TAPE, change)
    text, (site,) = ported(source)
    assert text == source
    assert site.verdict == "flagged"
    assert reason in site.reason


def test_a_step_with_a_clip_that_is_kept_is_unchanged() -> None:
    source = with_lines(
        TAPE,
        ("    optimizer.apply", "    grads = [tf.clip_by_average_norm(g, 1.0) for g in grads]\n    optimizer.apply"),
    )
    text, sites = ported(source)
    assert text == source
    assert sites[0].reason == "Another clip in this step cannot be rewritten. Port both clips by hand."


def test_steps_of_one_optimizer_with_other_variables_are_unchanged() -> None:
    step = with_lines(TAPE, ("model, optimizer, x", "model, x"))
    source = step + step.replace("variables)", "others)")
    text, sites = ported(source)
    assert text == source
    assert all(
        site.reason.startswith("This optimizer updates different variables in different steps") for site in sites
    )
    assert len(sites) == 2


@pytest.mark.parametrize(
    "pairs",
    [
        "list(zip(grads, variables))",
        "[(g, v) for g, v in zip(grads, variables)]",
        "((tf.clip_by_norm(g, 1.0), v) for g, v in zip(grads, variables))",
        "(g, v) for g, v in zip(grads, variables)",
        "zip(tf.clip_by_global_norm(grads, 1.0)[0], variables)",
    ],
)
def test_all_gradients_and_variables_may_be_paired_in_many_ways(pairs: str) -> None:
    assert "flagged" not in verdicts(with_lines(TAPE, ("zip(grads, variables)", pairs)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            ("    grads = [tf", "    optimizer = x\n    grads = [tf"),
            "The optimizer is assigned after the call of gradient()",
        ),
        (
            ("optimizer.apply", "next(optimizers).apply"),
            "The optimizer is not a variable here. Assign the optimizer first",
        ),
        (
            ("    grads = [tf", "    grads[0] = x\n    grads = [tf"),
            "It is unclear whether the step applies all gradients",
        ),
        (
            ("    grads = [tf", "    del grads[0]\n    grads = [tf"),
            "It is unclear whether the step applies all gradients",
        ),
        (
            ("    grads = [tf", "    grads.reverse()\n    grads = [tf"),
            "It is unclear whether the step applies all gradients",
        ),
        (("zip(grads, variables)", "*[zip(grads, variables)]"), "only in the form apply_gradients(zip("),
        (
            ("    grads = [tf", "    grads.pop()\n    grads = [tf"),
            "It is unclear whether the step applies all gradients",
        ),
        (("        loss = model(x)", "        loss = [model(x)]"), "backward() accepts one loss"),
    ],
)
def test_a_step_with_several_optimizers_lists_or_losses_is_unchanged(change: tuple[str, str], reason: str) -> None:
    source = with_lines(TAPE, change)
    text, sites = ported(source)
    assert text == source
    assert reason in sites[0].reason
