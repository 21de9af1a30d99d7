"""The rules of docs/port.md about steps that take PyTorch's shape: a few lines, and what becomes of them."""

from __future__ import annotations

import pytest
from support.port.snippets import KERAS, PADDLE, TAPE, ported, verdicts, with_lines

from unified_clip.port.clip_site import Target
from unified_clip.port.rules.tensorflow_tape import OFF_WHEN_RUN

# -- Paddle's optimizers


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
            "Line 8 passes or returns optimizer to code that may call its step()",
        ),
        (
            (("        optimizer.step()\n", "    return optimizer\n")),
            "passes or returns optimizer to code that may call its step()",
        ),
        ((("        optimizer.step()", "        pass")), "This file does not call optimizer.step()"),
        ((("optimizer.step()", "x = [optimizer.step() for _ in y]")), "step in line 8 shares a line or an expression"),
        ((("optimizer.step()", "f(x).backward(), optimizer.step()")), "step in line 8 shares a line or an expression"),
        ((("optimizer.step()", "a = 1; optimizer.step()")), "step in line 8 shares a line or an expression"),
        ((("ClipGradByNorm(1.0)", "ClipGradByNorm(1.0, need_clip=f)")), "need_clip= selects the parameters to clip"),
        ((("    for batch", "    use(clip)\n    for batch")), "Line 6 uses clip in another way than as grad_clip=clip"),
        (
            (("    for batch", "    optimizer = wrap(optimizer)\n    for batch")),
            "Line 6 may assign something other than an optimizer of Paddle to optimizer. If the value is an optimizer",
        ),
        (
            (("    for batch", "    clip = make()\n    for batch")),
            "Line 6 may assign something other than a clip of Paddle to clip. If the value is a clip of Paddle,",
        ),
        ((("import paddle\n", "import paddle\npaddle.enable_static()\n")), "The file builds static programs"),
        ((("optimizer.step()", "x = optimizer.minimize(loss)")), "uses the result of optimizer.minimize()"),
        ((("optimizer.step()", "optimizer.minimize(loss, parameters=p)")), "has arguments besides the loss"),
        ((("optimizer.step()", "optimizer.minimize(*args)")), "in line 8 has arguments besides the loss"),
        ((("optimizer.step()", "optimizer.minimize(**kwargs)")), "has arguments besides the loss"),
        ((("optimizer.step()", "optimizer.step(closure)")), "gets a closure. Clip in the closure"),
        ((("    clip =", "    global optimizer\n    clip =")), "optimizer is global or nonlocal here"),
        ((("    optimizer =", "    pass; optimizer =")), "Other code is on the line of the optimizer"),
        ((("optimizer.step()", "optimizer.minimize(backward(x))")), "Line 8 computes the loss in optimizer.minimize()"),
        ((("optimizer.step()", "optimizer.minimize(model(x).loss)")), "computes the loss in optimizer.minimize()"),
        (
            (("optimizer.step()", "x = optimizer._grad_clip")),
            "PyTorch has no optimizer._grad_clip, which line",
        ),
        ((("optimizer.step()", "optimizer.minimize(f(x), parameters=p)")), "has arguments besides the loss"),
        ((("parameters=", "q=")), "optimizer may be created without parameters=. Pass parameters= by name"),
        (((", grad_clip=clip", "")), "If no other file uses clip either, it clips nothing: remove it."),
        ((("clip = paddle.nn.ClipGradByNorm(1.0)", "clip = f(paddle.nn.ClipGradByNorm(1.0))")), "write a line clip ="),
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
        ("*args", "optimizer.minimize() in line 8 has arguments besides the loss. Remove them if they are defaults"),
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


CLASS = """\
import paddle

class Trainer:
    def __init__(self, model):
        self.opt = paddle.optimizer.SGD(parameters=model.parameters(), grad_clip=paddle.nn.ClipGradByNorm(1.0))

    def step(self):
        self.opt.step()
"""


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
        assert "trainer.opt in line 10 may be the optimizer self.opt, too" in site.reason


def test_a_class_with_its_own_optimizer_does_not_count() -> None:
    subclass = (
        "class Other:\n    def __init__(self):\n        self.opt = None\n    def step(self):\n        self.opt.step()\n"
    )
    text, _ = ported(CLASS + subclass)
    assert text.count("clip_(") == 1
    assert text.endswith(subclass)


