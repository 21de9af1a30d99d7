"""The rules of docs/port.md about steps of Paddle optimizers and their parameters."""

from __future__ import annotations

import pytest
from support.port.snippets import CLASS, KERAS, PADDLE, ported, verdicts, with_lines

from unified_clip.port.rules.tensorflow_tape import OFF_WHEN_RUN


def test_the_clip_comes_before_each_step() -> None:
    text, _ = ported(
        with_lines(PADDLE, ("        optimizer.step()\n", "        optimizer.step()\n        optimizer.step()\n"))
    )
    assert text.count("        clip.clip_(model.parameters())\n        optimizer.step()\n") == 2
    assert "grad_clip" not in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            (("optimizer.step()", "run(optimizer)")),
            "Line 8 passes or returns optimizer, so other code might make a step.",
        ),
        (
            (("        optimizer.step()\n", "    return optimizer\n")),
            "passes or returns optimizer, so other code might make a step.",
        ),
        ((("        optimizer.step()", "        pass")), "This file does not call optimizer.step()"),
        ((("optimizer.step()", "x = [optimizer.step() for _ in y]")), "step in line 8 shares a line or an expression"),
        ((("optimizer.step()", "f(x).backward(), optimizer.step()")), "step in line 8 shares a line or an expression"),
        ((("optimizer.step()", "a = 1; optimizer.step()")), "step in line 8 shares a line or an expression"),
        ((("ClipGradByNorm(1.0)", "ClipGradByNorm(1.0, need_clip=f)")), "need_clip= selects the parameters to clip"),
        ((("    for batch", "    use(clip)\n    for batch")), "Line 6 uses clip, but not as grad_clip=clip"),
        (
            (("    for batch", "    optimizer = wrap(optimizer)\n    for batch")),
            "In line 6, the value of optimizer might not be an optimizer of Paddle. If the value is an optimizer",
        ),
        (
            (("    for batch", "    clip = make()\n    for batch")),
            "In line 6, the value of clip might not be a clip of Paddle. If the value is a clip of Paddle,",
        ),
        ((("    for batch", "    for clip in clips:\n        x()\n    for batch")), "clip gets a value that cannot be"),
        ((("import paddle\n", "import paddle\npaddle.enable_static()\n")), "The file builds static programs"),
        ((("optimizer.step()", "x = optimizer.minimize(loss)")), "uses the result of optimizer.minimize()"),
        ((("optimizer.step()", "optimizer.minimize(loss, parameters=p)")), "has arguments besides the loss"),
        ((("optimizer.step()", "optimizer.minimize(*args)")), "in line 8 has arguments besides the loss"),
        ((("optimizer.step()", "optimizer.minimize(**kwargs)")), "has arguments besides the loss"),
        ((("optimizer.step()", "optimizer.step(closure)")), "gets a closure. Clip in the closure"),
        ((("    clip =", "    global optimizer\n    clip =")), "optimizer is global or nonlocal here"),
        ((("    optimizer =", "    pass; optimizer =")), "The optimizer shares its line with other code"),
        ((("optimizer.step()", "optimizer.minimize(backward(x))")), "Line 8 computes the loss in optimizer.minimize()"),
        ((("optimizer.step()", "optimizer.minimize(model(x).loss)")), "computes the loss in optimizer.minimize()"),
        (
            (("optimizer.step()", "x = optimizer._grad_clip")),
            "optimizer._grad_clip, which PyTorch does not have",
        ),
        ((("optimizer.step()", "optimizer.minimize(f(x), parameters=p)")), "has arguments besides the loss"),
        ((("parameters=", "q=")), "A call might create optimizer without parameters=. In each call"),
        ((("clip = paddle.nn.ClipGradByNorm(1.0)", "clip = f(paddle.nn.ClipGradByNorm(1.0))")), "write clip = ... in"),
        ((("ClipGradByNorm(1.0)", "ClipGradByNorm(1.0) if f(0) else g(1)")), "write an if statement with clip ="),
    ],
)
def test_a_step_with_unknown_parts_stays_unchanged(change: tuple[str, str], reason: str) -> None:
    source = with_lines(PADDLE, change)
    text, (site,) = ported(source)
    assert text == source
    assert site.verdict == "flagged"
    assert reason in site.reason
    assert site.suggestion


