"""`unified-clip verify`: two training steps on the same weights and batches, without a framework."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.port import verify_pairs
from support.port.verify_pairs import (
    BATCHES,
    NUMPY,
    STEPS,
    WEIGHTS,
    cause_kinds,
    largest_ulps,
    run_verify,
    verify_as_json,
)
from support.tiers import sampled

from unified_clip.verify import compare
from unified_clip.verify.run import VerifyError

GLOBAL = NUMPY.replace("CLIP", "grads, _ = uc.clip_by_global_norm(grads, 0.5)")
PER_TENSOR = NUMPY.replace("CLIP", "grads = {name: uc.clip_by_norm(grad, 0.5) for name, grad in grads.items()}")
PER_TENSOR_IN_ONE_CALL = NUMPY.replace(
    "CLIP",
    "grads = dict(zip(grads, [g for _, g in uc.GradientClipByNorm(0.5)(zip(weights.values(), grads.values()))]))",
)


def test_a_step_agrees_with_itself_at_every_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = verify_as_json(tmp_path, capsys, GLOBAL, GLOBAL)
    assert data["same"]
    assert [step["step"] for step in data["steps"]] == list(range(1, STEPS + 1))
    for stage in ("norm", "coefficient", "tensors", "update"):
        assert largest_ulps(data, stage) == 0
    assert all(line["coef"] < 1 for step in data["steps"] for line in (*step["old"], *step["new"]))


@pytest.mark.parametrize(
    ("clip", "mistake"),
    sampled(
        [
            ("grads = {name: uc.clip_by_norm(grad, 0.5) for name, grad in grads.items()}", "per tensor for global"),
            ("grads, _ = uc.clip_by_global_norm(grads, 0.25)", "another threshold"),
            ("uc.clip_grad_norm_(grads, 0.5)", "another eps"),
            ("uc.clip_grad_norm_({'weight': grads['weight']}, 0.5)", "left out"),
            ("uc.clip_by_global_norm(grads, 0.5)", "the clip does not reach the step"),
            ("grads, _ = uc.clip_by_global_norm({n: 2 * g for n, g in grads.items()}, 0.5)", "scaled gradients"),
        ],
        3,
    ),
)
def test_a_mistake_is_named_at_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clip: str, mistake: str
) -> None:
    data = verify_as_json(tmp_path, capsys, GLOBAL, NUMPY.replace("CLIP", clip))
    assert not data["same"]
    assert data["steps"][0]["differs"]
    assert mistake in cause_kinds(data)


@pytest.mark.parametrize(
    ("line", "mistake", "says"),
    [
        ("np.float32(0.125) * grad", "another learning rate", "0.5 times"),
        (
            "np.float32(0.25) * grad + np.float32(0.1) * weights[name]",
            "another optimizer",
            "the place at which they add epsilon",
        ),
    ],
)
def test_updates_that_differ_after_equal_clips_have_a_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, mistake: str, says: str
) -> None:
    data = verify_as_json(tmp_path, capsys, GLOBAL, GLOBAL.replace("np.float32(0.25) * grad", line))
    assert data["steps"][0]["differs"] == ["update"]
    assert data["finding"]["mistake"] == mistake
    assert says in data["finding"]["text"]


def test_steps_without_a_clip_on_either_side_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sometimes = NUMPY.replace("for batch in batches:", "for index, batch in enumerate(batches):").replace(
        "CLIP", "grads = grads if index % 2 else uc.clip_by_global_norm(grads, 0.5)[0]"
    )
    data = verify_as_json(tmp_path, capsys, sometimes, sometimes)
    assert data["same"]
    assert data["without_clip"] == [2, 4]
    assert run_verify(tmp_path, sometimes, sometimes) == 0
    printed = capsys.readouterr().out
    assert "Neither training step made a recorded clip call at 2 of 4 steps (2, 4): only gradients and" in printed
    assert [line.split("│")[-2].strip() for line in printed.splitlines() if line.startswith("│")] == [
        "same", "no clip call", "same", "no clip call",
    ]  # fmt: skip


@pytest.mark.parametrize(("rate", "same"), sampled([("2.0**-18", True), ("2.0**-17", False), ("0", False)], 2))
def test_small_updates_are_compared_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rate: str, same: bool
) -> None:
    """All of them are less than 64 units in the last place of their parameters."""
    small = GLOBAL.replace("np.float32(0.25)", "np.float32(2.0**-18)")
    new = GLOBAL.replace("np.float32(0.25)", f"np.float32({rate})")
    data = verify_as_json(tmp_path, capsys, small, new, "--max-ulp", "64")
    assert data["same"] is same
    assert [step["differs"] for step in data["steps"]] == [[] if same else ["update"]] * STEPS
    assert cause_kinds(data) == ([] if same else ["rounding", "another optimizer"])


def test_a_call_for_each_gradient_equals_one_call_per_tensor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = verify_as_json(tmp_path, capsys, PER_TENSOR, PER_TENSOR_IN_ONE_CALL)
    assert data["same"]
    assert [len(step["old"][0]["norm"]) for step in data["steps"]] == [2] * STEPS


def test_unclipped_gradients_are_replaced_by_the_results_of_the_clip_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = (
        GLOBAL.replace("CLIP", "")
        .replace("grads, _ =", "raw = grads; grads, _ =")
        .replace("weights, grads\n", "weights, raw\n")
    )
    data = verify_as_json(tmp_path, capsys, raw, GLOBAL)
    assert data["same"]
    assert data["unclipped"] == ["old"]
    assert largest_ulps(data, "tensors") == 0


@pytest.mark.parametrize("steps", [STEPS, 1])
def test_batches_may_differ_in_size(tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int) -> None:
    """The last batch has fewer examples, as with drop_last=False."""
    sizes = [4] * (STEPS - 1) + [3]
    batches = {f"{n}/{name}": each[n - 1][:size] for n, size in enumerate(sizes, 1) for name, each in BATCHES.items()}
    np.savez(tmp_path / "uneven.npz", **batches)
    options = ["--batches", str(tmp_path / "uneven.npz"), "--steps", str(steps)]
    data = verify_as_json(tmp_path, capsys, GLOBAL, GLOBAL, *options)
    assert data["same"]
    assert len(data["steps"]) == steps
    mean = NUMPY.replace('/ batch["y"].size', "/ 8").replace("CLIP", "grads, _ = uc.clip_by_global_norm(grads, 0.5)")
    data = verify_as_json(tmp_path, capsys, GLOBAL, mean, *options)
    assert data["same"] == (steps < STEPS)
    assert cause_kinds(data) == ([] if steps < STEPS else ["scaled gradients"])


def test_a_batch_may_have_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "rates.npz", rate=np.full(STEPS, 0.25, np.float32), **BATCHES)
    hashed = GLOBAL.replace("np.float32(0.25)", "{np.float32(0.25): batch['rate']}[batch['rate']]")
    assert verify_as_json(tmp_path, capsys, GLOBAL, hashed, "--batches", str(tmp_path / "rates.npz"))["same"]


def test_gradients_that_are_not_yielded_are_the_results_of_the_clip_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = verify_as_json(tmp_path, capsys, GLOBAL.replace("weights, grads\n", "weights, None\n"), GLOBAL)
    assert data["same"]
    assert data["unclipped"] == []
    assert largest_ulps(data, "tensors") == 0


def test_a_function_may_return_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once = GLOBAL.replace("        yield weights", "    return weights")
    data = verify_as_json(tmp_path, capsys, once, GLOBAL)
    assert data["same"]
    assert [step["norm"]["ulps"] for step in data["steps"]] == [0] * STEPS
    assert [step["update"] is None for step in data["steps"]] == [True] * (STEPS - 1) + [False]


def test_calls_of_a_function_that_returns_once_are_distributed_evenly_over_the_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = verify_as_json(
        tmp_path, capsys, PER_TENSOR.replace("        yield weights", "    return weights"), PER_TENSOR
    )
    assert data["same"]
    assert [len(step["old"][0]["norm"]) for step in data["steps"]] == [2] * STEPS


def test_lists_of_norms_are_compared_by_name_and_not_by_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backwards = PER_TENSOR.replace("for name, grad in grads.items()}", "for name, grad in reversed(grads.items())}")
    assert verify_as_json(tmp_path, capsys, PER_TENSOR, backwards)["same"]
    renamed = backwards.replace(
        "yield weights, grads", "yield tuple({'a': each['weight'], 'b': each['bias']} for each in (weights, grads))"
    )
    assert verify_as_json(tmp_path, capsys, PER_TENSOR, renamed)["same"]


def test_gradients_are_paired_by_the_weights_that_are_yielded_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = """
        clipped = uc.GradientClipByGlobalNorm(0.5)(list(zip(weights.values(), grads.values())))
        grads = dict(zip(grads, [gradient for _, gradient in clipped]))"""
    pairs = NUMPY.replace("CLIP", clip).replace("weights, grads\n", "weights, None\n")
    data = verify_as_json(tmp_path, capsys, pairs, GLOBAL)
    assert data["same"]
    assert largest_ulps(data, "tensors") == 0


def test_square_tensors_are_paired_in_their_closest_order_of_axes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    square = "np.outer(np.arange(6), weights['weight'][:, 0])"
    old, new = (
        GLOBAL.replace("yield weights,", f"yield {{**weights, 'square': {each}}},") for each in (square, f"{square}.T")
    )
    assert verify_as_json(tmp_path, capsys, old, new)["same"]


@pytest.mark.parametrize(
    ("by_hand", "same"),
    [
        ("norm = np.sqrt(sum((g.astype(float) ** 2).sum() for g in grads.values()))", True),
        ("norm = np.abs(grads['weight']).max()", False),
    ],
)
def test_a_manual_clip_is_recognized_by_gradients_before_and_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by_hand: str, same: bool
) -> None:
    clip = f"raw = grads; {by_hand}; grads = {{n: g * np.float32(min(1, 0.5 / norm)) for n, g in grads.items()}}"
    hand = NUMPY.replace("CLIP", clip).replace("weights, grads\n", "weights, grads, raw\n")
    data = verify_as_json(tmp_path, capsys, hand, GLOBAL, "--max-ulp", "64")
    assert data["same"] is same
    assert verify_pairs.called_names(data, "old") == {"by hand"}
    assert {line["rule"] for step in data["steps"] for line in step["old"]} == {"global"}


def test_another_eps_that_max_ulp_hides_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verify(tmp_path, GLOBAL, NUMPY.replace("CLIP", "uc.clip_grad_norm_(grads, 0.5)"), "--max-ulp", "64") == 0
    printed = capsys.readouterr().out
    assert "Another eps: new.py:step differs from old.py:step as with eps 1e-06 instead of 0." in printed
    assert "which --max-ulp 64 allows." in printed


def test_norms_of_noise_in_a_clip_per_tensor_are_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a bias before BatchNorm: each side has its own noise."""
    noise = "grads['bias'] *= np.float32({}); grads = {{name"
    old, new = (PER_TENSOR.replace("grads = {name", noise.format(factor)) for factor in ("1e-9", "2e-9"))
    data = verify_as_json(tmp_path, capsys, old, new, "--max-ulp", "64")
    assert data["same"]


