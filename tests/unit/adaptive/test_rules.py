"""The recursions of adaptive rules: their rounding errors, the published implementations, and errors."""

from __future__ import annotations

import inspect
import json
import math
import random
import sys
import threading
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis.strategies import booleans, fixed_dictionaries, floats, integers, just, lists, one_of, sampled_from
from support import adaptive

from unified_clip import ClipConfig
from unified_clip import adaptive as functions
from unified_clip._compute.host import HOST
from unified_clip._core.path import DevicePrimitives
from unified_clip.adaptive import AGC, EmaRatio, Percentile, ZClip
from unified_clip.adaptive import state as states
from unified_clip.adaptive.rules import RULES

MODERATE = [norm if norm < 1e20 or not math.isfinite(norm) else 1e6 for norm in adaptive.NORMS]


@pytest.mark.parametrize("rule", ["ema_ratio", "zclip"])
def test_floats_are_close_to_the_exact_recursion(rule: str) -> None:
    exact: dict[str, Any] = {"alpha": Fraction(0.97)}
    if rule == "ema_ratio":
        exact["ratio"] = Fraction(2)
    else:
        exact |= {"z_thresh": Fraction(2.5), "eps": Fraction(1e-6), "clip_factor": Fraction(1)}
        exact["root"] = adaptive.exact_root
    norms = MODERATE[:60]  # later fractions have too many digits
    rounded = adaptive.steps({"rule": rule}, norms)
    for (threshold, state), (expected, wanted_state) in zip(rounded, adaptive.RULES[rule](norms, **exact), strict=True):
        assert threshold == expected if expected == math.inf else math.isclose(threshold, expected, rel_tol=1e-13)
        for name, number in wanted_state.items():
            assert math.isclose(state[name], number, rel_tol=1e-13), name


def published_zclip(norms: list[float], mode: str, option: str) -> list[float]:
    """Return the thresholds of ZClip's published code, by its description: two passes over a buffer of 25 norms."""
    buffer: list[float] = []
    mean = var = math.nan
    result = []
    for norm in norms:
        if len(buffer) < 25:
            buffer.append(norm)
            mean = sum(buffer) / len(buffer)
            var = sum((other - mean) ** 2 for other in buffer) / len(buffer)
            result.append(math.inf)
            continue
        std, limit = math.sqrt(var), math.inf
        z = (norm - mean) / (std + 1e-6)
        if mode == "percentile" and norm > mean + 2.5 * std:
            limit = mean + 2.5 * std
        if mode == "zscore" and z > 2.5:
            limit = mean if option == "mean" else mean + 2.5 * std / (z / 2.5)
        kept = min(norm, limit)
        mean = 0.97 * mean + (1 - 0.97) * kept
        var = 0.97 * var + (1 - 0.97) * (kept - mean) ** 2
        result.append(limit)
    return result


@pytest.mark.parametrize(
    ("mode", "option"), [("zscore", "adaptive_scaling"), ("zscore", "mean"), ("percentile", "adaptive_scaling")]
)
def test_zclip_has_the_thresholds_of_the_published_code(mode: str, option: str) -> None:
    chance = random.Random(0)
    norms = [chance.uniform(0.8, 1.2) * (4 if step % 30 == 29 else 1) for step in range(200)]
    clip = ClipConfig(rule="global_norm", adaptive={"rule": "zclip", "mode": mode, "clip_option": option})
    spikes = 0
    for norm, expected in zip(norms, published_zclip(norms, mode, option), strict=True):
        clip([np.array([norm])])
        threshold = clip.last.parts[""].threshold
        assert threshold is not None
        assert threshold == expected if expected == math.inf else math.isclose(threshold, expected, rel_tol=1e-12)
        spikes += threshold < math.inf
    assert spikes >= 5