MINIMIZE = """\
from paddle import fluid

def train(model, x, optimizer):
    with fluid.dygraph.guard():
        clip = fluid.clip.GradientClipByNorm(1.0)
        loss = model(x)
        loss.backward()
        optimizer.minimize(loss, grad_clip=clip)
"""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("loss", ""),
        ("loss.total", ""),
        ("step_loss(model, x)", "Line 8 computes the loss in optimizer.minimize(). Assign the loss to a variable"),
        ("step_loss(model, x).mean", "Line 8 computes the loss in optimizer.minimize()"),
        ("*args", "optimizer.minimize() in line 8 has arguments besides the loss. Remove arguments that have"),
        ("**kwargs", "optimizer.minimize() in line 8 has arguments besides the loss"),
        ("loss, no_grad_set=frozen", "optimizer.minimize() in line 8 has arguments besides the loss"),
    ],
)
def test_minimize_with_a_clip_becomes_a_step_if_it_has_only_a_loss_that_was_computed_before(
    arguments: str, reason: str
) -> None:
    source = with_lines(MINIMIZE, ("(loss, grad", f"({arguments}, grad"))
    text, (site,) = ported(source)
    if reason:
        assert (text, site.verdict) == (source, "flagged")
        assert reason in site.reason
    else:
        assert text.endswith("\n        optimizer.step()\n")
        assert site.verdict == "rewritten"


@pytest.mark.parametrize(
    "code",
    [
        "class Other(Trainer):\n    def twice(self):\n        self.opt.step()\n",
        "def run(trainer):\n    trainer.opt.step()\n",
        "def run(trainer):\n    use(trainer.opt)\n",
        "def run(trainer):\n    getattr(trainer, 'opt').step()\n",
        "def run(trainer):\n    trainer.opt = None\n",
        "def run(trainer):\n    setattr(trainer, 'opt', None)\n",
        "class Other(Trainer):\n    def __init__(self):\n        self.opt = None\n",
        "class Base:\n    def twice(self):\n        self.opt = None\n        self.opt.step()\n",
    ],
)
def test_a_step_that_may_be_of_the_same_optimizer_is_flagged(code: str) -> None:
    source = CLASS.replace("class Trainer", "class Trainer(Base)") if "Base" in code else CLASS
    assert verdicts(source) == ["rewritten"]
    text, (site,) = ported(source + code)
    assert text == source + code
    assert site.verdict == "flagged"
    if "trainer.opt.step" in code:
        assert "Line 10 might make a step, because trainer.opt might be the optimizer self.opt." in site.reason


def test_a_class_with_its_own_optimizer_does_not_count() -> None:
    subclass = (
        "class Other:\n    def __init__(self):\n        self.opt = None\n    def step(self):\n        self.opt.step()\n"
    )
    text, _ = ported(CLASS + subclass)
    assert text.count("clip_(") == 1
    assert text.endswith(subclass)


def test_other_uses_of_the_attribute_do_not_count() -> None:
    assert verdicts(CLASS + "def save(trainer):\n    return trainer.opt.state_dict()\n") == ["rewritten"]


def test_a_clip_whose_variable_is_assigned_again_gets_another_name() -> None:
    change = ("    for batch", "    if loader:\n        clip = None\n    for batch")
    text, _ = ported(with_lines(PADDLE, change))
    assert "    optimizer_clip = clip\n    optimizer = " in text
    assert "optimizer_clip.clip_(model.parameters())" in text


def test_a_name_in_use_is_not_reused() -> None:
    text, _ = ported(CLASS + "self.opt_clip = optimizer_clip = opt_clip = 7\n")
    assert "self.opt_clip_ = unified_clip.torch.ClipGradByNorm(1.0)\n" in text