def test_layouts_and_names_may_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turned = GLOBAL.replace(
        "yield weights, grads",
        "yield tuple({'W': each['weight'].T, 'b': each['bias']} for each in (weights, grads))",
    )
    assert verify_as_json(tmp_path, capsys, GLOBAL, turned)["same"]
    (tmp_path / "names.toml").write_text('weight = "W"\nbias = "b"\n', encoding="utf-8")
    data = verify_as_json(tmp_path, capsys, GLOBAL, turned, "--map", str(tmp_path / "names.toml"))
    assert data["same"]
    assert largest_ulps(data, "update") == 0


def test_steps_limits_the_number_of_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(verify_as_json(tmp_path, capsys, GLOBAL, GLOBAL, "--steps", "2")["steps"]) == 2


def test_the_table_has_a_row_for_each_step_and_the_cause_of_the_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verify(tmp_path, GLOBAL, PER_TENSOR) == 1
    printed = capsys.readouterr().out
    assert printed.count("another clip") == STEPS
    for expected in ("coefficient old", "(max of 2)", "Per tensor for global", "The updates differ from step 1 on"):
        assert expected in printed


def test_recordings_and_tensors_are_kept_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "kept"
    assert run_verify(tmp_path, GLOBAL, GLOBAL, "--out", str(out)) == 0
    lines = (out / "old.jsonl").read_text(encoding="utf-8").splitlines()
    assert list(json.loads(lines[1])["parameters"]) == ["weight", "bias"]
    assert len(lines) == STEPS + 1
    assert (out / "new" / f"{STEPS}.safetensors").is_file()
    assert run_verify(tmp_path, GLOBAL, GLOBAL, "--out", str(out)) == 2
    message = f"--out {out} contains old, new, old.jsonl, new.jsonl already. Pass another directory to --out. If an"
    assert message in capsys.readouterr().err


