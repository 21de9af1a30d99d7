"""`unified-clip verify` of steps that clip twice: two networks with own thresholds, or two clips of one network."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.port.verify_pairs import cause_kinds, needs_torch, values, verify_as_json
from support.tiers import sampled

STEP = """
import numpy as np
import unified_clip.numpy as uc

def step(weights, batches):
    net = {name: value.copy() for name, value in weights.items()}
    for batch in batches:
        x = batch["x"].mean()
        critic = {name: value * np.float32(x) + 1 for name, value in net.items() if name.startswith("critic")}
        maker = {name: value - np.float32(x) for name, value in net.items() if name.startswith("maker")}
        CLIPS
        grads = {**critic, **maker}
        for name, grad in grads.items():
            net[name] = net[name] - np.float32(0.25) * grad
        yield net, grads
"""
SHAPES = {
    "critic.kernel": (3, 2), "critic.bias": (2,), "critic.out": (2, 2),
    "maker.kernel": (4, 2), "maker.bias": (3,), "maker.out": (2, 5),
}  # fmt: skip
CRITIC = "critic |= uc.clip_by_global_norm({each}, 0.5)[0]"
MAKER = "maker |= uc.clip_by_global_norm({each}, 0.75)[0]"
VALUE = "critic |= {n: uc.clip_by_value(g, -1.0, 1.0) for n, g in critic.items()}"


def script(*clips: str) -> str:
    return STEP.replace("CLIPS", "; ".join(clips))


def all_gradients(net: str) -> str:
    return (CRITIC if net == "critic" else MAKER).format(each=net)


def gradients_without(net: str, name: str) -> str:
    gradients = f"{{n: g for n, g in {net}.items() if n != '{net}.{name}'}}"
    return (CRITIC if net == "critic" else MAKER).format(each=gradients)


OLD = script(all_gradients("critic"), all_gradients("maker"))


@pytest.fixture
def compare_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def compare(old: str, new: str, names: Collection[str] = SHAPES) -> dict[str, Any]:
        source = np.random.default_rng(0)
        weights = {name: source.normal(size=SHAPES[name]).astype(np.float32) for name in names}
        np.savez(tmp_path / "networks.npz", **weights)
        return verify_as_json(tmp_path, capsys, old, new, "--weights", str(tmp_path / "networks.npz"))

    return compare


def cause_sentences(data: dict[str, Any]) -> str:
    return " ".join(each["text"] for each in data["findings"])


def test_two_networks_may_be_clipped_in_another_order(compare_scripts: Any) -> None:
    assert compare_scripts(OLD, script(all_gradients("maker"), all_gradients("critic")))["same"]


@pytest.mark.parametrize("net", ["critic", "maker"])
@pytest.mark.parametrize("name", ["bias", "kernel"])
@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_parameter_left_out_of_one_of_two_clips_is_named(
    compare_scripts: Any, net: str, name: str, is_swapped: bool
) -> None:
    clips = [gradients_without(each, name) if each == net else all_gradients(each) for each in ("critic", "maker")]
    data = compare_scripts(OLD, script(*(clips[::-1] if is_swapped else clips)))
    assert cause_kinds(data) == ["left out"]
    assert f"'{net}.{name}'" in cause_sentences(data)


@pytest.mark.parametrize("net", ["critic", "maker"])
@pytest.mark.parametrize("is_old", [False, True])
def test_a_missing_clip_of_a_network_is_named(compare_scripts: Any, net: str, is_old: bool) -> None:
    single_clip = script(*(all_gradients(each) for each in ("critic", "maker") if each != net))
    data = compare_scripts(*((single_clip, OLD) if is_old else (OLD, single_clip)))
    assert cause_kinds(data) == ["left out"]
    assert values(data, "left out") == (("left out", "clipped") if is_old else ("clipped", "left out"))
    assert f"'{net}.kernel', '{net}.bias' and '{net}.out'" in cause_sentences(data)


@pytest.mark.parametrize("clip", [all_gradients("critic"), VALUE])
def test_one_of_two_clips_of_a_network_is_named_if_it_is_missing(compare_scripts: Any, clip: str) -> None:
    maker = all_gradients("maker")
    data = compare_scripts(script(VALUE, all_gradients("critic"), maker), script(clip, maker))
    assert cause_kinds(data) == ["several clips before a step"]
    assert values(data, "several clips before a step") == (2, 1)
    assert "'critic.kernel', 'critic.bias' and 'critic.out'" in cause_sentences(data)


def test_thresholds_of_two_networks_that_are_swapped_are_named(compare_scripts: Any) -> None:
    swapped = [all_gradients("critic").replace("0.5", "0.75"), all_gradients("maker").replace("0.75", "0.5")]
    for new in (script(*swapped), script(*swapped[::-1])):
        data = compare_scripts(OLD, new)
        assert cause_kinds(data) == ["another threshold"]
        assert values(data, "another threshold") == (0.5, 0.75)


IN_TURN = """
import numpy as np
import unified_clip.numpy as uc

