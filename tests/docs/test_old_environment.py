"""`docs/porting/old_environment.md`: runs of old releases, recorded without a change, and compared with their ports."""

from __future__ import annotations

import functools
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from unified_clip._kit.workers import CPU_ONLY
from unified_clip.compare import recordings
from unified_clip.compare.recordings import RecordingComparison
from unified_clip.recording import runs

pytestmark = pytest.mark.nightly
"""The old releases have hundreds of megabytes."""

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "porting" / "paddle_1"

ENVIRONMENTS = {
    "paddle-1.8.5": ("python3.7", "paddlepaddle==1.8.5", "protobuf<3.21", "numpy<1.22"),
    "paddle-2.6.2": ("python3.8", "paddlepaddle==2.6.2", "numpy<2"),
    "tensorflow-1.15.5": ("python3.7", "tensorflow==1.15.5", "protobuf<3.21", "numpy<1.19"),
    "torch-1.8.1": ("python3.7", "torch==1.8.1", "numpy<1.22"),
    "torch-1.13.1": ("python3.9", "torch==1.13.1", "numpy<2"),
}

MISTAKES = {
    "`clip_norm=0.2`": ("clip_norm=0.1", "clip_norm=0.2", "another threshold"),
    "`GradientClipByGlobalNorm` for `GradientClipByNorm`": (
        "GradientClipByNorm",
        "GradientClipByGlobalNorm",
        "per tensor for global",
    ),
    "clip only the weights, not the biases": (
        "clip.clip_(model.parameters())",
        "clip.clip_([each for each in model.parameters() if each.ndim > 1])",
        "left out",
    ),
    "`torch.nn.utils.clip_grad_norm_` for each parameter": (
        "clip.clip_(model.parameters())",
        "[torch.nn.utils.clip_grad_norm_([each], 0.1) for each in model.parameters()]",
        "another eps of the clip",
    ),
    '`cross_entropy(..., reduction="sum")`': ("(model(x), y)", '(model(x), y, reduction="sum")', "scaled gradients"),
    "`reshape` instead of `.T` for the weights": (
        '.w_0"].T))',
        '.w_0"].reshape(layer.weight.shape)))',
        "untransposed weight",
    ),
    "no `model.zero_grad()`": ("model.zero_grad()", "pass", "gradients are not cleared"),
}
"""{mistake: (text of after.py, what replaces it, cause)}."""


@functools.cache
def _old_python(name: str) -> Path:
    interpreter, *packages = ENVIRONMENTS[name]
    if shutil.which(interpreter) is None:
        pytest.skip(f"{interpreter} is not installed")
    folder = ROOT / "build" / "old" / name
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
        (folder / "complete").touch()
    return python


def _record(python: Path | str, script: Path, file: Path) -> Path:
    environment = {**os.environ, **CPU_ONLY, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "unified_clip", "record", str(file), "--norms", "--", str(python), str(script)]
    subprocess.run(command, check=True, cwd=file.parent, env=environment, timeout=600)
    return file


def _compared(old: Path, new: Path) -> RecordingComparison:
    return recordings.compare(old, new)


@pytest.fixture(scope="module")
def old_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    return _record(_old_python("paddle-1.8.5"), EXAMPLE / "before.py", folder / "old.jsonl")


def test_the_port_of_the_example_has_the_same_recipe(old_run: Path) -> None:
    found = _compared(old_run, _record(sys.executable, EXAMPLE / "after.py", old_run.with_name("new.jsonl")))
    assert (list(found.findings), found.recipes.steps) == ([], 5)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_named(old_run: Path, mistake: str, tmp_path: Path) -> None:
    text, other, cause = MISTAKES[mistake]
    source = (EXAMPLE / "after.py").read_text(encoding="utf-8")
    assert text in source
    script = tmp_path / "after.py"
    script.write_text(source.replace(text, other), encoding="utf-8")
    shutil.copy(old_run.with_name("weights.npz"), tmp_path)
    found = _compared(old_run, _record(sys.executable, script, tmp_path / "new.jsonl"))
    assert [each.kind for each in found.findings] == [cause]


