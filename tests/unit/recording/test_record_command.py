"""`unified-clip record FILE -- COMMAND`: every process is recorded, and the command runs as without recording."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from support.tiers import not_editable

from unified_clip import cli, suggest_threshold
from unified_clip.compare.recordings import compare
from unified_clip.recorder.hooks import HOOKS, RecordingHook
from unified_clip.recorder.process import PART
from unified_clip.recorder.startup.sitecustomize import MODULES
from unified_clip.recording import runs
from unified_clip.recording.command import merge
from unified_clip.recording.recorder import Recording

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}

TRAIN = """
    import sys
    import numpy as np
    import unified_clip

    for step in range(int(sys.argv[1])):
        clipped, norm = unified_clip.clip_by_global_norm([np.array([3.0, 4.0 + step])], 1.0)
        print(clipped[0].tobytes().hex())
"""


def test_the_recording_starts_with_every_library_that_has_hooks() -> None:
    without_functions = {"jax"}  # its clipping functions are optax's
    assert set(MODULES) == {name.partition(".")[0] for name in HOOKS.installers} | without_functions
    assert not without_functions & set(HOOKS.installers)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "train.py", TRAIN)
    return tmp_path


def write(path: Path, code: str) -> None:
    path.write_text(textwrap.dedent(code), encoding="utf-8")


def record(folder: Path, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-m", "unified_clip", "record", "run.jsonl", "--", *command]
    settings: dict[str, Any] = {"cwd": folder, "env": ENVIRONMENT, "text": True, "capture_output": True} | options
    return subprocess.run(arguments, check=False, timeout=120, **settings)


def recorded_steps(folder: Path) -> list[int]:
    assert not (folder / "run.jsonl.parts").exists()
    return [line.step for line in runs.read(folder / "run.jsonl").lines]


CONFIGURATION = 'rule = "global_norm"\nthreshold = {}\nfamily = "tensorflow"\n'


@pytest.mark.parametrize(("threshold", "end", "status"), [(1.0, "", 0), (2.0, "", 1), (2.0, "sys.exit(7)", 7)])
def test_a_run_is_checked(
    folder: Path, threshold: float, end: str, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    write(folder / "train.py", f"{TRAIN}\n    {end}")
    (folder / "clip.toml").write_text(CONFIGURATION.format(threshold), encoding="utf-8")
    arguments = ["record", "--check", "clip.toml", "--format", "json", "--out", "report.json"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(os, "environ", ENVIRONMENT)
        assert cli.main([*arguments, "--", sys.executable, "train.py", "3"]) == status
    findings = json.loads((folder / "report.json").read_text())["findings"]
    places = [(each["kind"], each["path"], each["line"], each["differences"][0]["about"]) for each in findings]
    assert places == [("drift", "train.py", 7, "threshold")] * (threshold == 2.0)
    assert "3 recorded clips in 0 steps" in capfd.readouterr().out


def test_a_recording_is_checked_without_a_command(folder: Path) -> None:
    (folder / "clip.toml").write_text(CONFIGURATION.format(2.0), encoding="utf-8")
    assert record(folder, sys.executable, "train.py", "1").returncode == 0
    assert cli.main(["record", str(folder / "run.jsonl"), "--check", str(folder / "clip.toml")]) == 1


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["run.jsonl"],
        ["--check", "clip.toml"],
        ["run.jsonl", "--out", "report.txt"],
        ["run.jsonl", "--nearest"],
        *(["run.jsonl", "--check", "clip.toml", option] for option in ("--norms", "--force")),
    ],
)
def test_options_of_the_check_need_each_other(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["record", *options]) == 2
    assert "UC201" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["train.py", "3"], ["-m", "train", "3"]])
def test_a_script_prints_the_same_bits_as_without_recording(folder: Path, command: list[str]) -> None:
    environment = ENVIRONMENT | {"PYTHONSAFEPATH": ""}
    arguments = [sys.executable, *command]
    unrecorded = subprocess.run(arguments, cwd=folder, env=environment, text=True, capture_output=True, check=False)
    recorded = record(folder, *arguments, env=environment)
    assert (recorded.returncode, recorded.stdout, recorded.stderr) == (0, unrecorded.stdout, "")
    assert recorded_steps(folder) == [1, 2, 3]


def test_the_search_path_and_the_modules_of_a_script_are_unchanged(folder: Path) -> None:
    script = "import sys, json; print(json.dumps([sys.path, sorted(sys.modules)]))"
    unrecorded = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=ENVIRONMENT, text=True, capture_output=True, check=True
    )
    path, modules = json.loads(unrecorded.stdout)
    recorded_path, recorded_modules = json.loads(record(folder, sys.executable, "-c", script).stdout)
    assert recorded_path == path
    assert not any(name.split(".")[0] in ("numpy", "unified_clip") for name in {*recorded_modules} - {*modules})


def test_a_sitecustomize_of_the_user_still_runs(folder: Path) -> None:
    (folder / "site").mkdir()
    write(folder / "site" / "sitecustomize.py", "print('hidden', __name__)")
    path = os.pathsep.join([str(folder / "site"), ENVIRONMENT["PYTHONPATH"]])
    environment = ENVIRONMENT | {"PYTHONPATH": path, "PYTHONUNBUFFERED": ""}
    completed = record(folder, sys.executable, "train.py", "1", env=environment)
    assert completed.stdout.splitlines()[:2] == ["hidden sitecustomize"] * 2  # of the command itself, and of the script
    assert recorded_steps(folder) == [1]


@pytest.mark.parametrize(
    ("ending", "status", "error"),
    [
        ("sys.exit('no data')", 1, "no data\n"),
        ("raise ValueError('no data')", 1, "ValueError: no data\n"),
        ("import os; os._exit(5)", 5, ""),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15, ""),
    ],
)
def test_the_file_is_complete_up_to_the_end_of_the_script(folder: Path, ending: str, status: int, error: str) -> None:
    write(folder / "ending.py", f"{textwrap.dedent(TRAIN)}\n{ending}\n")
    completed = record(folder, sys.executable, "ending.py", "2")
    assert completed.returncode == status
    assert completed.stderr.endswith(error)
    assert recorded_steps(folder) == [1, 2]


WAIT = """
import signal, sys, time
import numpy as np
import unified_clip

