"""`unified-clip config check` on a second optimizer, or a second training step, without a clip in a file with one."""

from __future__ import annotations

import textwrap

import pytest
from support.config.check_files import CLIP_CONFIG, Check, only_finding

NEAREST = CLIP_CONFIG + '\n[check]\nnearest = ["**"]\n'
GAN = """\
import torch
from torch.nn.utils import clip_grad_norm_

opt_g = torch.optim.Adam(net_g.parameters())
opt_d = torch.optim.Adam(net_d.parameters())


def train(batches):
    for real in batches:
        opt_d.zero_grad()
        loss_d(real).backward()
        {d}
        opt_d.step()
        opt_g.zero_grad()
        loss_g(real).backward()
        {g}
        opt_g.step()
"""
CLIP_G, CLIP_D = (f"clip_grad_norm_(net_{name}.parameters(), 1.0)" for name in "gd")
KERAS = "import tensorflow as tf\n\n\ndef build(lr):\n"


def test_a_network_of_a_gan_without_a_clip_is_missing_and_can_be_accepted(check: Check) -> None:
    source = GAN.format(d="pass", g=CLIP_G)
    finding = only_finding(check({"gan.py": source}))
    assert (finding.kind, finding.clip, finding.line) == ("missing", "opt_d.step", 13)
    assert "line 16 clips the gradients of opt_g" in finding.does
    entry = finding.edit[finding.edit.index("[[check.ignore]]") :]
    report = check({"gan.py": source}, f"{CLIP_CONFIG}\n{entry}")
    assert report.findings == []
    assert [each.clip for each in report.ignored] == ["opt_d.step"]
    assert only_finding(check({"gan.py": source}, f"{CLIP_CONFIG}\n{entry.replace('none', 'value')}")).kind == "missing"
    assert check({"gan.py": GAN.format(d=CLIP_D, g=CLIP_G)}).findings == []


@pytest.mark.parametrize(
    ("source", "clip"),
    [
        (
            "loss_d.backward()\nloss_g.backward()\n{clip}(net_g.parameters(), 1.0)\nopt_g.step()\nopt_d.step()",
            "opt_d.step",
        ),
        ("loss.backward()\n{clip}(net_g.parameters(), 1.0)\nopt_g.step()\nloss.backward()\nopt_g.step()", "opt_g.step"),
        (
            "if amp:\n    scaler.scale(loss).backward()\n    scaler.unscale_(o)\n    {clip}(net_g.parameters(), 1)\n"
            "    scaler.step(opt_g)\nelse:\n    loss.backward()\n    opt_g.step()",
            "opt_g.step",
        ),
        (
            "def backward_d():\n    loss.backward()\ndef clip():\n    {clip}(net_g.parameters(), 1.0)\n"
            "loss.backward()\nclip()\nopt_g.step()\nbackward_d()\nopt_d.step()",
            "opt_d.step",
        ),
    ],
)
def test_a_step_after_backward_without_a_clip_is_missing(check: Check, source: str, clip: str) -> None:
    body = textwrap.indent(source.format(clip="clip_grad_norm_"), "    ")
    before = GAN[: GAN.index("def train")]
    finding = only_finding(check({"a.py": f"{before}def train(loss):\n{body}\n"}))
    assert (finding.kind, finding.clip) == ("missing", clip)


BOTH = "itertools.chain(net_g.parameters(), net_d.parameters())"


