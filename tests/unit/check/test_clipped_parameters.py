"""`unified-clip config check` on calls: which parameters they clip, engines' methods, and names with other values."""

from __future__ import annotations

import re

import pytest
from support.config.check_files import CLIP_CONFIG, Check, only_finding

IMPORTS = "import torch\nfrom torch.nn.utils import clip_grad_norm_\n\n"
OWN = "import unified_clip.torch as uc\n\n"
BASE = "_base_ = ['base.py']\n"

# -- which parameters are clipped


@pytest.mark.parametrize(
    ("tensors", "pattern"),
    [
        ("model.encoder.parameters()", "encoder.*"),
        ("self.model.module.text.encoder.parameters()", "text.encoder.*"),
        ("model.layers[0].parameters()", "layers.0.*"),
        ("list(model.encoder.parameters())", "encoder.*"),
        ("filter(lambda p: p.requires_grad, model.encoder.parameters())", "encoder.*"),
        ("[p for p in model.encoder.parameters() if p.grad is not None]", "encoder.*"),
        ("agent.actor.parameters(), 1.0)\nAdam(agent.parameters()", "actor.*"),
    ],
)
def test_a_clip_of_a_part_of_the_model_differs_and_names_the_part(check: Check, tensors: str, pattern: str) -> None:
    call = tensors if tensors.endswith("(agent.parameters()") else f"{tensors}, 1.0"
    finding = only_finding(check({"a.py": f"{IMPORTS}clip_grad_norm_({call})\n"}))
    assert finding.kind == "drift"
    assert [(each.about, each.found, each.wanted) for each in finding.differences] == [("parameters", pattern, "*")]
    of_unified_clip = only_finding(check({"a.py": f"{OWN}uc.clip_grad_norm_({call})\n"}))
    assert of_unified_clip.differences == finding.differences
    part = CLIP_CONFIG + f'include = ["{pattern}"]\n'
    assert check({"a.py": f"{IMPORTS}clip_grad_norm_({call})\n"}, part).findings == []


def test_a_clip_of_all_parameters_of_an_optimizer_is_the_same(check: Check) -> None:
    source = f"{IMPORTS}opt = torch.optim.Adam(self.model.{{}}.parameters())\nclip_grad_norm_({{}}, 1.0)\n"
    assert check({"a.py": source.format("actor", "self.model.actor.parameters()")}).findings == []
    assert only_finding(check({"a.py": source.format("critic", "self.model.actor.parameters()")})).kind == "drift"


@pytest.mark.parametrize(
    "tensors",
    [
        "[p for n, p in model.named_parameters() if 'bias' not in n]",
        "filter(lambda p: p.ndim > 1, model.parameters())",
        "optimizer.param_groups[0]['params']",
        "model.blocks[i].parameters()",
        "some",
    ],
)
def test_a_clip_of_selected_parameters_is_unknown(check: Check, tensors: str) -> None:
    before = "some = [p for n, p in model.named_parameters() if 'head' in n]\n"
    finding = only_finding(check({"a.py": f"{IMPORTS}{before}clip_grad_norm_({tensors}, 1.0)\n"}))
    assert finding.kind == "unknown"


@pytest.mark.parametrize(
    "tensors",
    [
        "model.parameters()",
        "self.parameters()",
        "self.model.parameters()",
        "model.module.parameters()",
        "trainer.model.module.parameters()",
        "gan.generator.parameters()",
        "self.model['generator'].parameters()",
        "self.critic.parameters()",
        "params",
        "[p for p in model.parameters() if p.requires_grad and p.grad is not None]",
        "amp.master_params(optimizer)",
    ],
)
def test_a_clip_of_a_whole_model_is_no_finding(check: Check, tensors: str) -> None:
    assert check({"a.py": f"{IMPORTS}clip_grad_norm_({tensors}, max_norm=1.0)\n"}).findings == []
    keywords = f"clip_grad_norm_(max_norm=1.0, parameters={tensors})"
    assert check({"a.py": f"{IMPORTS}{keywords}\n"}).findings == []