def test_a_directory_with_a_link_to_a_missing_file_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "kept"
    out.mkdir()
    (out / "old").symlink_to("nowhere")
    assert run_verify(tmp_path, GLOBAL, GLOBAL, "--out", str(out)) == 2
    assert f"--out {out} contains old already" in capsys.readouterr().err


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
                "output 1 of the function is of type int. Yield or return (parameters, gradients)",
            ),
            (
                "def step(weights, batches): return {}, {}, {}, {}",
                "output 1 of the function has 4 values. Yield or return (parameters, gradients)",
            ),
            (
                "def step(weights, batches): return [], {}",
                "output 1 of the function has parameters of type list. Yield",
            ),
            (
                "def step(weights, batches): return {'w': 'x'}, {}",
                "output 1 of the function, parameters: 'w' has dtype str32. Leave it out if it is not trained",
            ),
            ("def step(weights, batches): yield weights, {}", f"yielded 1 time for {STEPS} batches"),
            (
                f"def step(weights, batches):\n    for _ in range({STEPS + 1}): yield weights, {{}}",
                f"yielded {STEPS + 1} times for {STEPS} batches",
            ),
            (
                "def step(weights, batches): return weights, {}",
                "was recorded: neither one of unified_clip nor one of the functions",
            ),
            (
                "def step(weights, batches): return {}, {}",
                "output 1 of the function has no parameters. Put all parameters into its first dict, by name",
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
        (["--batches", "none.npz"], "--batches none.npz cannot be read"),
        (["--batches", "cut.npz"], "cut.npz cannot be read: File is not a zip file. Save arrays with np.savez."),
        (["--map", "names.toml"], "--map has 'v'"),
        (
            ["--batches", "ragged.npz"],
            "the first axis of every array must have one entry for each step: x has 2, y has 3",
        ),
        (["--batches", "ragged.npz"], 'named by the step: np.savez("batches.npz", **{"1/x": x1, "2/x": x2}).'),
        (["--batches", "objects.npz"], "has an array of Python objects. If batches differ in size, save an array for"),
        (["--batches", "gap.npz"], "has 1/x, the array of a single step, but 2/x is missing. Save every array of"),
        (["--batches", "mixed.npz"], "has 1/x, the array of a single step, but y has no step. Save every array of"),
        (["--batches", "names.npz"], "has 1/x, the array of a single step, but 1/y is missing. Save every array of"),
        (["--batches", "short.npz"], "must have one entry for each step, but y has none. Save at least one step."),
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
        ("wrong.py:step", "wrong.py:step: the file is not valid Python: line 2: invalid syntax. Correct it."),
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


def test_port_verify_is_a_deprecated_alias_that_prints_the_new_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from unified_clip.cli import main

    assert run_verify(tmp_path, GLOBAL, PER_TENSOR, "--format", "json", "--max-ulp", "2", "--steps", "3") == 1
    expected = capsys.readouterr().out
    scripts = [f"{tmp_path / name}:step" for name in ("old.py", "new.py")]
    options = [*verify_pairs.write_data(tmp_path), "--steps", "3", "--max-ulp", "2"]
    assert main(["port", *options, "--verify", *scripts, "--json"]) == 1
    out, err = capsys.readouterr()
    assert out == expected
    command = err.removeprefix("unified-clip: port --verify is deprecated. Type: unified-clip ")
    assert main(shlex.split(command)) == 1
    assert capsys.readouterr() == (expected, "")
    assert main(["port", *options, "--resync", "--verify", *scripts]) == 2  # arrays cannot be resynchronized
    notice, error = capsys.readouterr().err.split("\n", 1)
    assert main(shlex.split(notice.rpartition("Type: unified-clip ")[2])) == 2
    assert "UC601" in error
    assert capsys.readouterr().err == error


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
        ("import time; time.sleep(60)", ["--timeout", "8"], "has not ended after 8 seconds: it was in step (new.py"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals")
def test_a_process_that_crashes_or_hangs_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, options: list[str], says: str
) -> None:
    assert run_verify(tmp_path, GLOBAL, f"def step(weights, batches):\n    {body}\n", *options) == 3
    assert says in capsys.readouterr().err


def test_the_data_clips_at_every_step() -> None:
    assert set(WEIGHTS) == {"weight", "bias"}
    assert all(len(each) == STEPS for each in BATCHES.values())


def test_a_long_table_shows_the_first_the_last_and_the_first_different_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each batch four times over; the new one's rate changes at the eleventh step."""
    np.savez(tmp_path / "many.npz", **{name: np.repeat(each, 4, axis=0) for name, each in BATCHES.items()})
    new = GLOBAL.replace("for batch in batches:", "for number, batch in enumerate(batches):")
    new = new.replace("np.float32(0.25)", "np.float32(0.25 if number < 10 else 0.5)")
    assert run_verify(tmp_path, GLOBAL, new, "--batches", str(tmp_path / "many.npz")) == 1
    printed = capsys.readouterr().out
    shown = [line.split()[1] for line in printed.splitlines() if line.startswith("│")]
    assert shown == ["1", "2", "3", "...", "11", "12", "13", "...", "16"]
    assert "Another learning rate" in printed


@pytest.mark.parametrize(("off", "grown"), [("2.0**-18 * 4**number", True), ("(number == 3) * 2.0**-12", False)])
def test_rounding_that_grows_is_distinguished_from_an_immediate_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], off: str, grown: bool
) -> None:
    new = GLOBAL.replace("for batch in batches:", "for number, batch in enumerate(batches):")
    new = new.replace("np.float32(0.25) * grad", f"np.float32(0.25) * grad + weights[name] * np.float32({off})")
    data = verify_as_json(tmp_path, capsys, GLOBAL, new, "--max-ulp", "64")
    assert not data["same"]
    assert ("rounding that has grown" in cause_kinds(data)) is grown