def step(weights, batches):
    net = {name: value.copy() for name, value in weights.items()}
    for batch in batches:
        x = np.float32(batch["x"].mean())
        critic = {name: value * x + 1 for name, value in net.items() if name.startswith("critic")}
        critic = uc.clip_by_global_norm(critic, 0.5)[0]
        net |= {name: net[name] - np.float32(RATE) * grad for name, grad in critic.items()}
        maker = {name: value - net["critic.bias"].sum() + OFF for name, value in net.items() if name[0] == "m"}
        maker = uc.clip_by_global_norm(maker, 0.75)[0]
        net |= {name: net[name] - np.float32(0.25) * grad for name, grad in maker.items()}
        yield net, {**critic, **maker}
"""
"""The gradients of the maker depend on the updated critic, as in a GAN."""


@pytest.mark.parametrize(
    ("rate", "off", "mistake"),
    [("0.2505", "np.float32(0)", "another learning rate"), ("0.25", "np.float32(0.01)", "other data or loss")],
)
def test_gradients_after_a_different_update_of_the_same_step_are_not_other_data(
    compare_scripts: Any, rate: str, off: str, mistake: str
) -> None:
    old, new = (
        IN_TURN.replace("RATE", each[0]).replace("OFF", each[1]) for each in (("0.25", "np.float32(0)"), (rate, off))
    )
    assert compare_scripts(old, new)["findings"][0]["mistake"] == mistake


TORCH_IN_TURN = """
import torch
import unified_clip.torch as uc

def step(weights, batches):
    net = {name: torch.nn.Parameter(torch.from_numpy(value.copy())) for name, value in weights.items()}
    critic, maker = ([p for n, p in net.items() if n.startswith(each)] for each in ("critic", "maker"))
    optimizers = [torch.optim.Adam(each, 0.01) for each in (critic, maker)]
    for batch in batches:
        x = torch.tensor(batch["x"]).mean()
        for p in net.values():
            p.grad = None
        sum((p * x + 1).square().sum() for p in critic).backward()
        uc.GradientClipByGlobalNorm(0.5).clip_(critic)
        optimizers[0].step()
        sum((p - x).square().sum() for p in maker).backward()
        uc.GradientClipByGlobalNorm(0.75).clip_(maker)
        optimizers[1].step()
        yield net, {name: p.grad for name, p in net.items()}