unified_clip.clip_by_global_norm([np.array([3.0, 4.0])], 1.0)
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    unified_clip.clip_by_global_norm([np.array([3.0, 4.0])], 1.0)
    print("interrupted", flush=True)
    sys.exit(3)
"""


def test_ctrl_c_reaches_the_command_which_may_continue(folder: Path) -> None:
    write(folder / "wait.py", WAIT)
    command = [sys.executable, "-m", "unified_clip", "record", "run.jsonl", "--", sys.executable, "wait.py"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a background shell ignores it
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (3, "interrupted\n")
    assert recorded_steps(folder) == [1, 2]


def test_sigterm_ends_the_command_and_then_the_recording(folder: Path) -> None:
    write(folder / "wait.py", WAIT)
    command = [sys.executable, "-m", "unified_clip", "record", "run.jsonl", "--", sys.executable, "wait.py"]
    process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert recorded_steps(folder) == [1]


LAUNCH = """
import multiprocessing, os, runpy, subprocess, sys

def train(rank):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
    sys.argv = ["train.py", str(rank + 1)]
    runpy.run_path("train.py")

if __name__ == "__main__":
    if sys.argv[1] == "subprocess":
        for rank in (1, 0):
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}
            subprocess.run([sys.executable, "train.py", str(rank + 1)], env=environment, check=True)
    else:
        if sys.argv[1] == "fork":
            import unified_clip  # which records this process
        context = multiprocessing.get_context(sys.argv[1])
        processes = [context.Process(target=train, args=[rank]) for rank in (1, 0)]
        for process in processes:
            process.start()
            process.join()
