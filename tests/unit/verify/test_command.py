"""`unified-clip verify`, the command: its table, its options, and what it rejects."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from support.port import verify_pairs
from support.port.verify_pairs import (
    BATCHES,
    GLOBAL,
    NUMPY,
    PER_TENSOR,
    STEPS,
    cause_kinds,
    largest_ulps,
    run_verify,
    verify_as_json,
)
from support.tiers import sampled


def test_a_step_agrees_with_itself_at_every_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = verify_as_json(tmp_path, capsys, GLOBAL, GLOBAL)
    assert data["same"]
    assert [step["step"] for step in data["steps"]] == list(range(1, STEPS + 1))
    for stage in ("norm", "coefficient", "tensors", "update"):
        assert largest_ulps(data, stage) == 0
    assert all(line["coef"] < 1 for step in data["steps"] for line in (*step["old"], *step["new"]))


@pytest.mark.parametrize("steps", [STEPS, 1])
def test_batches_may_differ_in_size(tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int) -> None:
    sizes = [4] * (STEPS - 1) + [3]
    last_first = reversed([*enumerate(sizes, 1)])
    batches = {f"{n}/{name}": each[n - 1][:size] for n, size in last_first for name, each in BATCHES.items()}
    np.savez(tmp_path / "uneven.npz", **batches)
    options = ["--batches", str(tmp_path / "uneven.npz"), "--steps", str(steps)]
    data = verify_as_json(tmp_path, capsys, GLOBAL, GLOBAL, *options)
    assert data["same"]
    assert len(data["steps"]) == steps
    mean = NUMPY.replace('/ batch["y"].size', "/ 8").replace("CLIP", "grads, _ = uc.clip_by_global_norm(grads, 0.5)")
    data = verify_as_json(tmp_path, capsys, GLOBAL, mean, *options)
    assert data["same"] == (steps < STEPS)
    assert cause_kinds(data) == ([] if steps < STEPS else ["scaled gradients"])


def test_the_table_has_a_row_for_each_step_and_the_cause_of_the_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verify(tmp_path, GLOBAL, PER_TENSOR) == 1
    printed = capsys.readouterr().out
    assert printed.count("norm differs") == STEPS
    for expected in ("coefficient old", "(max of 2)", "Per tensor for global", "The updates differ from step 1 on"):
        assert expected in printed


def test_recordings_and_tensors_are_kept_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "kept"
    assert run_verify(tmp_path, GLOBAL, GLOBAL, "--out", str(out)) == 0
    lines = [json.loads(line) for line in (out / "old" / "recording.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sum("call" in line for line in lines) == STEPS
    assert (out / "new" / f"{STEPS}.safetensors").is_file()
    assert run_verify(tmp_path, GLOBAL, GLOBAL, "--out", str(out)) == 2
    message = f"--out {out} contains old, new already. Pass another directory to --out. If an"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("new", "says"),
    sampled(
        [
            ("step = 1", "new.py:step: 'step' is of type int, not a function. Pass new.py:NAME, where"),
            ("from .beside import step", "a relative import fails (attempted relative import"),
            ("", "new.py:step: the file has no function 'step'. Pass new.py:NAME, where NAME is a function"),
            ("def step(weights): pass", "the function 'step' must accept two arguments, weights and batches"),
            (
                "def step(weights, batches): return 1",
                "output 1 of the function is of type int. Yield or return a tuple of dicts {name: tensor}",
            ),
            (
                "def step(weights, batches): return {}, {}, {}, {}",
                "output 1 of the function has 4 values. Yield or return a tuple of dicts {name: tensor}",
            ),
            (
                "def step(weights, batches): return [], {}",
                "output 1 of the function has parameters of type list. Yield",
            ),
            (
                "def step(weights, batches): return {'w': 'x'}, {}",
                "output 1 of the function has invalid parameters: 'w' has dtype str32. Convert this tensor to float32",
            ),
            ("def step(weights, batches): yield weights, {}", f"yielded 1 time for {STEPS} batches"),
            (
                f"def step(weights, batches):\n    for _ in range({STEPS + 1}): yield weights, {{}}",
                f"yielded {STEPS + 1} times for {STEPS} batches",
            ),
            (
                "def step(weights, batches): return weights, {}",
                "has no clip calls on gradients. Recordings contain the calls to unified_clip and to the functions",
            ),
            (
                "def step(weights, batches): return {}, {}",
                "output 1 of the function has no parameters. Put all parameters into the first dict of the "
                "output: {name: tensor}.",
            ),
        ],
        3,
    ),
)
def test_an_invalid_training_function_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], new: str, says: str
) -> None:
    assert run_verify(tmp_path, GLOBAL, new) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--steps", "9"], "--steps is 9, and "),
        (["--steps", "0"], "--steps is 0, and "),
        (["--steps", "-1"], "--steps is -1, and "),
        (["--batches", "one.npy"], "--batches one.npy is one array without a name. Save arrays by name"),
        (["--max-ulp", "-1"], "--max-ulp is -1.0. Pass 0 or more"),
        (["--timeout", "0"], "--timeout is 0.0. Pass a number of seconds above 0"),
        (["--weights", "none.npz"], "--weights none.npz: the file does not exist"),
        (["--batches", "none.npz"], "none.npz cannot be read"),
        (["--batches", "cut.npz"], "cut.npz cannot be read: File is not a zip file. Save arrays with np.savez."),
        (["--map", "names.toml"], "--map has 'v'"),
        (
            ["--batches", "ragged.npz"],
            "the first axis of every array must have one entry for each step: x has 2, y has 3",
        ),
        (["--batches", "ragged.npz"], 'named by the step: np.savez("batches.npz", **{"1/x": x1, "2/x": x2}).'),
        (["--batches", "objects.npz"], "has an array of Python objects. If batches differ in size, save an array for"),
        (
            ["--batches", "gap.npz"],
            " has arrays that are named by step, such as '1/x', but '2/x' is missing. Save every array",
        ),
        (
            ["--batches", "mixed.npz"],
            " has arrays that are named by step, such as '1/x', but 'y' has no step number. Save every array",
        ),
        (
            ["--batches", "names.npz"],
            " has arrays that are named by step, such as '1/x', but '1/y' is missing. Save every array",
        ),
        (["--batches", "short.npz"], "must have one entry for each step, but y has no entry. Save at least one step."),
        (["--batches", "empty.npz"], "--batches empty.npz has no array. Save arrays by name with np.savez."),
        (
            ["--python-new", "nowhere"],
            "nowhere cannot be started: No such file or directory. Pass another --python-new.",
        ),
    ],
)
def test_an_invalid_command_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("names.toml").write_text('v = "w"\n', encoding="utf-8")
    np.save("one.npy", np.zeros(2))
    np.savez("ragged.npz", x=np.zeros(2), y=np.zeros(3))
    np.savez("objects.npz", x=np.array([np.zeros(2), np.zeros(1)], dtype=object))
    for name, keys in (("gap", ("1/x", "3/x")), ("mixed", ("1/x", "2/x", "y")), ("names", ("1/x", "2/x", "2/y"))):
        np.savez(f"{name}.npz", **{key: np.zeros(2) for key in keys})
    np.savez("short.npz", x=np.zeros(2), y=np.zeros(0))
    np.savez("empty.npz")
    Path("cut.npz").write_bytes(Path("short.npz").read_bytes()[:100])
    assert run_verify(tmp_path, GLOBAL, GLOBAL, *options) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "message"),
    [
        ("step.py", "'step.py' does not name a file and a function. Type both, as in old.py:step."),
        ("gone.py:step", "There is no file gone.py. Pass an existing file and a function in it"),
        (
            "names.toml:step",
            "names.toml is not a .py file. Pass a Python file and a function in it, as in old.py:step.",
        ),
        ("wrong.py:step", "wrong.py:step: the file is not valid Python: line 2: invalid syntax. Correct the file."),
        ("both.py:step", "both.py imports tensorflow and paddle, and one process cannot import both"),
    ],
)
def test_an_invalid_script_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, old: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("both.py").write_text("import tensorflow as tf\nfrom paddle import nn\n", encoding="utf-8")
    Path("wrong.py").write_text("import os\ndef step(weights batches): ...\n", encoding="utf-8")
    Path("names.toml").touch()
    assert run_verify(tmp_path, GLOBAL, GLOBAL, scripts=[old, "new.py:step"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--weights", "--batches"])
def test_weights_and_batches_are_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    from unified_clip.cli import main

    (tmp_path / "old.py").write_text(GLOBAL, encoding="utf-8")
    data = verify_pairs.write_data(tmp_path)
    at = data.index(option)
    assert main(["verify", *[f"{tmp_path}/old.py:step"] * 2, *data[:at], *data[at + 2 :]]) == 2
    assert f"{option} is missing: both steps need it." in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("body", "options", "says"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", [], "signal 11 (SIGSEGV)"),
        ("1 / 0", [], "ZeroDivisionError"),
        ("import sys; sys.exit(0)", [], "ended its process before its last step"),
        (
            "import time; time.sleep(60)",
            ["--timeout", "8"],
            "has not ended after 8 seconds: the process was in step (new.py",
        ),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals")
def test_a_process_that_crashes_or_hangs_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, options: list[str], says: str
) -> None:
    assert run_verify(tmp_path, GLOBAL, f"def step(weights, batches):\n    {body}\n", *options) == 3
    assert says in capsys.readouterr().err


def test_a_long_table_shows_the_first_the_last_and_the_first_different_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each batch is repeated four times. The rate of the new script changes at the eleventh step."""
    np.savez(tmp_path / "many.npz", **{name: np.repeat(each, 4, axis=0) for name, each in BATCHES.items()})
    new = GLOBAL.replace("for batch in batches:", "for number, batch in enumerate(batches):")
    new = new.replace("np.float32(0.25)", "np.float32(0.25 if number < 10 else 0.5)")
    assert run_verify(tmp_path, GLOBAL, new, "--batches", str(tmp_path / "many.npz")) == 1
    printed = capsys.readouterr().out
    shown = [line.split()[1] for line in printed.splitlines() if line.startswith("│")]
    assert shown == ["1", "2", "3", "...", "11", "12", "13", "...", "16"]
    assert "Another learning rate" in printed


@pytest.mark.parametrize("rate", [0.5, 0.125])
def test_the_cause_comes_before_the_differences_that_it_explains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rate: float
) -> None:
    """Another rate shows in the update of a step, and in the clips of the next step."""
    assert run_verify(tmp_path, GLOBAL, GLOBAL.replace("np.float32(0.25)", f"np.float32({rate})")) == 1
    printed_lines = [
        line for line in capsys.readouterr().out.splitlines() if not line.startswith(("│", "┃", "┏", "┡", "└"))
    ]
    findings = [line for line in printed_lines[2:] if not line.startswith("  ")]  # without advice
    begins = [line.split(":")[0].split(", by at most ")[0] for line in findings]
    assert begins == [
        "Another learning rate", "The clipped gradients differ from step 2 on", "The updates differ from step 1 on",
    ]  # fmt: skip
