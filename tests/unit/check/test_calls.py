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


@pytest.mark.parametrize("start", CALLS)
@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["loss.backward()", "opt.step()", "CLIP"], "This clip comes after opt.step() in line"),
        (["CLIP", "loss.backward()", "opt.step()"], "This clip comes before loss.backward() in line"),
        (["loss.backward()", "if False:", "    CLIP", "opt.step()"], "This clip never runs: the condition False"),
        (["loss.backward()", "if i % 10 == 0:", "    CLIP", "opt.step()"], "This clip runs only if i % 10 == 0"),
        (
            ["for n in range(9):", "    loss.backward()", "    if n > 5:", "        CLIP", "    opt.step()"],
            "This clip runs only if n > 5",
        ),
        (
            [
                "for n, x in enumerate(data):",
                "    loss.backward()",
                "    if n < warm_up:",
                "        CLIP",
                "    opt.step()",
            ],
            "This clip runs only if n < warm_up",
        ),
        (
            ["self.steps += 1", "loss.backward()", "if self.steps > 9:", "    CLIP", "opt.step()"],
            "This clip runs only if self.steps > 9",
        ),
        (["a.backward()", "CLIP", "b.backward()", "opt.step()"], "This clip comes before b.backward() in line"),
        ([*CLOSURE, "CLIP", "opt.step(closure)"], "This clip comes before opt.step(closure) in line"),
        ([*CLOSURE, "CLIP", "opt.step(closure=closure)"], "This clip comes before opt.step(closure=closure) in line"),
        (
            ["for i in data:", "    loss.backward()", "    CLIP", "    if i % 4 == 0:", "        opt.step()"],
            "opt.step() in line",
        ),
        (["for i in data:", "    loss.backward()", "    CLIP", "opt.step()"], "opt.step() in line"),
        ([*CLOSURE, "CLIP", "closure()", "opt.step()"], "This clip comes before closure() in line"),
        ([*CLOSURE, "for i in data:", "    closure()", "    CLIP", "opt.step()"], "opt.step() in line"),
    ],
)
def test_a_call_that_clips_no_gradients_of_a_step_is_unknown(
    check: Check, start: str, lines: list[str], why: str
) -> None:
    finding = only_finding(check(step(start, *lines)))
    assert finding.kind == "unknown"
    assert finding.does.startswith(why)


@pytest.mark.parametrize("start", CALLS)
@pytest.mark.parametrize(
    "lines",
    [
        ["loss.backward()", "CLIP", "opt.step()", "scheduler.step()"],
        ["for x in data:", "    opt.step()", "    opt.zero_grad()", "    loss.backward()", "    CLIP"],
        ["for x in data:", "    CLIP", "    opt.step()", "    loss.backward()"],
        ["for x in data:", "    loss.backward()", "    if i % 4 == 0:", "        CLIP", "        opt.step()"],
        ["loss.backward()", "if i % 4 == 0:", "    CLIP", "if i % 4 == 0:", "    opt.step()"],
        ["for x in data:", "    loss.backward()", "CLIP", "opt.step()"],
        ["if amp:", "    scaler.step(opt)", "else:", "    loss.backward()", "    CLIP", "    opt.step()"],
        ["env.step(action)", "loss.backward()", "CLIP", "self.update()"],
        ["def closure():", "    loss.backward()", "    CLIP", "    return loss", "opt.step(closure)"],
        ["loss.backward()", "if use_clip:", "    CLIP", "opt.step()"],
        ["norm += 0.5", "loss.backward()", "if norm > limit:", "    CLIP", "opt.step()"],
        ["for n in range(9):", "    loss.backward()", "    if n > 5:", "        CLIP", "        opt.step()"],
        [
            "for n in range(9):",
            "    loss.backward()",
            "    if n > 5:",
            "        CLIP",
            "        opt.step()",
            "    opt_b.step()",
        ],
        [
            "for n in range(9):",
            "    if n > 5:",
            "        CLIP",
            "        opt.step()",
            "    else:",
            "        opt.step()",
        ],
        ["a.backward()", "CLIP", "b.backward()", "CLIP", "opt.step()"],
        ["a.backward()", "CLIP", "b.backward()", "opt.step()", "opt_b.step()"],
        [*CLOSURE, "loss.backward()", "CLIP", "opt.step(); other.step(closure)"],
        [*CLOSURE, "    CLIP", "loss.backward()", "CLIP", "opt.step(closure)"],
        [
            "for i in data:",
            "    loss.backward()",
            "    CLIP",
            "    if i % 4 == 0:",
            "        opt.step()",
            "    opt_b.step()",
        ],
        [
            "for i in data:",
            "    if i % 4 == 0:",
            "        loss.backward()",
            "    CLIP",
            "    if i % 4 == 0: opt.step()",
        ],
        ["for i in data:", "    loss.backward()", "    if i % 4 == 0:", "        CLIP", "opt.step()"],
        ["for model in models:", "    loss.backward()", "    CLIP", "opt.step()"],
        ["for i in data:", "    CLIP", "opt.step()"],
        [*CLOSURE, "closure()", "CLIP", "opt.step()"],
        [*CLOSURE, "    opt_b.step()", "CLIP", "closure()", "opt.step()"],
        [
            "if first:",
            "    def closure():",
            "        loss.backward()",
            "    closure()",
            "else:",
            "    CLIP",
            "    opt.step()",
        ],
    ],
)
def test_a_call_between_backward_and_step_clips(check: Check, start: str, lines: list[str]) -> None:
    assert check(step(start, *lines)).findings == []