@pytest.mark.parametrize(
    "source",
    [
        "loss.backward()\n{clip}(model.parameters(), 1.0)\nopt_g.step()\nopt_d.step()",
        f"loss.backward()\n{{clip}}({BOTH}, 1.0)\nopt_g.step()\nopt_d.step()",
        "def clip(net):\n    {clip}(net.parameters(), 1.0)\n"
        "loss.backward()\nclip(net_g)\nopt_g.step()\nloss.backward()\nclip(net_d)\nopt_d.step()",
        "def closure():\n    loss.backward()\n    {clip}(net_g.parameters(), 1.0)\nopt_g.step(closure)",
        "loss.backward()\nif args.clip:\n    {clip}(net_g.parameters(), 1.0)\nopt_g.step()\nscheduler_opt.step()",
        "if amp:\n    scaler.scale(loss).backward()\n    scaler.unscale_(opt_g)\nelse:\n    loss.backward()\n"
        "{clip}(net_g.parameters(), 1.0)\nif amp:\n    scaler.step(opt_g)\nelse:\n    opt_g.step()",
        "from .utils import clip_gradients\n"
        "loss.backward()\n{clip}(net_g.parameters(), 1.0)\nopt_g.step()\n"
        "loss.backward()\nclip_gradients(net_d)\nopt_d.step()",
    ],
)
def test_steps_with_a_clip_are_no_finding(check: Check, source: str) -> None:
    body = textwrap.indent(source.format(clip="clip_grad_norm_"), "    ")
    before = GAN[: GAN.index("def train")]
    assert check({"a.py": f"{before}def train(loss):\n{body}\n"}).findings == []


def test_items_of_a_dict_and_steps_by_xla_are_optimizers(check: Check) -> None:
    source = """\
    import torch
    import torch_xla.core.xla_model as xm

    def train(self, loss):
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model["g"].parameters(), 1.0)
        self.optimizer["g"].step()
        loss.backward()
        self.optimizer["d"].step()
        loss.backward()
        xm.optimizer_step(opt_x)
    """
    findings = check({"a.py": textwrap.dedent(source)}).findings
    assert [(each.kind, each.clip) for each in findings] == [
        ("missing", "self.optimizer['d'].step"),
        ("missing", "xm.optimizer_step"),
    ]


def test_a_class_around_an_optimizer_is_no_finding(check: Check) -> None:
    wrapper = "\n\nclass Warmup:\n    def step(self):\n        self.rate = 1\n        self.optimizer.step()\n"
    assert check({"a.py": GAN.format(d=CLIP_D, g=CLIP_G) + wrapper}).findings == []


def test_a_step_whose_gradients_come_from_elsewhere_is_unknown(check: Check) -> None:
    source = GAN.format(d=CLIP_D, g=CLIP_G) + "\n\ndef update(agent):\n    agent.learn()\n    agent.opt_q.step()\n"
    finding = only_finding(check({"a.py": source}))
    assert (finding.kind, finding.clip) == ("unknown", "agent.opt_q.step")
    assert "does not show whether agent.opt_q.step(...) uses clipped gradients" in finding.does


def test_methods_of_a_class_are_followed(check: Check) -> None:
    source = """\
    import torch

    class Model:
        def backward_d(self):
            self.loss_d.backward()

        def backward_g(self):
            self.loss_g.backward()

        def optimize(self):
            self.backward_g()
            torch.nn.utils.clip_grad_norm_(self.net_g.parameters(), 1.0)
            self.optimizer_g.step()
            self.backward_d()
            self.optimizer_d.step()
    """
    finding = only_finding(check({"a.py": textwrap.dedent(source)}))
    assert (finding.kind, finding.clip, finding.line) == ("missing", "self.optimizer_d.step", 15)


def test_attach_to_covers_only_its_optimizer(check: Check) -> None:
    own = "from unified_clip import ClipConfig\n\nclip = ClipConfig.load('clip.toml')\nclip.attach_to(opt_g, net_g)\n"
    source = GAN.format(d="pass", g="pass").replace("\n\n\ndef", f"\n{own}\n\ndef")
    assert [each.clip for each in check({"a.py": source}).findings] == ["opt_d.step"]
    source = source.replace("attach_to(opt_g, net_g)", "attach_to(opt_g, net_g)\nclip.attach_to(opt_d, net_d)")
    assert check({"a.py": source}).findings == []


def test_a_clip_in_a_hook_covers_all_steps(check: Check) -> None:
    hook = "for p in net_g.parameters():\n    p.register_hook(lambda grad: torch.clamp(grad, -1, 1))\n"
    source = GAN.format(d="pass", g=CLIP_G) + hook
    assert [each for each in check({"a.py": source}).findings if each.kind == "missing"] == []