def test_other_uses_of_the_attribute_do_not_count() -> None:
    assert verdicts(CLASS + "def save(trainer):\n    return trainer.opt.state_dict()\n") == ["rewritten"]


@pytest.mark.parametrize(
    "change",
    [
        ("    for batch", "    clip = paddle.nn.ClipGradByNorm(5.0)\n    for batch"),
        ("    for batch", "    if loader:\n        clip = None\n    for batch"),
    ],
)
def test_a_clip_whose_variable_is_assigned_again_gets_another_name(change: tuple[str, str]) -> None:
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


@pytest.mark.parametrize(
    "lines",
    [
        "scaler.unscale_(optimizer)\n        if ok:\n            scaler.step(optimizer)",
        "scaler.unscale_(optimizer)\n        scaler.step(other)\n        scaler.step(optimizer)",
        "scaler.unscale_(optimizer)\n        schedule.step()\n        scaler.step(optimizer)",
        "scaler.unscale_(optimizer=optimizer)\n        scaler.step(optimizer)",
    ],
)
def test_an_unscale_on_the_way_to_the_step_is_enough(lines: str) -> None:
    assert ported(with_lines(PADDLE, ("optimizer.step()", lines)))[0].count("unscale_") == 1


def test_an_unscale_of_the_step_before_is_not_enough() -> None:
    lines = "scaler.unscale_(optimizer)\n        scaler.step(optimizer)\n        scaler.step(optimizer)"
    assert ported(with_lines(PADDLE, ("optimizer.step()", lines)))[0].count("unscale_") == 2


UNSCALE = "scaler.unscale_(optimizer)"


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(
    "lines",
    [
        f"if amp:\n            {UNSCALE}\n        scaler.step(optimizer)",
        f"with context():\n            {UNSCALE}\n        scaler.step(optimizer)",
        "trainer.scaler.unscale_(optimizer)\n        scaler.step(optimizer)",
        f"{UNSCALE}\n        for scaler in scalers:\n            scaler.step(optimizer)",
        f"if amp:\n            {UNSCALE}\n            scaler.step(optimizer)\n        else:\n            {UNSCALE}\n"
        "        scaler.step(optimizer)",
    ],
)
def test_a_clip_is_flagged_if_its_gradients_may_be_unscaled(lines: str, native: bool) -> None:
    source = with_lines(PADDLE, ("optimizer.step()", lines))
    text, (site,) = ported(source, native=native)
    assert (text, site.verdict) == (source, "flagged")
    assert "unscales the gradients, but maybe not before each step. Move scaler.unscale_(optimizer)" in site.reason


def test_a_clip_is_flagged_if_another_method_may_unscale_its_gradients() -> None:
    source = CLASS.replace("self.opt.step()", "self.scaler.step(self.opt)")
    assert ported(source)[0].count("self.scaler.unscale_(self.opt)\n") == 1
    source += "\n    def log_norm(self):\n        self.scaler.unscale_(self.opt)\n"
    text, (site,) = ported(source)
    assert (text, site.verdict) == (source, "flagged")
    assert "Line 11 unscales the gradients" in site.reason


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


GLOBAL = with_lines(PADDLE, ("ByNorm(1.0)", "ByGlobalNorm(max_norm)"))
CONFIG = 'unified_clip.ClipConfig(rule="global_norm", threshold=max_norm, family="paddle")'
ATTACH = f"{CONFIG}.attach_to({{}})  # once: then each step clips"
BY_GROUP = [
    "import unified_clip",
    f"clip = {CONFIG}",
    "clip.attach_to({})  # once, if the optimizer has one parameter group",
    "# else, before every step, since Paddle clips each group by its own norm:",
    "# for group in {}.param_groups:",
    '#     clip.clip_(group["params"])',
]


