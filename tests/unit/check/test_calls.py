"""`unified-clip config check` on the order of clip calls, and on clips whose result no code uses."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, Check, only_finding

OWN = 'from unified_clip import ClipConfig\n\nclip = ClipConfig.load("clip.toml")\n\n\n'
TORCH = "from torch.nn.utils import clip_grad_norm_\n\n\n"
CALLS = {OWN: "clip.clip_(model.named_parameters())", TORCH: "clip_grad_norm_(model.parameters(), 1.0)"}


def step(start: str, *lines: str) -> dict[str, str]:
    """Return a file with a function of these lines. CLIP stands for a clip call."""
    return {
        "a.py": f"{start}def step(model, opt, loss):\n    " + "\n    ".join(lines).replace("CLIP", CALLS[start]) + "\n"
    }


@pytest.mark.parametrize(
    "gradients",
    [
        "[p.grad for p in model.parameters()]",
        "(p.grad for p in model.parameters() if p.grad is not None)",
        "gradients",
    ],
)
@pytest.mark.parametrize("call", ["clip_grad_norm_", "clip_grad_value_", "clip.clip_"])
def test_a_call_that_gets_gradients_instead_of_parameters_clips_nothing(
    check: Check, call: str, gradients: str
) -> None:
    start = OWN + TORCH.replace("norm_", "norm_, clip_grad_value_")
    threshold = "" if call == "clip.clip_" else ", 1"
    lines = f"gradients = [p.grad for p in model.parameters()]\n    {call}({gradients}{threshold})"
    findings = check({"a.py": f"{start}def step(model):\n    {lines}\n    clip.clip_(model.parameters())\n"}).findings
    assert [each.kind for each in findings] == ["unknown"]
    assert findings[0].does.startswith("The call passes gradients, ")


CLOSURE = ["def closure():", "    loss.backward()"]

OPTAX = (
    "import optax\n\n\ndef step(optimizer, state, params, grads):\n    {}\n    {}\n"
    "    return optimizer.update(grads, state)\n"
)
MAKE = "clip = optax.clip_by_global_norm(1.0)"


@pytest.mark.parametrize(
    ("make", "update"),
    [
        (MAKE, "clipped, _ = clip.update(grads, clip.init(params))"),
        (MAKE, "clipped = clip.update(grads, clip.init(params))[0]"),
        (MAKE, "clip.update(grads, clip.init(params))"),
        ("", "clipped, _ = optax.clip_by_global_norm(1.0).update(grads, optax.EmptyState())"),
    ],
)
def test_an_update_of_optax_whose_result_is_not_used_clips_nothing(check: Check, make: str, update: str) -> None:
    nearest = CLIP_CONFIG + '\n[check]\nnearest = ["**"]\n'
    finding = only_finding(check({"a.py": OPTAX.format(make, update)}, nearest))
    assert finding.does.startswith("No code uses the result of this call")
    used = update.replace("clipped", "grads")
    if used != update:
        assert check({"a.py": OPTAX.format(make, used)}, nearest).findings == []


def test_an_update_of_optax_at_the_level_of_the_module(check: Check) -> None:
    nearest = CLIP_CONFIG + '\n[check]\nnearest = ["**"]\n'
    module = OPTAX.replace("def step", MAKE + "\n\n\ndef step").format("{}", "x = 1")
    assert only_finding(check({"a.py": module.format("y, _ = clip.update(grads, ())")}, nearest)).kind == "unknown"
    assert check({"a.py": module.format("return clip.update(grads, ())")}, nearest).findings == []
    assert check({"a.py": module.format("y, _ = clip.update(grads, ()); use(clip)")}, nearest).findings == []


HELPER = "def limit(model):\n    CLIP\n\n\ndef outer(model):\n    limit(model)\n\n\n"
METHODS = "class Trainer:\n    def limit(self, model):\n        CLIP\n\n    def step(self, model, opt, loss):\n        "


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("clip(grads)", "No code uses the result of this call"),
        ("clipped = clip(grads)\n    opt.apply_gradients(zip(grads, weights))", "No code uses the result of this call"),
        ("grads = [clip([g])[0] for g in grads]", "The call is in a loop over grads"),
        ("grads = clip(grads[:-2]) + grads[-2:]", "The call may clip only a part"),
        ("clipped = clip(grads)\n    del clipped", "No code uses the result of this call"),
        ("rule = clip.as_paddle(model)\n    return Adam(1e-3)", "No code uses the result of this call"),
        ("tx = clip.as_optax()\n    tx = optax.adam(1)\n    return tx", "Line 8 assigns another value to tx"),
    ],
)
def test_a_configuration_whose_call_clips_nothing_is_unknown(check: Check, lines: str, why: str) -> None:
    report = check({"a.py": f"{OWN}def step(grads):\n    {lines}\n    return grads\n"})
    finding = only_finding(report)
    assert finding.kind == "unknown"
    assert finding.does.startswith(why)


@pytest.mark.parametrize("call", ["clip_by_global_norm(grads, 1.0)", "unused, norm = clip_by_global_norm(grads, 1.0)"])
def test_a_function_of_a_framework_whose_result_no_code_uses_is_unknown(check: Check, call: str) -> None:
    source = f"from tensorflow import clip_by_global_norm\n\n\ndef step(grads):\n    {call}\n    return grads\n"
    assert only_finding(check({"a.py": source})).does.startswith("No code uses the result of this call")


@pytest.mark.parametrize(
    "lines",
    [
        "clipped = clip(grads)\n    return clipped",
        "for x in data:\n        use(grads)\n        grads = clip(grads)",
        "opt = Adam(grad_clip=clip.as_paddle(model))\n    return opt",
        "clip.attach_to(opt)\n    model.fit(x)",
        "model.fit(x)\n    clip.attach_to(opt)\n    model.fit(x)",
        "clip.attach_to(opt)\n    opt = torch.optim.SGD(p)\n    clip.attach_to(optimizer=opt)\n    opt.step()",
        "if a:\n        clip.attach_to(opt)\n    else:\n        opt = torch.optim.SGD(p)",
        "handle = clip.attach_to(opt)\n    run()\n    handle.detach()\n    opt = torch.optim.SGD(p)",
        "handle = clip.attach_to(opt)\n    yield\n    handle.detach()",
        "handle = clip.attach_to(opt)\n    if done:\n        handle.detach()",
        "with clip.attach_to(opt):\n        yield opt",
        "clip.attach_to(opt)\n    opt = wrap(opt)",
        "with clip.attach_to(opt):\n        model.fit(x)",
    ],
)
def test_a_result_that_is_used_is_no_finding(check: Check, lines: str) -> None:
    assert check({"a.py": f"{OWN}def step(grads):\n    {lines}\n"}).findings == []


def test_a_configuration_that_clips_a_part_of_the_model_differs(check: Check) -> None:
    finding = only_finding(check(step(OWN, "clip.clip_(model.encoder.named_parameters())")))
    assert [(each.about, each.found) for each in finding.differences] == [("parameters", "encoder.*")]
    part = CLIP_CONFIG + 'include = ["encoder.*"]\n'
    named = only_finding(check(step(OWN, "clip.clip_(model.encoder.named_parameters())"), part))
    assert named.does.startswith("The call clips only encoder.*. Parameter names in this part of the model")


def test_the_call_of_an_imported_configuration_is_judged(check: Check) -> None:
    source = "from policy import clip\n\n\ndef step(grads):\n    clip(grads)\n    return grads\n"
    finding = only_finding(check({"policy.py": OWN, "fit.py": source}))
    assert (finding.path, finding.line) == ("fit.py", 5)


def test_a_call_that_measures_the_norm_is_no_clip_beside_a_clip(check: Check) -> None:
    measure = "clip_grad_norm_(model.parameters(), float('inf'))"
    files = {"a.py": f"{TORCH}def step(model):\n    {measure}\n    clip_grad_norm_(model.parameters(), 1.0)\n"}
    assert check(files).findings == []
    assert only_finding(check({"a.py": f"{TORCH}def step(model):\n    {measure}\n"})).kind == "drift"


def test_a_method_that_clamps_gradients_is_named_without_an_argument(check: Check) -> None:
    source = "def step(model):\n    for p in model.parameters():\n        p.grad.clamp_(-1, 1)\n"
    assert only_finding(check({"a.py": f"import torch\n\n\n{source}"})).clip == "p.grad.clamp_"


ADAPTIVE = 'rule = "global_norm"\nadaptive = {rule = "zclip"}\n'
SCHEDULE = 'rule = "global_norm"\nthreshold = {schedule = "linear", start = 2.0, end = 1.0, steps = 9}\n'