HELPER = "def limit(model):\n    CLIP\n\n\ndef outer(model):\n    limit(model)\n\n\n"
METHODS = "class Trainer:\n    def limit(self, model):\n        CLIP\n\n    def step(self, model, opt, loss):\n        "


@pytest.mark.parametrize("start", CALLS)
@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["loss.backward()", "opt.step()", "limit(model)"], "This clip comes after opt.step() in line"),
        (["loss.backward()", "opt.step()", "outer(model)"], "This clip comes after opt.step() in line"),
        (["limit(model)", "loss.backward()", "opt.step()"], "This clip comes before loss.backward() in line"),
        (["loss.backward()", "if i % 10 == 0:", "    limit(model)", "opt.step()"], "This clip runs only if i % 10"),
        (["loss.backward()", "limit(model)", "opt.step()"], ""),
        (["loss.backward()", "outer(model)", "opt.step()"], ""),
        (["loss.backward()", "opt.step()", "torch.limit(model)"], ""),
    ],
)
def test_a_clip_in_a_function_of_the_file_is_judged_at_its_calls(
    check: Check, start: str, lines: list[str], why: str
) -> None:
    method = [line.replace("limit", "self.limit").replace("torch.self.", "torch.") for line in lines]
    sources = [HELPER + "def step(model, opt, loss):\n    " + "\n    ".join(lines)]
    sources += [] if "outer" in str(lines) else [METHODS + "\n        ".join(method)]
    for source in sources:
        text = f"import torch\n{start}" + source.replace("CLIP", CALLS[start]) + "\n"
        findings = check({"a.py": text}).findings
        assert [each.kind for each in findings] == ["unknown"] * bool(why)
        assert all(each.does.startswith("Line ") and why in each.does for each in findings)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("clip(grads)", "No code uses the result of this call"),
        ("clipped = clip(grads)\n    opt.apply_gradients(zip(grads, weights))", "No code uses the result of this call"),
        ("grads = [clip([g])[0] for g in grads]", "The call is in a loop over grads"),
        ("grads = clip(grads[:-2]) + grads[-2:]", "The call clips only a part of a list, grads[:-2]."),
        ("clip.attach_to(opt).detach()", "attach_to(...).detach() detaches the clip immediately"),
        ("h = clip.attach_to(opt)\n    h.detach()\n    opt.step()", "h.detach() in line 8 detaches the clip"),
        ("with clip.attach_to(opt):\n        print(1)\n    opt.step()", "The end of the with block in line 8 detaches"),
        ("model.fit(x)\n    clip.attach_to(opt)", "This clip comes after model.fit(x) in line 7"),
        ("clipped = clip(grads)\n    del clipped", "No code uses the result of this call"),
        (
            "clip.attach_to(opt)\n    opt = torch.optim.SGD(p)\n    opt.step()",
            "Line 8 assigns a new optimizer to opt. This clip is not attached",
        ),
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


def test_the_closure_of_the_same_function_decides(check: Check) -> None:
    lines = [8 * " " + line for line in [*CLOSURE, CALLS[TORCH], "opt.step(closure)"]]
    clipped = [*lines[:2], "    " + lines[2], lines[3]]
    functions = (f"def {name}(model, loss, opt):\n    for x in data:\n" for name in ("first", "second"))
    bodies = ("\n".join(each) + "\n" for each in (lines, clipped))
    source = TORCH + "\n\n".join(map("".join, zip(functions, bodies, strict=True)))
    finding = only_finding(check({"a.py": source}))
    assert (finding.line, finding.does.partition(".")[0]) == (8, "This clip comes before opt")


