"""Files that `unified-clip config check` reads: formats, encodings, sizes, links, and inherited files."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, TORCH, Check, only_finding

from unified_clip.check import files_to_check


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("own.yaml", "train:\n  grad_clip: 5.0\n", "not in the format of a known trainer"),
        ("list.yaml", "train:\n  grad_clip: [0, 5.0]\n", "not in the format of a known trainer"),
        ("table.yaml", "train:\n  grad_clip: {by: norm, limit: 5.0}\n", "not in the format of a known trainer"),
        ("args.json", '{"output_dir": "o", "num_train_epochs": 3}', 'Set "**/args.json" in check.formats'),
        ("ds.json", '{"zero_optimization": {"stage": 2}}', ', set "**/ds.json" to "deepspeed@'),
        ("broken.yaml", "max_grad_norm: [1.0\n", "this is not YAML"),
        ("misplaced.yaml", "output_dir: o\neval_strategy: no\ntraining:\n  max_grad_norm: 1.0\n", "does not read this"),
    ],
)
def test_what_cannot_be_read_is_unknown_and_not_the_same(check: Check, name: str, text: str, why: str) -> None:
    finding = only_finding(check({name: text}))
    assert finding.kind == "unknown"
    assert why in finding.does


@pytest.mark.parametrize("source", [b"# caf\xe9\nimport torch\n", b"import torch\n# caf\xe9\n"])
def test_python_source_that_cannot_be_decoded_is_unknown_and_other_files_are_checked(
    check: Check, source: bytes
) -> None:
    Path("a.py").write_bytes(source + b"torch.nn.utils.clip_grad_norm_(p, 1.0)\n")
    report = check({"b.py": TORCH % "1.0"})
    assert [(clip.path, clip.result) for clip in report.clips] == [("a.py", "unknown"), ("b.py", "same")]
    assert "cannot be decoded" in only_finding(report).does


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("zero.json", '{"zero_optimization": {"stage": 2}, "gradient_clipping": "auto"}'),
        ("fsdp.yaml", "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config: {}\n"),
        ("debug.yaml", "# @package _global_\ntrainer:\n  max_epochs: 3\n  limit_train_batches: 0.01\n"),
        ("ddp.yaml", "# @package _global_\ndefaults:\n- override /trainer: ddp\ntrainer: {max_epochs: 3}\n"),
    ],
)
def test_a_file_that_leaves_the_clip_to_others_is_a_note(check: Check, name: str, text: str) -> None:
    report = check({name: text, "train.py": TORCH % "1.0"})
    assert report.findings == []
    assert [note.partition(":")[0] for note in report.notes] == [f"{name} sets no clip"]
    finding = only_finding(check({name: text}, CLIP_CONFIG, name))
    assert finding.kind == "missing"
    assert f" The clip of {name} is set in another file or in the training script" in finding.does


def test_formats_that_cannot_be_inferred_are_named_in_the_configuration(check: Check) -> None:
    files = {"configs/ds.json": '{"zero_optimization": {"stage": 2}}'}
    assert only_finding(check(files)).kind == "unknown"
    formats = '\n[check.formats]\n"configs/*.json" = "deepspeed@0.19.6"\n'
    assert check(files, CLIP_CONFIG + formats).findings == []
    assert only_finding(check(files, CLIP_CONFIG + formats.replace("0.19.6", "0.18.0"))).kind == "drift"


def test_a_large_file_is_unknown_if_its_text_names_a_clip(check: Check) -> None:
    data = '{"clip": "' + "x" * files_to_check.MAX_BYTES + '"}'
    report = check({"a.py": TORCH % "1.0", "data.json": data})
    assert (report.counts.unread, report.findings) == (1, [])
    assert report.notes == ["data.json is not read. It is larger than 1 MiB. The file mentions no clip."]
    finding = only_finding(check({"a.py": TORCH % "1.0", "run.json": data.replace("clip", "grad_clip")}))
    assert (finding.kind, finding.path) == ("unknown", "run.json")
    assert finding.does.startswith("The file is not read. It is larger than 1 MiB. Split the file, or compare")


@pytest.mark.parametrize("name", ["gradient_clip_val", "CLIP_GRADIENTS", "clipnorm", "max_grad_norm", "ClipGradByNorm"])
def test_names_of_clips_are_found_in_files_that_are_not_read(check: Check, name: str) -> None:
    finding = only_finding(check({"notes.txt": f"{name} 1.0"}, CLIP_CONFIG, "notes.txt"))
    assert (finding.kind, finding.path) == ("unknown", "notes.txt")
    assert only_finding(check({"empty.txt": ""}, CLIP_CONFIG, "empty.txt")).kind == "missing"
    assert only_finding(check({"notes.txt": "a video clip"}, CLIP_CONFIG, "notes.txt")).kind == "missing"


@pytest.mark.parametrize(
    ("name", "clip"),
    [
        ("DS.JSON", "DeepSpeed: gradient_clipping"),
        ("Train.PY", "torch.nn.utils.clip_grad_norm_"),
        ("hf.YAML", "max_grad_norm = 2.0"),
        ("Run.SH", "max_grad_norm = 2.0"),
    ],
)
def test_suffixes_in_upper_case_are_read(check: Check, name: str, clip: str) -> None:
    texts = {"DS.JSON": DEEPSPEED % "2.0", "Train.PY": TORCH % "2.0", "hf.YAML": "do_train: true\nmax_grad_norm: 2.0\n"}
    assert only_finding(check({name: texts.get(name, "python train.py --max_grad_norm 2.0\n")})).clip == clip


BOTH = '{"zero_optimization": {"stage": 2}, %s"output_dir": "o", "eval_strategy": "no", "max_grad_norm": 1.0}'


def test_a_file_of_two_formats_is_unknown_unless_both_mean_the_same(check: Check) -> None:
    assert check({"both.json": BOTH % '"gradient_clipping": 1.0, '}).findings == []
    for clip in ('"gradient_clipping": 2.0, ', ""):  # they differ, or DeepSpeed's depends on the version
        finding = only_finding(check({"both.json": BOTH % clip}))
        assert (finding.kind, finding.line) == ("unknown", 1)
        assert finding.does.startswith("The format of the file is unclear: deepspeed or hf. ")


def test_arguments_of_hugging_face_are_recognised_by_their_common_keys(check: Check) -> None:
    common = "output_dir: o\nlearning_rate: 1.0e-5\nnum_train_epochs: 1\nper_device_train_batch_size: 2\n"
    finding = only_finding(check({"sft.yaml": f"{common}max_grad_norm: 2.0\n"}))
    assert (finding.kind, finding.clip) == ("drift", "Hugging Face's TrainingArguments: max_grad_norm")
    assert check({"sft.yaml": common}).findings == [], "its default is 1"
    both = only_finding(check({"sft.yaml": f"{common}finetuning_type: lora\nmax_grad_norm: 2.0\n"}))
    assert both.clip == "LLaMA-Factory: max_grad_norm"
    paddle = check(
        {"sft.yaml": f"{common}tensor_parallel_degree: 2\nmax_grad_norm: 1.0\n"},
        CLIP_CONFIG.replace("pytorch", "paddle"),
    )
    assert paddle.findings == [], "PaddleNLP's own key decides"


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (TORCH % "1.0" + "def (\n", 4, "Line 4 is not valid Python"),
        (TORCH % "1.0" + "print 'done'\n", 4, "Line 4 is not valid in Python 3, and the file seems to be Python 2."),
    ],
)
def test_source_that_is_not_valid_and_names_a_clip_is_unknown(check: Check, text: str, line: int, why: str) -> None:
    finding = only_finding(check({"a.py": TORCH % "1.0", "bad.py": text, "other.py": "def (\n"}))
    assert (finding.kind, finding.path, finding.line) == ("unknown", "bad.py", line)
    assert finding.does.startswith(why)


@pytest.mark.parametrize("target", ["self.json", "gone.json"])
def test_a_link_that_cannot_be_read_is_unknown(check: Check, tmp_path: Path, target: str) -> None:
    (tmp_path / "self.json").symlink_to(target)
    report = check({"a.py": TORCH % "1.0"})
    assert (only_finding(report).kind, only_finding(report).path, report.counts.unread) == ("unknown", "self.json", 1)
    assert only_finding(report).does.startswith("The file is not read. The reason: ")


def test_a_file_in_utf_16_is_unknown(check: Check, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(DEEPSPEED % 2.0, encoding="utf-16")
    finding = only_finding(check({"a.py": TORCH % "1.0"}))
    assert (finding.kind, finding.path) == ("unknown", "ds.json")
    assert "not UTF-8" in finding.does


DETECTRON2 = "SOLVER:\n  IMS_PER_BATCH: 16\n"

CLIP = "  CLIP_GRADIENTS: {ENABLED: true, CLIP_TYPE: full_model, CLIP_VALUE: 1.0}\n"


def test_an_inherited_clip_is_reported_once_where_it_stands(check: Check) -> None:
    files = {
        "base.yaml": DETECTRON2 + CLIP.replace("1.0", "5.0"),
        "a.yaml": "_BASE_: base.yaml\n" + DETECTRON2,
        "b.yaml": "_BASE_: base.yaml\n" + DETECTRON2,
        "c.yaml": "_BASE_: base.yaml\n" + DETECTRON2 + CLIP,
    }
    report = check(files)
    assert [(each.path, each.line) for each in report.findings] == [("base.yaml", 3)]
    assert (report.counts.trainers, report.counts.clips) == (4, 2)
    assert report.notes[0].startswith(
        "a.yaml and 1 more file set no clip: the file inherits settings from other files, "
    )