@pytest.mark.parametrize("rate", [0.5, 0.125])
def test_the_first_difference_is_reported_first_and_its_cause_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rate: float
) -> None:
    """Another rate shows in the update of a step, and in the clips of the next."""
    assert run_verify(tmp_path, GLOBAL, GLOBAL.replace("np.float32(0.25)", f"np.float32({rate})")) == 1
    printed_lines = [
        line for line in capsys.readouterr().out.splitlines() if not line.startswith(("│", "┃", "┏", "┡", "└"))
    ]
    begins = [line.split(":")[0].split(", in ")[0] for line in printed_lines[2:6]]
    assert begins == [
        "The updates differ from step 1 on", "Another learning rate", "The clipped gradients differ from step 2 on",
        "The runs first differ at step 2",
    ]  # fmt: skip
    assert "Unexplained" not in "".join(printed_lines)


def test_a_difference_without_a_cause_is_reported_as_unexplained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_hand = "raw = grads; grads = {n: g * np.linspace(0.2, 0.3, len(g), dtype='f')[:, None] for n, g in raw.items()}"
    new = NUMPY.replace("CLIP", by_hand.replace("[:, None]", ".reshape(len(g), *[1] * (g.ndim - 1))"))
    new = new.replace("weights, grads\n", "weights, grads, raw\n")
    assert run_verify(tmp_path, PER_TENSOR, new) == 1
    assert "Unexplained: " in capsys.readouterr().out