@pytest.mark.parametrize(
    ("change", "optimizer"),
    [
        (("optimizer.step()", "run(optimizer)"), "optimizer"),
        (("        optimizer.step()\n", "    return optimizer\n"), "optimizer"),
        (("        optimizer.step()", "        pass"), "optimizer"),
        (("optimizer = paddle.optimizer.SGD", "return paddle.optimizer.SGD"), "optimizer"),
        (("optimizer = paddle.optimizer.SGD", "self.opt = make_optimizer"), "self.opt"),
    ],
)
def test_a_configuration_is_suggested_for_an_optimizer_whose_steps_are_elsewhere(
    change: tuple[str, str], optimizer: str
) -> None:
    source = with_lines(GLOBAL, change)
    text, (site,) = ported(source)
    assert text == source
    assert site.suggestion == ["import unified_clip", ATTACH.format(optimizer)]
    grouped = with_lines(source, ("parameters=model.parameters()", "parameters=[{'params': a}]"))
    assert ported(grouped)[1][0].suggestion == [line.format(optimizer) for line in BY_GROUP]
    unknown = with_lines(source, ("parameters=model.parameters(), ", ""))
    assert ported(unknown)[1][0].suggestion == [line.format(optimizer) for line in BY_GROUP]
    per_tensor = with_lines(grouped, ("ByGlobalNorm", "ByNorm"))
    expected = ATTACH.format(optimizer).replace("global_norm", "norm")
    assert ported(per_tensor)[1][0].suggestion == ["import unified_clip", expected]
    optional = with_lines(source, ("ByGlobalNorm(max_norm)", "ByGlobalNorm(max_norm) if max_norm else None"))
    assert ported(optional)[1][0].suggestion == ["import unified_clip", ATTACH.format(optimizer)]


@pytest.mark.parametrize(
    ("clip", "config"),
    [
        ("ClipGradByValue(0.5)", 'rule="value", threshold=0.5'),
        ("ClipGradByValue(limit, -limit)", 'rule="value", threshold=limit'),
        ("ClipGradByValue(high, low)", 'rule="value", min=low, max=high'),
        ("ClipGradByValue(max=2.0, min=-1.0)", 'rule="value", min=-1.0, max=2.0'),
        ("ClipGradByNorm(1.0) if limit else None", 'rule="norm", threshold=1.0, family="paddle"'),
    ],
)
def test_a_suggested_configuration_has_the_thresholds_of_the_clip(clip: str, config: str) -> None:
    source = with_lines(PADDLE, ("ClipGradByNorm(1.0)", clip), ("optimizer.step()", "run(optimizer)"))
    (site,) = ported(source)[1]
    assert site.suggestion[1] == f"unified_clip.ClipConfig({config}).attach_to(optimizer)  # once: then each step clips"


def test_no_configuration_is_suggested_where_a_clip_selects_parameters() -> None:
    source = with_lines(PADDLE, ("ClipGradByNorm(1.0)", "ClipGradByNorm(1.0, need_clip=f)"))
    (site,) = ported(source)[1]
    assert "attach_to" not in "".join(site.suggestion)
    assert "clip.clip_(model.parameters())  # before every step" in site.suggestion
    change = ("        optimizer.step()", "        paddle.nn.clip.set_gradient_clip(clip, [model.weight])")
    _, site = sorted(ported(with_lines(PADDLE, change))[1], key=lambda site: "set_gradient_clip" not in site.name)
    assert "clip.clip_(parameters)  # before every step. Put only [model.weight] into parameters" in site.suggestion


@pytest.mark.parametrize(
    ("source", "config", "optimizer"),
    [
        (
            "model.compile(keras.optimizers.Adam(clipnorm=c))",
            'rule="norm", threshold=c, family="tensorflow"',
            "optimizer",
        ),
        ("opt = keras.optimizers.Adam(clipvalue=c)\nmodel.fit(x)", 'rule="value", threshold=c', "opt"),
        ("opt = make(global_clipnorm=c)", 'rule="global_norm", threshold=c, family="tensorflow"', "opt"),
        ("options = {'global_clipnorm': c}", 'rule="global_norm", threshold=c, family="tensorflow"', "optimizer"),
        ("options['clipnorm'] = c", 'rule="norm", threshold=c, family="tensorflow"', "optimizer"),
        ("self.opt.clipvalue = c", 'rule="value", threshold=c', "self.opt"),
    ],
)
@pytest.mark.parametrize("target", ["torch", "drop-in"])
def test_a_configuration_is_suggested_for_a_threshold_of_keras(
    source: str, config: str, optimizer: str, target: Target
) -> None:
    (site,) = ported(f"from tensorflow import keras\n{source}\n", target)[1]
    assert site.verdict == "flagged"
    line = f"unified_clip.ClipConfig({config}).attach_to({optimizer})"
    assert [code.partition("  #")[0] for code in site.suggestion] == ["import unified_clip", line]


