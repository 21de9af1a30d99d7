"""`unified_clip.record`: the lines of its file, how steps count, which options it rejects, and crashes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import unified_clip
import unified_clip.numpy as uc
from unified_clip import ClipWarning
from unified_clip._core import observer
from unified_clip.compare import recordings as compare
from unified_clip.compare.report import sentences
from unified_clip.recording import runs

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}


def clip() -> Any:
    return uc.clip_grad_norm_([np.array([3.0, 4.0], np.float32)], 1.0)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def test_the_first_line_has_the_version_and_the_options(path: Path) -> None:
    with unified_clip.record(path, norms=True, gradients_every=7):
        clip()
    header, _ = read_lines(path)
    assert header["unified_clip"] == unified_clip.__version__
    assert header["schema"] == 3
    assert header["started"].endswith("Z")
    assert (header["norms"], header["gradients_every"]) == (True, 7)


@pytest.mark.parametrize(("threshold", "clipped"), [(9.0, False), (1.0, True)])
def test_a_clip_per_tensor_has_a_coefficient_for_each_gradient(path: Path, threshold: float, clipped: bool) -> None:
    config = unified_clip.ClipConfig(rule="norm", family="paddle", threshold=threshold).clipper()
    with unified_clip.record(path):
        config.clip_([np.array([3.0, 4.0], np.float32), np.ones(1, np.float32)])
    _, line = read_lines(path)
    assert line["coef"] == [0.2 if clipped else 1.0, 1.0]
    assert line["clipped"] is clipped


def test_each_call_is_a_step_unless_steps_are_set(path: Path) -> None:
    with unified_clip.record(path) as run:
        assert run.step == 0
        for step in (1, 2):
            clip()
            assert run.step == step
    assert [line["step"] for line in read_lines(path)[1:]] == [1, 2]


def test_calls_belong_to_the_current_step(path: Path) -> None:
    with unified_clip.record(path) as run:
        for _ in range(2):
            run.next_step()
            clip()
            clip()
        for _ in range(2):
            run.step = 10
            clip()
    assert [line["step"] for line in read_lines(path)[1:]] == [1, 1, 2, 2, 10, 10]


def test_a_call_that_a_graph_reports_late_belongs_to_the_step_that_ends(path: Path) -> None:
    running: list[Callable[[], object]] = []
    with unified_clip.record(path) as run:
        run.wait_with(lambda: [running.pop()() for _ in [*running]])
        for _ in range(4):
            running.append(clip)
            run.next_step()
    assert [line["step"] for line in read_lines(path)[1:]] == [1, 2, 3, 4]


def test_steps_cannot_be_set_back_or_begin_after_counted_calls(path: Path) -> None:
    with unified_clip.record(path) as run:
        clip()
        clip()
        with pytest.raises(ValueError, match="each of the 2 calls was counted as a step"):
            run.next_step()
    with unified_clip.record(path.with_name("other.jsonl")) as run:
        run.step = 5
        clip()
        with pytest.raises(ValueError, match="but step 5 has begun"):
            run.step = 4
        with pytest.raises(TypeError, match="Pass a whole number"):
            run.step = 5.5  # type: ignore[assignment]


def test_an_existing_file_is_not_overwritten(path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="replace this file with force=True"), unified_clip.record(path):
        pass
    assert path.read_text() == "mine"
    assert observer.active is None
    with unified_clip.record(path, force=True):
        unified_clip.clip_by_norm(np.array([3.0, 4.0]), 1.0)
    assert len(runs.read(path).lines) == 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"gradients_every": 0}, ValueError, "gradients_every is 0. Pass 1 or more"),
        ({"gradients_every": True}, TypeError, "gradients_every is True. Pass a whole number"),
        ({"names": ["a", "a"]}, ValueError, "position 1 of names= repeats the name 'a'"),
        ({"names": ["a", 1]}, TypeError, "position 1 of names= has the type int. Pass strings"),
        ({"names": 5}, TypeError, "names= has the type int. Pass a list of names"),
    ],
)
def test_invalid_options_are_rejected_before_the_file_exists(
    path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        unified_clip.record(path, **options)
    assert not path.exists()


def test_names_are_unique_and_passed_by_position(path: Path) -> None:
    arrays = [np.ones(2, np.float32) for _ in range(3)]
    with unified_clip.record(path, norms=True, names=["a", "b"]):
        uc.clip_by_global_norm(arrays, 1.0)
        uc.clip_by_global_norm({"a": arrays[0], "b": [("a", arrays[1]), ("a", arrays[2])]}, 1.0)
    with unified_clip.record(path.with_name("other.jsonl"), norms=True):
        uc.GradientClipByNorm(1.0)([("a", arrays[0]), ("a", arrays[1])])
    assert [list(line["parameters"]) for line in read_lines(path)[1:]] == [["a", "b", "2"], ["a", "b", "b.a"]]
    assert list(read_lines(path.with_name("other.jsonl"))[1]["parameters"]) == ["a", "a#2"]


def test_a_recording_without_a_call_warns(path: Path) -> None:
    with pytest.warns(ClipWarning, match="No clip calls were recorded"), unified_clip.record(path):
        uc.global_norm([np.ones(2)])


def test_nested_recordings_have_the_same_calls(path: Path) -> None:
    inner = path.with_name("inner.jsonl")
    with unified_clip.record(path):
        clip()
        with unified_clip.record(inner, norms=True):
            clip()
        clip()
    assert [len(read_lines(each)) - 1 for each in (path, inner)] == [3, 1]
    assert read_lines(inner)[1]["norm"] == read_lines(path)[2]["norm"] == 5.0


def test_a_call_inside_a_call_is_not_recorded(path: Path) -> None:
    def predicate(_: object) -> bool:
        uc.global_norm([np.ones(2)])
        return clip() > 0

    with unified_clip.record(path):
        uc.GradientClipByGlobalNorm(1.0, need_clip=predicate)([("a", np.array([3.0, 4.0]))])
    assert {(line["step"], line["call"]) for line in read_lines(path)[1:]} == {(1, "GradientClipByGlobalNorm")}


def test_threads_write_complete_lines_and_count_each_call_once(path: Path) -> None:
    def work() -> None:
        for _ in range(50):
            clip()

    with unified_clip.record(path):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(line["step"] for line in read_lines(path)[1:]) == list(range(1, 201))


CRASH = """
import os, sys, signal
import numpy as np
import unified_clip, unified_clip.numpy as uc
with unified_clip.record(sys.argv[1], gradients_every=1):
    while True:
        uc.clip_grad_norm_([np.array([3.0, 4.0], np.float32)], 1.0)
        print("x", flush=True)
