"""`unified-clip config check` on calls of a `ClipConfig` through other names: aliases, attributes and clippers."""

from __future__ import annotations

import textwrap

import pytest
from support.config.check_files import CLIP_CONFIG, Check, only_finding

BEFORE = (
    'import torch\nfrom unified_clip import ClipConfig\n\nCLIP = ClipConfig.load("clip.toml")\n\n\n'
    "def train(net_g, net_d, model, optimizer, x, n):\n"
)
OPTIMIZERS = "opt_g = torch.optim.Adam(net_g.parameters())\nopt_d = torch.optim.Adam(net_d.parameters())\n"
LOAD = 'clip = ClipConfig.load("clip.toml")\n'
ONE_OF_TWO = "{d}\nloss_d(x).backward()\n{step_d}\nloss_g(x).backward()\n{g}\nopt_g.step()\n"


def source(body: str) -> str:
    return BEFORE + textwrap.indent(body, "    ")


@pytest.mark.parametrize("clip", [
    "CLIP.clip_(net_g.named_parameters())",
    "clip.clip_(net_g.named_parameters())",
    "self.trainer.clip.clip_(net_g.named_parameters())",
])  # fmt: skip
@pytest.mark.parametrize("step", ["opt_d.step()", "scaler.step(opt_d)"])
def test_a_configuration_that_clips_one_of_two_models(check: Check, clip: str, step: str) -> None:
    body = OPTIMIZERS + (LOAD if clip.startswith("clip.") else "") + ONE_OF_TWO.format(d="", step_d=step, g=clip)
    finding = only_finding(check({"a.py": source(body) + "\n\nCLIP.clip_(other.named_parameters())\n"}))
    assert (finding.kind, finding.clip) == ("missing", step.partition("(")[0])
    assert "clips the gradients of opt_g" in finding.does


def test_a_configuration_that_clips_both_models_passes(check: Check) -> None:
    step = "CLIP.clip_(net_d.named_parameters())\nopt_d.step()"
    body = OPTIMIZERS + ONE_OF_TWO.format(d="", step_d=step, g="CLIP.clip_(net_g.named_parameters())")
    assert check({"a.py": source(body)}).findings == []


@pytest.mark.parametrize(
    "make", ["cg, cd = CLIP.clipper(net_g), CLIP.clipper(net_d)", "cg = CLIP\ncd = cg", "cg = cd = CLIP if n else None"]
)
def test_aliases_and_clippers_are_the_clip_of_the_configuration(check: Check, make: str) -> None:
    step = "cd.clip_(net_d.named_parameters())\nopt_d.step()"
    body = OPTIMIZERS + ONE_OF_TWO.format(d=make, step_d=step, g="cg.clip_(net_g.named_parameters())")
    report = check({"a.py": source(body)})
    assert (report.findings, report.counts.clips) == ([], 1)


MAKERS = [
    "clip = CLIP",
    "clip = CLIP.clipper(names=model)",
    'clip = ClipConfig.load("clip.toml").clipper(names=model)',
    "first: object = CLIP\nclip = first.clipper()",
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("loss.backward()\noptimizer.step()\n{}", "comes after optimizer.step()"),
        ("loss.backward()\nif False:\n    {}\noptimizer.step()", "never runs"),
        ("loss.backward()\nif n % 10 == 0:\n    {}\noptimizer.step()", "runs only if n % 10 == 0"),
    ],
)
def test_a_call_through_another_name_is_judged(check: Check, make: str, body: str, why: str) -> None:
    text = source(f"{make}\n{body.format('clip.clip_(model.named_parameters())')}\n")
    finding = only_finding(check({"a.py": text + "\n\nCLIP.clip_(other.named_parameters())\n"}))
    assert (finding.kind, finding.clip) == ("unknown", "unified_clip.ClipConfig.clip_")
    assert why in finding.does


@pytest.mark.parametrize("value", ["CLIP", "CLIP.clipper(names=model)"])
def test_an_attribute_with_a_clip_is_followed(check: Check, value: str) -> None:
    text = source(f"self.clip = {value}\n") + (
        "\n\ndef step(self, model):\n    loss.backward()\n    self.optimizer.step()\n{}"
    )
    call = "    self.clip.clip_(model.named_parameters())\n"
    assert "comes after self.optimizer.step()" in only_finding(check({"a.py": text.format(call)})).does
    assert "No checked file uses the configuration clip" in only_finding(check({"a.py": text.format("")})).does
    assert check({"a.py": text.format(""), "b.py": f"def f(self):\n{call}"}).findings == []


def test_an_alias_of_a_configuration_that_is_used_otherwise_is_no_finding(check: Check) -> None:
    text = source("self.clip = CLIP\nCLIP.clip_(model.named_parameters())\n")
    assert check({"a.py": text}).findings == []


def test_a_clipper_that_is_never_called_is_unknown(check: Check) -> None:
    finding = only_finding(
        check({"a.py": source("clip = CLIP.clipper(names=model)\nloss.backward()\noptimizer.step()\n")})
    )
    assert (finding.kind, finding.clip) == ("unknown", "unified_clip.ClipConfig.clipper")
    assert finding.does.startswith("The function never uses the configuration clip")