def test_gradients_that_change_after_the_clip_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = NUMPY.replace("CLIP", "grads, _ = uc.clip_by_global_norm(grads, 0.5); grads['bias'] *= np.float32(2)")
    data = verify_as_json(tmp_path, capsys, GLOBAL, new)
    assert data["steps"][0]["differs"] == ["tensors", "update"]
    assert data["finding"]["mistake"] == "the clip does not reach the step"
    assert "yields are not the results of its clip calls: 'bias'. Other code changes" in data["finding"]["text"]


def two_calls(order: str, limit: str = "0.5") -> str:
    """Two pairs of gradients, each clipped by a call."""
    clip = f"""
        grads |= {{name + '2': 2 * grad for name, grad in grads.items()}}
        for name in {order}:
            grads.update(uc.clip_by_global_norm({{key: grads[key] for key in (name, name + '2')}}, {limit})[0])"""
    twins = "{name: array.copy() for name, array in weights.items()}"
    both = f"{twins} | {{name + '2': array.copy() for name, array in weights.items()}}"
    return NUMPY.replace("CLIP", clip).replace(twins, both)


@pytest.mark.parametrize(("limit", "same"), [("0.5", True), ("(0.5 if name == 'bias' else 0.25)", False)])
def test_calls_of_a_step_that_share_no_parameter_may_come_in_another_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: str, same: bool
) -> None:
    old, new = two_calls("('weight', 'bias')"), two_calls("('bias', 'weight')", limit)
    data = verify_as_json(tmp_path, capsys, old, new)
    assert [len(step["new"]) for step in data["steps"]] == [2] * STEPS
    assert data["same"] is same