def test_parameters_that_may_have_changed_are_the_optimizers() -> None:
    text, _ = ported(with_lines(PADDLE, ("    for batch", "    model = wrap(model)\n    for batch")))
    assert 'clip.clip_([parameter for group in optimizer.param_groups for parameter in group["params"]])' in text


def test_parameters_of_a_model_that_gets_new_parts_are_the_optimizers() -> None:
    text, _ = ported(with_lines(PADDLE, ("    for batch", "    model.head = make()\n    for batch")))
    assert "clip.clip_([parameter for" in text


def test_parameters_out_of_sight_are_those_of_the_optimizer() -> None:
    source = """\
    import paddle

    class Trainer:
        def __init__(self, model):
            clip = paddle.nn.ClipGradByNorm(1.0)
            self.optimizer = paddle.optimizer.SGD(parameters=model.parameters(), grad_clip=clip)

        def step(self):
            self.optimizer.step()
    """
    text, _ = ported(source)
    everything = '[parameter for group in self.optimizer.param_groups for parameter in group["params"]]'
    assert f"self.optimizer_clip.clip_({everything})\n        self.optimizer.step()\n" in text
    assert "self.optimizer_clip = clip\n" in text


def test_parameters_in_groups_are_clipped_group_by_group() -> None:
    text, _ = ported(with_lines(PADDLE, ("parameters=model.parameters()", 'parameters=[{"params": a}, {"params": b}]')))
    assert 'for group in optimizer.param_groups:\n            clip.clip_(group["params"])\n' in text


@pytest.mark.parametrize(
    "groups",
    [
        'g = {"params": a}\n    groups = [g]',
        "g = dict(params=a)\n    groups = [b, g]",
        'groups = [*[{"params": a}]]',
        "groups = [dict(params=m.parameters()) for m in model]",
        'gs = [{"params": a}]\n    groups = [g for g in gs]',
        'groups = []\n    groups.append({"params": a})',
        'groups = []\n    groups.extend([{"params": a}])',
        "groups = []\n    fill(groups, model)",
    ],
)
def test_parameter_groups_are_found_however_they_are_created(groups: str) -> None:
    change = ("    optimizer =", f"    b = model.b\n    {groups}\n    optimizer =")
    text, _ = ported(with_lines(PADDLE, change, ("parameters=model.parameters()", "parameters=groups")))
    assert 'for group in optimizer.param_groups:\n            clip.clip_(group["params"])\n' in text


@pytest.mark.parametrize(
    "parameters",
    [
        "[model.weight, model.bias]",
        "[p for n, p in model.named_parameters() if n]",
        "[p for p in model.parameters() if p.ndim]",
        "[model.create_parameter([1])]",
    ],
)
def test_parameters_that_are_no_groups_are_clipped_together(parameters: str) -> None:
    text, _ = ported(with_lines(PADDLE, ("parameters=model.parameters()", f"parameters={parameters}")))
    assert "clip.clip_([parameter for" in text


@pytest.mark.parametrize(
    "change",
    [
        ("parameters=model.parameters()", "parameters=some"),
        ("parameters=model.parameters()", "parameters=[loader]"),
        ("parameters=model.parameters()", "parameters=[make(x)]"),
        ("parameters=model.parameters()", "parameters=[x for x in make(y)]"),
        ("parameters=model.parameters()", "parameters=[groups[0]]"),
        ("    for batch", "    optimizer._add_param_group(more)\n    for batch"),
    ],
)
def test_parameters_that_may_be_groups_are_clipped_group_by_group(change: tuple[str, str]) -> None:
    text, (site,) = ported(with_lines(PADDLE, change))
    assert site.verdict == "rewritten"
    loop = """
        for group in optimizer.param_groups:
            clip.clip_(group["params"])
        optimizer.step()
"""
    assert loop in text


@pytest.mark.parametrize("line", ["model.add_sublayer('x', y)", "model.parts.append(y)", "setattr(model, 'x', y)"])
def test_parameters_of_a_model_that_gets_layers_by_a_method_are_the_optimizers(line: str) -> None:
    text, _ = ported(with_lines(PADDLE, ("    for batch", f"    {line}\n    for batch")))
    assert "clip.clip_([parameter for" in text


