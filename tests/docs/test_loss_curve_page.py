"""docs/my-loss-curve-differs.md: its scripts run, and `unified-clip compare` prints the causes on the page."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from support.page_examples import run

from unified_clip.causes.cause import CauseKind
from unified_clip.compare.recordings import compare

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "my-loss-curve-differs.md").read_text(encoding="utf-8")

SCRIPTS: dict[str, str] = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL))
CHANGES: dict[str, str] = dict(re.findall(r"```diff\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL))
PRINTED: dict[str, str] = dict(re.findall(r"```\w+\n# (\w+)\.py\n(?:(?!```).)*```\n```text\n(.*?)```", PAGE, re.DOTALL))

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def changed(name: str) -> str:
    (old,) = re.findall(r"^-(.*\n)", CHANGES[name], re.MULTILINE)
    new = re.findall(r"^\+(.*\n)", CHANGES[name], re.MULTILINE)
    assert SCRIPTS["train"].count(old) == 1
    return SCRIPTS["train"].replace(old, "".join(new))


RECORD = """
import runpy, sys, unified_clip
for name in sys.argv[1:]:
    with unified_clip.record(f"{name}.jsonl", norms=True):
        runpy.run_path(f"{name}.py", run_name="__main__")
"""


def record(folder: Path, scripts: dict[str, str]) -> None:
    for name, code in scripts.items():
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
    run(folder, "-c", RECORD, *scripts)


def same(line: str, expected: str) -> bool:
    """Return whether two lines have the same text, and the same numbers up to the rounding of another processor."""
    if NUMBER.sub("#", line) != NUMBER.sub("#", expected):
        return False
    printed, numbers = ([float(number) for number in NUMBER.findall(text)] for text in (line, expected))
    return printed == pytest.approx(numbers, rel=1e-4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    path = tmp_path_factory.mktemp("page")
    run(path, "-c", SCRIPTS["data"])
    record(path, {name: SCRIPTS[name] for name in ("train", "port")} | {name: changed(name) for name in CHANGES})
    return path


def test_every_block_of_output_belongs_to_a_script() -> None:
    assert PAGE.count("```text") == len(PRINTED) == 12
    assert set(PRINTED) == CHANGES.keys() | SCRIPTS.keys() - {"data", "train", "port"}


@pytest.mark.nightly
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_script_is_named(folder: Path, name: str) -> None:
    check(folder, "train", name, PRINTED[name])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("paddle_script", "paddle"),
        ("tensorflow_2_script", "tensorflow"),
        ("keras_script", "keras"),
        ("tensorflow_1_script", "tensorflow"),
    ],
)
def test_a_difference_of_a_framework_is_named(folder: Path, name: str, package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    record(folder, {name: SCRIPTS[name]})
    check(folder, name, "port", PRINTED[name])


@pytest.mark.nightly
def test_adam_with_the_formula_of_keras_has_the_same_numbers(folder: Path) -> None:
    if find_spec("keras") is None:
        pytest.skip("Keras is not installed")
    for name in ("keras_script", "keras_adam"):
        record(folder, {name: SCRIPTS[name]})
    files = ("keras_script.jsonl", "keras_adam.jsonl", "--max-ulp", "64")
    assert PRINTED["keras_adam"].strip() in run(folder, "-m", "unified_clip", "compare", *files).splitlines()
    without = re.sub(r" *group\[\"lr\"\].*\n", "", SCRIPTS["keras_adam"])
    record(folder, {"without": without})
    output = run(folder, "-m", "unified_clip", "compare", "keras_script.jsonl", "without.jsonl", "--max-ulp", "64")
    assert "rates" not in output  # 0.001 % of an update


def with_global_clip(*changes: tuple[str, str]) -> str:
    """Return the page's script for TensorFlow 1 with these changes, and with a clip by the global norm."""
    script = SCRIPTS["tensorflow_1_script"]
    for before, after in (
        *changes,
        ("pairs = ", "gradients, variables = zip(*"),
        (" - y)))\n", " - y))))\ngradients, _ = tf.clip_by_global_norm(gradients, 0.5)\n"),
        (
            "[(tf.clip_by_value(gradient, -0.5, 0.5), variable) for gradient, variable in pairs]",
            "zip(gradients, variables)",
        ),
    ):
        assert script.count(before) == 1
        script = script.replace(before, after)
    return script