"""


@needs_torch
@pytest.mark.usefixtures("quick_pytorch_workers")
@pytest.mark.parametrize(("net", "number", "threshold"), sampled([("critic", 0, 0.5), ("maker", 1, 0.75)], 2))
def test_one_of_two_clips_after_its_optimizers_step_is_named(
    compare_scripts: Any, net: str, number: int, threshold: float
) -> None:
    clip = f"uc.GradientClipByGlobalNorm({threshold}).clip_({net})"
    first, last = f"        {clip}\n", f"        optimizers[{number}].step()\n"
    data = compare_scripts(TORCH_IN_TURN, TORCH_IN_TURN.replace(first + last, last + first))
    assert cause_kinds(data) == ["the clip does not reach the step"]
    assert values(data, "the clip does not reach the step") == ("the clipped gradients", "other gradients")
    later = TORCH_IN_TURN.replace(last, "")
    later = later.replace("        yield", f"{last}        yield")
    assert compare_scripts(TORCH_IN_TURN, later)["same"]


BACKWARD, CLIPS, STEPPED = (
    (
        "sum((p * x + 1).square().sum() for p in critic).backward()",
        "sum((p - x).square().sum() for p in maker).backward()",
    ),
    ("uc.GradientClipByGlobalNorm(0.5).clip_(critic)", "uc.GradientClipByGlobalNorm(0.75).clip_(maker)"),
    ("optimizers[0].step()", "optimizers[1].step()"),
)


@pytest.mark.parametrize(
    ("clip", "mistake"),
    [
        ("uc.clip_grad_norm_(critic, 0.5)", "another eps of the clip"),
        ("critic |= {n: uc.clip_by_norm(g, 0.5) for n, g in critic.items()}", "another rule"),
        ("critic |= uc.clip_by_global_norm({n: 2 * g for n, g in critic.items()}, 0.5)[0]", "scaled gradients"),
    ],
)
def test_another_mistake_in_one_of_two_clips_is_named(compare_scripts: Any, clip: str, mistake: str) -> None:
    for clips in ([clip, all_gradients("maker")], [all_gradients("maker"), clip]):
        assert cause_kinds(compare_scripts(OLD, script(*clips))) == [mistake]


ONE_CLIP = """both = uc.clip_by_global_norm({**critic, **maker}, 0.5)[0]
        critic, maker = ({name: both[name] for name in net} for net in (critic, maker))"""
TWO_GROUPS = script(all_gradients("critic"), all_gradients("maker").replace("0.75", "0.5"))

OPTIMIZER = "optimizer = torch.optim.SGD(net.values(), 0.25, 0.5)"
STEP_OF_OPTIMIZER = """
import torch
import unified_clip.torch as uc

def step(weights, batches):
    net = {name: torch.nn.Parameter(torch.from_numpy(value.copy())) for name, value in weights.items()}
    critic, maker = ([p for n, p in net.items() if n.startswith(each)] for each in ("critic", "maker"))
    OPTIMIZER
    for batch in batches:
        x = torch.tensor(batch["x"]).mean()
        optimizer.zero_grad()
        (sum((p * x + 1).square().sum() for p in critic) + sum((p - x).square().sum() for p in maker)).backward()
        for number, group in enumerate(GROUPS):
            uc.GradientClipByGlobalNorm(LIMITS[number]).clip_(group)
        optimizer.step()
        yield net, {name: p.grad for name, p in net.items()}
"""


def one_optimizer(groups: str, *limits: float) -> str:
    """Clip each group by its own norm."""
    return STEP_OF_OPTIMIZER.replace("OPTIMIZER", OPTIMIZER).replace("GROUPS", groups).replace("LIMITS", str(limits))


@pytest.mark.usefixtures("quick_pytorch_workers")
@pytest.mark.parametrize(
    ("in_groups", "together"),
    [
        (TWO_GROUPS, script(ONE_CLIP)),
        pytest.param(
            one_optimizer("[critic, maker]", 0.5, 0.5), one_optimizer("[net.values()]", 0.5), marks=needs_torch
        ),
    ],
)
def test_groups_that_the_other_run_clips_together_are_no_networks(
    compare_scripts: Any, in_groups: str, together: str
) -> None:
    """The function makes one step, with any number of clips."""
    for scripts in ((in_groups, together), (together, in_groups)):
        data = compare_scripts(*scripts)
        assert cause_kinds(data) == ["per group for global"]
        assert {each["step"] for each in data["findings"]} == {1}


@needs_torch
@pytest.mark.usefixtures("quick_pytorch_workers")
def test_one_optimizer_can_replace_one_for_each_network(compare_scripts: Any) -> None:
    single = one_optimizer("[critic, maker]", 0.5, 0.75)
    several = single.replace(OPTIMIZER, "optimizers = [torch.optim.SGD(each, 0.25, 0.5) for each in (critic, maker)]")
    for call in ("zero_grad", "step"):
        several = several.replace(f"optimizer.{call}()", f"for each in optimizers: each.{call}()")
    data = compare_scripts(several, single)
    assert (data["same"], data["findings"]) == (True, [])