TRAIN = {
    "tensorflow-1.15.5": """
import numpy as np, tensorflow as tf
data = np.load("data.npz")
x, y = (tf.placeholder(tf.float32, [None, size]) for size in (6, 3))
weights = [tf.get_variable(name, initializer=data[name]) for name in ("w1", "b1", "w2", "b2")]
w1, b1, w2, b2 = weights
loss = tf.reduce_mean((tf.tanh(x @ w1 + b1) @ w2 + b2 - y) ** 2)
step = tf.train.get_or_create_global_step()
optimizer = tf.train.MomentumOptimizer(tf.train.exponential_decay(0.1, step, 2, 0.5, True), 0.9)
clipped, _ = tf.clip_by_global_norm(tf.gradients(loss, weights), 0.5)
train = optimizer.apply_gradients(zip(clipped, weights), global_step=step)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for batch in range(6):
        session.run(train, {x: data["x"][batch], y: data["y"][batch]})
""",
    "paddle-1.8.5": """
import numpy as np, paddle.fluid as fluid
data = np.load("data.npz")
init = {name: fluid.initializer.NumpyArrayInitializer(data[name]) for name in ("w1", "b1", "w2", "b2")}
with fluid.dygraph.guard():
    first = fluid.dygraph.Linear(6, 8, act="tanh", param_attr=init["w1"], bias_attr=init["b1"])
    second = fluid.dygraph.Linear(8, 3, param_attr=init["w2"], bias_attr=init["b2"])
    parameters = first.parameters() + second.parameters()
    rate = fluid.dygraph.ExponentialDecay(0.1, 2, 0.5, staircase=True)
    clip = fluid.clip.GradientClipByGlobalNorm(0.5)
    optimizer = fluid.optimizer.Momentum(rate, 0.9, parameter_list=parameters, grad_clip=clip)
    for batch in range(6):
        x, y = (fluid.dygraph.to_variable(data[name][batch]) for name in "xy")
        loss = fluid.layers.reduce_mean(fluid.layers.square(second(first(x)) - y))
        loss.backward()
        optimizer.minimize(loss)
        optimizer.clear_gradients()
""",
    "paddle-2.6.2": """
import numpy as np, paddle
data = np.load("data.npz")
init = {name: paddle.nn.initializer.Assign(data[name]) for name in ("w1", "b1", "w2", "b2")}
model = paddle.nn.Sequential(
    paddle.nn.Linear(6, 8, init["w1"], init["b1"]), paddle.nn.Tanh(), paddle.nn.Linear(8, 3, init["w2"], init["b2"])
)
rate = paddle.optimizer.lr.StepDecay(0.1, 2, 0.5)
clip = paddle.nn.ClipGradByGlobalNorm(0.5)
optimizer = paddle.optimizer.Momentum(rate, 0.9, model.parameters(), weight_decay=0.3, grad_clip=clip)
for batch in range(6):
    x, y = (paddle.to_tensor(data[name][batch]) for name in "xy")
    (model(x) - y).square().mean().backward()
    optimizer.step()
    optimizer.clear_grad()
    rate.step()
""",
    "paddle-1.8.5 static": """
import numpy as np, paddle.fluid as fluid
data = np.load("data.npz")
init = {name: fluid.initializer.NumpyArrayInitializer(data[name]) for name in ("w1", "b1", "w2", "b2")}
x, y = fluid.data("x", [None, 6]), fluid.data("y", [None, 3])
hidden = fluid.layers.fc(x, 8, act="tanh", param_attr=init["w1"], bias_attr=init["b1"])
out = fluid.layers.fc(hidden, 3, param_attr=init["w2"], bias_attr=init["b2"])
loss = fluid.layers.reduce_mean(fluid.layers.square(out - y))
rate = fluid.layers.exponential_decay(0.1, 2, 0.5, staircase=True)
fluid.clip.set_gradient_clip(fluid.clip.GradientClipByGlobalNorm(0.5))
fluid.optimizer.Momentum(rate, 0.9, regularization=fluid.regularizer.L2Decay(0.3)).minimize(loss)
executor = fluid.Executor(fluid.CPUPlace())
executor.run(fluid.default_startup_program())
for batch in range(6):
    executor.run(feed={name: data[name][batch] for name in "xy"})
""",
}