def test_the_gradients_of_a_tape_are_followed(check: Check) -> None:
    source = """\
    import tensorflow as tf

    def step(x):
        with tf.GradientTape() as g_tape, tf.GradientTape() as d_tape:
            pass
        g_grads = g_tape.gradient(loss, net_g.trainable_variables)
        d_grads = d_tape.gradient(loss, net_d.trainable_variables)
        clipped, _ = tf.clip_by_global_norm(g_grads, 1.0)
        g_opt.apply_gradients(zip(clipped, net_g.trainable_variables))
        d_opt.apply_gradients(zip({grads}, net_d.trainable_variables))
    """
    finding = only_finding(check({"a.py": textwrap.dedent(source).format(grads="d_grads")}, NEAREST))
    assert (finding.kind, finding.clip) == ("missing", "d_opt.apply_gradients")
    right = "[g for g in tf.clip_by_global_norm(d_grads, 1.0)[0]]"
    assert check({"a.py": textwrap.dedent(source).format(grads=right)}, NEAREST).findings == []


TAPE = "with tf.GradientTape() as {0}:\n    loss = f(x)\ngrads = {0}.gradient(loss, {1}.trainable_variables)\n"
CLIP_TF = "grads, _ = tf.clip_by_global_norm(grads, 1.0)\n"
APPLY = "{}.apply_gradients(zip(grads, {}.trainable_variables))\n"


@pytest.mark.parametrize("optimizers", [("opt_g", "opt_d"), ("trainer_g", "trainer_d")])
@pytest.mark.parametrize("between", ["", "def other(x):\n", "    def other(self, x):\n"], ids=["one", "two", "methods"])
@pytest.mark.parametrize("clip", ["", CLIP_TF])
def test_a_second_tape_needs_a_clip_too(check: Check, between: str, optimizers: tuple[str, str], clip: str) -> None:
    first, second = (
        TAPE.format(tape, net) + text + APPLY.format(optimizer, net)
        for tape, net, text, optimizer in zip(("t", "tape"), ("g", "d"), (CLIP_TF, clip), optimizers, strict=True)
    )
    start = "import tensorflow as tf\n\n\n"
    if between.startswith(" "):
        start += f"class Gan:\n    def train_step(self, x):\n{textwrap.indent(first, ' ' * 8)}        self.other(x)\n"
        source = f"{start}{between}{textwrap.indent(second, ' ' * 8)}"
    else:
        source = f"{start}def step(x):\n{textwrap.indent(first, '    ')}{between}{textwrap.indent(second, '    ')}"
    findings = check({"a.py": source}, NEAREST).findings
    assert [(each.kind, each.clip) for each in findings] == (
        [] if clip else [("missing", f"{optimizers[1]}.apply_gradients")]
    )


def test_gradients_that_a_function_gets_are_followed_to_each_call(check: Check) -> None:
    start = "import tensorflow as tf\n\n\ndef apply(opt, grads):\n    opt.apply_gradients(zip(grads, variables))\n\n\n"
    steps = [
        f"def {name}(x):\n" + textwrap.indent(TAPE.format("tape", net) + f"{{}}apply({optimizer}, grads)\n", "    ")
        for name, net, optimizer in (("first", "g", "opt_g"), ("second", "d", "opt_d"))
    ]
    first = steps[0].format(f"{CLIP_TF}    ")
    finding = only_finding(check({"a.py": start + first + steps[1].format("")}, NEAREST))
    assert (finding.kind, finding.clip, finding.line) == ("missing", "opt.apply_gradients", 5)
    assert "opt.apply_gradients(...) for opt_d uses unclipped gradients" in finding.does
    assert check({"a.py": start + first + steps[1].format(f"{CLIP_TF}    ")}, NEAREST).findings == []


def test_an_optimizer_that_a_function_gets_is_followed_to_each_call(check: Check) -> None:
    own = "from unified_clip import ClipConfig\n\nclip = ClipConfig.load('clip.toml')\n"
    train = "\n\ndef train(optimizer, x):\n    loss(x).backward()\n    optimizer.step()\n\n\n"
    calls = "clip.attach_to(opt_g)\n{}for x in data:\n    train(opt_g, x)\n    train(optimizer=opt_d, x=x)\n"
    finding = only_finding(check({"a.py": own + train + calls.format("")}))
    assert (finding.kind, finding.clip, finding.line) == ("missing", "optimizer.step", 8)
    assert check({"a.py": own + train + calls.format("clip.attach_to(opt_d)\n")}).findings == []


