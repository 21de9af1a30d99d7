"""`unified-clip compare` of training scripts with their ports: mistakes are named, and right ports have none.

The scripts of `tests/support/training` run unchanged. A wrong port is a copy of a script with one replaced passage.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from unified_clip._kit.workers import CPU_ONLY
from unified_clip.recording.compare import RecordingComparison, compare
from unified_clip.recording.report import sentences

SUPPORT = Path(__file__).parents[1] / "support"
FRAMEWORKS = {"paddle": "paddle", "tensorflow": "tensorflow,keras", "keras": "tensorflow,keras", "optax": "jax,optax"}
"""By the last word of a script's name, the modules that its process imports; otherwise PyTorch."""

TORCH = "torch,torch._dynamo"
ROUNDING = {"rounding", "rounding noise", "rounding that has grown"}


class Script(NamedTuple):
    name: str
    replaced: tuple[tuple[str, str], ...] = ()

    @property
    def modules(self) -> str:
        return FRAMEWORKS.get(self.name.rpartition("_")[2], TORCH)

    def write(self, folder: Path, number: int) -> Path:
        code = (folder / f"{self.name}.py").read_text(encoding="utf-8")
        for old, new in self.replaced:
            assert code.count(old) == 1, (self.name, old)
            code = code.replace(old, new)
        path = folder / f"{self.name}_{number}.py"
        path.write_text(code, encoding="utf-8")
        return path


def script(name: str, *replaced: tuple[str, str]) -> Script:
    return Script(name, replaced)


Pair = tuple[Script, Script]

PPO, A2C, CHAR_RNN = script("ppo_paddle"), script("a2c_tensorflow"), script("charrnn_tensorflow")
GATHERED = 'tf.gather(w["embedding"], tokens[:, t])'
DENSE_CHAR_RNN = script(CHAR_RNN.name, (GATHERED, 'tf.one_hot(tokens[:, t], setting.VOCABULARY) @ w["embedding"]'))
GPT, KERAS = script("gpt_trainer"), script("regression_keras")
PADDLE, OPTAX = script("regression_paddle"), script("regression_optax")

GRU = script("gru_keras")


def gru_clips(name: str) -> tuple[str, str]:
    two = (
        "        uc.GradientClipByNorm(0.05).clip_([*parameters[:2], *parameters[4:]])\n"
        "        uc.GradientClipByGlobalNorm(0.05).clip_(parameters[2:4])\n"
    )
    return two, f"        uc.{name}(0.05).clip_(parameters)\n"


PPO_ADAM = "torch.optim.Adam({}, lr=3e-3, eps=1e-5)"
PPO_OF_TWO = script(
    "ppo_torch",
    (
        PPO_ADAM.format("model.parameters()"),
        PPO_ADAM.format("[*model.parameters()][:6]")
        + f"\n        self.critic = {PPO_ADAM.format('[*model.parameters()][6:]')}",
    ),
    ("self.optimizer.param_groups:", "(*self.optimizer.param_groups, *self.critic.param_groups):"),
    ("self.optimizer.zero_grad()", "self.model.zero_grad()"),
    ("self.optimizer.step()", "self.critic.step()\n        self.optimizer.step()"),
)
A2C_RMSPROP = "tf.keras.optimizers.RMSprop(7e-3, rho=0.99, epsilon=1e-5)"
A2C_OF_TWO = script(
    "a2c_tensorflow",
    (A2C_RMSPROP, f"{A2C_RMSPROP}\n        self.critic = {A2C_RMSPROP}"),
    (
        "self.optimizer.apply_gradients(zip(grads, variables, strict=True))",
        "pairs = [*zip(grads, variables, strict=True)]\n"
        "        self.optimizer.apply_gradients(pairs[:4])\n        self.critic.apply_gradients(pairs[4:])",
    ),
)

