"""Clips in `optax.chain` after another transformation, which clip updates and not gradients."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, Check, only_finding

HEAD = """from functools import partial

import optax
from unified_clip import ClipConfig

clip = ClipConfig.load("clip.toml")
"""
NEAREST = CLIP_CONFIG + '\n[check]\nnearest = ["**"]\n'
LATE = {
    "tx = optax.chain(optax.adamw(1e-3), clip.as_optax())": "optax.adamw(0.001)",
    "tx = optax.chain(clip.as_optax(), optax.sgd(0.1), clip.as_optax())": "optax.sgd(0.1)",
    "tx = optax.chain(*[optax.scale_by_adam(), clip.as_optax()])": "optax.scale_by_adam()",
    "adam = optax.adam(1e-3)\nmine = clip.as_optax()\ntx = optax.chain(adam, mine)": "optax.adam(0.001)",
    "tx = optax.chain(optax.chain(optax.zero_nans(), optax.adam(0.1)), clip.as_optax())": "optax.adam(0.1)",
    "tx = optax.named_chain(('a', optax.adam(0.1)), ('b', clip.as_optax()))": "optax.adam(0.1)",
    "tx = optax.named_chain(*[('a', optax.adam(0.1)), ('b', clip.as_optax())])": "optax.adam(0.1)",
    "first = ('a', optax.adam(0.1))\nrest = [('b', clip.as_optax())]\ntx = optax.named_chain(first, *rest)": (
        "optax.adam(0.1)"
    ),
    "adam = optax.adam(0.1)\nmine = clip.as_optax()\nparts = (('a', adam), ('b', mine))\n"
    "tx = optax.named_chain(*parts)": "optax.adam(0.1)",
    "tx = optax.chain(optax.scale(0.5) if fast else optax.identity(), clip.as_optax())": "optax.scale(0.5)",
    "tx = optax.chain(optax.scale(0.5), clip.as_optax() if fast else optax.identity())": "optax.scale(0.5)",
    "from opt import tx\ntx = optax.chain(optax.scale(2.0), clip.as_optax(), tx)": "optax.scale(2.0)",
    "from opt import tx\ntx = optax.chain(tx, clip.as_optax())": "tx",
    "def make(inner):\n    return optax.chain(inner, clip.as_optax())": "inner",
    "tx = optax.chain(clip.as_optax(optax.sgd(0.1)), clip.as_optax())": "clip.as_optax(optax.sgd(0.1))",
    "parts = [optax.trace(0.9), clip.as_optax()]\ntx = optax.chain(*parts)": "optax.trace(0.9)",
    "parts = []\nparts.append(optax.trace(0.9))\nparts.append(clip.as_optax())\ntx = optax.chain(*parts)": (
        "optax.trace(0.9)"
    ),
    "parts = [optax.trace(0.9)]\nif wanted:\n    parts += [clip.as_optax()]\ntx = optax.chain(*parts)": (
        "optax.trace(0.9)"
    ),
    "parts = list()\nparts.append(optax.trace(0.9))\nparts += [clip.as_optax()]\ntx = optax.chain(*parts)": (
        "optax.trace(0.9)"
    ),
    "parts = list(others)\nparts.append(optax.trace(0.9))\nparts.append(clip.as_optax())\ntx = optax.chain(*parts)": (
        "optax.trace(0.9)"
    ),
    "def make():\n    return [optax.trace(0.9)]\nparts = make()\nparts.append(clip.as_optax())\n"
    "tx = optax.chain(*parts)": "optax.trace(0.9)",
    "parts = []\nif fast:\n    parts.append(optax.trace(0.9))\nparts.append(clip.as_optax())\n"
    "tx = optax.chain(*parts)": "optax.trace(0.9)",
    "parts = [clip.as_optax()]\nparts.insert(0, optax.trace(0.9))\ntx = optax.chain(*parts)": "optax.trace(0.9)",
    "parts = [optax.trace(0.9), optax.scale(2)]\nparts.insert(1, clip.as_optax())\ntx = optax.chain(*parts)": (
        "optax.trace(0.9)"
    ),
    "class A:\n    def tx(self):\n        self.parts = [optax.trace(0.9)]\n        self.parts.append(clip.as_optax())\n"
    "        return optax.chain(*self.parts)": "optax.trace(0.9)",
    "tx = optax.chain(*([optax.trace(0.9)] + [clip.as_optax()]))": "optax.trace(0.9)",
    "adam = optax.adam(0.1)\nparts = (adam,) + (clip.as_optax(),)\ntx = optax.chain(*parts)": "optax.adam(0.1)",
    "tx = partial(optax.chain, optax.trace(0.9))(clip.as_optax())": "optax.trace(0.9)",
    "chain = partial(optax.chain, optax.trace(0.9))\ntx = chain(clip.as_optax())": "optax.trace(0.9)",
    "def make():\n    return optax.trace(0.9)\ntx = optax.chain(make(), clip.as_optax())": "optax.trace(0.9)",
    "def make():\n    return clip.as_optax()\ntx = optax.chain(optax.trace(0.9), make())": "optax.trace(0.9)",
    "class A:\n    def make(self):\n        return clip.as_optax()\n"
    "    def tx(self):\n        return optax.chain(optax.trace(0.9), self.make())": "optax.trace(0.9)",
}


@pytest.mark.parametrize("code", LATE)
def test_a_clip_after_another_transformation_is_unknown(check: Check, code: str) -> None:
    finding = only_finding(check({"a.py": f"{HEAD}{code}\n"}))
    assert (finding.kind, finding.clip) == ("unknown", "unified_clip.ClipConfig.as_optax")
    why = f"This clip comes after {LATE[code]} in optax.chain, so the clip changes updates, "
    assert finding.does.startswith(why)
    assert "clip.as_optax() as the first argument of optax.chain" in finding.edit


def test_the_reason_has_no_code_that_is_cut_inside_a_name(check: Check) -> None:
    long = "optax.scale_by_factored_rms(factored=True, decay_rate=decay_rate, step_offset=start)"
    finding = only_finding(check({"a.py": f"{HEAD}tx = optax.chain({long}, clip.as_optax())\n"}))
    assert "comes after optax.scale_by_factored_rms(...) in optax.chain" in finding.does


@pytest.mark.parametrize(
    "code",
    [
        "tx = optax.chain(clip.as_optax(), optax.adamw(1e-3))",
        "tx = optax.chain(optax.zero_nans(), optax.identity(), clip.as_optax(), clip.as_optax(), optax.sgd(1.0))",
        "tx = optax.MultiSteps(optax.chain(clip.as_optax(), optax.sgd(1.0)), 4)",
        "tx = clip.as_optax(optax.adam(0.1))",
        "tx = optax.named_chain(('b', clip.as_optax()), ('a', optax.adam(0.1)))",
        "mine = clip.as_optax()\ntx = optax.chain(mine, optax.adam(0.1))",
        "tx = optax.named_chain(*[('clip', clip.as_optax()), ('adam', optax.adam(1e-3))])",
        "first = ('clip', clip.as_optax())\ntx = optax.named_chain(first, ('adam', optax.adam(1e-3)))",
        "parts = [(name, clip.as_optax()), ('adam', optax.adam(1e-3))]\ntx = optax.named_chain(*parts)",
        "mine = clip.as_optax()\nparts = (('a', mine), ('b', clip.as_optax()))\ntx = optax.named_chain(*parts)",
        "tx = optax.chain(clip.as_optax() if fast else clip.as_optax(), optax.adam(0.1))",
        "from opt import tx\ntx = optax.chain(clip.as_optax(), optax.scale(2.0), tx)",
        "from .opt import tx\ntx = optax.chain(clip.as_optax(), optax.scale(2.0), tx)",
        "from .opt import tx\ntx = optax.chain(clip.as_optax(), optax.masked(tx, mask))",
        "tx = optax.chain()\nother = optax.chain(tx)\ngrads = clip(gradients)",
        "tx = [tx, tx]\nother = optax.chain(*tx)\ngrads = clip(gradients)",
        "tx = partial(optax.chain, clip.as_optax())(optax.adam(0.1))",
        "def make():\n    return optax.zero_nans()\ntx = optax.chain(make(), clip.as_optax(), optax.adam(0.1))",
        "def make():\n    return clip.as_optax()\ntx = optax.chain(make(), optax.adam(0.1))",
        "def make(mine):\n    return optax.chain(mine, optax.adam(0.1))\ntx = make(clip.as_optax())",
        "def make():\n    return make()\ntx = optax.chain(clip.as_optax(), make())",
        "parts = []\nparts.append(clip.as_optax())\ntx = optax.chain(*parts, optax.adam(0.1))",
        "parts = [optax.adam(0.1)]\nparts.insert(0, clip.as_optax())\ntx = optax.chain(*parts)",
        "parts = [optax.zero_nans(), optax.adam(0.1)]\nparts.insert(1, clip.as_optax())\ntx = optax.chain(*parts)",
        "parts = [clip.as_optax()]\nparts += [optax.adam(0.1)]\ntx = optax.chain(*parts)",
        "parts = []\nif fast:\n    parts.append(clip.as_optax())\nparts.append(optax.adam(0.1))\n"
        "tx = optax.chain(*parts)",
        "parts = list(others)\nparts.append(clip.as_optax())\ntx = optax.chain(*parts)",
        "def make(rate):\n    return optax.chain(clip.as_optax(), optax.sgd(rate))\n"
        "tx = optax.inject_hyperparams(make)(rate=1)",
        "parts = [optax.trace(0.9)]\nparts = [clip.as_optax()]\nparts.append(optax.adam(0.1))\n"
        "tx = optax.chain(*parts)",
        "parts = []\nparts.append(('a', clip.as_optax()))\nparts.append(('b', optax.adam(0.1)))\n"
        "tx = optax.named_chain(*parts)",
        "tx = optax.chain(*([clip.as_optax()] + [optax.adam(0.1)]))",
        "state = train_state.TrainState.create(tx=clip.as_optax())",
        "settings = dict(first=clip.as_optax())\nother = Settings(clip.as_optax())",
        "fit(clip.as_optax(optax.adam(0.1)))",
    ],
)
def test_a_clip_before_all_others_is_no_finding(check: Check, code: str) -> None:
    assert check({"a.py": f"{HEAD}{code}\n"}).findings == []


def test_a_clip_in_one_branch_does_not_come_after_the_other_branch(check: Check) -> None:
    code = "tx = optax.chain(optax.scale(0.5) if fast else clip.as_optax(), optax.adam(0.1))"
    finding = only_finding(check({"a.py": f"{HEAD}{code}\n"}))
    assert finding.does.startswith("This clip depends on a condition, fast, which is only known at run time.")


def test_a_clip_of_optax_after_another_transformation_is_unknown(check: Check) -> None:
    code = "import optax\ntx = optax.chain({})\n"
    clips = "optax.clip_by_global_norm(0.5)"
    finding = only_finding(check({"a.py": code.format(f"optax.adam(0.1), {clips}")}))
    assert (finding.kind, finding.clip, finding.line) == ("unknown", "optax.clip_by_global_norm", 2)
    assert "comes after optax.adam(0.1) in optax.chain" in finding.does
    assert [each.kind for each in check({"a.py": code.format(f"{clips}, optax.adam(0.1)")}).findings] == ["drift"]


def test_a_threshold_that_inject_hyperparams_passes_can_change(check: Check) -> None:
    code = "import optax\ntx = optax.inject_hyperparams(optax.clip_by_global_norm)(max_norm=1.0)\nother = {}\n"
    finding = only_finding(check({"a.py": code.format("optax.adam(0.1)")}))
    assert (finding.kind, finding.clip) == ("unknown", "optax.clip_by_global_norm")
    passed = check({"a.py": code.format("optax.masked(optax.clip)")}).findings
    assert [each.kind for each in passed] == ["unknown", "unknown"]


CLIP = "optax.clip_by_global_norm(1.0)"
GROUPED = f"optax.chain({CLIP}, optax.adam(1e-3))"
MAKE = f"def make(rate):\n    return optax.chain({CLIP}, optax.adam(rate))\n"
INSIDE = {
    f"tx = optax.multi_transform({{'g': {GROUPED}, 'd': optax.adamw(1e-3)}}, labels)": "optax.multi_transform",
    f"tx = optax.partition({{'g': {GROUPED}, 'd': optax.adamw(1e-3)}}, labels)": "optax.partition",
    f"transforms = {{}}\ntransforms['g'] = {GROUPED}\ntx = optax.partition(transforms, labels)": "optax.partition",
    f"{MAKE}tx = optax.partition({{'g': make(1), 'd': make(2)}}, labels)": "optax.partition",
    f"class A:\n    def build(self):\n        self.g = {GROUPED}\n"
    "        self.tx = optax.partition({'g': self.g, 'd': optax.sgd(1)}, labels)": "optax.partition",
    f"tx = optax.chain(optax.masked({CLIP}, mask), optax.adam(1))": "optax.masked",
    f"class A:\n    def build(self):\n        self.c = {CLIP}\n"
    "        self.tx = optax.chain(optax.masked(self.c, mask), optax.adam(1))": "optax.masked",
    f"tx = optax.chain(partial(optax.masked, mask=m)({CLIP}), optax.adam(1))": "partial(optax.masked, mask=m)",
    f"c = {CLIP}\ntx = optax.chain(partial(optax.masked, c)(mask=m), optax.adam(1))": "partial(optax.masked, c)",
    f"tx = optax.chain(partial(optax.masked, {CLIP})(mask=m), optax.adam(1))": f"partial(optax.masked, {CLIP})",
    f"wrap = partial(optax.masked, mask=m)\ntx = optax.chain(wrap({CLIP}), optax.adam(1))": "wrap",
    f"def wrap(tx):\n    return optax.masked(tx, m)\ntx = optax.chain(wrap({CLIP}), optax.adam(1))": "wrap",
    f"from lib import wrap\ntx = optax.chain(wrap({GROUPED}), optax.adam(1))": "wrap",
    f"from lib import wrap\nc = {CLIP}\ntx = optax.chain(wrap(c), optax.adam(1))": "wrap",
    f"from lib import make\ntx = make({CLIP})": "make",
    f"def make(c):\n    return optax.chain(optax.adam(1), c)\ntx = make({CLIP})": "make",
    f"tx = {CLIP}\nif decay:\n    tx = optax.masked(tx, mask)\ntx = optax.chain(tx, optax.adam(1))": "optax.masked",
}


@pytest.mark.parametrize("code", INSIDE)
def test_a_clip_inside_a_function_that_selects_parameters_is_unknown(check: Check, code: str) -> None:
    findings = check({"a.py": f"import optax\nfrom functools import partial\n{code}\n"}, NEAREST).findings
    reasons = [each.does for each in findings if (each.kind, each.clip) == ("unknown", "optax.clip_by_global_norm")]
    assert len(reasons) == 1
    assert reasons[0].startswith(
        f"This clip is inside {INSIDE[code]}, so it possibly clips only some gradients or steps."
    )


@pytest.mark.parametrize(
    "code",
    [
        "params = optax.apply_updates(params, tx.update(gradients, state)[0])",
        "updates = tx.update(gradients, state)\nparams = optax.apply_updates(params, updates[0])",
        "state = TrainState.create(params=params, tx=tx)\nloss = optax.l2_loss(state.apply_fn(state.params, x))",
        "state = TrainState.create(params=params, tx=tx)\nloss = optax.l2_loss(predict(state, x))",
        f"{MAKE}other = optax.MultiSteps(make(1), 4)",
    ],
)
def test_functions_of_arrays_select_no_parameters(check: Check, code: str) -> None:
    assert check({"a.py": f"import optax\ntx = {GROUPED}\n{code}\n"}, NEAREST).findings == []


ADAM = "tx = optax.adam(1)\n"
FUNCTION = f"def f():\n    {ADAM}    if clip_norm:\n        tx = optax.chain({CLIP}, optax.adam(1))\n    return tx"
CHAINED = f"tx = optax.chain({CLIP}, {{}})\n"
BASE = "adam = optax.adam(1)\n"
RETURNED = f"{BASE}def f():\n    {{}}\n    if {{}}:\n        return {{}}\n    return {{}}\n"


@pytest.mark.parametrize(("code", "kinds"), [
    (f"{ADAM}if x:\n    {CHAINED.format('tx')}", ["unknown"]),
    (f"{ADAM}if x:\n    pass\nelse:\n    {CHAINED.format('tx')}", ["unknown"]),
    (f"{ADAM}if x:\n    {CHAINED.format('tx')}else:\n    {CHAINED.format('tx')}", []),
    (f"{ADAM}{CHAINED.format('tx')}", []),
    (f"{ADAM}if clip_norm:\n    {CHAINED.format('tx')}", []),
    (f"{ADAM}if x:\n    {CHAINED.format('optax.adam(1)')}", ["missing"]),
    (f"{ADAM}if clip_norm:\n    {CHAINED.format('optax.adam(1)')}", []),
    (f"{ADAM}if clip_norm:\n    {CHAINED.format('optax.adam(1)')}other = optax.adam(1)\n", ["missing"]),
    (f"{ADAM}{FUNCTION}", ["unknown"]),
    (f"{BASE}{CHAINED.format('adam')}if x:\n    tx = adam\n", ["unknown"]),
    (f"{BASE}{CHAINED.format('adam')}if no_clip:\n    tx = adam\n", []),
    (f"{BASE}{CHAINED.format('adam')}if x:\n    other = adam\n", []),
    (f"{BASE}{CHAINED.format('adam')}if x:\n    tx = tx\n", []),
    (f"{BASE}tx = adam\nif x:\n    {CHAINED.format('adam')}", ["unknown"]),
    (f"{BASE}tx = adam\n{CHAINED.format('adam')}", []),
    (f"{BASE}if x:\n    tx = adam\n{CHAINED.format('adam')}", []),
    (f"{BASE}if x:\n    tx = adam\nelse:\n    {CHAINED.format('adam')}", ["unknown"]),
    (f"{BASE}c = {CLIP}\ntx = optax.chain(c, adam)\nif x:\n    tx = adam\n", ["unknown"]),
    (RETURNED.format("pass", "x", "adam", f"optax.chain({CLIP}, adam)"), ["unknown"]),
    (RETURNED.format("pass", "x", f"optax.chain({CLIP}, adam)", "adam"), ["unknown"]),
    (RETURNED.format("pass", "clip_norm", f"optax.chain({CLIP}, adam)", "adam"), []),
    (f"{ADAM}if x:\n    def make(tx):\n        {CHAINED.format('tx')}        return tx\n", []),
])  # fmt: skip
def test_a_clip_that_one_branch_adds_depends_on_its_condition(check: Check, code: str, kinds: list[str]) -> None:
    findings = check({"a.py": f"import optax\n{code}"}, NEAREST).findings
    assert [each.kind for each in findings] == kinds
    reasons = (
        "This clip depends on a condition, x,",
        "This optimizer is built without a clip, while optax.adam in line",
    )
    assert all(each.does.startswith(reasons) for each in findings)


TWO = """import optax


def train(params, grads):
    tx = optax.chain(optax.clip_by_global_norm(1.0), {}, optax.adam(1e-3))
    other = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1e-3))
    state = tx.init(params)
    updates, state = {}.update(grads, state)
    return optax.apply_updates(params, updates)
"""


@pytest.mark.parametrize(("name", "lines"), [("tx", [6]), ("other", [5])])
def test_a_chain_that_no_code_updates_with_is_unknown(check: Check, name: str, lines: list[int]) -> None:
    nearest = CLIP_CONFIG + '\n[check]\nnearest = ["**"]\n'
    findings = check({"a.py": TWO.format("optax.identity()", name)}, nearest).findings
    assert [(each.kind, each.line) for each in findings] == [("unknown", line) for line in lines]
    assert ("with this clip, but never calls update" in findings[0].does) is (name == "other")