def test_a_part_is_found_in_a_line_with_other_alphabets(check: Check) -> None:
    report = check({"a.py": f'{IMPORTS}"é"; clip_grad_norm_(model.encoder.parameters(), 1.0)\r\n'})
    assert only_finding(report).differences[0].about == "parameters"


# -- methods of training engines

ACCELERATE = "from accelerate import Accelerator\n\n"
FABRIC = "import lightning as L\n\nmine = L.Fabric()\n"
FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(model)\n"
MODULE = (
    "class M(LightningModule):\n    def configure_gradient_clipping(self, optimizer, *args):\n"
    "        self.clip_gradients(optimizer, gradient_clip_val={}{})\n"
)
RAISE = CLIP_CONFIG + 'nonfinite = "raise"\n'
VALUE = 'rule = "value"\nthreshold = 1.0\n'
ENGINES = [
    (ACCELERATE + "accelerator.clip_grad_norm_(model.parameters(), {})\n", CLIP_CONFIG),
    (ACCELERATE + "self.accelerator.clip_grad_norm_(model.parameters(), max_norm={})\n", CLIP_CONFIG),
    (ACCELERATE + "mine = Accelerator()\nmine.clip_grad_norm_(model.parameters(), {})\n", CLIP_CONFIG),
    (ACCELERATE + "def f(a: Accelerator):\n    a.clip_grad_norm_(model.parameters(), {})\n", CLIP_CONFIG),
    (ACCELERATE + "accelerator.clip_grad_value_(model.parameters(), {})\n", VALUE),
    (FABRIC + "mine.clip_gradients(model, optimizer, max_norm={})\n", RAISE),
    (FABRIC + "mine.clip_gradients(model, optimizer, max_norm={}, error_if_nonfinite=False)\n", CLIP_CONFIG),
    (FABRIC + "fabric.clip_gradients(model, optimizer, clip_val={})\n", VALUE),
    (FABRIC + MODULE.format("{}", ", gradient_clip_algorithm='norm'"), CLIP_CONFIG),
    (FABRIC + MODULE.format("{}", ""), CLIP_CONFIG),
    (FABRIC + MODULE.format("{}", ", gradient_clip_algorithm='value'"), VALUE),
    (FSDP + "model.clip_grad_norm_({})\n", CLIP_CONFIG),
    (FSDP + "model.clip_grad_norm_(max_norm={}, norm_type=2.0)\n", CLIP_CONFIG),
]


@pytest.mark.parametrize(("source", "expected"), ENGINES)
def test_a_method_of_a_training_engine_is_compared(check: Check, source: str, expected: str) -> None:
    assert check({"a.py": source.format("1.0")}, expected).findings == []
    finding = only_finding(check({"a.py": source.format("5.0")}, expected))
    assert [(each.about, each.found) for each in finding.differences] == [("threshold", "5")]
    assert re.search(
        r"attach_to\(optimizer, model\)|clip_\(accelerator, clip|ownership='distinct'|ClipCallback", finding.edit
    )
    unknown = only_finding(check({"a.py": source.format("args.norm")}, expected))
    assert (unknown.kind, unknown.does[:25]) == ("unknown", "The threshold, args.norm,")


def test_a_method_clip_gradients_of_another_class_is_unknown(check: Check) -> None:
    source = FABRIC + MODULE.format("1.0", "").replace("configure_gradient_clipping", "limit")
    assert only_finding(check({"a.py": source})).kind == "unknown"


def test_the_rule_of_clip_gradients_is_compared_if_the_threshold_is_unknown(check: Check) -> None:
    source = FABRIC + MODULE.format("args.norm", ", gradient_clip_algorithm='value'")
    assert only_finding(check({"a.py": source})).kind == "drift"


def test_fabric_raises_an_error_for_a_norm_that_is_not_finite(check: Check) -> None:
    source = FABRIC + "mine.clip_gradients(model, optimizer, max_norm=1.0)\n"
    assert [each.about for each in only_finding(check({"a.py": source})).differences] == [
        "the result if the norm is not finite"
    ]