@pytest.mark.parametrize(
    ("dtype", "rate", "same"),
    [("np.float64", "0.25", True), ("np.float16", "0.25", False), ("np.float16", "2**-10", False)],
)
def test_another_dtype_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str, rate: str, same: bool
) -> None:
    old = GLOBAL.replace("np.float32(0.25)", f"np.float32({rate})")
    new = GLOBAL.replace("array.copy()", f"array.astype({dtype})").replace("np.float32(0.25)", f"{dtype}({rate})")
    new = new.replace(
        "gradients(weights, batch)\n", f"gradients(weights, {{n: a.astype({dtype}) for n, a in batch.items()}})\n"
    )
    data = verify_as_json(tmp_path, capsys, old, new, "--max-ulp", "64")
    assert data["same"] is same
    assert data["finding"]["mistake"] == "another dtype"
    name = dtype.removeprefix("np.")
    assert data["finding"]["text"].startswith(f"'weight' is float32 in the old step and {name} in the new one")


def test_another_dtype_explains_only_its_rounding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = GLOBAL.replace("array.copy()", "array.astype(np.float64)").replace("np.float32(0.25)", "np.float64(0.5)")
    assert cause_kinds(verify_as_json(tmp_path, capsys, GLOBAL, new, "--max-ulp", "64")) == ["another learning rate"]


def test_a_difference_that_rounding_explains_does_not_hide_another_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = GLOBAL.replace("np.float32(0.25)", "np.float32(0.5)")
    new = new.replace("grads, _ =", "grads = {n: np.nextafter(g, np.float32(9)) for n, g in grads.items()}; grads, _ =")
    assert cause_kinds(verify_as_json(tmp_path, capsys, GLOBAL, new)) == ["rounding", "another learning rate"]


def test_integers_are_not_named_as_another_dtype(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_integers = GLOBAL.replace(
        "yield weights,", "yield {name: each.astype(int) for name, each in weights.items()},"
    )
    assert "another dtype" not in cause_kinds(verify_as_json(tmp_path, capsys, GLOBAL, with_integers))


@pytest.mark.parametrize("rounded", ["", "raw = {n: np.nextafter(g, np.float32(9)) for n, g in raw.items()}; "])
@pytest.mark.parametrize("kept", ["clipped", "raw"])
def test_gradients_that_are_not_cleared_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: str, rounded: str
) -> None:
    clip = f"raw = grads; {rounded}clipped, _ = uc.clip_by_global_norm(raw, 0.5); grads = clipped; kept = {kept}"
    new = NUMPY.replace("CLIP", clip).replace("    for batch in", "    kept = {}\n    for batch in")
    added = "grads = gradients(weights, batch); grads = {n: g + kept.get(n, 0) for n, g in grads.items()}"
    data = verify_as_json(tmp_path, capsys, GLOBAL, new.replace("grads = gradients(weights, batch)", added))
    assert cause_kinds(data) == [*(["rounding"] if rounded else []), "gradients are not cleared"]
    assert "at step 2 every gradient of the new step is" in data["finding"]["text"]


def test_a_map_of_known_names_in_two_directions_is_rejected_by_its_direction() -> None:
    old, new = (
        SimpleNamespace(script=f"{side}.py:step", shapes=dict.fromkeys(names))
        for side, names in (("old", "ab"), ("new", "AB"))
    )
    pair = r"pair a name of old.py:step \('a', 'b'\) with one of new.py:step \('A', 'B'\)"
    text = rf"--map has pairs in both directions. In every line, {pair}"
    with pytest.raises(VerifyError, match=text):
        compare._oriented(old, new, {"a": "A", "B": "b"})  # type: ignore[arg-type]