RIGHT = {
    "PPO of Paddle in PyTorch": (PPO, script("ppo_torch")),
    "A2C of TensorFlow in PyTorch": (A2C, script("a2c_torch")),
    "a recurrent network of TensorFlow in PyTorch": (DENSE_CHAR_RNN, script("charrnn_torch")),
    "accumulated gradients and a loss scale": (script("gpt_torch"), GPT),
    "Keras's fit as a loop in PyTorch": (KERAS, script("regression_torch")),
    "Keras's fit as a loop in TensorFlow": (KERAS, script("regression_tensorflow")),
    "one ClipGradByNorm for a loop of tf.clip_by_norm": (PADDLE, script("regression_tensorflow")),
    "one ClipGradByNorm for a loop in PyTorch": (PADDLE, script("regression_torch")),
    "a GRU of Keras in PyTorch, with two biases": (GRU, script("gru_torch")),
    "a GRU of Keras in PyTorch by the total norm": (
        script("gru_keras", ("clipnorm", "global_clipnorm")),
        script("gru_torch", gru_clips("GradientClipByGlobalNorm")),
    ),
    "one clip before the steps of two optimizers": (PPO, PPO_OF_TWO),
    "two optimizers of TensorFlow in PyTorch's one": (A2C_OF_TWO, script("a2c_torch")),
    "a chain of optax in PyTorch": (OPTAX, script("adamw_torch")),
}

PPO_CLIP = "uc.ClipGradByGlobalNorm(self.max_grad_norm).clip_(self.model.parameters())"
GPT_CLIP = "torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.grad_clip)"
A2C_CLIP = "grads, _ = uc.clip_by_global_norm(torch.autograd.grad(loss, variables), self.max_grad_norm)"
LOADED = "torch.from_numpy(setting.weight(name, *parameter.shape[::-1]).T.copy())"
A2C_LOSS = "policy_loss + 0.5 * value_loss - 0.01 * entropy"
OPTAX_CLIP, OPTAX_STEP = "optax.clip_by_global_norm(0.5)", "optax.adamw(0.05, weight_decay=0.01)"
SHUFFLED = script("regression_keras", ("shuffle=False, ", ""))
SUMMED = script("regression_torch", ("targets[batch])", 'targets[batch], reduction="sum")'))
REGULARIZED = script(
    KERAS.name,
    ('name="hidden"', 'name="hidden", kernel_regularizer=keras.regularizers.L2(0.05)'),
    ('name="out"', 'name="out", kernel_regularizer=keras.regularizers.L2(0.05)'),
)
DECAYED = script("regression_torch", ("0.2, momentum=0.9", "0.2, momentum=0.9, weight_decay=0.1"))
DEFAULT_DECAY = script("regression_optax", (", weight_decay=0.01", ""))
ACCUMULATED = "loss = model(part[:, :-1], part[:, 1:]) / PARTS"
UNCLIPPED = ("grad_clip: float = 0.5", "grad_clip: float = 500.0")
KERAS_NADAM = (UNCLIPPED, ("SGD(0.5)", "Nadam(0.01, epsilon=1e-8)"), ("0.5 * DECAY", "0.01 * DECAY"))
TORCH_NADAM = (UNCLIPPED, ("torch.optim.SGD(model.parameters(), 0.5)", "torch.optim.NAdam(model.parameters(), 0.01)"))
"""Without a clip, the norm of the rows has no effect, and only the optimizers differ."""


def ppo(old: str, new: str) -> Pair:
    return PPO, script("ppo_torch", (old, new))


def a2c(*replaced: tuple[str, str]) -> Pair:
    return A2C, script("a2c_torch", *replaced)


def gpt(old: str, new: str) -> Pair:
    return script("gpt_torch"), script("gpt_trainer", (old, new))


def char_rnn(old: str, new: str) -> Pair:
    return DENSE_CHAR_RNN, script("charrnn_torch", (old, new))


