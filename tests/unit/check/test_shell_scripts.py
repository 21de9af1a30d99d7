"""`unified-clip config check` on shell scripts with several commands."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, Check

MEGATRON = "torchrun pretrain_gpt.py --micro-batch-size 2 --train-iters 100 --clip-grad {}\n"
FAIRSEQ = "fairseq-train data --arch transformer --clip-norm {}\n"
OTHER = "python train.py --max_grad_norm {}\n"


def test_every_command_of_a_script_is_checked(check: Check) -> None:
    script = MEGATRON.format(1.0) + FAIRSEQ.format(2.0) + OTHER.format(1.0) + OTHER.format(1.0)
    findings = check({"run.sh": script}).findings
    assert [(each.line, each.kind, each.clip) for each in findings] == [
        (2, "drift", "fairseq: clip-norm"),
        (3, "unknown", "max_grad_norm = 1.0"),
        (4, "unknown", "max_grad_norm = 1.0"),
    ], "two equal clips in one file are two clips"


def test_two_clips_in_one_line_are_two_clips(check: Check) -> None:
    findings = check({"run.sh": "python train.py --max_grad_norm 1.0 --clip_norm 1.0\n"}).findings
    assert [each.clip for each in findings] == ["max_grad_norm = 1.0", "clip_norm = 1.0"]


def test_different_values_of_an_option_are_unknown(check: Check) -> None:
    findings = check({"run.sh": OTHER.format(0.5) + OTHER.format(0.7)}).findings
    assert [(each.line, each.kind) for each in findings] == [(1, "unknown"), (2, "unknown")]
    (finding,) = check({"run.sh": MEGATRON.format(0.5) + MEGATRON.format(1.0)}).findings
    assert finding.kind == "unknown"


@pytest.mark.parametrize(
    ("script", "lines"),
    [
        ("python train.py trainer.gradient_clip_val=0.5 seed=1\n", [1]),
        ("python train.py \\\n  +optimization.clip_norm=2.0  # trainer.grad_clip=1\n", [2]),
        ("python train.py trainer.gradient_clip_val=null\nNORM=1.0\n", [1]),
        ("tune run full_finetune --config a.yaml clip_grad_norm=5.0\n", [1]),
        ("tune run full_finetune --config a.yaml clip_grad_norm=null\n", [1]),
        ("tune run full_finetune --config a.yaml ~clip_grad_norm\n", [1]),
        ("paddleformers-cli train a.yaml max_grad_norm=0.5 'x.grad_clip=1'\n", [1, 1]),
        ("export M_GRADIENT_CLIPPING_THRESHOLD=0.5\npython -m MaxText.train base.yml\n", [1]),
        ("CLIP_NORM=1.0\npython train.py clip_norm=${CLIP_NORM:-0.5}\n", [2]),
        ("python train.py ~/clip.py ~/clip_grad_norm seed=1 data.clip=3\n", []),
        ("fairseq-hydra-train optimization.clip_norm=1.0 optimization.max_update=9\n", []),
    ],
)
def test_an_override_of_a_nested_clip_key_is_unknown(check: Check, script: str, lines: list[int]) -> None:
    report = check({"run.sh": script, "ds.json": DEEPSPEED % "1.0"})
    assert [each.line for each in report.findings] == lines
    assert {each.kind for each in report.findings} <= {"unknown"}
    assert not any("'" in each.clip for each in report.findings), "a value is a number, not text"


@pytest.mark.parametrize(
    ("script", "lines"),
    [
        ("python train.py fit --config a.yaml --trainer.gradient_clip_val 0.3\n", [1]),
        ("python train.py fit \\\n  --trainer.gradient_clip_val=0.3 --x 1\n", [2]),
        ('python train.py fit "--optim.clip_grad=0.3" --optim.clip_grad 0.4\n', [1, 1]),
        ("python train.py --verbose --trainer.gradient_clip_val \\\n  0.3\n", [1]),
        ("python train.py --trainer.max_epochs 9 --optim.lr=0.3 --data.clip_length 3\n", []),
    ],
)
def test_an_option_of_a_nested_clip_key_is_unknown(check: Check, script: str, lines: list[int]) -> None:
    report = check({"run.sh": script, "ds.json": DEEPSPEED % "1.0"})
    assert [(each.line, each.kind) for each in report.findings] == [(line, "unknown") for line in lines]


def test_an_option_of_a_nested_key_does_not_hide_the_options_of_a_trainer(check: Check) -> None:
    script = MEGATRON.format(2.0) + "python train.py --trainer.gradient_clip_val 1.0\n"
    findings = check({"run.sh": script}).findings
    assert [(each.line, each.kind, each.clip) for each in findings] == [
        (1, "drift", "Megatron-LM: clip-grad"),
        (2, "unknown", "trainer.gradient_clip_val = 1.0"),
    ]


def test_a_script_whose_command_reads_a_yaml_file_is_a_note(check: Check) -> None:
    report = check({"run.sh": "fairseq-hydra-train --config-name base --lr 1\n", "ds.json": DEEPSPEED % "1.0"})
    assert report.findings == []
    assert "run.sh sets no clip: run.sh: fairseq-hydra-train takes clip_norm from a YAML file" in report.notes[0]


@pytest.mark.parametrize(
    ("script", "kinds"),
    [
        ("torchrun -m torchtitan.train --training.max_norm {}", ["drift"]),
        ("torchrun -m torchtitan.train --training.max_norm={}", ["drift"]),
        ('overrides="--training.max_norm={}"\ntorchrun -m torchtitan.train $overrides', ["drift"]),
        ('ARGS=(\n  --training.max_norm {}\n)\nbash run.sh "${{ARGS[@]}}"', ["drift"]),
        ("python -m MaxText.train base.yml steps=9 gradient_clipping_threshold={}", ["drift"]),
        ('CMD="python -m MaxText.train gradient_clipping_threshold=\\"{}\\""', ["drift"]),
        ("CLIP={}\npython -m MaxText.train gradient_clipping_threshold=$CLIP", ["drift"]),
        ("CLIP={}\npython pretrain_gpt.py --lr 0.1 --micro-batch-size 2 --clip-grad $CLIP", ["drift"]),
        ("python -m MaxText.train gradient_clipping_threshold=${{CLIP:-{}}}", ["unknown"]),
        ("CLIP=${{CLIP:-{}}}\npython -m MaxText.train gradient_clipping_threshold=${{CLIP}}", ["unknown"]),
        ("CLIP={0}\nCLIP={0}9\npython -m MaxText.train gradient_clipping_threshold=$CLIP", ["unknown"]),
        ("python -m MaxText.train ~gradient_clipping_threshold x={}", ["unknown"]),
        ("onmt_train -config a.yaml -max_grad_norm {} -optim adam", ["unknown"]),
    ],
)
def test_a_key_of_one_trainer_on_a_command_line_is_compared(check: Check, script: str, kinds: list[str]) -> None:
    nearest = CLIP_CONFIG + '[check]\nnearest = ["**"]\n'
    findings = check({"run.sh": script.format("0.5"), "ds.json": DEEPSPEED % "1.0"}, nearest).findings
    assert [each.kind for each in findings] == kinds
    report = check({"run.sh": script.format("1.0"), "ds.json": DEEPSPEED % "1.0"}, nearest)
    assert [each.kind for each in report.findings] == [kind for kind in kinds if kind == "unknown"]


@pytest.mark.parametrize("line", [
    "python train_net.py --config-file a.yaml SOLVER.CLIP_GRADIENTS.CLIP_VALUE 5.0",
    "python main.py --opts TRAIN.EPOCHS 3 TRAIN.CLIP_GRAD $CLIP",
    "python train_net.py SOLVER.CLIP_GRADIENTS.ENABLED False  # SOLVER.CLIP_GRADIENTS.CLIP_VALUE 5.0",
    "echo 'max_grad_norm: 5.0' > a.yaml",
    'echo -e "max_grad_norm: 5.0" >> a.yaml',
    "echo '{\"gradient_clipping\":5.0, \"steps\": 3}' > ds.json",
    'echo "{\\"gradient_clipping\\": $CLIP}" > ds.json',
    'cat > ds.json <<EOF\n{"zero_optimization": {"stage": 1}, "gradient_clipping": 5.0}\nEOF',
    'python train.py --optimizer \'{"name": "adamw", "clip_norm": 5.0}\'',
])  # fmt: skip
def test_a_setting_after_its_key_is_unknown(check: Check, line: str) -> None:
    (finding,) = check({"run.sh": line + "\n", "ds.json": DEEPSPEED % "1.0"}).findings
    assert (finding.path, finding.kind) == ("run.sh", "unknown")


def test_text_that_names_a_key_is_no_setting(check: Check) -> None:
    script = "# SOLVER.CLIP_GRADIENTS.CLIP_VALUE 5.0\necho See SOLVER.CLIP_GRADIENTS for max_grad_norm: 5.0\n"
    assert check({"run.sh": script, "ds.json": DEEPSPEED % "1.0"}).findings == []


def test_a_script_of_megatron_that_does_not_train_has_no_clip(check: Check) -> None:
    script = "torchrun {}.py --micro-batch-size 2 --num-layers 2 --bf16{}\n"
    files = {"generate.sh": script.format("generate", ""), "train.sh": script.format("train", " --train-iters 9")}
    report = check(files, CLIP_CONFIG.replace("1.0", "0.5"))
    assert [(each.path, each.kind) for each in report.findings] == [("train.sh", "drift")]


@pytest.mark.parametrize("name", ["job.sbatch", "job.slurm", "Makefile", "rules.mk", "run.bash"])
def test_files_with_commands_are_read_as_shell_scripts(check: Check, name: str) -> None:
    report = check({name: "train:\n\ttune run full --config a.yaml clip_grad_norm=5.0\n", "ds.json": DEEPSPEED % "1.0"})
    assert [(each.path, each.line, each.kind) for each in report.findings] == [(name, 2, "unknown")]


@pytest.mark.parametrize(
    ("text", "line", "kind"),
    [
        ("kind: Job\nspec:\n  args: [--job.config_file=a.toml, --training.max_norm=5.0]\n", 3, "drift"),
        ("kind: Job\nspec:\n  args:\n  - --training.max_norm\n  - '5.0'\n", 3, "drift"),
        (
            "kind: Job\nspec:\n  args:\n  - |\n    tune run full --config a.yaml \\\n    clip_grad_norm=5.0\n",
            3,
            "unknown",
        ),
    ],
)
def test_the_command_line_of_a_job_in_yaml_is_checked(check: Check, text: str, line: int, kind: str) -> None:
    findings = check({"job.yaml": text, "ds.json": DEEPSPEED % "1.0"}).findings
    assert [(each.line, each.kind) for each in findings] == [(line, kind)]


@pytest.mark.parametrize(
    ("script", "line", "clip"),
    [
        ('EXTRA="trainer.gradient_clip_val=0.5"\npython train.py $EXTRA\n', 1, "trainer.gradient_clip_val = 0.5"),
        ("python train.py --hparams=grad_clip=0.5\n", 1, "grad_clip = 0.5"),
        ("cat > c.yml <<EOF\nlr: 1\nmax_grad_norm: 0.1\nEOF\n", 3, "max_grad_norm = 0.1"),
        ("cat > c.yml <<EOF\nmax_grad_norm: $NORM\nEOF\n", 2, "max_grad_norm = $NORM"),
    ],
)
def test_a_setting_that_a_script_passes_or_writes_is_unknown(check: Check, script: str, line: int, clip: str) -> None:
    findings = check({"run.sh": script, "ds.json": DEEPSPEED % "1.0"}).findings
    assert [(each.line, each.kind, each.clip) for each in findings] == [(line, "unknown", clip)]


@pytest.mark.parametrize(
    "script",
    [
        "sed 's/max_grad_norm//' c.yml | head\n",
        'EXTRA="trainer.devices=8"\npython train.py $EXTRA\n',
        "clip_norm: $(OBJECTS)\n\techo done\n",
    ],
)
def test_scripts_without_a_clip_setting_have_no_finding(check: Check, script: str) -> None:
    assert check({"run.sh": script, "Makefile": script, "ds.json": DEEPSPEED % "1.0"}).findings == []


def test_a_variable_is_not_called_an_option(check: Check) -> None:
    for script in ("export MAX_GRAD_NORM=0.1\npython train.py\n", "MAX_GRAD_NORM=0.1 python train.py\n"):
        (finding,) = check({"run.sh": script, "ds.json": DEEPSPEED % "1.0"}).findings
        assert finding.does.startswith("This variable is named like a clip setting")


@pytest.mark.parametrize(("name", "lines"), [("MAX_GRAD_NORM", [7]), ("SEED", [])])
def test_a_variable_of_a_container_in_yaml_is_unknown(check: Check, name: str, lines: list[int]) -> None:
    job = "spec:\n  kind: Job\n  containers:\n  - name: max_grad_norm\n    image: a\n    env:\n    - name: {}\n"
    job += "      value: '0.1'\n"
    report = check({"job.yaml": job.format(name), "ds.json": DEEPSPEED % "1.0"})
    assert [(each.line, each.kind) for each in report.findings] == [(line, "unknown") for line in lines]


HALF = 'rule = "global_norm"\nthreshold = 0.5\n'
COMMAND = "NPROC_PER_NODE=2 \\\nswift sft \\\n  --model m  # --max_grad_norm 9\n"


@pytest.mark.parametrize(
    ("script", "clips"),
    [
        (COMMAND, [(2, "drift", "Hugging Face's TrainingArguments by default: swift sft without --max_grad_norm")]),
        ("megatron pt\n", [(1, "drift", "Megatron-LM by default: megatron pt without --clip_grad")]),
        ("swift sft --max_grad_norm 0.5\n", []),
        ("trl dpo --lr 1 \\\n --max_grad_norm 0.5\n", []),
        ("megatron rlhf --clip_grad 0.5\n", []),
        ("swift pt --max_grad_norm=2\n", [(1, "drift", "Hugging Face's TrainingArguments: max_grad_norm")]),
        ("megatron sft --clip-grad 2\n", [(1, "drift", "Megatron-LM: clip-grad")]),
        ("trl sft --max_grad_norm $NORM\n", [(1, "unknown", "Hugging Face's TrainingArguments: max_grad_norm")]),
        ("swift sft sft.yaml\ntrl sft --config=sft.yaml\n", []),
        ("# swift sft\nswift infer --model m\nmv swift sft.txt\npython tools/swift sft\n", []),
        ('ARGS="--max_grad_norm 0.5"\nswift sft $ARGS\n', [(1, "unknown", "max_grad_norm = 0.5")]),
        (
            "python train.py --max_grad_norm 0.5\nswift sft --max_grad_norm 0.5\n",
            [(1, "unknown", "max_grad_norm = 0.5")],
        ),
    ],
)  # fmt: skip
def test_a_command_of_an_installed_trainer_clips_by_its_option_or_its_default(
    check: Check, script: str, clips: list[tuple[int, str, str]]
) -> None:
    report = check({"run.sh": script, "ds.json": DEEPSPEED % "0.5"}, HALF)
    assert [(each.line, each.kind, each.clip) for each in report.findings if each.path == "run.sh"] == clips


def test_the_edit_of_a_command_shows_the_option(check: Check) -> None:
    (finding,) = check({"run.sh": COMMAND}, HALF).findings
    assert "swift sft --max_grad_norm 0.5" in finding.edit


def test_a_script_that_sets_clip_grad_beside_a_sourced_file_is_known(check: Check) -> None:
    script = "source ./a.sh\ntorchrun pretrain_gpt.py $A --lr 1 --micro-batch-size 1 --num-layers 2 --clip-grad 1.0\n"
    assert check({"a.sh": script}).findings == []


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            "accelerate launch --num_processes 8 \\\n  train.py --max_grad_norm 0.5\n",
            "The command passes this option to train.py, which is not checked.",
        ),
        ("python train.py --max-grad-norm 0.5\n", "The command passes this option to train.py, which is not checked."),
        ("accelerate launch --gradient_clipping 0.5 train.py\n", "A command line or a script sets this key, and"),
        ("python train.py\nmine train --max_grad_norm 0.5\n", "A command line or a script sets this key, and"),
    ],
)
def test_the_reason_names_the_script_that_gets_an_option(check: Check, script: str, why: str) -> None:
    (finding,) = check({"run.sh": script}).findings
    assert finding.kind == "unknown"
    assert finding.does.startswith(why)
    (finding,) = check({"run.sh": script, "train.py": "print()\n"}).findings
    assert finding.does.startswith(why.replace("which is not checked.", "").rstrip(", "))
    assert "not checked" not in finding.does


ARRAYS = """ARGS=(
    --micro-batch-size 2 --train-iters 100  # (short)
    --clip-grad 0.5
)
MODEL=(--num-layers $(cat layers))
{}
"""
RUN = "torchrun pretrain_gpt.py --micro-batch-size 2 --lr 1.0 ${MODEL[@]} "


@pytest.mark.parametrize(
    ("command", "clips"),
    [
        (RUN, [(1, "Megatron-LM by default: clip-grad is not set")]),
        (RUN + '"${ARGS[@]}"', [(3, "Megatron-LM: clip-grad")]),
        (RUN + "$ARGS", [(3, "Megatron-LM: clip-grad")]),
        (RUN + '# "${ARGS[@]}"', [(1, "Megatron-LM by default: clip-grad is not set")]),
        (RUN + "$ARGS_OF_MODEL", [(1, "Megatron-LM by default: clip-grad is not set")]),
        ("echo $MODEL", [(3, "Megatron-LM: clip-grad")]),
    ],
)
def test_an_array_counts_only_if_a_command_may_expand_it(
    check: Check, command: str, clips: list[tuple[int, str]]
) -> None:
    """A script without a command for training can be sourced by another script."""
    assert [(each.line, each.clip) for each in check({"run.sh": ARRAYS.format(command)}).clips] == clips