def test_a_clipper_has_the_names_of_the_whole_model(check: Check) -> None:
    config = CLIP_CONFIG + 'exclude = ["*.bias"]\n'
    body = "clip = CLIP.clipper(names=model)\nclip.clip_({}.named_parameters())\n"
    assert check({"a.py": source(body.format("model.encoder"))}, config).findings == []
    assert (
        "a part of a list"
        in only_finding(check({"a.py": source("CLIP.clipper(model).clip_(tensors[:1])\n")}, config)).does
    )


def test_a_clipper_in_a_tuple_is_no_clip_of_a_tensor(check: Check) -> None:
    text = (
        'import torch\nfrom unified_clip import ClipConfig\n\nCLIP = ClipConfig.load("clip.toml")\n\n\n'
        "def train(g, d, x):\n    og = torch.optim.Adam(g.parameters())\n    od = torch.optim.Adam(d.parameters())\n"
        "    cg, cd = CLIP.clipper(names=g), CLIP.clipper(names=d)\n"
        "    d(x).mean().backward()\n    cd.clip_(d.named_parameters())\n    od.step()\n"
        "    g(x).mean().backward()\n    cg.clip_(g.named_parameters())\n    og.step()\n"
    )
    report = check({"a.py": text})
    assert (report.findings, [each.result for each in report.clips]) == ([], ["same"])


CHAINED = "import torch\nfrom unified_clip import ClipConfig\n\n\ndef train(model, data):\n" + textwrap.indent(
    "optimizer = torch.optim.SGD(model.parameters())\n{}\nfor x in data:\n    model(x).backward()\n    {}\n{}\n", "    "
)
ATTACH = 'ClipConfig.load("clip.toml").attach_to(optimizer, model)'


@pytest.mark.parametrize(
    ("before", "step", "after", "why"),
    [
        ("", "optimizer.step()", ATTACH, "comes after"),
        (f"{ATTACH}.detach()", "optimizer.step()", "", "detaches"),
        (f"if False: {ATTACH}", "optimizer.step()", "", "never runs"),
        (f"{ATTACH}\n    optimizer = torch.optim.AdamW(model.parameters())", "optimizer.step()", "", "new optimizer"),
        ("", 'optimizer.step(); ClipConfig.load("clip.toml").clip_(model.parameters())', "", "comes after"),
        ("", 'ClipConfig.load("clip.toml")(model.grads()); optimizer.step()', "", "No code uses"),
        (
            "",
            'ClipConfig.load("clip.toml").clipper().clip_(list(model.parameters())[1:]); optimizer.step()',
            "",
            "part",
        ),
    ],
)
def test_a_call_of_a_configuration_without_a_variable(
    check: Check, before: str, step: str, after: str, why: str
) -> None:
    finding = only_finding(check({"a.py": CHAINED.format(before, step, after)}))
    assert finding.kind == "unknown"
    assert why in finding.does


@pytest.mark.parametrize("step", [
    "optimizer.step()", "scaler.scale(loss).backward(); scaler.step(optimizer)",
])  # fmt: skip
@pytest.mark.parametrize("attach", [ATTACH, f"handle = {ATTACH}"])
def test_an_attached_configuration_without_a_variable_passes(check: Check, attach: str, step: str) -> None:
    assert check({"a.py": CHAINED.format(attach, step, "")}).findings == []


ACCELERATE = (
    "import torch\nfrom accelerate import Accelerator\nfrom unified_clip import ClipConfig\n"
    "from unified_clip.integrations.accelerate_clip import clip_\n\n"
    'CLIP = ClipConfig.load("clip.toml")\naccelerator = Accelerator(mixed_precision="fp16")\n\n\n'
    "def train(model, optimizer, data):\n    for x in data:\n"
)
BACKWARD, STEP = "accelerator.backward(model(x))\n", "optimizer.step()\n"
CLIP = "clip_(accelerator, CLIP, model.parameters())\n"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (BACKWARD + STEP + CLIP, "comes after"),
        (BACKWARD + STEP + CLIP.replace("CLIP", "clip=CLIP").replace("model.p", "parameters=model.p"), "comes after"),
        (BACKWARD + STEP + CLIP.replace("CLIP", 'ClipConfig.load("clip.toml")') + "CLIP.clip_(model)\n", "comes after"),
        (CLIP + BACKWARD + STEP, "comes before"),
        (BACKWARD + "if False: " + CLIP + STEP, "never runs"),
        (BACKWARD + CLIP.replace("model.parameters()", "list(model.parameters())[1:]") + STEP, "part of a list"),
    ],
)
def test_a_clip_of_accelerate_without_effect(check: Check, body: str, why: str) -> None:
    findings = check({"a.py": ACCELERATE + textwrap.indent(body, " " * 8)}).findings
    assert {each.kind for each in findings} == {"unknown"}
    assert why in findings[0].does


def test_a_clip_of_accelerate_passes(check: Check) -> None:
    assert check({"a.py": ACCELERATE + textwrap.indent(BACKWARD + CLIP + STEP, " " * 8)}).findings == []