@pytest.mark.parametrize(
    "source",
    [
        FSDP + "other.clip_grad_norm_(1.0)\n",
        FABRIC + "mine.clip_gradients(model, optimizer)\n",
        ACCELERATE + "accelerator.clip_grad_norm_(*settings, max_norm=1.0)\n",
        ACCELERATE + "accelerator.clip_grad_norm_(model.parameters(), 1.0, **settings)\n",
    ],
)
def test_a_method_with_an_unknown_object_or_threshold_is_unknown(check: Check, source: str) -> None:
    assert only_finding(check({"a.py": source})).kind == "unknown"


def test_a_method_of_an_engine_that_clips_a_part_differs(check: Check) -> None:
    report = check({"a.py": ACCELERATE + "accelerator.clip_grad_norm_(model.head.parameters(), 1.0)\n"})
    assert only_finding(report).differences[0].found == "head.*"


# -- names with other values


def test_a_function_of_the_file_under_the_same_name_is_no_clip(check: Check) -> None:
    function = "def clip_grad_norm_(parameters, norm):\n    return norm\n\n\n"
    right_file = {"right.py": f"{IMPORTS}clip_grad_norm_(model.parameters(), 1.0)\n"}
    assert (
        check({**right_file, "a.py": f"{IMPORTS}{function}clip_grad_norm_(model.parameters(), 3.0)\n"}).findings == []
    )
    method = "class Optimizer:\n    def clip_grad_norm_(self, norm):\n        pass\n\n    def step(self):\n"
    report = check({**right_file, "a.py": f"import torch\n\n\n{method}        self.clip_grad_norm_(3.0)\n"})
    assert (report.findings, report.counts.clips) == ([], 1)


def test_a_function_for_a_failed_import_leaves_the_clip(check: Check) -> None:
    source = """
try:
    from torch.nn.utils import clip_grad_norm_
except ImportError:
    def clip_grad_norm_(parameters, norm):
        pass

clip_grad_norm_(model.parameters(), 3.0)
"""
    assert only_finding(check({"a.py": source})).kind == "drift"


@pytest.mark.parametrize("bound", ["max=1.0", "min=0.5"])
def test_a_clamp_by_one_bound_is_unknown(check: Check, bound: str) -> None:
    by_hand = f"total_norm = p.grad.norm()\ncoef = 1.0 / (total_norm + 1e-6)\ncoef = torch.clamp(coef, {bound})\n"
    finding = only_finding(check({"a.py": f"{IMPORTS}{by_hand}p.grad.mul_(coef)\n"}))
    assert (finding.kind, finding.clip) == ("unknown", "torch.clamp")
    assert "only one bound" in finding.does


# -- settings that are named like a clip


@pytest.mark.parametrize(
    ("source", "line", "clip"),
    [
        ("config.lr = 1.0\nconfig.grad_clip_norm = 1.0\nconfig.grad_clip_norm = 2.0\n", 2, "grad_clip_norm = 1.0"),
        ("grad_clip = 1\n", 1, "grad_clip = 1"),
        ("config.grad_clip = 0.0\n", 1, "grad_clip = 0.0"),
        ("class Config:\n    grad_clip: float = field(default=0)\n", 2, "grad_clip = 0"),
        (f"{BASE}grad_clip = dict(max_norm=0.0)\n", 2, "grad_clip = {'max_norm': 0.0}"),
        ("class Config:\n    max_grad_norm: float = 0.5\n", 2, "max_grad_norm = 0.5"),
        ("config = Config(lr=1.0, max_grad_l2_norm=0.25)\n", 1, "max_grad_l2_norm = 0.25"),
        ("config = {'optimizer': {'clip_norm': 5.0}}\n", 1, "clip_norm = 5.0"),
        ("class Config:\n    grad_clip: list = field(default_factory=lambda: [5, 5])\n", 2, "grad_clip = [5, 5]"),
        (f"{BASE}grad_clip = dict(max_norm=5.0)\n", 2, "grad_clip = {'max_norm': 5.0}"),
        (f"{BASE}clip_grads = {{**defaults, 'max_norm': 5.0}}\n", 2, "clip_grads = {'**': None, 'max_norm': 5.0}"),
        (f"{BASE}max_norm = 5.0\n", 2, "max_norm = 5.0"),
        ("optimizer = dict(type='SGD', max_norm=5.0)\n", 1, "max_norm = 5.0"),
        ("optim = {'name': 'SGD', 'clip': 5.0}\n", 1, "clip = 5.0"),
    ],
)
def test_a_setting_named_like_a_clip_is_unknown(check: Check, source: str, line: int, clip: str) -> None:
    name = clip.partition(" ")[0]
    for reader in (f"scale(grads, config.{name})\n", f"scale(grads, cfg['{name}'])\n"):
        finding = only_finding(check({"config.py": source, "train.py": reader}))
        assert (finding.kind, finding.line, finding.clip) == ("unknown", line, clip)
        assert "the code that reads the setting is unknown" in finding.does