@pytest.mark.parametrize(
    ("test", "kinds"), [("use_adam", ["missing"]), ("self.clip_norm", []), ("config['max_norm'] > 0", [])]
)
def test_an_optimizer_without_a_clip_in_one_branch_is_missing(check: Check, test: str, kinds: list[str]) -> None:
    source = f"""\
    import paddle

    class Learner:
        def __init__(self, lr):
            if {test}:
                self.opt = paddle.optimizer.Adam(lr, grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0))
            else:
                self.opt = paddle.optimizer.SGD(lr)

        def step(self, x):
            self.loss(x).backward()
            self.opt.step()
    """
    assert [each.kind for each in check({"a.py": textwrap.dedent(source)}, NEAREST).findings] == kinds


CLIP = "optax.clip_by_global_norm(1.0)"
OPTAX = f"import optax\n\n\ndef build(lr):\n    tx_g = optax.chain({CLIP}, optax.adam(lr))\n"
OTHER = "    return tx_g\n\n\ndef other(lr):\n    return optax.sgd(lr)\n"


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        (f"{OPTAX}    tx_d = optax.adam(lr)\n    return tx_g, tx_d\n", ["missing"]),
        (f"{OPTAX}    tx_d = optax.chain({CLIP}, optax.adam(lr))\n    return tx_g, tx_d\n", []),
        (f"{OPTAX}    tx = optax.sgd(lr)\n    return tx_g, optax.chain({CLIP}, tx)\n", []),
        (f"{OPTAX}    parts = [{CLIP}]\n    parts += [optax.sgd(lr)]\n    return tx_g, optax.chain(*parts)\n", []),
        (OPTAX + OTHER, ["unknown"]),
        (f"{OPTAX}{OTHER}\n\ntx = optax.chain({CLIP}, other(1))\n", []),
        (
            KERAS + "    return tf.keras.optimizers.Adam(lr, global_clipnorm=1.0), tf.keras.optimizers.SGD(lr)\n",
            ["missing"],
        ),
        (KERAS + "    return tf.keras.optimizers.Adam(lr, global_clipnorm=1.0)\n", []),
    ],
)
def test_an_optimizer_that_is_built_without_a_clip_beside_one_with_it(
    check: Check, source: str, kinds: list[str]
) -> None:
    assert [each.kind for each in check({"a.py": source}, NEAREST).findings] == kinds


FACTORIES = {
    "tuple": ("    return tx_g, tx_d\n\n\n", "a, b = build(1)\n"),
    "list": ("    return [tx_g, tx_d]\n\n\n", "a, b = build(1)\n"),
    "index": ("    return tx_g, tx_d\n\n\n", "a = build(1)[0]\nb = build(1)[1]\n"),
    "dict": ("    return {'g': tx_g, 'd': tx_d}\n\n\n", "txs = build(1)\na = txs['g']\nb = txs['d']\n"),
    "dict in steps": (
        "    txs = {}\n    txs['g'] = tx_g\n    txs['d'] = tx_d\n    return txs\n\n\n",
        "b = build(1)['d']\n",
    ),
    "tuple in a dict": ("    return {'all': (tx_g, tx_d)}\n\n\n", "a, b = build(1)['all']\n"),
}


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("after", ["", f"tx = optax.chain({CLIP}, {{}})\n"], ids=["", "clipped later"])
def test_items_of_a_factory_are_followed_one_by_one(check: Check, factory: str, after: str) -> None:
    returned, call = FACTORIES[factory]
    build = f"{OPTAX}    tx_d = optax.adam(lr)\n{returned}{call}"
    first, second = ("txs['g']", "txs['d']") if factory == "dict" else ("a", "b")
    clipped = check({"a.py": build + after.format(second)}, NEAREST)
    assert [(each.kind, each.line) for each in clipped.findings] == ([] if after else [("missing", 6)])
    other = check({"a.py": build + after.format(first)}, NEAREST)
    assert [(each.kind, each.line) for each in other.findings] == [("missing", 6)]