SHARES, FACTORS, WARM_UPS = floats(0, 1), floats(0.1, 3), integers(1, 12)
ANY_RULE = one_of(
    fixed_dictionaries(
        {"rule": just("ema_ratio"), "ratio": floats(1, 3), "alpha": SHARES, "warmup_steps": WARM_UPS},
    ),
    fixed_dictionaries(
        {"rule": just("zclip"), "alpha": SHARES, "z_thresh": FACTORS, "warmup_steps": WARM_UPS, "eps": floats(1e-9, 1)},
        optional={"clip_factor": FACTORS, "skip_update_on_spike": booleans()},
    ),
    fixed_dictionaries(
        {"rule": just("zclip"), "warmup_steps": WARM_UPS},
        optional={"mode": just("percentile"), "alpha": SHARES},
    ),
    fixed_dictionaries(
        {"rule": just("zclip"), "warmup_steps": WARM_UPS, "clip_option": just("mean")},
        optional={"skip_update_on_spike": booleans()},
    ),
    fixed_dictionaries(
        {
            "rule": just("percentile"),
            "percent": sampled_from([10, 25, 50, 90]) | floats(0, 100),
            "include_current": booleans(),
        },
        optional={"window": integers(1, 12), "warmup_steps": integers(0, 12)},
    ),
)
ANY_NORM = one_of(floats(0.1, 10), sampled_from([0.0, 1.0, 2.0, 1e30, math.inf, math.nan]))


@example(settings={"rule": "percentile", "percent": 50}, norms=[1.4, 8.5], resume=0)  # halfway between two norms
@given(settings=ANY_RULE, norms=lists(ANY_NORM, max_size=40), resume=integers(0, 40))
def test_a_rule_has_the_bits_of_the_recursion_for_any_settings_and_norms_also_after_a_resume(
    settings: dict[str, Any], norms: list[float], resume: int
) -> None:
    rule = RULES[settings["rule"]](**{name: value for name, value in settings.items() if name != "rule"})
    state = states.initial(rule)
    for step, (norm, expected) in enumerate(zip(norms, adaptive.steps(settings, norms), strict=True)):
        if step == resume:
            state = states.from_data(rule, json.loads(json.dumps(states.to_data(state))))
        threshold, state = states.advance(rule, state, HOST, norm)
        assert (threshold, states.to_data(state)) == tuple(expected)


@pytest.mark.parametrize("include_current", [True, False])
@pytest.mark.parametrize("window", [1, 4, None])
@pytest.mark.parametrize("percent", [30, 100])
def test_a_percentile_is_that_of_numpy_over_the_last_norms(
    percent: float, window: int | None, include_current: bool
) -> None:
    rule, chance = Percentile(percent=percent, window=window, include_current=include_current), random.Random(0)
    state, norms = states.initial(rule), [chance.choice([1.0, 2.0, 3 * chance.random()]) for _ in range(40)]
    for step, norm in enumerate(norms):
        threshold, state = states.advance(rule, state, HOST, norm)
        last = norms[: step + 1] if include_current else norms[:step]
        last = last[-window:] if window else last
        assert math.isclose(threshold, float(np.percentile(last, percent)) if last else math.inf, rel_tol=1e-13)