@pytest.mark.parametrize("between", ["", "run()\n    "])
def test_a_hook_that_is_removed_at_once_clips_nothing(check: Check, between: str) -> None:
    hook = f"handle = opt.register_step_pre_hook(lambda *args: {CALLS[TORCH]})\n    {between}handle.remove()"
    findings = check({"a.py": f"{TORCH}def step(model, opt):\n    {hook}\n    opt.step()\n"}).findings
    assert [each.does.partition(",")[0] for each in findings] == (
        [] if between else ["handle.remove() in line 6 detaches the clip immediately"]
    )


@pytest.mark.parametrize("clip", ["paddle.nn.ClipGradByGlobalNorm({})", "own.as_paddle(model)"])
@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("opt = paddle.optimizer.LBFGS(grad_clip=CLIP)", "Paddle's LBFGS in line 6 ignores grad_clip"),
        ("clip = CLIP\nopt = paddle.incubate.optimizer.LBFGS(grad_clip=clip)", "Paddle's LBFGS in line 7"),
        ("clip = CLIP if fast else None\nopt = Adam(grad_clip=clip)", "The optimizer gets this clip only if fast"),
        ("clip = CLIP\nopt = Adam(grad_clip=None if fast else clip)", "The optimizer gets this clip only if fast"),
        ("clip = CLIP\nopt = Adam(grad_clip=clip)\nother = paddle.optimizer.LBFGS()", ""),
        ("opt = Adam(grad_clip=CLIP if fast else CLIP)", ""),
        ("opt = Adam(grad_clip=CLIP) if fast else None", ""),
    ],
)
def test_a_clip_that_an_optimizer_of_paddle_ignores_or_may_not_get(
    check: Check, clip: str, lines: str, why: str
) -> None:
    own = 'from unified_clip import ClipConfig\nown = ClipConfig.load("clip.toml")\n' if clip[:3] == "own" else "\n\n"
    start = f"import paddle\nfrom paddle.optimizer import Adam\n{own}\n"
    code = lines.replace("CLIP", clip.format("1.0"))
    findings = check({"a.py": f"{start}{code}\n"}, CLIP_CONFIG + '\n[check]\nnearest = ["**"]\n').findings
    assert [each.kind for each in findings if each.clip != "paddle.optimizer.LBFGS"] == ["unknown"] * bool(why)
    assert not why or findings[0].does.startswith(why)


def test_a_condition_about_the_threshold_of_paddle_is_no_finding(check: Check) -> None:
    source = "import paddle\n\nNORM = 1.0\nclip = paddle.nn.ClipGradByGlobalNorm(NORM) if NORM > 0 else None\n"
    assert check({"a.py": source}, CLIP_CONFIG + '\n[check]\nnearest = ["**"]\n').findings == []


ADAPTIVE = 'rule = "global_norm"\nadaptive = {rule = "zclip"}\n'
SCHEDULE = 'rule = "global_norm"\nthreshold = {schedule = "linear", start = 2.0, end = 1.0, steps = 9}\n'


@pytest.mark.parametrize(
    ("clip", "lines", "is_repeated"),
    [
        (ADAPTIVE, ["loss.backward()", "CLIP", "CLIP", "opt.step()"], True),
        (SCHEDULE, ["loss.backward()", "CLIP", "CLIP", "opt.step()"], True),
        (CLIP_CONFIG, ["loss.backward()", "CLIP", "CLIP", "opt.step()"], False),
        (ADAPTIVE, ["a.backward()", "CLIP", "opt.step()", "b.backward()", "CLIP", "opt.step()"], False),
        (ADAPTIVE, ["loss.backward()", "if x:", "    CLIP", "else:", "    CLIP", "opt.step()"], False),
        (ADAPTIVE, ["CLIP", "CLIP"], False),
        (SCHEDULE, ["loss.backward()", "CLIP", "clip.clip_(model.named_parameters(), step=n)", "opt.step()"], False),
    ],
)
def test_two_calls_in_one_step_count_as_two_steps(check: Check, clip: str, lines: list[str], is_repeated: bool) -> None:
    findings = check(step(OWN, *lines), clip).findings
    assert [each.does.partition(" uses")[0] for each in findings] == ["Line 8"] * is_repeated