@pytest.mark.parametrize(
    "source",
    [
        "import paddle\n\n\ndef make(g, d):\n"
        "    opt_g = paddle.optimizer.Adam(parameters=g, grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0))\n"
        "    opt_d = paddle.optimizer.Adam(parameters=d)\n    return {'g': opt_g, 'd': opt_d}\n\n\n"
        "opts = make(g, d)\nopts['d'].step()\nopts['g'].step()\n",
        f"{KERAS}    opt_g = tf.keras.optimizers.Adam(lr, global_clipnorm=1.0)\n"
        "    opt_d = tf.keras.optimizers.SGD(lr)\n    return opt_g, opt_d\n\n\nopt_g, opt_d = build(1)\n",
    ],
    ids=["paddle", "keras"],
)
def test_a_factory_that_is_called_hides_no_optimizer_without_a_clip(check: Check, source: str) -> None:
    finding = only_finding(check({"a.py": source}, NEAREST))
    assert (finding.kind, finding.line) == ("missing", 6)


def test_optimizers_in_a_comprehension_around_a_factory_are_followed(check: Check) -> None:
    source = (
        "import optax\n\n\ndef make(lr):\n    return {'g': optax.adamw(lr), 'd': optax.adamw(lr)}\n\n\n"
        f"txs = {{k: optax.chain({CLIP}, v) for k, v in make(1).items()}}\nother = optax.sgd(1)\n"
    )
    finding = only_finding(check({"a.py": source}, NEAREST))
    assert (finding.clip, finding.kind) == ("optax.sgd", "unknown")


def test_a_step_without_a_clip_is_no_clip_of_a_required_file(check: Check) -> None:
    clip = 'rule = "none"\n'
    assert check({"gan.py": GAN.format(d="pass", g=CLIP_G.replace("1.0", "float('inf')"))}, clip).findings == []


@pytest.mark.parametrize("clip", [CLIP_G, "clip.clip_(net_g.named_parameters())"])
def test_a_step_that_gets_an_optimizer_needs_a_clip(check: Check, clip: str) -> None:
    source = (
        "import torch\nfrom torch.nn.utils import clip_grad_norm_\n\n\ndef train(state, accel, net_g):\n"
        "    accel.backward(loss_d)\n    accel.step(state.optimizer_d)\n    state.scheduler_d.step()\n"
        f"    accel.backward(loss_g)\n    {clip}\n    accel.step(state.optimizer_g)\n"
    )
    clip_of_net = "clip_grad_norm_(net.parameters(), 1.0)\n"
    finding = only_finding(check({"a.py": source + clip_of_net}))
    assert (finding.kind, finding.clip, finding.line) == ("missing", "accel.step", 7)
    both_clipped = source.replace(
        "    accel.step(state.optimizer_d)", f"    {CLIP_D}\n    accel.step(state.optimizer_d)"
    )
    assert check({"a.py": both_clipped + clip_of_net}).findings == []


def test_a_clip_is_attached_to_one_of_two_optimizers_of_another_object(check: Check) -> None:
    source = (
        "from unified_clip import ClipConfig\n\nCLIP = ClipConfig.load('clip.toml')\n\n\ndef load(net_g, net_d):\n"
        "    optimizer_g, optimizer_d = Adam(net_g), Adam(net_d)\n    CLIP.attach_to(optimizer_g, net_g)\n    {}\n"
        "    return State(optimizer_g=optimizer_g, optimizer_d=optimizer_d)\n\n\ndef train(state, accel):\n"
        "    accel.backward(loss_d)\n    accel.step(state.optimizer_d)\n"
        "    accel.backward(loss_g)\n    accel.step(state.optimizer_g)\n"
    )
    finding = only_finding(check({"a.py": source.format("pass")}))
    assert (finding.kind, finding.clip, finding.line) == ("missing", "accel.step", 15)
    assert check({"a.py": source.format("CLIP.attach_to(optimizer_d, net_d)")}).findings == []


def test_a_clip_after_a_step_that_gets_the_optimizer_is_late(check: Check) -> None:
    source = "import torch\n\n\ndef train(accel, opt, model):\n    accel.backward(loss)\n    accel.step(opt)\n"
    finding = only_finding(check({"a.py": f"{source}    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"}))
    assert "comes after accel.step(opt)" in finding.does


