"""Paths of `unified-clip config check` and patterns of `check.require` without a clip."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, IGNORE, TORCH, Check, only_finding

from unified_clip import cli
from unified_clip.check.model import CheckReport

REQUIRE = '\n[check]\nrequire = [\n  "nlp/**",\n  "{}",\n]\n'
FILES = {"nlp/ds.json": DEEPSPEED % "1.0", "recsys/train.py": TORCH % "1.0"}
WITHOUT_CLIP = "norm = total(grads)\nprint(norm)\n"


def texts(report: CheckReport) -> list[str]:
    return [f"{each.place} {each.clip} {each.does} {each.edit}" for each in report.findings if each.kind == "missing"]


def test_a_path_without_a_clip_is_an_error_even_if_others_have_clips(check: Check) -> None:
    assert check(FILES, CLIP_CONFIG, "nlp", "recsys").findings == []
    report = check({**FILES, "recsys/train.py": WITHOUT_CLIP}, CLIP_CONFIG, "nlp", "recsys")
    assert texts(report) == [
        "clip.toml:1:1 PATH recsys No file has a clip (checked files: 1). Restore the clip, or pass other paths."
    ]
    report = check({"nlp/a.py": WITHOUT_CLIP}, CLIP_CONFIG, "nlp/ds.json", "nlp/a.py", "recsys")
    assert [(each.kind, each.path) for each in report.findings] == [("missing", "clip.toml"), ("missing", "nlp/a.py")]
    assert check({}, CLIP_CONFIG, ".").counts.clips == 1, "one path covers both"


def test_a_link_to_a_clip_counts_for_its_path(check: Check, tmp_path: Path) -> None:
    (tmp_path / "vision").mkdir()
    (tmp_path / "vision" / "ds.json").symlink_to(tmp_path / "nlp" / "ds.json")
    assert check(FILES, CLIP_CONFIG, "nlp", "vision").counts.clips == 1


def test_a_file_that_inherits_its_clip_has_no_clip_of_its_own(check: Check) -> None:
    base = "SOLVER:\n  CLIP_GRADIENTS: {ENABLED: true, CLIP_TYPE: full_model, CLIP_VALUE: 1.0}\n"
    files = {"base.yaml": base, "a.yaml": "_BASE_: base.yaml\nSOLVER: {IMS_PER_BATCH: 2}\n"}
    assert check(files, CLIP_CONFIG, ".").findings == []
    finding = only_finding(check({}, CLIP_CONFIG, "a.yaml"))
    assert (finding.kind, "Also pass that file" in finding.does) == ("missing", True)


def test_a_required_pattern_without_a_clip_is_an_error_with_its_line(check: Check) -> None:
    clip = CLIP_CONFIG + REQUIRE.format("recsys/**")
    assert check(FILES, clip).findings == []
    place = 'clip.toml:8:1 check.require "recsys/**"'
    without = (
        f"{place} No file that matches 'recsys/**' has a clip (matching files: 1). Restore the clip, or remove the "
        "pattern from check.require."
    )
    assert texts(check({"recsys/train.py": WITHOUT_CLIP}, clip)) == [without]
    Path("recsys/train.py").unlink()
    gone = f"{place} No checked file matches 'recsys/**'. Remove the pattern, or correct it."
    assert texts(check({}, clip)) == [gone]


@pytest.mark.parametrize("glob", ["recsys", "recsys/"])
def test_a_required_directory_advises_its_files(check: Check, glob: str) -> None:
    assert only_finding(check(FILES, CLIP_CONFIG + REQUIRE.format(glob))).edit.startswith(
        'Write "recsys/**" for all files below'
    )


def test_a_pattern_for_files_outside_the_paths_is_a_note(check: Check) -> None:
    clip = CLIP_CONFIG + REQUIRE.format("recsys/*.py")
    note, _ = check(FILES, clip, "nlp").notes
    assert note == "check.require: 'recsys/*.py' is skipped, because no path that you passed contains it."
    report = check(
        {"recsys/ds.json": DEEPSPEED % "1.0"}, CLIP_CONFIG + REQUIRE.format("recsys/gone.py"), "nlp", "recsys"
    )
    assert only_finding(report).does == "No checked file matches 'recsys/gone.py'."


@pytest.mark.parametrize(
    ("format_", "start"), [("sarif", '"ruleId": "clip-missing"'), ("github", "::error file=clip.toml,line=1,")]
)
def test_a_missing_clip_is_in_every_report(
    check: Check, capsys: pytest.CaptureFixture[str], format_: str, start: str
) -> None:
    check({"a.py": WITHOUT_CLIP}, CLIP_CONFIG)
    assert cli.main(["config", "check", "clip.toml", ".", "--format", format_]) == 1
    assert start in capsys.readouterr().out


EACH = CLIP_CONFIG + '[check]\neach = ["research/*.py"]\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import optax\n\ntx = optax.adamw(1e-3)\n", 3),
        ("import torch\n\nopt = torch.optim.AdamW(model.parameters())\n", 3),
        ("from torch.optim import SGD\n\nopt = SGD(model.parameters())\n", 3),
        ("import keras\n\nopt = keras.optimizers.Adam(1e-3)\n", 3),
        ("import tensorflow as tf\n\nopt = tf.keras.optimizers.Adam(1e-3)\n", 3),
        ("import paddle\n\nopt = paddle.optimizer.AdamW(parameters=m.parameters())\n", 3),
        ("import torch\n\ns = torch.optim.lr_scheduler.StepLR(opt, 3)\n", 0),
        ("import torch\n\ns = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 3)\n", 0),
        ("import paddle\n\ns = paddle.optimizer.lr.StepDecay(0.1)\n", 0),
        ("import optax\n\nloss = optax.softmax_cross_entropy(x, y)\n", 0),
        ("import optax\n\ntx = optax.inject_hyperparams(optax.adam)(learning_rate=1e-3)\n", 3),
        ("import optax\n\ntx = optax.chain(optax.trace(0.9), optax.scale(-1e-3))\n", 3),
        ("import optax\n\ninit, update = optax.scale_by_adam()\n", 3),
        ("import keras\n\nmodel.compile('adam', loss='mse')\n", 3),
        ("import keras\n\nmodel.compile(loss='mse', optimizer='adam')\n", 3),
        ("import keras\n\nmodel.compile(loss='mse')\n", 3),
        ("import tensorflow as tf\nname = 'adam'\nmodel.compile(name, 'mse')\n", 3),
        ("import keras\nimport re\n\npattern = re.compile('adam')\nmodel.compile(optimizer)\n", 0),
        ("import torch\n\nmodel.compile('reduce-overhead')\n", 0),
        ("import keras\n\nopt = keras.optimizers.get('adam')\n", 3),
        ("import tensorflow as tf\n\nopt = tf.keras.optimizers.legacy.Adam(1e-3)\n", 3),
        ("import tensorflow as tf\n\nopt = tf.compat.v1.train.AdamOptimizer(1e-3)\n", 3),
        ("import torch\n\nopt = getattr(torch.optim, name)(m.parameters())\n", 3),
        ("import torch\n\nopt = torch.optim.__dict__[name](m.parameters())\n", 3),
        ("import torch\n\nOPTIMIZERS = {'adam': torch.optim.Adam}\n", 3),
        ("import bitsandbytes as bnb\n\nopt = bnb.optim.AdamW8bit(m.parameters())\n", 3),
        ("from prodigyopt import Prodigy\n\nopt = Prodigy(m.parameters())\n", 3),
        ("from transformers import Adafactor\n\nopt = Adafactor(m.parameters())\n", 3),
        ("from timm.optim import create_optimizer_v2\n\nopt = create_optimizer_v2(model, opt='adamw')\n", 3),
        ("import hydra\n\nopt = hydra.utils.instantiate(cfg.optimizer, params=m.parameters())\n", 3),
        ("import hydra\n\nscheduler = hydra.utils.instantiate(cfg.scheduler, optimizer=optimizer)\n", 0),
        ("class M:\n    def configure_optimizers(self):\n        return self.hparams.optimizer(params=self.p())\n", 3),
        ("import lightning as L\n\nL.Trainer(max_epochs=1).fit(model)\n", 3),
        ("import lightning as L\n\nL.Trainer(max_epochs=1).test(model)\n", 0),
        ("def train(model, optimizer):\n    model(x).backward()\n    optimizer.step()\n", 3),
        ("loss.backward()\nx.data += lr * x.grad\nx.add_(x.grad, alpha=lr)\nmean -= p.grad\nx -= lr * y\n", 0),
        ("p.data -= lr * p.grad\n", 0),
        ("def train(env, optimizer):\n    env.step(x)\n    optimizer.step()\n", 0),
        ("from scipy import optimize\n\nx = optimize.minimize(f, x)\n", 0),
        ("def train(engine):\n    engine.backward(loss)\n    engine.step()\n", 0),
        ("import torch\n\ndef f(o: torch.optim.Adam) -> torch.optim.SGD:\n    isinstance(o, torch.optim.Adam)\n", 0),
        ("import torch\n\nclass Adam(torch.optim.Adam):\n    pass\n", 0),
        ("import torch\n\nT = TypeVar('T', bound=torch.optim.Adam)\n", 0),
        ("import torch\n\nT = Union[torch.optim.Adam, torch.optim.SGD]\n", 0),
        ("import torch\n\nT = torch.optim.Adam | torch.optim.SGD\n", 0),
        ("import torch\n\nasync def f() -> torch.optim.Adam:\n    pass\n", 0),
        ("import torch\n\nmatch o:\n    case torch.optim.Adam():\n        pass\n", 0),
        ("import torch\n\nOPTIMIZERS = {'adam': torch.optim.Adam} | MORE\n", 3),
        ("import torch\n\nopt = cast(Any, torch.optim.Adam(m.parameters()))\n", 3),
        ("rate = cfg.optimizer.LR\nuses_sgd = args.SGD\n", 0),
        ("def f(self):\n    self.optimizer = self.hparams.Adam(p)\n", 2),
        ("from models import LionModel, AdamMixin\n\nmodel = LionModel()\n", 0),
        ("import zeep\nfrom a import AdanLoss, AdamTest\n\nc, l, t = zeep.SOAPClient(u), AdanLoss(), AdamTest()\n", 0),
        ("camera, rangers = CAMERA(0), Rangers()\n", 0),
        ("import schedulefree\n\nopt = schedulefree.RAdamScheduleFree(m.parameters())\n", 3),
        ("import optax\n\nopt = optax.contrib.schedule_free_adamw(1e-3)\n", 3),
        ("import optax\n\nparams = optax.contrib.schedule_free_eval_params(state, params)\n", 0),
        ("import optax\n\nopt = optax.polyak_sgd()\n", 3),
        ("from ranger21 import Ranger21\n\nopt = Ranger21(m.parameters())\n", 3),
        ("from torch_optimizer import Yogi\n\nopt = Yogi(m.parameters())\n", 3),
        ("from came_pytorch import CAME\n\nopt = CAME(m.parameters())\n", 3),
        ("from madgrad import MADGRAD\n\nopt = MADGRAD(m.parameters())\n", 3),
        ("import keras\n\nkeras.Sequential([]).compile('adam')\n", 3),
        ("import keras\n\nmodel.compile('adam' if fast else 'sgd')\n", 3),
        ("import keras\n\nmodel.compile(optimizer=name or {'class_name': 'adam'})\n", 3),
        ("import keras\n\nmodel.compile(first if name == 'adam' else second)\n", 0),
        ("from sklearn.linear_model import SGDClassifier\n\nmodel = SGDClassifier()\n", 0),
        ("import torch\n\nopt = torch.optim.AdamW(m.parameters())\n" + TORCH % "1.0", 0),
    ],
)
def test_each_file_that_trains_has_to_clip(check: Check, text: str, line: int) -> None:
    files = {"research/a.py": text, "research/b.py": TORCH % "1.0", "other.py": "import optax\n\no = optax.sgd(1.0)\n"}
    findings = check(files, EACH).findings
    assert [(each.path, each.line, each.kind) for each in findings] == [("research/a.py", line, "missing")] * bool(line)


@pytest.mark.parametrize(
    ("setting", "kind"),
    [("max_grad_norm=limit", "unknown"), ("clip_range=r", "missing"), ("max_grad_norm=None", "missing")],
)
def test_a_file_that_passes_on_a_setting_like_a_clip_is_unknown(check: Check, setting: str, kind: str) -> None:
    source = f"import torch\n\nppo = PPO(torch.optim.Adam(m.parameters()), {setting})\n"
    finding = only_finding(check({"research/a.py": source, "b.py": TORCH % "1.0"}, EACH))
    assert (finding.kind, setting in finding.does) == (kind, kind == "unknown")


def test_a_file_that_calls_a_function_with_a_clip_does_not_have_to_clip(check: Check) -> None:
    optimizer = "import optax\n\n\ndef make_optimizer(rate):\n    return optax.chain({}optax.adam(rate))\n"
    train = "from optimizer import make_optimizer\n\ntx = make_optimizer(1e-3)\n"
    files = {"optimizer.py": optimizer.format("optax.clip_by_global_norm(1.0), "), "research/train.py": train}
    clip = f'{EACH}nearest = ["**"]\n'
    assert check(files, clip).findings == []
    files["research/train.py"] = "def make_optimizer(rate):\n    return Rates(rate)\n\n\nopt = get_optimizer(1)\n"
    assert only_finding(check(files, clip)).path == "research/train.py"
    files |= {"research/train.py": train, "optimizer.py": optimizer.format("") + "\n\n" + TORCH % "1.0"}
    assert only_finding(check(files, clip)).does == "The file builds an optimizer with make_optimizer, and has no clip."


@pytest.mark.parametrize(
    ("code", "kinds"),
    [("def train():\n    {}", ["missing"]), ("class Model(Base):\n    def train(self):\n        {}", [])],
    ids=["function", "method"],
)
def test_a_call_of_a_method_is_no_call_of_a_function_with_its_name(check: Check, code: str, kinds: list[str]) -> None:
    clip = "torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)\n"
    training = "model.train()\nloss.backward()\noptimizer.step()\n"
    files = {"b.py": f"import torch\n\n\n{code.format(clip)}", "research/a.py": training}
    assert [each.kind for each in check(files, f'{EACH}nearest = ["**"]\n').findings] == kinds


@pytest.mark.parametrize(("approved", "kept"), [
    ("", []),
    ('rule = "none"\n', []),
    ("threshold = 1.0\n", ["missing"]),
    ('clip = "optax.clip"\n', ["missing", "unused"]),
])  # fmt: skip
def test_an_entry_of_ignore_accepts_a_file_that_trains_without_a_clip(
    check: Check, approved: str, kept: list[str]
) -> None:
    files = {"research/a.py": "import optax\n\ntx = optax.adam(1e-3)\n", "research/b.py": TORCH % "1.0"}
    report = check(files, EACH + IGNORE.format("research/a.py") + approved)
    assert sorted(each.kind for each in report.findings) == kept
    assert [each.path for each in report.ignored] == ([] if kept else ["research/a.py"])


def test_a_path_for_other_tools_needs_no_clip_beside_a_path_with_one(check: Check) -> None:
    files = {
        ".github/workflows/ci.yml": "jobs: {test: {steps: [run: pytest]}}\n",
        "a.py": TORCH % "1.0",
        "b.py": "x = 1\n",
    }
    report = check(files, CLIP_CONFIG, "a.py", ".github")
    assert report.findings == []
    assert ".github has no clip. No clip is needed, since no trainer reads this path." in report.notes
    assert [each.clip for each in check(files, CLIP_CONFIG, "b.py", ".github").findings] == [
        "PATH b.py",
        "PATH .github",
    ]
    workflow = {".github/workflows/ci.yml": "jobs: {test: {steps: [run: python t.py --clip-grad-norm 5]}}\n"}
    assert only_finding(check(files | workflow, CLIP_CONFIG, "a.py", ".github")).kind == "unknown"


def test_the_headline_counts_findings_without_a_clip_apart_from_clips(check: Check) -> None:
    clip = CLIP_CONFIG + REQUIRE.format("gone.py") + 'nearest = ["nothing.py"]\n'
    files = {"a.py": TORCH % "1.0", "b.py": TORCH % "args.limit", "c.py": TORCH % "2.0"}
    unused = "1 rule of [check] without effect."
    headline = f"3 clips: 1 as in clip.toml, 1 not as in clip.toml, 1 unknown. Also: 2 missing, {unused}"
    assert check(files, clip).headline == headline
    assert check(dict.fromkeys(files, "x = 1\n"), clip).headline == f"0 clips: 3 missing, {unused}"