@pytest.mark.parametrize("value", ["None", "False", "args.grad_clip", "{}", "[*limits]"])
def test_a_setting_that_is_off_or_passed_on_is_no_finding(check: Check, value: str) -> None:
    right_file = {"right.py": f"{IMPORTS}clip_grad_norm_(model.parameters(), 1.0)\n"}
    report = check({**right_file, "config.py": f"config.grad_clip = {value}\nvideo_clip = 1.0\nmax_norm = 0\n"})
    assert (report.findings, report.counts.clips) == ([], 1)


def test_a_layer_of_a_maximal_norm_is_no_finding(check: Check) -> None:
    right_file = {"right.py": f"{IMPORTS}clip_grad_norm_(model.parameters(), 1.0)\n"}
    assert check({**right_file, "model.py": f"{BASE}layer = nn.Embedding(9, 3, max_norm=1.0)\n"}).findings == []


def test_a_setting_is_no_finding_beside_the_clip_that_reads_it(check: Check) -> None:
    source = f"{IMPORTS}MAX_GRAD_NORM = 1.0\nclip_grad_norm_(model.parameters(), MAX_GRAD_NORM)\n"
    assert check({"a.py": source}).findings == []


def test_a_clip_of_a_static_program_has_the_effect_of_its_class(check: Check) -> None:
    source = "import paddle.fluid as fluid\n\nfluid.clip.set_gradient_clip(fluid.clip.GradientClipByGlobalNorm({})\n"
    nearest = CLIP_CONFIG + '\n[check]\nnearest = ["**"]\n'
    assert check({"a.py": source.format("1.0)")}, nearest).findings == []
    assert only_finding(check({"a.py": source.format("2.0)")}, nearest)).kind == "drift"
    assert only_finding(check({"a.py": source.format("1.0), param_list=some")}, nearest)).kind == "unknown"


@pytest.mark.parametrize("bounds", ["0, 10", "0, limit"])
def test_a_clamp_of_a_norm_is_no_clip_by_value(check: Check, bounds: str) -> None:
    """LAMB clamps the norm of the weights in this way."""
    source = f"import torch\n\nnew = weight - lr * weight.grad\nnorm = new.norm(p=2).clamp({bounds})\n"
    finding = only_finding(check({"a.py": source}))
    assert (finding.kind, finding.does.partition(",")[0]) == ("unknown", "The clamped expression contains a gradient")


@pytest.mark.parametrize("callee", ["dict", "GradientClipper", "self.make"])
def test_a_setting_in_a_call_of_unknown_code_is_named_with_the_call(check: Check, callee: str) -> None:
    source = f"import apex\n\napex.amp.initialize(model)\nmade = {callee}(max_grad_norm=1.0)\n"
    finding = only_finding(check({"a.py": source}))
    assert (finding.kind, finding.clip) == ("unknown", f"{callee}(max_grad_norm=)")
    assert "Keep max_grad_norm if it is an argument of a LAMB optimizer" in finding.does