FUNCTION = "import optax\n\n\ndef make():\n    tx = optax.adam(1)\n    return tx\n\n\n"
METHOD = "import optax\n\n\nclass A:\n    def make(self):\n        return optax.adam(1)\n\n    def build(self):\n"


@pytest.mark.parametrize(
    ("start", "indent", "make"), [(FUNCTION, "", "make"), (METHOD, " " * 8, "self.make")], ids=["function", "method"]
)
def test_each_call_of_a_function_that_returns_an_optimizer_needs_a_clip(
    check: Check, start: str, indent: str, make: str
) -> None:
    clipped = f"optax.chain({CLIP}, {make}())"
    owner = make.removesuffix("make")
    source = f"{start}{indent}{owner}a = {clipped}\n{indent}{owner}b = {{}}\n"
    finding = only_finding(check({"a.py": source.format(f"{make}()")}, NEAREST))
    assert (finding.kind, finding.clip, finding.line) == ("missing", make, source.count("\n"))
    assert check({"a.py": source.format(clipped)}, NEAREST).findings == []


@pytest.mark.parametrize("model", ["compile('adam')", "compile(optimizer='adam')", "compile(loss='mse')"])
def test_a_model_that_gets_its_optimizer_by_name_needs_a_clip_beside_one_with_it(check: Check, model: str) -> None:
    own = "import keras\nfrom unified_clip import ClipConfig\n\n\ndef fit(model):\n"
    own += "    optimizer = keras.optimizers.SGD(1)\n    ClipConfig.load('clip.toml').attach_to(optimizer)\n"
    finding = only_finding(check({"a.py": f"{own}    model.{model}\n"}))
    assert (finding.kind, finding.clip, finding.line) == ("missing", "keras.Model.compile", 8)
    assert check({"a.py": f"{own}    model.compile(optimizer)\n"}).findings == []


@pytest.mark.parametrize(("clip", "kinds"), [("", ["missing"]), (CLIP, [])])
def test_an_optimizer_that_a_wrapper_builds_needs_a_clip(check: Check, clip: str, kinds: list[str]) -> None:
    tx_d = f"optax.chain({clip}, optax.inject_hyperparams(optax.adam)(lr))".replace("(, ", "(")
    source = f"{OPTAX}    tx_d = {tx_d}\n    return tx_g, tx_d\n"
    assert [each.kind for each in check({"a.py": source}, NEAREST).findings] == kinds


def test_an_argument_that_clips_may_come_with_the_call_of_a_class_in_a_table(check: Check) -> None:
    source = f"{KERAS}    table = {{{{'a': tf.keras.optimizers.Adam}}}}\n"
    source += "    return tf.keras.optimizers.SGD(lr, global_clipnorm=1.0), table[name](lr{})\n"
    findings = check({"a.py": source.format(", global_clipnorm=1.0")}, NEAREST).findings
    assert [each for each in findings if each.kind == "missing"] == []
    assert only_finding(check({"a.py": source.format("")}, NEAREST)).kind == "missing"


@pytest.mark.parametrize(
    ("start", "is_wrong"),
    [
        ("net, other = A(), B()", True),
        ("net, other = A(), B()\nopt_other = torch.optim.Adam(other.parameters())", True),
        ("net = A()\nother = wrap(net)", False),
        ("other = A()\nnet = wrap(layers=[other])", False),
        ("net = A()\nother = load('a.pt')\nother, opt = prepare(net, opt)", False),
        ("net = A()", False),
    ],
)
def test_a_step_after_a_clip_of_another_model_is_missing(check: Check, start: str, is_wrong: bool) -> None:
    lines = "def step(loss):\n    loss.backward()\n    clip_grad_norm_(other.parameters(), 1.0)\n    opt.step()\n"
    imports = "import torch\nfrom torch.nn.utils import clip_grad_norm_\n\n"
    source = f"{imports}{start}\nopt = torch.optim.Adam(net.parameters())\n\n\n{lines}"
    findings = check({"a.py": source}).findings
    assert [(each.kind, each.clip) for each in findings] == [("missing", "opt.step")] * is_wrong
    assert all("clips the gradients of other" in each.does for each in findings)