WRONG: dict[str, tuple[Pair, str, int]] = {
    "by value": (ppo(PPO_CLIP, "nn.utils.clip_grad_value_(self.model.parameters(), 0.5)"), "another rule", 1),
    "by each norm, as PARL": (
        (script("ppo_paddle", ("ClipGradByGlobalNorm", "ClipGradByNorm")), script("ppo_torch")),
        "per tensor for global",
        1,
    ),
    "clip after the step": (
        ppo(
            f"        {PPO_CLIP}\n        self.optimizer.step()",
            f"        self.optimizer.step()\n        {PPO_CLIP}",
        ),
        "clipping after the step",
        1,
    ),
    "no zero_grad": (ppo("self.optimizer.zero_grad()", "pass"), "gradients are not cleared", 2),
    "PyTorch's eps": (
        ppo(PPO_CLIP, "nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)"),
        "another eps of the clip",
        1,
    ),
    "critic is missing": (
        ppo(PPO_CLIP, PPO_CLIP.replace("self.model.parameters()", "[*self.model.parameters()][:6]")),
        "left out",
        1,
    ),
    "default eps of Adam": (ppo("lr=3e-3, eps=1e-5", "lr=3e-3"), "another optimizer", 1),
    "rate is not annealed": (ppo('group["lr"] = lr', "pass"), "another learning rate", 2),
    "square weight is not transposed": (
        ppo(LOADED, f'{LOADED} if "torso.w" not in name else torch.from_numpy(setting.weight(name, 64, 64))'),
        "untransposed weight",
        1,
    ),
    "PyTorch's own weights": (ppo(f"parameter.data = {LOADED}", "torch.manual_seed(0)"), "other initial weights", 1),
    "summed loss": (a2c((f"loss = {A2C_LOSS}", f"loss = ({A2C_LOSS}) * len(value)")), "scaled gradients", 1),
    "a tenth of the rate": (a2c(("7e-3, alpha", "7e-4, alpha")), "another learning rate", 1),
    "Adam for RMSprop": (
        a2c(
            (
                "KerasRMSprop(self.model.parameters(), 7e-3, alpha=0.99,",
                "torch.optim.Adam(self.model.parameters(), 7e-3,",
            )
        ),
        "another optimizer",
        1,
    ),
    "a norm for each network": (
        a2c(
            (
                A2C_CLIP,
                "grads = torch.autograd.grad(loss, variables)\n"
                "        grads = [g for part in (grads[:4], grads[4:]) for g in uc.clip_by_global_norm(part, 0.5)[0]]",
            )
        ),
        "per group for global",
        1,
    ),
    "rows of an embedding": ((CHAR_RNN, script("charrnn_torch")), "rows", 2),
    "optimizer that squares the rows of an embedding": (
        (script(CHAR_RNN.name, *KERAS_NADAM), script("charrnn_torch", *TORCH_NADAM)),
        "squared rows",
        1,
    ),
    "schedule is a step ahead": (
        char_rnn("optimizer.step()\n        scheduler.step()", "scheduler.step()\n        optimizer.step()"),
        "shifted step",
        1,
    ),
    "other text": (char_rnn("SEQUENCES, LENGTH)):", "SEQUENCES, LENGTH, seed=1)):"), "other data or loss", 1),
    "another threshold": (char_rnn("grad_clip: float = 0.5", "grad_clip: float = 5.0"), "another threshold", 1),
    "loss is not averaged over time": (char_rnn("return loss / LENGTH", "return loss"), "scaled gradients", 1),
    "clip before unscale": (
        (GPT, script("gpt_torch", ("        scaler.unscale_(optimizer)\n", ""))),
        "clipping before unscaling",
        1,
    ),
    "accumulation without division": (
        (GPT, script("gpt_torch", (ACCUMULATED, ACCUMULATED.replace(" / PARTS", "")))),
        "gradient accumulation",
        1,
    ),
    "decay of biases": (gpt('rest, "weight_decay": 0.0', 'rest, "weight_decay": weight_decay'), "another optimizer", 1),
    "Adam for AdamW": (gpt("torch.optim.AdamW", "torch.optim.Adam"), "another optimizer", 1),
    "tied parameter twice": (
        gpt(
            "self.model.parameters(), self", "dict(self.model.named_parameters(remove_duplicate=False)).values(), self"
        ),
        "repeated parameter",
        1,
    ),
    "frozen parameter": (
        gpt("self.model, self", "model.wpe.requires_grad_(False)\n        self.model, self"),
        "left out",
        1,
    ),
    "total norm for Keras's clipnorm": (
        (
            KERAS,
            script(
                "regression_torch",
                (
                    "for parameter in model.parameters():\n"
                    "            parameter.grad = uc.clip_by_norm(parameter.grad, 0.5)",
                    "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)",
                ),
            ),
        ),
        "per tensor for global",
        1,
    ),
    "shuffled batches": ((SHUFFLED, script("regression_tensorflow")), "other data or loss", 1),
    "total norm for ClipGradByNorm": (
        (
            PADDLE,
            script(
                "regression_tensorflow",
                ("[tf.clip_by_norm(grad, 0.5) for grad in grads]", "tf.clip_by_global_norm(grads, 0.5)[0]"),
            ),
        ),
        "per tensor for global",
        1,
    ),
    "two biases of a GRU, each by its own norm": (
        (GRU, script("gru_torch", gru_clips("GradientClipByNorm"))),
        "another rule",
        1,
    ),
    "gates of a GRU in the order of Keras": (
        (GRU, script("gru_torch", ("[reset, update, new]", "[update, reset, new]"))),
        "other initial weights",
        1,
    ),
    "other targets for a GRU": (
        (GRU, script("gru_torch", ("torch.from_numpy(setting.TARGETS)", "-torch.from_numpy(setting.TARGETS)"))),
        "other data or loss",
        1,
    ),
    "a clip for one of two optimizers": (
        (
            PPO,
            script(
                "ppo_torch",
                *PPO_OF_TWO.replaced,
                (PPO_CLIP, PPO_CLIP.replace("self.model.parameters()", "[*self.model.parameters()][:6]")),
            ),
        ),
        "left out",
        1,
    ),
    "a clip for each of two optimizers": (
        (
            PPO,
            script(
                "ppo_torch",
                *PPO_OF_TWO.replaced,
                (
                    PPO_CLIP,
                    "for part in (slice(6), slice(6, None)):\n            "
                    + PPO_CLIP.replace("self.model.parameters()", "[*self.model.parameters()][part]"),
                ),
            ),
        ),
        "per group for global",
        1,
    ),
    "default decay of optax": ((DEFAULT_DECAY, script("adamw_torch")), "another optimizer", 1),
    "clip of updates": (
        (
            script("adamw_torch"),
            script("regression_optax", (f"{OPTAX_CLIP}, {OPTAX_STEP}", f"{OPTAX_STEP}, {OPTAX_CLIP}")),
        ),
        "clipping after the step",
        1,
    ),
    "weight decay for a regularizer": ((REGULARIZED, DECAYED), "weight decay before the clip", 1),
    "sum of squares": ((PADDLE, SUMMED), "scaled gradients", 1),
}
"""By the mistake: original and port, the cause, and the first differing step."""