def test_no_configuration_is_suggested_for_a_clipnorm_that_depends_on_the_version_of_keras() -> None:
    (site,) = ported("import keras\nkeras.backend.clear_session()\noptions['clipnorm'] = c\n")[1]
    assert (site.verdict, site.suggestion) == ("flagged", [])


@pytest.mark.parametrize("line", ["model.add_sublayer('x', y)", "model.parts.append(y)", "setattr(model, 'x', y)"])
def test_parameters_of_a_model_that_gets_layers_by_a_method_are_the_optimizers(line: str) -> None:
    text, _ = ported(with_lines(PADDLE, ("    for batch", f"    {line}\n    for batch")))
    assert "clip.clip_([parameter for" in text


@pytest.mark.parametrize("method", ["apply_gradients", "apply_optimize"])
def test_other_optimizer_methods_that_clip_are_flagged(method: str) -> None:
    source = with_lines(PADDLE, ("    for batch", f"    optimizer.{method}(x)\n    for batch"))
    text, (site,) = ported(source)
    assert text == source
    assert f"optimizer.{method}() in line 6 clips, too" in site.reason


def test_a_check_warns_code_that_reads_gradients_after_the_step() -> None:
    for source in (PADDLE, KERAS):
        assert any("clips gradients in place" in check for check in ported(source)[1][0].checks)


def test_a_check_explains_a_threshold_of_none() -> None:
    assert OFF_WHEN_RUN in ported(KERAS)[1][0].checks
    assert "off in Keras" not in str(ported(with_lines(KERAS, ("LIMIT", "1.0")))[1][0].checks)


def test_a_scaler_is_unscaled_before_the_clip() -> None:
    text, _ = ported(with_lines(PADDLE, ("optimizer.step()", "scaler.step(optimizer)")))
    lines = [line.strip() for line in text.splitlines()][-3:]
    assert lines == ["scaler.unscale_(optimizer)", "clip.clip_(model.parameters())", "scaler.step(optimizer)"]


def test_unscaled_gradients_are_not_unscaled_again() -> None:
    text, _ = ported(
        with_lines(PADDLE, ("optimizer.step()", "scaler.unscale_(optimizer)\n        scaler.step(optimizer)"))
    )
    assert text.count("unscale_") == 1


def test_native_calls_get_the_number_of_a_threshold_that_is_named_elsewhere() -> None:
    source = with_lines(PADDLE, ("    clip =", "    limit = 2.5\n    clip ="), ("ByNorm(1.0)", "ByGlobalNorm(limit)"))
    assert "torch.nn.utils.clip_grad_norm_(model.parameters(), 2.5)" in ported(source, native=True)[0]


def test_native_keeps_a_clip_object_that_other_code_reads() -> None:
    source = with_lines(PADDLE, ("    for batch", "    if clip is not None:\n        pass\n    for batch"))
    text, (site,) = ported(source, native=True)
    assert text == source
    line = source.splitlines().index("    if clip is not None:") + 1
    assert site.reason.startswith(f"Line {line} uses the clip, but not as grad_clip=.")


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
    assert verdicts(MADE_TWICE, native=True) == ["flagged", "flagged"]
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
        f"optimizer may be created with different code for {name}=. Before each of these calls, write a line "
        f"{variable} = ..., and pass {name}={variable}. Otherwise, port this clip by hand."
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


def test_native_calls_do_not_clip_parameters_that_paddle_excludes() -> None:
    source = with_lines(PADDLE, ("    for batch", "    model.bias.need_clip = False\n    for batch"))
    assert ported(source, native=True)[0] == source


def test_new_loops_use_new_names() -> None:
    source = with_lines(PADDLE, ("parameters=model.parameters()", 'parameters=[{"params": group}]'))
    assert "for group_ in optimizer.param_groups:" in ported(source)[0]
    assert "for parameter_ in model.parameters():" in ported(PADDLE + "parameter = 1\n", native=True)[0]


def test_native_calls_clip_each_tensor_of_each_parameter_group() -> None:
    groups = with_lines(PADDLE, ("parameters=model.parameters()", 'parameters=[{"params": model.parameters()}]'))
    text, _ = ported(groups, native=True)
    loops = '{0}for group in optimizer.param_groups:\n{0}    for parameter in group["params"]:\n'.format(" " * 8)
    assert loops + " " * 16 + "torch.nn.utils.clip_grad_norm_(parameter, 1.0)\n" in text


