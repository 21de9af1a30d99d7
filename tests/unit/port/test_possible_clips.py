"""`unified-clip port` finds clips behind dynamic names, trainers' settings and clamps, and flags code that may clip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.port.snippets import ported, verdicts

from unified_clip import cli
from unified_clip.port import port_files
from unified_clip.port.catalog import clip_functions, clip_pattern, may_clip, settings
from unified_clip.port.find import identifiers
from unified_clip.port.port_file import port
from unified_clip.port.ported_clip import Target
from unified_clip.source.module import Module

TAPE_CLIP = """\
import tensorflow as tf
from {package} import backend as K
with tf.GradientTape() as tape:
    loss = model(x)
grads = [K.clip(g, -0.5, 0.5) for g in tape.gradient(loss, variables)]
"""

CLIPS = {
    "getattr of a configuration": 'import paddle\ngrad_clip = getattr(paddle.nn, cfg["type"])(1.0)\n',
    "getattr without a word of clipping": 'import paddle\nlayer = getattr(paddle.nn, cfg["type"])(1.0)\n',
    "getattr of an alias": "from torch.nn import utils\nrun = getattr(utils, name)\n",
    "getattr of a formatted name": 'from torch.nn.utils import clip_grad as c\nf = getattr(c, "clip_{}_".format(t))\n',
    "getattr of a text with a clip's beginning": 'import paddle\nc = getattr(paddle.nn, f"ClipGradBy{name}")(1.0)\n',
    "getattr of a sum": 'import paddle\nc = getattr(paddle.nn, "ClipGradBy" + name)(1.0)\n',
    "getattr of optax": "import optax\nchain = getattr(optax, cfg.transform)(1.0)\n",
    "getattr that is called with a gradient": "import torch\np.grad = getattr(torch, name)(p.grad, -1, 1)\n",
    "getattr that is called later": "import torch\nf = getattr(torch, name)\np.grad = f(p.grad, -1, 1)\n",
    "getattr in a list": "import tensorflow as tf\ng = [getattr(tf, f)(g, -1, 1) for g in tape.gradient(l, v)]\n",
    "getattr for an optimizer": "import paddle\nc = getattr(paddle.nn, cfg['type'])(1.0)\no = Adam(grad_clip=c)\n",
    "getattr in a layer, for a clip": (
        "import paddle\nclass A(paddle.nn.Layer):\n    def f(self, t):\n"
        "        return getattr(paddle.nn, t)(clip_norm=1.0)\n"
    ),
    "getattr where optimizers are made": (
        "import paddle\ndef build_optimizer(cfg):\n    return getattr(paddle.nn, cfg['type'])(cfg['limit'])\n"
    ),
    "getattr in a constructor": (
        "import paddle\nclass Trainer:\n    def __init__(self, opt):\n        c = getattr(paddle.nn, opt.type)(1.0)\n"
    ),
    "a module that is imported by name": (
        "import importlib\nnn = importlib.import_module('paddle.nn')\nc = nn.ClipGradByNorm(1.0)\n"
    ),
    "__import__": "nn = __import__('paddle').nn\nc = nn.ClipGradByNorm(1.0)\n",
    "ZClip": "from zclip import ZClip\nc = ZClip(z_thresh=2.5)\nc.step(model)\n",
    "AutoClip": "from autoclip.torch import QuantileClip\nc = QuantileClip(p, global_threshold=True)\nc.step()\n",
    "AutoClip in an optimizer": "from autoclip.torch import StandardClip\no = StandardClip.as_optimizer(o)\n",
    "timm's AGC": "from timm.utils.agc import adaptive_clip_grad\nadaptive_clip_grad(model.parameters(), 0.02)\n",
    "timm's choice of clips": "from timm import utils\nutils.dispatch_clip_grad(p, 0.02, mode='agc')\n",
    "global norm of another package": "import mindspore.ops as ops\ng = ops.clip_by_global_norm(g, 1.0)\n",
    "arguments that are derived": (
        "import transformers\nclass Arguments(transformers.TrainingArguments):\n    cache: str = ''\n"
        "HfArgumentParser((ModelArguments, Arguments))\n"
    ),
    "Stable-Baselines3's DQN": "from stable_baselines3 import DQN\nmodel = DQN('MlpPolicy', env)\n",
    "apex's Lamb": "from apex.optimizers import FusedLAMB\no = FusedLAMB(p)\n",
    "clamp in a hook": "import torch\nh = p.register_hook(lambda x: torch.clamp(x, -c, c))\n",
    "clamp in a hook that is named": "def bound(x):\n    return x.clamp(-1, 1)\nh = p.register_hook(bound)\n",
    "package by star": "from package.module import *\ntorch.nn.utils.clip_grad_norm_(p, 1.0)\n",
    "module by star": "from .common import *\nnn.utils.clip_grad_norm_(p, 1.0)\n",
    "function by star": "from common import *\nclip_grad_norm_(p, 1.0)\n",
    "unknown function by star": "from common import *\nclip_gradients(model)\n",
    "class by star": "from common import *\nclip = paddle.nn.ClipGradByNorm(1.0)\n",
    "function of another package": "from fairseq.utils import clip_grad_norm_\nclip_grad_norm_(p, 1.0)\n",
    "function of another package by another name": "from a.b import clip_grad_norm_ as cg\ncg(p, 1.0)\n",
    "function of another package with a longer name": "from a.b import clip_grads_fp32 as cg\ncg(p, 1.0)\n",
    "function of another package that the file calls a clip": "from a import run as clip_grads\nclip_grads(p, 1.0)\n",
    "function of one of two packages": (
        "try:\n    from unified_clip.x import clip_grads\nexcept ImportError:\n    from zoo import clip_grads\n"
        "clip_grads(p, 1.0)\n"
    ),
    "function of a package named almost like ours": "from unified_clipping import clip_grads\nclip_grads(p, 1.0)\n",
    "function of another package by a variable": "import foo\ncg = foo.clip_grad_norm_\ncg(p, 1.0)\n",
    "function of another package by a variable that is named like a clip": (
        "import foo\nclip_grads = foo.clip_grad_norm_\nclip_grads(p, 1.0)\n"
    ),
    "method of an engine by a variable": "import torch\ndef f(foo, p):\n    cg = foo.clip_grad_norm_\n    cg(p)\n",
    "method of an engine by two variables": (
        "import torch\ndef f(foo, p):\n    cg = foo.clip_gradients\n    run = cg\n    run(p)\n"
    ),
    "method of an engine by an attribute": (
        "import torch\nclass A:\n    def __init__(self, e):\n        self.cg = e.clip_grad_norm_\n"
        "    def run(self, p):\n        self.cg(p)\n"
    ),
    "class of an unknown object by a variable": "def f(foo):\n    c = foo.ClipGradByGlobalNorm\n    return c(1.0)\n",
    "method of another package": "import megatron.optimizer as o\no.clip_grads.clip_grad_norm_fp32(p, g, 1.0)\n",
    "optimize_loss": "from tensorflow.contrib.layers import optimize_loss as o\no(x, s, 1, 'SGD', clip_gradients=5)\n",
    "Keras backend": TAPE_CLIP.format(package="tensorflow.keras"),
    "Keras backend, standalone": TAPE_CLIP.format(package="keras"),
    "a function of old Keras": "from keras import optimizers\ng = [optimizers.clip_norm(x, 1.0, n) for x in y]\n",
    "Keras 3": "import keras\nx = keras.ops.clip(grad, -1, 1)\n",
    "Keras gradients": "from keras import backend as K\nx = [K.clip(g, -1, 1) for g in K.gradients(loss, p)]\n",
    "JAX": "from jax.example_libraries import optimizers\ng = optimizers.clip_grads(g, 1.0)\n",
    "older JAX": "from jax.experimental import optimizers as o\ng = o.clip_grads(jax.grad(f)(p), 1.0)\n",
    "JAX array": "import jax, jax.numpy as jnp\ng = jax.tree.map(lambda x: jnp.clip(x, -1, 1), jax.grad(f)(p))\n",
    "NumPy array": "import numpy as np\nfor grad in grads:\n    np.clip(grad, -5, 5, out=grad)\n",
    "PaddleNLP": "from paddlenlp.trainer import TrainingArguments\na = TrainingArguments('o', max_grad_norm=2.0)\n",
    "PaddleNLP's default": "from paddlenlp.trainer import TrainingArguments\na = TrainingArguments('o')\n",
    "Transformers": "import transformers\na = transformers.TrainingArguments('o', max_grad_norm=2.0)\n",
    "Transformers' default": "from transformers import Seq2SeqTrainingArguments as A\na = A('o')\n",
    "a parser": "from transformers import TrainingArguments as T\nHfArgumentParser((ModelArguments, T))\n",
    "a parser of one": "from transformers import TrainingArguments as T\nHfArgumentParser(T)\n",
    "own arguments": "import transformers\nfrom .args import Arguments\na = Arguments(max_grad_norm=0.3)\n",
    "a setting in a dict": "import transformers\nkwargs = {'max_grad_norm': 0.3}\n",
    "a setting in a dict that is set": "import deepspeed\nconfig['gradient_clipping'] = 1.0\n",
    "a setting of an object": "import transformers\ntraining_args.max_grad_norm = 0.3\n",
    "Megatron-LM": "from megatron.core.optimizer import OptimizerConfig as C\nc = C(lr=1e-4, clip_grad=0.3)\n",
    "Megatron-LM's default": "from megatron.core.optimizer import OptimizerConfig\nc = OptimizerConfig(lr=1e-4)\n",
    "Colossal-AI": "from colossalai.booster.plugin import GeminiPlugin\np = GeminiPlugin(max_norm=0.3)\n",
    "Stable-Baselines3's default": "from stable_baselines3 import PPO\nmodel = PPO('MlpPolicy', env)\n",
    "Lightning": "import lightning as L\nt = L.Trainer(gradient_clip_val=0.5)\n",
    "pytorch_lightning": "from pytorch_lightning import Trainer\nt = Trainer(gradient_clip_val=args.clip)\n",
    "Lightning from a dict": "import pytorch_lightning as pl\nt = pl.Trainer(**config)\n",
    "Lightning from the command line": "import pytorch_lightning as pl\nt = pl.Trainer.from_argparse_args(args)\n",
    "Lightning's own command line": "from lightning.pytorch.cli import LightningCLI\nLightningCLI(Model)\n",
    "Lightning's own command line, derived": "from lightning.pytorch.cli import LightningCLI as C\nclass A(C): pass\n",
    "Hydra": "import hydra, lightning\ntrainer = hydra.utils.instantiate(cfg.trainer)\n",
    "timm": "from timm.utils import NativeScaler as S\nscaler = S()\nscaler(loss, opt, clip_grad=c)\n",
    "DeepSpeed's file": "import deepspeed\nengine, *_ = deepspeed.initialize(args, model)\n",
    "mmcv": "optimizer_config = dict(grad_clip=dict(max_norm=35, norm_type=2))\n",
    "mmengine": "optim_wrapper = dict(type='OptimWrapper', clip_grad={'max_norm': 35})\n",
    "clamp": "import torch\np.grad = torch.clamp(p.grad, -1, 1)\n",
    "clip": "import torch\np.grad = torch.clip(p.grad, -1, 1)\n",
    "clamp_": "for p in model.parameters():\n    p.grad.clamp_(-1, 1)\n",
    "data.clamp_": "for p in model.parameters():\n    p.grad.data.clamp_(-1, 1)\n",
    "clamp of what is called a gradient": "import torch\nh = p.register_hook(lambda grad: torch.clamp(grad, -c, c))\n",
    "a function that hardly clips anything but gradients": (
        "import tensorflow as tf\ndef f(pairs): return [(tf.clip_by_norm(g, 5.0), v) for g, v in pairs]\n"
    ),
    "clip of a parameter that gets gradients": (
        "import jax, jax.numpy as jnp\ndef clip(g): return jnp.clip(g, -1, 1)\nnew = jax.tree.map(clip, grads)\n"
    ),
    "clip of the second parameter": (
        "import jax, jax.numpy as jnp\nnew = jax.tree.map(lambda p, g: p - jnp.clip(g, -1, 1), params, grads)\n"
    ),
    "clip of a hook's parameter": "p.register_hook(lambda g: g.clamp(-c, c))\n",
    "a quotient of a parameter that gets gradients": (
        "def clip(g):\n    norm = np.linalg.norm(g)\n    if norm > c: g = g / norm\n    return g\nnew = clip(grads)\n"
    ),
    "clip_ of what is called a gradient": "h = p.register_hook(lambda grad: grad.clip_(-c, c))\n",
    "clamp in a partial that clips": (
        "import functools, torch\nc = functools.partial(torch.clamp, min=-1, max=1)\np.grad = c(p.grad)\n"
    ),
    "clamp in a partial that is a hook": (
        "import functools, torch\nh = p.register_hook(functools.partial(torch.clamp, min=-1, max=1))\n"
    ),
    "clamp in a tree": "import jax\nimport jax.numpy as jnp\ng = jax.tree.map(jnp.clip, grads)\n",
    "a coefficient": "c = max_norm / (total_norm + 1e-6)\n",
    "a coefficient by a function": "import torch\nc = torch.div(max_norm, total_norm + 1e-6)\n",
    "a coefficient by a function of fluid": (
        "from paddle.fluid import layers\n"
        "c = layers.elementwise_div(x=clip_norm, y=layers.elementwise_max(norm, clip_norm))\n"
    ),
    "a coefficient of a total": "c = max_norm / (total + 1e-6)\n",
    "a coefficient of a list": "c = clip_norm / sum(norms) ** 0.5\n",
    "a coefficient of a number": "c = float(cfg.max_grad_norm) / float(norm)\n",
    "an inverse coefficient": "c = (grad_norm / scale + 1e-6) / group['max_grad_norm']\n",
    "a product with a threshold": "g = g / g_norm * max_gradient_norm\n",
    "a product with the lesser quotient": "c = o.norm_clip * minimum(one(norm) / o.norm_clip, 1 / global_norm)\n",
    "a quotient that is at least 1": "c = 1 / jnp.maximum(1.0, grad_norm / upper)  # clip\n",
    "a quotient that is at most 1": "c = min(1, upper / (total_norm + 1e-6))  # clip\n",
    "a framework from another module": "import lingvo.compat as tf\ng = tf.clip_by_norm(g, 1.0)\n",
    "a framework from a file of the project": "from .compat import tf\ng, n = tf.clip_by_global_norm(g, 1.0)\n",
    "TensorFlow Privacy": "import tensorflow_privacy as tp\no = tp.DPKerasSGDOptimizer(l2_norm_clip=1.0)\n",
    "TF-Agents": "from tf_agents.agents.dqn import dqn_agent\na = dqn_agent.DqnAgent(t, gradient_clipping=1.0)\n",
    "Brax": "from brax.training.agents.ppo import train as ppo\nppo.train(environment=e, max_grad_norm=1.0)\n",
    "nanotron": "from nanotron.config import OptimizerArgs\no = OptimizerArgs(zero_stage=0, clip_grad=args.clip)\n",
    "Tensor2Tensor": "from tensor2tensor.models import lstm\nhparams.clip_grad_norm = 2.0\n",
    "Lingvo": "from lingvo.core import base_model\ntp.clip_gradient_norm_to_value = 1.0\n",
    "Lingvo, per tensor": "from lingvo import model_registry\ntp.clip_gradient_single_norm_to_value = 1.0\n",
    "clamp of what autograd.grad returns": "import torch\na, = torch.autograd.grad(loss, p)\na = a.clamp(-1, 1)\n",
}

NOT_CLIPS = {
    "another attribute": 'import paddle\nlayer = getattr(paddle.nn, "ReLU")()\n',
    "another beginning": 'import paddle\nlayer = getattr(paddle.nn, f"Conv{n}D")()\n',
    "another end": 'import paddle\nlayer = getattr(paddle.nn, name + "Pool2D")()\n',
    "getattr of a module without clips": "import torch\noptimizer = getattr(torch.optim, name)(p)\n",
    "getattr of an object": "import torch\nx = getattr(args, name)\n",
    "a data type": "import torch\nx = x.to(getattr(torch, args.dtype))\n",
    "a data type of JAX": "import jax.numpy as jnp\nx = x.astype(getattr(jnp, name))\n",
    "a data type of TensorFlow": "import tensorflow as tf\nx = tf.cast(x, getattr(tf, cfg.dtype))\n",
    "an activation": "import paddle\nlayer = getattr(paddle.nn, activation)\n",
    "an activation with an argument": 'import paddle.nn as nn\nhead = getattr(nn, cfg["act"])(0.1)\n',
    "a layer without arguments": 'import paddle.nn as nn\nhead = getattr(nn, cfg["type"])()\n',
    "a layer with other arguments": 'import paddle.nn as nn\nhead = getattr(nn, cfg["type"])(num_features=3)\n',
    "a function that makes a layer": "from paddle import nn\ndef norm_layer(kind):\n    return getattr(nn, kind)\n",
    "a layer in a layer": (
        "from paddle import nn\nclass A(nn.Layer):\n    def f(self, kind):\n        self.f = getattr(nn, kind)(3)\n"
    ),
    "an optimizer of Keras": "from keras import optimizers\no = getattr(optimizers, name)(learning_rate=0.1)\n",
    "an optimizer of optax": "import optax\no = getattr(optax, cfg.optimizer)(1e-3)\n",
    "clamp in another function": "import torch\nh = p.register_forward_hook(lambda x: torch.clamp(x, -c, c))\n",
    "a switch of gradients": "import tensorflow as tf\nx = tf.keras.backend.clip(tf.stop_gradient(x), 0, 1)\n",
    "a method of the file": ("class A:\n    def clip_grads(self): pass\nfor each in stages:\n    each.clip_grads()\n"),
    "a method of the file by a variable": (
        "import torch\nclass A:\n    def clip_gradients(self): pass\n    def f(self):\n"
        "        cg = self.clip_gradients\n        cg()\n"
    ),
    "a method by a variable that nothing calls": "import torch\ndef f(foo):\n    cg = foo.clip_gradients\n",
    "a star": "import torch\nfrom common import *\ntrain(model)\n",
    "the file's own function": "from common import *\ndef clip_gradients(m): pass\nclip_gradients(model)\n",
    "a relative import": "from .utils import clip_gradients\nclip_gradients(model)\n",
    "a relative import by another name": "from .utils import clip_gradients as cg\ncg(model)\n",
    "another function by another name": "from images import clip as c\nc(x, 0, 1)\n",
    "a partial for images": (
        "import functools, torch\nc = functools.partial(torch.clamp, min=0, max=1)\nx = c(image)\nf(Chain(c), p.grad)\n"
    ),
    "an image": "import torch\nx = torch.clamp(image, 0, 1)\n",
    "a gate": "import torch\ng, u = gu.chunk(2, dim=-1)\nx = silu(g.clamp(max=limit)) * u.clamp(-limit, limit)\n",
    "a gate that a function gets": "import torch\ndef f(g): return torch.clamp(g, max=limit)\nx = f(gate)\n",
    "a parameter beside gradients": (
        "import jax, jax.numpy as jnp\nnew = jax.tree.map(lambda p, g: jnp.clip(p - g, -1, 1), params, g)\n"
    ),
    "a weight": "for p in critic.parameters():\n    p.data.clamp_(-0.01, 0.01)\n",
    "an array": "import numpy as np\nx = np.clip(image, 0, 255)\ny = a.clip(0, 1)\n",
    "Keras image": "from keras import backend as K\nx = K.clip(image, 0, 1)\n",
    "an own function's limit": "import transformers\ndef run(max_grad_norm): pass\nrun(max_grad_norm=1.0)\n",
    "an own limit": "import transformers\nself.max_grad_norm = 1.0\n",
    "another thing of Hydra": "import hydra, lightning\nmodel = hydra.utils.instantiate(cfg.model)\n",
    "another trainer": "import lightning as L\nt = L.Trainer(max_epochs=3)\n",
    "another QuantileClip": "from processing.numerical import QuantileClip\nc = QuantileClip(0.9)\n",
    "another package's setting": "a = Arguments(max_grad_norm=1.0)\n",
    "a limit of a schedule": "d = dict(grad_clip=1.0)\n",
    "unified_clip instead of a framework": "import unified_clip.tensorflow as tf\ng = tf.clip_by_norm(g, 1.0)\n",
    "an image of a framework from another module": "import lingvo.compat as tf\nx = tf.clip_by_value(x, 0, 1)\n",
    "a signal": "signal = s_denorm * level / self.max_norm\n",
    "a signal that is normalized": "signal = normalized / self.max_norm\n",
    "an embedding that is normalized": "text_norm_clip = text_norm_clip / text_norm_clip.sum()\n",
    "a difference of a threshold and a norm": "excess = max_norm - total / norm\n",
    "a threshold divided by a count in a function": "import torch\neach = torch.div(max_norm, total_steps)\n",
    "a quotient of norms in a function": "import torch\nratio = torch.div(weight_norm, grad_norm)  # clip\n",
    "a product by a function": "import torch\nlimit = torch.mul(max_norm, weight_norm)\n",
    "a threshold divided by a count": "each = max_norm / total_steps\n",
    "a norm that is at least 1": "x = x / max(1, norm)  # clip\n",
    "a quotient of a norm that is at most 1": "x = min(1, norm / upper)  # clip\n",
    "a quotient that is at most 2": "x = min(2, upper / norm)  # clip\n",
    "a product that is at most 1": "x = min(1, upper * norm)  # clip\n",
    "a product of a threshold and a norm": "limit = max_norm * weight_norm\n",
}


@pytest.mark.parametrize("target", ["torch", "drop-in"])
@pytest.mark.parametrize("source", CLIPS.values(), ids=CLIPS)
def test_certain_and_possible_clips_are_flagged(source: str, target: Target) -> None:
    text, sites = ported(source, target)
    assert (text, [site.verdict for site in sites]) == (source, ["flagged"])


@pytest.mark.parametrize("source", NOT_CLIPS.values(), ids=NOT_CLIPS)
def test_other_code_is_not_reported(source: str) -> None:
    assert ported(source) == (source, [])


@pytest.mark.parametrize("source", CLIPS.values(), ids=CLIPS)
def test_the_command_never_reports_that_there_is_nothing_to_do(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(source)
    assert cli.main(["port", str(tmp_path), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["summary"]["flagged"] == 1
    assert report["next"] == "Next: rewrite the flagged clips by hand."


@pytest.mark.parametrize(
    "source",
    [
        "import torch\nwith torch.no_grad():\n    x.requires_grad = False\n    y = x.clamp(0, 1)\n",
        "import torch\nvalue = getattr(args, name)\n",
        "from ppdet.engine import Trainer\nTrainer(cfg).train()\n",
        "import torch\ndef read(module, name):\n    return getattr(module, name)\n",
    ],
)
def test_a_file_without_a_clip_is_not_parsed_in_full(source: str) -> None:
    assert not may_clip(identifiers(Module(source)))


@pytest.mark.parametrize("source", CLIPS.values(), ids=CLIPS)
def test_no_file_with_a_clip_is_left_out_by_its_text(source: str) -> None:
    assert clip_pattern().search(source.encode())


def test_every_name_that_is_found_is_searched_for_in_the_text() -> None:
    names = [name.rpartition(".")[2] for name in clip_functions()]
    for setting in settings():
        owners = (*setting.classes, *setting.elsewhere, *setting.factories)
        names += [setting.keyword, *(owner.rpartition(".")[2] for owner in owners)]
    assert [name for name in names if not clip_pattern().search(name.encode())] == []


@pytest.mark.parametrize("value", ["None", "0", "0.0", "-1"])
def test_a_setting_that_is_off_is_left(value: str) -> None:
    source = f"import lightning as L\nt = L.Trainer(gradient_clip_val={value})\n"
    (site,) = ported(source)[1]
    assert (site.verdict, site.reason) == ("left", "A threshold of None, 0 or less switches clipping off.")


@pytest.mark.parametrize(
    "source",
    [
        "from stable_baselines3 import A2C\nA2C('MlpPolicy', env, max_grad_norm=0)\n",
        "from stable_baselines3 import DQN\nDQN('MlpPolicy', env, max_grad_norm=0.0)\n",
        "from tf_agents.agents.dqn import dqn_agent\ndqn_agent.DqnAgent(t, gradient_clipping=0)\n",
        "from brax.training.agents.ppo import train\ntrain.train(environment=e, max_grad_norm=0)\n",
    ],
)
def test_a_threshold_of_0_is_on_for_trainers_that_set_all_gradients_to_0(source: str) -> None:
    assert {site.verdict for site in ported(source)[1]} == {"flagged"}


@pytest.mark.parametrize(
    ("source", "threshold", "family"),
    [
        ("import lightning as L\nL.Trainer(gradient_clip_val=0.5)\n", 0.5, "pytorch"),
        ("from transformers import TrainingArguments\nTrainingArguments('o')\n", 1.0, "pytorch"),
        ("from paddlenlp.trainer import TrainingArguments\nTrainingArguments('o', max_grad_norm=3)\n", 3.0, "paddle"),
        ("from stable_baselines3 import A2C\nA2C('MlpPolicy', env)\n", 0.5, "pytorch"),
    ],
)
def test_a_setting_has_a_meaning_by_its_value_or_default(source: str, threshold: float, family: str) -> None:
    (site,) = ported(source)[1]
    assert site.meaning is not None
    config = site.meaning.config
    assert (config.rule, config.threshold, config.family) == ("global_norm", threshold, family)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (
            "import lightning as L\nL.Trainer(gradient_clip_val=0.5)\n",
            'clip = ClipCallback(ClipConfig(rule="global_norm", threshold=0.5))',
        ),
        (
            "from jax.example_libraries.optimizers import clip_grads\ng = clip_grads(g, limit)\n",
            "grads, norm = unified_clip.jax.clip_by_global_norm(grads, limit)",
        ),
        (
            "p.grad.data.clamp_(-1, 2)\n",
            "unified_clip.torch.GradientClipByValue(2, -1).clip_(model.parameters())  # before optimizer.step()",
        ),
        (
            "import keras\nx = keras.ops.clip(grad, -1, 2)\n",
            "gradient = unified_clip.tensorflow.clip_by_value(gradient, -1, 2)",
        ),
    ],
)
def test_lines_to_write_have_the_values_of_the_call(source: str, line: str) -> None:
    (site,) = ported(source, "drop-in")[1]
    assert line in site.suggestion


def test_apex_is_rewritten_as_pytorch_is() -> None:
    source = "from apex.contrib.clip_grad import clip_grad_norm_\nclip_grad_norm_(p, 1.0)\n"
    text, (site,) = ported(source)
    assert (text, site.verdict) == (
        "from unified_clip.torch import clip_grad_norm_\nclip_grad_norm_(p, 1.0)\n",
        "rewritten",
    )


def test_a_function_of_a_file_of_the_project_is_found_there(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "clipping.py").write_text("def clip_grad_norm(p): ...\n")
    (tmp_path / "train").mkdir()
    script = tmp_path / "train" / "main.py"
    script.write_text("from mine.clipping import clip_grad_norm\nclip_grad_norm(p)\n")
    (result,), _ = port_files.port_all([script])
    assert list(result.sites) == []
    script.write_text("from other.clipping import clip_grad_norm\nclip_grad_norm(p)\n")
    (result,), _ = port_files.port_all([script])
    assert [site.verdict for site in result.sites] == ["flagged"]
    project = (
        "try:\n    from mine.clipping import clip_grad_norm\nexcept ImportError:\n    from other import clip_grad_norm"
    )
    script.write_text(f"{project}\nclip_grad_norm(p)\n")
    (result,), _ = port_files.port_all([script])
    assert [site.name for site in result.sites] == ["other.clip_grad_norm"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from foo import clip_grad_norm_ as my_clip_grad\nmy_clip_grad(p, 1.0)\n", "foo.clip_grad_norm_"),
        ("from foo import clip_grad_norm_ as cg\ncg(p, 1.0)\n", "foo.clip_grad_norm_"),
        ("import foo.utils as u\nu.clip_grad_norm_(p, 1.0)\n", "foo.utils.clip_grad_norm_"),
        ("from foo import run as clip_grads\nclip_grads(p, 1.0)\n", "foo.run"),
    ],
)
def test_a_function_of_another_package_is_reported_by_its_name_there(source: str, name: str) -> None:
    (site,) = ported(source)[1]
    assert site.name == name
    assert f"does not support {name}." in site.reason


def test_a_clamp_of_a_container_with_a_gradient_is_flagged() -> None:
    assert verdicts("import torch\nx = torch.clamp(x + e * x.grad.sign(), 0, 1)\n") == ["flagged"]


@pytest.mark.parametrize("attributes", [["module"] * 40, [f"part_{index}" for index in range(40)]])
def test_a_name_that_is_assigned_its_own_attributes_many_times_is_read_in_time(attributes: list[str]) -> None:
    source = "import torch\nmodel = torch\n" + "".join(f"model = model.{name}\n" for name in attributes)
    source += "getattr(model, name)(model.parameters(), max_grad_norm)\ntorch.nn.utils.clip_grad_norm_(model, 1.0)\n"
    clips = port(Path("a.py"), source.encode()).sites
    assert clips[-1].name == "torch.nn.utils.clip_grad_norm_"