class Recordings:
    """The recordings of all scripts. The first request for one of a framework records all of that framework."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(SUPPORT / "training", folder, dirs_exist_ok=True)
        pairs = [*RIGHT.values(), *(pair for pair, *_ in WRONG.values())]
        self._folder, self._scripts = folder, list(dict.fromkeys(script for pair in pairs for script in pair))
        self._recorded: set[str] = set()

    def file(self, script: Script) -> Path:
        if script.modules not in self._recorded:
            self._recorded.add(script.modules)
            self._record(script.modules)
        return self._folder / f"{script.name}_{self._scripts.index(script)}.jsonl"

    def _record(self, modules: str) -> None:
        paths = [
            script.write(self._folder, number)
            for number, script in enumerate(self._scripts)
            if script.modules == modules
        ]
        jobs = [(str(path), str(path.with_suffix(".jsonl"))) for path in paths]
        environment = os.environ | CPU_ONLY | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        environment |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, SUPPORT / "record_scripts.py", modules, json.dumps(jobs)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    return Recordings(tmp_path_factory.mktemp("training"))


def compared(recordings: Recordings, pair: Pair) -> RecordingComparison:
    return compare(*map(recordings.file, pair))


@pytest.mark.nightly
@pytest.mark.parametrize("port", RIGHT)
def test_a_right_port_differs_by_rounding_only(recordings: Recordings, port: str) -> None:
    comparison = compared(recordings, RIGHT[port])
    text = "\n".join(sentences.report_lines(comparison))
    assert {finding.kind for finding in comparison.findings} <= ROUNDING, text
    assert all(comparison.divergences.values()), text
    assert len(comparison.pairs) >= 6


@pytest.mark.nightly
@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_port_is_named_at_the_first_differing_step(recordings: Recordings, mistake: str) -> None:
    pair, kind, step = WRONG[mistake]
    comparison = compared(recordings, pair)
    text = "\n".join(sentences.report_lines(comparison))
    named = [
        divergence.step
        for divergence, causes in comparison.divergences.items()
        if kind in {cause.kind for cause in causes}
    ]
    assert named[:1] == [step], text
    causes = {finding.kind for finding in comparison.findings} - ROUNDING
    assert causes == {kind}, text