def test_native_calls_replace_the_clip_object() -> None:
    text, _ = ported(PADDLE, native=True)
    assert "for parameter in model.parameters():\n            torch.nn.utils.clip_grad_norm_(parameter, 1.0)\n" in text
    assert "ClipGradByNorm" not in text


@pytest.mark.parametrize(
    "clip", ["ClipGradByNorm(limit)", "ClipGradByValue(1.0, -2.0)", "ClipGradByNorm(1.0) if limit else None"]
)
def test_native_does_not_rewrite_clips_without_an_equal_function(clip: str) -> None:
    source = with_lines(PADDLE, ("ClipGradByNorm(1.0)", clip))
    assert ported(source, native=True)[0] == source


# -- steps of TensorFlow


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
            "No training step, from gradient() to apply_gradients(), contains this clip",
        ),
        (("tape.gradient(loss, variables)", "tape.gradient(loss, variables, f)"), "has other or starred arguments"),
        (("tape.gradient(loss, variables)", "tape.gradient(loss)"), "gradient() has no variables"),
        (("zip(grads, variables))", "zip(grads, variables), s)"), "is ported only as apply_gradients"),
        (("    optimizer.apply", "    if x:\n        optimizer.apply"), "are not in one block"),
        (("tape.gradient(loss, variables)", "[g for g in tape.gradient(loss, variables)]"), "a line or an expression"),
        (("    grads = [tf", "    more = tape.gradient(loss, x)\n    grads = [tf"), "are not in pairs"),
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
    assert sites[0].reason == "Another clip of this step cannot be ported. Port both clips by hand."


def test_steps_of_one_optimizer_with_other_variables_are_unchanged() -> None:
    step = with_lines(TAPE, ("model, optimizer, x", "model, x"))
    source = step + step.replace("variables)", "others)")
    text, sites = ported(source)
    assert text == source
    assert all(site.reason.startswith("The optimizer updates other variables in another step") for site in sites)
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
    "change",
    [
        ("    grads = [tf", "    clipped = [tf"),
        ("    grads = [tf", "    grads = [g * 0.5 for g in grads]\n    grads = [tf"),
        ("for g in grads]", "if big(g) else g for g in grads]"),
        ("for g in grads]", "if big(g) else None for g in grads]"),
    ],
)
def test_native_does_not_rewrite_clips_of_changed_gradients(change: tuple[str, str]) -> None:
    assert verdicts(TAPE, native=True) == ["rewritten"]
    source = with_lines(TAPE, change)
    assert ported(source, native=True)[0] == source


@pytest.mark.parametrize(
    "change",
    [
        ("    grads = [tf", "    raw = grads\n    grads = [tf"),
        ("    grads = [tf", "    seen.append(grads)\n    grads = [tf"),
        ("    grads = tape", "    grads = raw = tape"),
    ],
)
def test_native_does_not_rewrite_gradients_that_other_code_uses(change: tuple[str, str]) -> None:
    source = with_lines(TAPE, change)
    assert verdicts(source) == ["rewritten"]
    assert ported(source, native=True)[0] == source


def test_native_calls_do_not_support_axes() -> None:
    source = with_lines(TAPE, ("clip_by_norm(g, 1.0)", "clip_by_norm(g, 1.0, axes=0)"))
    text, (site,) = ported(source, native=True)
    assert text == source
    assert "This clip passes axes=, which PyTorch's function does not accept." in site.reason


def test_another_optimizer_of_the_same_name_gets_no_clip() -> None:
    other_step = KERAS[KERAS.index("def train") :].replace("(model", "(optimizer, model").replace("train", "other")
    text, _ = ported(KERAS + "\n" + other_step)
    assert text.count("clip_(variables)") == 1
    assert text.endswith(other_step)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("optimizer.minimize(f, variables)", "may make a step with this optimizer, too."),
        ("register(optimizer.apply_gradients)", "applies gradients by this optimizer outside of its training steps"),
        ("optimizer.apply(mean(x), y)", "applies gradients by this optimizer outside of its training steps"),
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


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            ("    grads = [tf", "    optimizer = x\n    grads = [tf"),
            "The optimizer is assigned after the call of gradient()",
        ),
        (("optimizer.apply", "next(optimizers).apply"), "The optimizer is not a variable here. Assign it first"),
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
        (("zip(grads, variables)", "*[zip(grads, variables)]"), "is ported only as apply_gradients"),
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