def test_rmsprop_with_the_formula_of_tensorflow_1_has_the_same_numbers(folder: Path) -> None:
    if find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    old = with_global_clip(("AdamOptimizer(0.01)", "RMSPropOptimizer(0.01, decay=0.99, epsilon=1e-5)"))
    port = SCRIPTS["rmsprop_port"]
    start = "torch.optim.RMSprop(model.parameters(), lr=0.01, alpha=0.99, eps=1e-5)"
    wrong = port.replace("RMSprop(model.parameters(), lr=0.01, alpha=0.99, eps=1e-5)", start)
    record(folder, {"rmsprop_old": old})
    record(folder, {"rmsprop_port": port, "rmsprop_wrong": wrong})
    of_port, of_wrong = (
        run(folder, "-m", "unified_clip", "compare", "rmsprop_old.jsonl", f"{name}.jsonl", "--max-ulp", "64")
        for name in ("rmsprop_port", "rmsprop_wrong")
    )
    assert PRINTED["rmsprop_port"].strip() in of_port.splitlines()
    # the squares of the old run start at 1, which hides where it adds its eps
    assert any("initial squares is 1 in rmsprop_old.jsonl" in line for line in of_wrong.splitlines())


BERT = """
class AdamWeightDecayOptimizer(tf.train.Optimizer):  # as in BERT's optimization.py
    def __init__(self, learning_rate, weight_decay_rate, exclude_from_weight_decay):
        super().__init__(False, "AdamWeightDecayOptimizer")
        self.learning_rate, self.weight_decay_rate = learning_rate, weight_decay_rate
        self.beta_1, self.beta_2, self.epsilon = 0.9, 0.999, 1e-6
        self.exclude_from_weight_decay = exclude_from_weight_decay

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        assignments = []
        for grad, param in grads_and_vars:
            m, v = (tf.Variable(tf.zeros(param.shape), trainable=False) for _ in range(2))
            next_m = tf.multiply(self.beta_1, m) + tf.multiply(1.0 - self.beta_1, grad)
            next_v = tf.multiply(self.beta_2, v) + tf.multiply(1.0 - self.beta_2, tf.square(grad))
            update = next_m / (tf.sqrt(next_v) + self.epsilon)
            if not any(each in param.name for each in self.exclude_from_weight_decay):
                update += self.weight_decay_rate * param
            next_param = param - self.learning_rate * update
            assignments += [param.assign(next_param), m.assign(next_m), v.assign(next_v)]
        return tf.group(*assignments, name=name)
"""


def test_adam_without_bias_correction_has_the_updates_of_bert(folder: Path) -> None:
    if find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    old = with_global_clip(
        ("tf.disable_eager_execution()\n", f"tf.disable_eager_execution()\n{BERT}"),
        ('tf.Variable(weights["bias"])', 'tf.Variable(weights["bias"], name="bias")'),
        ("tf.train.AdamOptimizer(0.01)", re.findall(r"`(AdamWeight\w+\([^`]*)`", PAGE)[0]),
    )
    port = SCRIPTS["bert_adam"]
    wrong = port.replace("BertAdam(groups, lr=0.01)", "torch.optim.AdamW(groups, lr=0.01, eps=1e-6)")
    record(folder, {"bert_old": old})
    record(folder, {"bert_adam": port, "bert_wrong": wrong})
    of_port, of_wrong = (
        run(folder, "-m", "unified_clip", "compare", "bert_old.jsonl", f"{name}.jsonl", "--max-ulp", "64")
        for name in ("bert_adam", "bert_wrong")
    )
    assert PRINTED["bert_adam"].strip() in of_port.splitlines()
    assert "bias correction" in of_wrong


def test_adagrad_with_the_arguments_on_the_page_has_the_updates_of_tensorflow_1(folder: Path) -> None:
    if find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    (call,) = re.findall(r"`(torch\.optim\.Adagrad\(.*\))`", PAGE)
    gradients = "[[0.5, -2.0], [0.25, 1.0], [-3.0, 1e-5]]"
    old = run(
        folder,
        "-c",
        f"import tensorflow as tf\nweight = tf.Variable([1.0, 2.0])\n"
        f"optimizer = tf.compat.v1.train.AdagradOptimizer(0.01)\n"
        f"for each in {gradients}: optimizer.apply_gradients([(tf.constant(each), weight)])\n"
        f"print(weight.numpy().tolist())",
    )
    new = run(
        folder,
        "-c",
        f"import torch\nweight = torch.tensor([1.0, 2.0])\nparameters = [weight]\noptimizer = {call}\n"
        f"for each in {gradients}:\n    weight.grad = torch.tensor(each)\n    optimizer.step()\nprint(weight.tolist())",
    )
    assert eval(new.splitlines()[-1]) == pytest.approx(eval(old.splitlines()[-1]), rel=1e-7)