PORT = """
import numpy as np, torch
CLIP = None
data = np.load("data.npz")
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
with torch.no_grad():
    for parameter, name in zip(model.parameters(), ("w1", "b1", "w2", "b2")):
        parameter.copy_(torch.from_numpy(data[name].T))
optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
for batch in range(6):
    x, y = (torch.from_numpy(data[name][batch]) for name in "xy")
    optimizer.zero_grad()
    ((model(x) - y) ** 2).mean().backward()
    if CLIP is not None:
        CLIP.clip_(model.parameters())
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    schedule.step()
"""

WITHOUT_EPS = "import unified_clip.torch as uc; CLIP = uc.GradientClipByGlobalNorm(0.5)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import numpy as np

    random = np.random.default_rng(0)
    shapes = {"w1": (6, 8), "b1": (8,), "w2": (8, 3), "b2": (3,), "x": (6, 16, 6), "y": (6, 16, 3)}
    np.savez(tmp_path / "data.npz", **{name: random.normal(size=each).astype("f4") for name, each in shapes.items()})
    return tmp_path


@pytest.mark.parametrize("name", [*ENVIRONMENTS, "paddle-1.8.5 static"])
def test_a_training_of_an_old_release_has_the_recipe_of_its_port(folder: Path, name: str) -> None:
    is_torch = name not in TRAIN
    old, new = folder / "before.py", folder / "after.py"
    old.write_text(TRAIN.get(name, PORT), encoding="utf-8")
    port = PORT.replace("0.1, 0.9)", "0.1, 0.9, weight_decay=0.3)") if "0.3" in TRAIN.get(name, "") else PORT
    new.write_text(port if is_torch else port.replace("CLIP = None", WITHOUT_EPS), encoding="utf-8")
    files = (
        _record(_old_python(name.split()[0]), old, folder / "old.jsonl"),
        _record(sys.executable, new, folder / "new.jsonl"),
    )
    found = _compared(*files)
    assert (list(found.findings), found.recipes.steps) == ([], 6)
    run = runs.read(files[0])
    steps = run.optimizer_steps
    norms = [math.hypot(*(tensor.norm for tensor in step.tensors.values())) for step in steps]
    assert norms == pytest.approx([min(line.norm, 0.5) for line in run.lines], rel=1e-5)  # type: ignore[arg-type]
    assert [round(float(step.settings["lr"]), 6) for step in steps] == [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]  # type: ignore[arg-type]
    assert all(len(step.losses) == 1 and len(step.tensors) == 4 for step in steps)


SCRIPTS = sorted((ROOT / "tests" / "data" / "old_environments").glob("*.py"))
"""The first line has the environment, and how much of the script is recorded."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_recording_leaves_the_script_as_it_is(tmp_path: Path, script: Path) -> None:
    name, _, wanted = script.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ").partition(": ")
    python, environment = _old_python(name), {**os.environ, **CPU_ONLY, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    run = functools.partial(subprocess.run, check=True, cwd=tmp_path, env=environment, timeout=600, capture_output=True)
    plain = run([str(python), str(script)])
    record = [sys.executable, "-m", "unified_clip", "record", "run.jsonl", "--norms", "--", str(python), str(script)]
    assert run(record).stdout == plain.stdout
    found = (tmp_path / "run.jsonl").read_text(encoding="utf-8")
    counts = [found.count(f'"{field}": ') for field in ("rule", "optimizer", "warning")]
    assert wanted == "{} clips, {} steps, {} warnings".format(*counts)


def test_parity_finds_the_listed_differences_of_old_releases(tmp_path: Path) -> None:
    for name in ENVIRONMENTS:
        _old_python(name)
    command = [sys.executable, "-m", "unified_clip", "parity", "--suite", "parity/old", "--out", str(tmp_path)]
    found = subprocess.run(command, check=False, cwd=ROOT, timeout=900, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