"""


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["subprocess", "spawn", "fork"])
def test_each_process_of_a_launcher_is_recorded_by_rank(folder: Path, method: str) -> None:
    write(folder / "launch.py", LAUNCH)
    completed = record(folder, sys.executable, "launch.py", method)
    assert (completed.returncode, completed.stderr) == (0, "")
    run = runs.read(folder / "run.jsonl")
    assert [(process.rank, process.ranks) for process in run.header.processes] == [(0, 2), (1, 2)]
    assert [line.step for line in run.lines] == [1]
    assert [line.step for line in run.others[0]] == [1, 2]


def test_the_process_of_rank_0_is_the_first_and_one_without_a_rank_the_last(tmp_path: Path) -> None:
    for number, rank in enumerate((None, 1, 0)):
        header = {"schema": 1, "started": f"{number}", "process": {"rank": rank}}
        (tmp_path / f"{number}{PART}").write_text(f"{json.dumps(header)}\n")
    merge(tmp_path, tmp_path / "run.jsonl", {}, 0)
    (merged,) = map(json.loads, (tmp_path / "run.jsonl").read_text().splitlines())
    assert [process["rank"] for process in merged["processes"]] == [0, 1, None]


def test_a_recording_without_events_is_an_error_for_compare(folder: Path) -> None:
    completed = record(folder, sys.executable, "-c", "print('nothing')")
    assert (completed.returncode, completed.stdout) == (0, "nothing\n")
    assert "calls were recorded" in completed.stderr
    assert cli.main(["compare", *[str(folder / "run.jsonl")] * 2]) == 2
    with pytest.raises(runs.RunError, match="calls were recorded"):
        compare(folder / "run.jsonl", folder / "run.jsonl")


@pytest.mark.parametrize("command", [["true"], [sys.executable, "-S", "-c", "pass"], ["train.py", "0"]], ids=" ".join)
def test_a_recording_without_events_names_the_reason(folder: Path, command: list[str]) -> None:
    is_recorded = command[0] == "train.py"
    completed = record(folder, *[sys.executable] * is_recorded, *command)
    nobody = "because no Python process that imports unified_clip or a framework was recorded. Put the"
    reason = (
        "No clip calls were recorded. Recordings contain" if is_recorded else f"No clip calls were recorded, {nobody}"
    )
    assert completed.returncode == 0
    assert completed.stderr.startswith(f"unified-clip: run.jsonl: {reason}")
    processes = runs.read(folder / "run.jsonl").header.processes
    assert [process.arguments for process in processes] == [tuple(command)] * is_recorded
    for read in (lambda path: compare(path, path), suggest_threshold):
        with pytest.raises((ValueError, runs.RunError), match=reason):
            read(folder / "run.jsonl")


@pytest.mark.parametrize(
    ("ending", "words"),
    [("sys.exit('no data')", "failed with exit status 1"), ("os.kill(os.getpid(), 9)", "was ended by signal 9")],
)
def test_a_command_that_fails_before_the_first_clip_call_is_the_reason(folder: Path, ending: str, words: str) -> None:
    completed = record(folder, sys.executable, "-c", f"import os, sys; {ending}")
    assert completed.returncode
    reason = f"run.jsonl: No clip calls were recorded. The recorded command {words}. Correct the command"
    assert reason in completed.stderr
    assert "torch.compile" not in completed.stderr
    with pytest.raises(runs.RunError, match=reason) as error:
        compare(folder / "run.jsonl", folder / "run.jsonl")
    assert "torch.compile" not in str(error.value)


@not_editable
def test_a_process_that_cannot_be_recorded_is_reported_and_runs(folder: Path) -> None:
    (folder / "broken").mkdir()
    write(folder / "broken" / "unified_clip.py", "")
    script = f"import sys; sys.path.insert(0, {str(folder / 'broken')!r}); import unified_clip; print('ran')"
    completed = record(folder, sys.executable, "-c", script)
    assert (completed.returncode, completed.stdout) == (0, "ran\n")
    assert "was not recorded: ModuleNotFoundError" in completed.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["taken.jsonl", "--", "true"], 2, "taken.jsonl exists. Pass another file, or replace this one with --force."),
        (["link.jsonl", "--", "true"], 2, "link.jsonl exists. Pass another file."),
        ([os.devnull, "--force", "--", "true"], 2, f"{os.devnull} exists. Pass another file."),
        (["folder", "--force", "--", "true"], 2, "folder exists. Pass another file."),
        (["taken.jsonl", "--force", "--", "no-such-command"], 127, "no-such-command cannot be started: No such file"),
        (["a" * 250, "--", "true"], 2, f"{'a' * 250} cannot be written: File name too long"),
        (["nowhere/run.jsonl", "--", "true"], 2, "nowhere/run.jsonl cannot be written: No such file or directory"),
        (["run.jsonl"], 2, "no command given. Type: unified-clip record run.jsonl -- python train.py"),
        (["run.jsonl", "--"], 2, "no command given"),
        (["run.jsonl", "--", "no-such-command"], 127, "no-such-command cannot be started: No such file"),
    ],
)
def test_an_invalid_command_is_an_error_before_anything_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken.jsonl").write_text("mine")
    Path("link.jsonl").symlink_to("missing.jsonl")
    Path("folder").mkdir()
    assert cli.main(["record", *arguments]) == status
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link.jsonl", "taken.jsonl"]
    assert Path("taken.jsonl").read_text() == "mine"


def test_force_replaces_a_recording_when_the_command_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.jsonl").write_text("mine\n")
    assert cli.main(["record", "run.jsonl", "--force", "--", "cat", "run.jsonl"]) == 0
    assert capfd.readouterr().out == "mine\n"
    assert json.loads(Path("run.jsonl").read_text())["exit_status"] == 0


def test_warnings_of_a_process_are_printed_by_the_command(tmp_path: Path) -> None:
    recording = Recording(tmp_path, norms=False, in_directory=True)
    hook = RecordingHook("a clip", "a call of framework.clip")
    for _ in range(2):
        recording.on_failure(hook, ValueError("no tensor"))  # which pytest would raise as a warning
    recording.end()
    note, _ = merge(tmp_path, tmp_path / "run.jsonl", {"unified_clip": "1", "schema": 2, "started": ""}, 0)
    assert note.startswith("a call of framework.clip is not recorded: ValueError: no tensor. Your program continues.")


def test_a_process_that_only_warns_is_not_the_first(tmp_path: Path) -> None:
    header = json.dumps({"schema": 1, "started": "0", "process": {"rank": None}})
    for number, line in enumerate(({"step": 1, "warning": "late"}, {"step": 1, "logged": {"loss": 1.0}})):
        (tmp_path / f"{number}{PART}").write_text(f"{header}\n{json.dumps(line)}\n")
    merge(tmp_path, tmp_path / "run.jsonl", {}, 0)
    _, line = (tmp_path / "run.jsonl").read_text().splitlines()
    assert json.loads(line) == {"step": 1, "logged": {"loss": 1.0}}