@pytest.mark.parametrize("method", ["apply_gradients", "apply_optimize"])
def test_other_optimizer_methods_that_clip_are_flagged(method: str) -> None:
    source = with_lines(PADDLE, ("    for batch", f"    optimizer.{method}(x)\n    for batch"))
    text, (site,) = ported(source)
    assert text == source
    assert f"optimizer.{method}() in line 6 also clips" in site.reason


def test_a_check_warns_code_that_reads_gradients_after_the_step() -> None:
    for source in (PADDLE, KERAS):
        assert any("clips gradients in place" in check for check in ported(source)[1][0].checks)


def test_a_check_explains_a_threshold_of_none() -> None:
    assert OFF_WHEN_RUN in ported(KERAS)[1][0].checks
    assert "off in Keras" not in str(ported(with_lines(KERAS, ("LIMIT", "1.0")))[1][0].checks)


MADE_TWICE = """\
import paddle

def train(model, loader, fast):
    if fast:
        optimizer = paddle.optimizer.SGD(parameters=model.parameters(), grad_clip=paddle.nn.ClipGradByNorm(1.0))
    else:
        optimizer = paddle.optimizer.Adam(parameters=model.parameters(), grad_clip=paddle.nn.ClipGradByNorm(1.0))
    optimizer.step()
"""


def test_an_optimizer_that_is_created_twice_has_one_clip_or_is_flagged() -> None:
    assert verdicts(MADE_TWICE) == ["rewritten", "rewritten"]
    assert verdicts(MADE_TWICE.replace("1.0", "2.0", 1)) == ["flagged", "flagged"]


@pytest.mark.parametrize(
    ("old", "new", "name", "variable"),
    [
        ("paddle.nn.ClipGradByNorm(1.0)", "paddle.nn.ClipGradByNorm(2.0)", "grad_clip", "clip"),
        ("model.parameters()", "model.head.parameters()", "parameters", "params"),
    ],
)
def test_the_reason_about_two_creations_names_a_common_variable(old: str, new: str, name: str, variable: str) -> None:
    source = MADE_TWICE.replace(old, new, 1)
    sites = ported(source)[1]
    assert sites[0].reason.startswith(
        f"The calls that create optimizer pass different expressions for {name}=. Before each of these calls, write "
        f"{variable} = ... in a separate line, and pass {name}={variable}. Otherwise, port this clip by hand."
    )
    assert [site.verdict for site in sites] == ["flagged", "flagged"]
    for code in (new, old):
        line = next(each for each in source.splitlines() if f"{name}={code}" in each)
        shared = line.replace(f"{name}={code}", f"{name}={variable}")
        source = source.replace(line, f"        {variable} = {code}\n{shared}")
    assert verdicts(source) == ["rewritten", "rewritten"]


def test_a_clip_that_is_only_set_in_some_cases_may_be_none() -> None:
    source = """\
    import paddle

    class Trainer(Base):
        def __init__(self, model, limit):
            if limit:
                self.clip = paddle.nn.ClipGradByNorm(limit)
            self.opt = paddle.optimizer.SGD(parameters=model.parameters(), grad_clip=self.clip)

        def step(self):
            self.opt.step()
    """
    assert "if self.opt_clip is not None:" in ported(source)[0] or "if self.clip is not None:" in ported(source)[0]


def test_a_clip_that_another_object_may_read_is_kept() -> None:
    source = """\
    import paddle

    class Trainer:
        def __init__(self, model):
            self.clip = paddle.nn.ClipGradByNorm(1.0)
            self.opt = paddle.optimizer.SGD(parameters=model.parameters(), grad_clip=self.clip)

        def step(self):
            self.opt.step()
    """
    assert verdicts(source) == ["rewritten"]
    assert verdicts(source + "\n    def use(trainer):\n        return make(grad_clip=trainer.clip)\n") == ["flagged"]