@pytest.mark.parametrize("scale", [2.0, 0.5])
def test_an_average_of_0_clips_nothing(scale: float) -> None:
    """Otherwise, all later gradients would become 0, and the average would stay 0."""
    for rule in ({"rule": "zclip"}, {"rule": "ema_ratio"}):
        clip = ClipConfig(rule="global_norm", adaptive=rule)
        for _ in range(25):
            clip([np.zeros(2)])
        (result,) = clip([np.array([scale, 0.0])])
        assert result.tolist() == [scale, 0.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ZClip(alpha=1.5), "alpha is 1.5. Give a number from 0 to 1."),
        (lambda: ZClip(eps=0), "eps is 0. Give a finite number above 0."),
        (lambda: ZClip(warmup_steps=0), "warmup_steps is 0. Give a whole number of 1 or more."),
        (lambda: EmaRatio(ratio=0.5), "ratio is 0.5. Give a finite number of 1 or more."),
        (lambda: EmaRatio(ratio=math.inf), "ratio is inf. Give a finite number of 1 or more."),
        (lambda: Percentile(percent=101), "percent is 101. Give a number from 0 to 100."),
        (lambda: Percentile(window=0), "window is 0. Give a whole number of 1 or more."),
        (lambda: Percentile(warmup_steps=-1), "warmup_steps is -1. Give a whole number of 0 or more."),
        (lambda: AGC(clip_factor=-0.1), "clip_factor is -0.1. Give a finite number of 0 or more."),
        (lambda: ZClip(mode="mean"), "mode is 'mean'. Give 'zscore' or 'percentile'."),  # type: ignore[arg-type]
        (lambda: ZClip(clip_option="mean", clip_factor=0.5), "clip_factor does not apply to clip_option = 'mean'."),
        (lambda: ZClip(mode="percentile", clip_option="mean"), "clip_option does not apply to mode = 'percentile'."),
    ],
)
def test_settings_out_of_range_are_errors(make: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        make()
    assert message in str(error.value)


def test_settings_of_other_types_are_errors() -> None:
    with pytest.raises(TypeError, match=r"warmup_steps is 2.5. Pass a whole number."):
        ZClip(warmup_steps=2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"alpha is '1'. Pass a number."):
        ZClip(alpha="1")  # type: ignore[arg-type]


ADAPTIVE = {"rule": "global_norm", "adaptive": {"rule": "zclip"}}


def saved(**changes: Any) -> dict[str, Any]:
    return {"version": 1, "step": 1, "adaptive": {"": {"rule": "zclip", "state": {}} | changes}}


def test_a_state_of_an_adaptive_rule_needs_one_in_the_configuration() -> None:
    clip = ClipConfig(rule="global_norm", threshold=1.0)
    message = r"^the saved state has the adaptive rules \{'': 'zclip'\}, but this configuration has \{\}\. Load a state"
    with pytest.raises(ValueError, match=message):
        clip.load_state_dict(saved())
    clip.load_state_dict(saved() | {"adaptive": {}, "step": 3})
    assert clip.step == 3


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "this is not the state of a clip configuration"),
        (saved() | {"version": 2}, "the state has version 2"),
        (saved() | {"step": -1}, "in this state, `step` is -1. Pass the dict that state_dict() returned."),
        (saved() | {"step": "a"}, "in this state, `step` is 'a'. Pass the dict that state_dict() returned."),
        (
            saved() | {"adaptive": {}},
            "the saved state has the adaptive rules {}, but this configuration has {''",
        ),
        (saved() | {"adaptive": None}, "the saved state has the adaptive rules None, but"),
        (saved() | {"adaptive": {"": "zclip"}}, "the saved state has the adaptive rules {'': None}, but"),
        (saved(rule="percentile"), "the saved state has the adaptive rules {'': 'percentile'}, but"),
        (saved(state={"steps": 1}), "the state has the keys steps, but ZClip("),
        (saved(state={}), "the state has the keys (none), but ZClip("),
        (
            saved(state=[1.0]),
            "the state is a list, not a dict with the keys mean, steps, var. Load the state of the same",
        ),
        (saved(state=None), "the state is None, not a dict with the keys mean, steps, var. "),
        (saved(state=3), "the state is an int, not a dict with the keys "),
        (saved(state={"steps": 1, "mean": math.nan, "var": 1}), "the value of `mean` in the state is nan"),
    ],
)
def test_a_state_that_does_not_fit_is_an_error_and_changes_nothing(state: Any, message: str) -> None:
    clip = ClipConfig(**ADAPTIVE)
    clip([np.ones(4)])
    before = clip.state_dict()
    with pytest.raises(ValueError) as error:
        clip.load_state_dict(state)
    assert message in str(error.value)
    assert clip.state_dict() == before


def test_a_window_of_another_length_is_an_error() -> None:
    short = ClipConfig(rule="global_norm", adaptive={"rule": "percentile", "window": 3})
    long = ClipConfig(rule="global_norm", adaptive={"rule": "percentile", "window": 4})
    with pytest.raises(ValueError, match=r"the list `norms` of the state has 3 numbers, but .* needs 4"):
        long.load_state_dict(short.state_dict())


def test_a_copy_and_a_pickle_continue_with_the_state() -> None:
    import copy
    import pickle

    clip = ClipConfig(**ADAPTIVE).clipper()
    clip([np.ones(4)])
    for other in (copy.deepcopy(clip), pickle.loads(pickle.dumps(clip))):
        assert other.state_dict() == clip.state_dict()
        other([np.ones(9)])
        assert clip.state_dict()["adaptive"][""]["state"]["mean"] == 2.0