"""


def test_a_killed_process_leaves_complete_lines(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", CRASH, str(path)], stdout=subprocess.PIPE, env=ENVIRONMENT)
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert path.read_bytes().endswith(b"\n")
    calls = read_lines(path)[1:]
    assert len(calls) >= 5
    assert all((path.parent / line["gradients"]).exists() for line in calls)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_neither_writes_into_the_file_nor_waits_for_a_lock(path: Path) -> None:
    script = f"""
import os, signal, threading
import numpy as np
import unified_clip
import unified_clip.numpy as uc

with unified_clip.record({str(path)!r}) as run:
    uc.clip_grad_norm_([np.ones(2)], 1.0)
    held, forked = threading.Event(), threading.Event()

    def write():
        with run._flushing:
            held.set()
            forked.wait()

    writer = threading.Thread(target=write)
    writer.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        uc.clip_grad_norm_([np.ones(2)], 1.0)
    else:
        forked.set()
        writer.join()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == 0, status
        uc.clip_grad_norm_([np.ones(2)], 1.0)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, env=ENVIRONMENT, timeout=60)
    assert [line["step"] for line in read_lines(path)[1:]] == [1, 2]


def test_a_full_disk_ends_the_recording_and_not_the_training(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with unified_clip.record(path) as recording:
        clip()
        file = recording._file
        full_file = SimpleNamespace(write=lambda data: file.write(data[:10]), close=file.close)
        monkeypatch.setattr(recording, "_file", full_file)
        with pytest.warns(ClipWarning, match="the recording ends here, .*a part of a line"):
            assert clip() == 5.0
        assert clip() == 5.0
    assert path.read_text().count("\n") == 2


def test_gradients_that_cannot_be_stored_do_not_end_the_training(path: Path) -> None:
    (path.parent / "run.step1.safetensors").mkdir()
    with unified_clip.record(path, gradients_every=1):
        with pytest.warns(ClipWarning, match="cannot be stored"):
            assert clip() == 5.0
        clip()
    calls = [line for line in read_lines(path) if "call" in line]
    assert [line["gradients"] for line in calls] == [None, "run.step2.safetensors"]
    assert not list(path.parent.glob("*.new"))


@pytest.mark.parametrize(("norms", "norm"), [(False, 10.0), (True, 5.0)])
def test_a_passed_norm_is_recorded_beside_the_norm_of_the_gradients(path: Path, norms: bool, norm: float) -> None:
    with unified_clip.record(path, norms=norms):
        uc.clip_by_global_norm([np.array([3.0, 4.0], np.float32)], 1.0, use_norm=10.0)
        uc.clip_grads_with_norm_([np.array([3.0, 4.0], np.float32)], 1.0, 10.0)
        clip()
    first, second, measured = read_lines(path)[1:]
    assert [(line["norm"], line["passed_norm"]) for line in (first, second)] == [(norm, 10.0)] * 2
    assert (first["coef"], second["coef"]) == (pytest.approx(0.1), pytest.approx(1 / (10 + 1e-6)))
    assert "passed_norm" not in measured


def test_logged_numbers_are_compared(path: Path) -> None:
    new_path = path.with_name("other.jsonl")
    for file, losses in ((path, (2.0, 1.5)), (new_path, (2.0, 1.25))):
        with unified_clip.record(file) as run:
            for loss in losses:
                clip()
                run.log(loss=loss, accuracy=1)
    assert [line["logged"] for line in read_lines(path) if "logged" in line] == [
        {"loss": 2.0, "accuracy": 1},
        {"loss": 1.5, "accuracy": 1},
    ]
    printed = sentences.report_lines(compare.compare(path, new_path))
    assert "loss differs from step 2 on: 1.5 and 1.25 at this step. The values differ by at most 12 %." in printed
    assert "accuracy is equal at all 2 steps." in printed


def test_only_numbers_can_be_logged(path: Path) -> None:
    with unified_clip.record(path) as run:
        clip()
        with pytest.raises(TypeError, match=r"loss has the type ndarray. Pass a number, or loss.item\(\)"):
            run.log(loss=np.ones(1))  # type: ignore[arg-type]


@pytest.mark.parametrize("is_same", [True, False])
def test_a_clip_warning_is_in_the_report_once(tmp_path: Path, is_same: bool) -> None:
    for name, names, threshold in (("old", None, 1.0), ("new", {"weight": np.ones(3)}, 1.0 if is_same else 2.0)):
        with unified_clip.record(tmp_path / f"{name}.jsonl", norms=True, names=names):
            for _ in range(3):
                with warnings.catch_warnings(action="ignore"):
                    uc.clip_grad_norm_([np.array([3.0, 4.0], np.float32)], threshold)
    (warning,) = [line for line in read_lines(tmp_path / "new.jsonl") if "warning" in line]
    comparison = compare.compare(tmp_path / "old.jsonl", tmp_path / "new.jsonl")
    assert (comparison.exit_code == 0) is is_same
    printed = [
        line
        for line in sentences.report_lines(comparison)
        if line.startswith("ClipWarning in new.jsonl: names= does not")
    ]
    assert printed == [f"ClipWarning in new.jsonl: {warning['warning']}"]


def test_complex_gradients_are_stored_as_pairs(path: Path) -> None:
    with unified_clip.record(path, gradients_every=1):
        uc.clip_by_global_norm([np.array([3 + 4j], np.complex64)], 1.0)
    stored = (path.parent / "run.step1.safetensors").read_bytes()
    assert b'{"0":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}' in stored
    assert stored.endswith(np.array([3.0, 4.0], np.float32).tobytes())