@pytest.mark.nightly
def test_rounded_betas_show_in_float64_that_nothing_else_differs(folder: Path) -> None:
    if find_spec("keras") is None:
        pytest.skip("Keras is not installed")
    keras = SCRIPTS["keras_script"].replace(
        "import numpy as np\n", "import numpy as np\nkeras.config.set_floatx('float64')\n"
    )
    torch = SCRIPTS["keras_adam"].replace("import torch\n", "import torch\ntorch.set_default_dtype(torch.float64)\n", 1)
    torch = re.sub(r' *group\["lr"\].*\n', "", torch)
    torch = (
        torch.replace(".T)", ".T).double()").replace('["bias"])', '["bias"]).double()').replace("(x)", "(x).double()")
    )
    torch = torch.replace("(y))", "(y).double())")
    distances = []
    for rounded in (False, True):
        betas = [float(np.float32(beta)) if rounded else beta for beta in (0.9, 0.999)]
        scripts = {
            f"keras_{rounded}": keras.replace("Adam(0.01,", f"Adam(0.01, beta_1={betas[0]!r}, beta_2={betas[1]!r},"),
            f"torch_{rounded}": torch.replace("lr=0.01)", f"lr=0.01, betas={betas!r})").replace(
                "(0.9, 0.999)", f"{betas!r}"
            ),
        }
        for name, code in scripts.items():
            record(folder, {name: code})
        compared = compare(*(folder / f"{name}.jsonl" for name in scripts))
        distances.append(compared.largest * 2.0**-24)
    assert 1e-10 < distances[0] < 1e-4
    assert distances[1] < 1e-12


PER_TENSOR = """
import torch, unified_clip, unified_clip.torch as uc

gradients = [torch.arange(12.0).reshape(3, 4) - 4, torch.full((5,), 1e-3), torch.zeros(2), torch.arange(7.0) * 1e4]
parameters = [[torch.nn.Parameter(torch.zeros_like(each)) for each in gradients] for _ in range(2)]
for each in parameters:
    for parameter, gradient in zip(each, gradients):
        parameter.grad = gradient.clone()
uc.GradientClipByNorm(0.05).clip_(parameters[0])
optimizer = torch.optim.SGD(parameters[1], lr=0.0)
unified_clip.ClipConfig(rule="norm", threshold=0.05, family="tensorflow").attach_to(optimizer)
optimizer.step()
clipped = [uc.clip_by_norm(gradient, 0.05) for gradient in gradients]
for each in parameters:
    print(all(torch.equal(parameter.grad, result) for parameter, result in zip(each, clipped)))
"""


@pytest.mark.nightly
def test_three_ways_to_clip_per_tensor_have_the_same_bits(folder: Path) -> None:
    assert run(folder, "-c", PER_TENSOR).split() == ["True", "True"]


def check(folder: Path, old: str, new: str, printed: str) -> None:
    output = iter(
        run(folder, "-m", "unified_clip", "compare", f"{old}.jsonl", f"{new}.jsonl", "--html", "r.html").splitlines()
    )
    for expected in printed.splitlines():
        assert any(same(line, expected) for line in output), expected
    assert "first difference: " in (folder / "r.html").read_text(encoding="utf-8")


def test_the_links_of_the_page_exist() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        file, _, anchor = target.partition("#")
        text = (DOCS / file).read_text(encoding="utf-8") if file else PAGE
        titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]


def test_every_cause_with_a_fix_exists() -> None:
    table = PAGE.partition("| cause | if | fix in the port |\n")[2].partition("\n\n")[0]
    causes = [cause for row in table.splitlines()[1:] for cause in row.split("|")[1].strip().split(", ")]
    assert len(causes) > 15
    assert set(causes) <= set(get_args(CauseKind))