def test_threads_that_share_a_clipper_lose_no_norm() -> None:
    clip = ClipConfig(rule="global_norm", adaptive={"rule": "zclip"}).clipper()
    threads = [threading.Thread(target=lambda: [clip([np.ones(4)]) for _ in range(300)]) for _ in range(4)]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    state = clip.state_dict()
    assert (state["step"], state["adaptive"][""]["state"]["steps"]) == (1200, 1200.0)


@pytest.mark.parametrize("operation", ["vector", "indices", "floor", "sort", "total", "pack", "unpack"])
def test_traced_code_without_the_operations_is_named(operation: str) -> None:
    method = getattr(DevicePrimitives, operation)
    arguments = [None] * (len(inspect.signature(method).parameters) - 1)
    with pytest.raises(TypeError, match="adaptive thresholds are not supported in traced code of toy"):
        method(SimpleNamespace(name="toy"), *arguments)


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        ("zclip", {"state": {"steps": -1.0, "mean": 1.0, "var": 0.0}}),
        ("zclip", {"state": {"steps": 2.5, "mean": 1.0, "var": 0.0}}),
        ("zclip", {"state": {"steps": 2.0, "mean": 1.0, "var": -1.0}}),
        ("zclip", {"state": {"steps": 2.0, "mean": 10**400, "var": 0.0}}),
        ("zclip", {"state": {"steps": 2.0, "mean": math.nan, "var": 0.0}}),
        ("percentile", {"state": {"steps": 3.0, "norms": [1.0, 2.0]}}),
        ("percentile", {"state": {"steps": 2.0, "norms": [1.0, "2"]}}),
    ],
)
def test_a_state_that_no_run_can_have_is_an_error_and_changes_nothing(rule: str, wrong: dict[str, Any]) -> None:
    clip = ClipConfig(rule="global_norm", adaptive={"rule": rule}).clipper()
    clip([np.float32([3.0])])
    before = clip.state_dict()
    for adaptive_state in ({"": {"rule": rule, **wrong}}, {"": [rule]}, {"": None}):
        with pytest.raises(ValueError, match=r"Load (a state|the dict) that .*state_dict"):
            clip.load_state_dict({"version": 1, "step": 5, "adaptive": adaptive_state})
    assert clip.state_dict() == before


def test_the_error_about_a_parameter_of_six_axes_has_two_remedies() -> None:
    settings: dict[str, Any] = {"rule": "norm", "eps": 0.0}
    arrays = {"block.kernel": np.ones((2, 3), np.float32), "block.relative": np.ones((1, 2, 2, 1, 1, 2), np.float32)}

    def clip(convention: str, **others: Any) -> Any:
        rule = {"rule": "agc", "convention": convention}
        gradients = {name: array.copy() for name, array in arrays.items()}
        return ClipConfig(**settings, **others, adaptive=rule).clipper()(gradients, parameters=arrays)

    with pytest.raises(
        ValueError, match=r"'block.relative'.* does not support parameters with 6 axes\. In a configuration, add"
    ):
        clip("optax")
    excluded = clip("optax", exclude=["block.relative"])
    assert (excluded["block.relative"] == 1).all()
    assert (excluded["block.kernel"] < 0.1).all()
    assert all((array < 0.1).all() for array in clip("timm").values())


class Window:
    """A rule of a user with a list in its state."""

    def init(self) -> dict[str, Any]:
        return {"norms": [1.0, 2.0, 3.0]}

    def threshold(self, state: Any, norm: Any, step: Any) -> tuple[Any, Any]:
        return 1.0, {"norms": functions.minimum(state["norms"], norm)}


def test_the_state_of_a_users_rule_can_have_lists() -> None:
    rule, grads = Window(), [np.array([1.5])]
    state = functions.clip_by_global_norm(grads, rule, functions.initial_state(rule, grads))[2]
    assert functions.read_state(rule, state) == {"steps": 1.0, "norms": [1.0, 1.5, 1.5]}
