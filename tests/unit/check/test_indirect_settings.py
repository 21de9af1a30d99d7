"""`unified-clip config check` on Python source that sets or narrows a clip indirectly."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, TORCH, Check

NEAREST = CLIP_CONFIG + '[check]\nnearest = ["**"]\n'
HF = "from transformers import TrainingArguments\n\nargs = TrainingArguments(max_grad_norm=1.0, {})\n"
OPTAX = "import optax\n\nclip = optax.clip_by_global_norm(1.0)\ntx = {}\n"
PADDLE = (
    "import paddle\n\nclip = paddle.nn.ClipGradByGlobalNorm(1.0)\nopt = paddle.optimizer.SGD(0.1, grad_clip=clip)\n"
)
GROUPS = "[{'params': a}, {'params': b}]"
SELECTED = "import torch\n\n{}\n\ntorch.nn.utils.clip_grad_norm_({}, 1.0)\n"


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ('cfg = load()\ncfg["max_grad_norm"] = 0.5\n', [(2, "unknown")]),
        (HF.format("") + 'setattr(args, "max_grad_norm", 0.3)\n', [(4, "unknown")]),
        (HF.format("") + "setattr(args, 'learning_rate', 0.3)\n", []),
        ("train.clip_grad.params.max_norm = 0.1\n", [(1, "unknown")]),
        ("cfg['clip_grad']['max_norm'] = 0.1\n", [(1, "unknown")]),
        ("layer.norm.max_norm = 0.1\n", []),
        ("cfg.optim_wrapper.clip_grad = None\n", [(1, "unknown")]),
        ("cfg['optim_wrapper']['clip_grad'] = limit\n", [(1, "unknown")]),
        ("cfg.optimizer_config.grad_clip = None\n", [(1, "unknown")]),
        ("cfg.optim_wrapper.loss_scale = None\nself.clip_grad = None\n", []),
        ("optim_wrapper = dict(clip_grad=dict(max_norm=1.0))\noptim_wrapper['clip_grad']['max_norm'] = 1.0\n", []),
        ('from omegaconf import OmegaConf\n\nOmegaConf.update(cfg, "train.clip_grad_norm", 5.0)\n', [(3, "unknown")]),
        (HF.format('deepspeed={"gradient_clipping": 0.5}'), [(3, "drift")]),
        (HF.format('deepspeed={"gradient_clipping": 1.0}'), []),
        (HF.format('deepspeed={"gradient_clipping": "auto"}'), []),
        (HF.format('deepspeed={"gradient_clipping": 0.5, "train_batch_size": size}'), [(3, "drift")]),
        (HF.format('deepspeed={"gradient_clipping": 1.0, "train_batch_size": size}'), []),
        (HF.format('deepspeed={"gradient_clipping": limit}'), [(3, "unknown")]),
        (HF.format('deepspeed={"zero_optimization": {"stage": 2}}'), [(3, "unknown")]),
        (HF.format("deepspeed=args.deepspeed"), [(3, "unknown")]),
        ('ds = {"gradient_clipping": 0.5, "steps_per_print": n}\n' + HF.format("deepspeed=ds"), [(1, "drift")]),
        ('ds = {}\nds["gradient_clipping"] = 0.5\n' + HF.format("deepspeed=ds"), [(2, "drift")]),
        ("ds = dict(gradient_clipping=0.5)\n" + HF.format("deepspeed=ds"), [(1, "drift")]),
        ('ds = {"gradient_clipping": "auto", "steps_per_print": n}\n' + HF.format("deepspeed=ds"), []),
        (HF.replace("1.0", "None").format(""), [(3, "unknown")]),
        (HF.format("") + "args.max_grad_norm = None\n", [(4, "unknown")]),
        ('args.__setattr__("max_grad_norm", 0.5)\n', [(1, "unknown")]),
        ('OmegaConf.update(cfg, key="trainer.gradient_clip_val", value=1.0)\n', [(1, "unknown")]),
        ('names.update("max_grad_norm")\n', []),
        ('import subprocess\n\nsubprocess.run(["tune", "run", "x", "clip_grad_norm=5.0"])\n', [(3, "unknown")]),
        ('import os\n\nos.system("tune run x clip_grad_norm=5.0")\n', [(3, "unknown")]),
        ('subprocess.run(["python", "a.py", f"--max_grad_norm={limit}"])\n', [(1, "unknown")]),
        ('subprocess.run(["python", "a.py", "--max_grad_norm=" + str(limit)])\n', [(1, "unknown")]),
        ('subprocess.run(f"python a.py --max_grad_norm {limit} --lr 1", shell=True)\n', [(1, "unknown")]),
        ('os.system("python a.py --max_grad_norm %s" % limit)\n', [(1, "unknown")]),
        ('os.system("python a.py --max_grad_norm {:.1f}".format(limit))\n', [(1, "unknown")]),
        ('os.system("python a.py --max_grad_norm 1 --lr " + rate)\n', [(1, "unknown")]),
        ('command = "python a.py --max_grad_norm 1"\nos.system(command)\n', [(2, "unknown")]),
        ('subprocess.run(shlex.split("python a.py --max_grad_norm 1"))\n', [(1, "unknown")]),
        ('subprocess.run("python a.py --max_grad_norm 1".split())\n', [(1, "unknown")]),
        ('subprocess.run(f"python a.py --lr {rate}", shell=True)\n', []),
        ('fields = "max_grad_norm,clip_norm".split(",")\n', []),
        ('pyconfig.initialize(["base.yml", "gradient_clipping_threshold=0.5"])\n', [(1, "drift")]),
        ('pyconfig.initialize(["base.yml", "gradient_clipping_threshold=1.0"])\n', []),
        ('KEYS = ["max_grad_norm", "clip_norm"]\nprint("pass clip_grad_norm=5.0")\n', []),
        ("from torchtitan.config import TrainingConfig\n\nc = TrainingConfig(max_norm=2.0)\n", [(3, "drift")]),
        ("from torchtitan.config import TrainingConfig\n\nc = TrainingConfig(max_norm=1.0)\n", []),
        ("from torchtitan.config import TrainingConfig\n\nc = TrainingConfig(max_norm=args.x)\n", [(3, "unknown")]),
    ],
)
def test_a_clip_that_is_set_indirectly_is_found(check: Check, text: str, places: list[tuple[int, str]]) -> None:
    findings = check({"a.py": text, "b.py": TORCH % "1.0"}, NEAREST).findings
    assert [(each.line, each.kind) for each in findings] == places


@pytest.mark.parametrize(
    ("before", "tensors", "is_found"),
    [
        ("def decay(m):\n    return [p for p in m.parameters() if p.ndim > 1]", "decay(model)", True),
        ("def every(m):\n    return [p for p in m.parameters() if p.requires_grad]", "every(model)", False),
        ("self.params = list(model.parameters())", "self.params", False),
        ("", "self.decay_params", True),
        ("", "get_decay_params(model)", True),
        ("", "no_decay", True),
        ("", "self.params", False),
        ("", "get_params(model)", False),
        ("", "amp.master_params(optimizer)", False),
    ],
)
def test_parameters_that_a_helper_selects_are_unknown(check: Check, before: str, tensors: str, is_found: bool) -> None:
    findings = check({"a.py": SELECTED.format(before, tensors)}).findings
    assert [each.kind for each in findings] == ["unknown"] * is_found
