"""PyTorch: clips attached to an optimizer run before each of its steps."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from support.tiers import is_at_least
from support.trainers.torch_training import RATE, SCALE, Model, batches, config, plain_records, recorded

from unified_clip import ClipConfig, record
from unified_clip.errors import NonFiniteNormError
from unified_clip.integrations import torch_optimizers

THRESHOLD = 0.5
GLOBAL = ClipConfig(rule="global_norm", threshold=THRESHOLD)


def sgd(model: torch.nn.Module, **changes: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE, **changes)


def scaler(scale: float = SCALE) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3)


def total_norm(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients]).norm()


def one_parameter(*gradient: float, **changes: Any) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    parameter = torch.nn.Parameter(torch.zeros(len(gradient)))
    parameter.grad = torch.tensor(gradient)
    return parameter, torch.optim.SGD([parameter], lr=1.0, **changes)


# -- the same as a plain loop


def train(model: Model, optimizer: torch.optim.Optimizer, way: str) -> None:
    scaling = scaler() if "GradScaler" in way else None
    for inputs, targets in batches():

        def closure(inputs: torch.Tensor = inputs, targets: torch.Tensor = targets) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model.loss(inputs, targets)
            (scaling.scale(loss) if scaling else loss).backward()
            return loss

        if "closure" in way:
            loss = optimizer.step(closure) if way == "step(closure)" else optimizer.step(closure=closure)
            assert isinstance(loss, torch.Tensor)
            continue
        closure()
        if scaling is None:
            optimizer.step()
        else:
            if "unscaled before" in way:
                scaling.unscale_(optimizer)
            scaling.step(optimizer)
            scaling.update()
    assert scaling is None or scaling.get_scale() > SCALE, "the scale has grown meanwhile"


WAYS = ("step()", "step(closure)", "step(closure=closure)", "GradScaler", "GradScaler, unscaled before")


@pytest.mark.parametrize("fused", [False, True])
def test_clips_match_a_plain_training_loop(tmp_path: Path, fused: bool) -> None:
    expected = plain_records(tmp_path / "plain.jsonl")
    for way in WAYS:
        model = Model()
        optimizer = sgd(model, fused=fused)
        handle = config().attach_to(optimizer, model)
        assert recorded(tmp_path / "run.jsonl", model, lambda: train(model, optimizer, way)) == expected  # noqa: B023
        assert (handle.step, handle.last.norm) == (len(expected), expected[-1]["norm"])
        assert handle.rate == sum(line["clipped"] for line in expected) / len(expected)


def test_all_groups_of_an_optimizer_have_one_norm() -> None:
    three, four = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    three.grad, four.grad = torch.tensor([3.0]), torch.tensor([4.0])
    optimizer = torch.optim.SGD([{"params": [three]}, {"params": [four], "lr": 0.1}], lr=1.0)
    with ClipConfig(rule="global_norm", threshold=2.5, eps=0.0).attach_to(optimizer):
        optimizer.step()
    assert (three.item(), four.item()) == (-1.5, pytest.approx(-0.2))


def test_every_evaluation_of_a_closure_is_clipped_and_counts_as_one_step() -> None:
    model, (inputs, targets) = Model(), next(batches())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    handle = config(threshold={"schedule": "piecewise", "values": [1.0, 2.0], "boundaries": [1]}).attach_to(
        optimizer, model
    )
    norms = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model.loss(inputs, targets)
        loss.backward()
        norms.append(float(total_norm((model.hidden.weight.grad, model.output.weight.grad))))
        return loss

    for step, threshold in enumerate([1.0, 2.0]):
        norms.clear()
        assert handle.step == step
        optimizer.step(closure)
        assert len(norms) > 1
        assert handle.last.norm == pytest.approx(norms[-1], rel=1e-6)
        assert handle.last.parts[""].threshold == threshold


def test_the_closure_may_be_none() -> None:
    for arguments in ({"args": (None,)}, {"kwargs": {"closure": None}}):
        parameter, optimizer = one_parameter(3.0, 4.0)
        GLOBAL.attach_to(optimizer)
        optimizer.step(*arguments.get("args", ()), **arguments.get("kwargs", {}))
        assert parameter.grad.norm() == pytest.approx(THRESHOLD)


class OptimizerWithArgument(torch.optim.SGD):
    """Its step has another argument, and calls the step of its base class, which PyTorch wraps too."""

    def step(self, closure: Any = None, more: str = "") -> Any:
        self.more = more
        if more == "fail":
            raise KeyError(more)
        return super().step(closure)


SCHEDULED = ClipConfig(
    rule="global_norm",
    threshold={"schedule": "piecewise", "values": [4.0, 2.0, 1.0], "boundaries": [1, 2]},
    eps=0.0,
)


@pytest.mark.parametrize("by_closure", [False, True])
def test_a_step_that_calls_its_base_class_is_clipped_once(by_closure: bool) -> None:
    torch.optim.SGD([torch.zeros(1)])  # PyTorch wraps the step of a class when the class is first used
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = OptimizerWithArgument([parameter], lr=1.0)
    handle = SCHEDULED.attach_to(optimizer)

    def closure() -> float:
        parameter.grad = torch.tensor([3.0, 4.0])
        return 1.5

    for step, threshold in enumerate([4.0, 2.0, 1.0]):
        assert handle.step == step
        closure()
        result = optimizer.step(closure, "more") if by_closure else optimizer.step(None, "more")
        assert result == (1.5 if by_closure else None)
        assert optimizer.more == "more"
        assert parameter.grad.norm() == pytest.approx(threshold)
        assert handle.last.norm == 5


def test_the_step_after_a_failed_step_is_clipped() -> None:
    torch.optim.SGD([torch.zeros(1)])
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = OptimizerWithArgument([parameter], lr=1.0)
    handle = SCHEDULED.attach_to(optimizer)
    parameter.grad = torch.tensor([3.0, 4.0])
    with pytest.raises(KeyError) as failed:
        optimizer.step(None, "fail")
    for step, threshold in [(1, 2.0), (2, 1.0)]:
        assert handle.step == step
        parameter.grad = torch.tensor([3.0, 4.0])
        optimizer.step()
        assert parameter.grad.norm() == pytest.approx(threshold)
    assert failed.traceback, "the traceback keeps the failed step's frames alive"


# -- mixed precision


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscaled_before", [False, True])
@pytest.mark.parametrize("nonfinite", ["family", "raise", "skip", "zero"])
def test_a_step_that_the_scaler_skips_is_not_clipped(fused: bool, unscaled_before: bool, nonfinite: str) -> None:
    parameter, optimizer = one_parameter(math.inf, 1.0, fused=fused)
    handle = ClipConfig(rule="global_norm", threshold=THRESHOLD, eps=0.0, nonfinite=nonfinite).attach_to(optimizer)
    scaling = scaler()
    for gradient, expected in [([math.inf, 1.0], [0.0, 0.0]), ([3 * SCALE / 2, 4 * SCALE / 2], [-0.3, -0.4])]:
        parameter.grad = torch.tensor(gradient)
        scaling.scale(torch.zeros(()))  # creates the scale
        if unscaled_before:
            scaling.unscale_(optimizer)
        scaling.step(optimizer)
        scaling.update()
        assert scaling.get_scale() == SCALE / 2
        assert parameter.detach().tolist() == pytest.approx(expected)
        assert handle.step == (expected[0] != 0)


def test_only_raise_and_skip_wait_for_the_scaler() -> None:
    unreadable = [torch.empty((), device="meta")]
    for nonfinite in ("family", "zero"):
        assert not torch_optimizers.is_skipped(unreadable, ClipConfig(rule="norm", threshold=1, nonfinite=nonfinite))
    for nonfinite in ("raise", "skip"):
        with pytest.raises(RuntimeError, match="meta"):
            torch_optimizers.is_skipped(unreadable, ClipConfig(rule="norm", threshold=1, nonfinite=nonfinite))


@pytest.mark.parametrize("unscaled_before", [False, True])
def test_an_error_in_a_fused_step_changes_nothing(unscaled_before: bool) -> None:
    huge = torch.full((8,), 3e38)  # the elements are finite, and their norm is not
    parameter, optimizer = one_parameter(*huge.tolist(), fused=True)
    ClipConfig(rule="global_norm", threshold=THRESHOLD, nonfinite="raise").attach_to(optimizer)
    scaling = scaler(2.0)
    scaling.scale(torch.zeros(()))
    if unscaled_before:
        scaling.unscale_(optimizer)
    with pytest.raises(NonFiniteNormError):
        scaling.step(optimizer)
    assert torch.equal(parameter.grad, huge / 2 if unscaled_before else huge)
    assert not parameter.detach().any()
    assert not hasattr(optimizer, "grad_scale")
    assert not hasattr(optimizer, "found_inf")
    scaling.update()
    parameter.grad = torch.full((8,), 2 * THRESHOLD / 8**0.5 / 2)
    scaling.step(optimizer)
    assert parameter.detach().tolist() == pytest.approx([-THRESHOLD / 8**0.5 / 2] * 8)


def test_gradients_are_unscaled_as_the_scaler_does() -> None:
    gradient = (torch.arange(1.0, 65.0) / 7).tolist()
    for scale in (3.0, 7.0, 11.0, 1e-3):
        gradients = []
        for unscaled_before in (False, True):
            parameter, optimizer = one_parameter(*gradient, fused=True)
            scaling = scaler(scale)
            scaling.scale(torch.zeros(()))
            ClipConfig(rule="none").attach_to(optimizer)
            if unscaled_before:
                scaling.unscale_(optimizer)
            scaling.step(optimizer)
            gradients.append(parameter.grad)
        assert torch.equal(*gradients)


# -- nonfinite gradients


@pytest.mark.parametrize("by_closure", [False, True])
def test_a_skipped_step_does_not_change_weights_and_momentum(by_closure: bool) -> None:
    parameter, optimizer = one_parameter(3.0, 4.0, momentum=0.9)
    handle = ClipConfig(rule="global_norm", threshold=THRESHOLD, nonfinite="skip").attach_to(optimizer)
    optimizer.step()
    before = parameter.detach().clone(), optimizer.state[parameter]["momentum_buffer"].clone()

    def closure() -> float:
        parameter.grad = torch.tensor([math.nan, 1.0])
        return 0.0

    closure()
    optimizer.step(closure) if by_closure else optimizer.step()
    assert handle.last.skipped
    assert parameter.grad is None
    assert torch.equal(parameter, before[0])
    assert torch.equal(optimizer.state[parameter]["momentum_buffer"], before[1])


def test_lbfgs_reads_skipped_gradients_as_zeros() -> None:
    parameter, optimizer = one_parameter(3.0, 4.0)
    optimizer = torch.optim.LBFGS([parameter], lr=0.1, max_iter=4)
    handle = ClipConfig(rule="global_norm", threshold=10.0, nonfinite="skip").attach_to(optimizer)
    gradients = iter([[3.0, 4.0], [math.nan, 1.0]])

    def closure() -> float:
        parameter.grad = torch.tensor(next(gradients, [1.0, 1.0]))
        return 0.0

    optimizer.step(closure)
    assert handle.last.skipped
    assert parameter.detach().any()
    assert not optimizer.state[parameter]["prev_flat_grad"].isnan().any()


# -- names


def weights_only(*names: str) -> ClipConfig:
    return ClipConfig(rule="global_norm", threshold=THRESHOLD, exclude=list(names))


@pytest.mark.parametrize(
    "names", ["a model", "a dict", "its named parameters", "a list of them", "the optimizer's own"]
)
def test_patterns_match_parameter_names(names: str) -> None:
    model, (inputs, targets) = Model(), next(batches())
    has_own_names = names == "the optimizer's own"
    optimizer = torch.optim.SGD(model.named_parameters() if has_own_names else model.parameters(), lr=RATE)
    named = {
        "a model": model,
        "a dict": dict(model.named_parameters()),
        "its named parameters": model.named_parameters(),
        "a list of them": list(model.named_parameters()),
    }.get(names)
    handle = weights_only("*.bias", "hidden.*").attach_to(optimizer, named)
    model.loss(inputs, targets).backward()
    norm = float(model.output.weight.grad.norm())
    optimizer.step()
    assert handle.last.norm == pytest.approx(norm, rel=1e-6)
    assert model.output.weight.grad.norm() == pytest.approx(THRESHOLD, rel=1e-5)


@pytest.mark.parametrize("names", ["a model", "its named parameters"])
@pytest.mark.parametrize("pattern", ["output.bias", "output.biass"])
def test_a_pattern_may_match_a_parameter_of_another_optimizer(names: str, pattern: str) -> None:
    model, (inputs, targets) = Model(), next(batches())
    optimizer = torch.optim.SGD(model.hidden.parameters(), lr=RATE)
    weights_only(pattern).attach_to(optimizer, model if names == "a model" else model.named_parameters())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            model.loss(inputs, targets).backward()
            optimizer.step()
    is_wrong = pattern == "output.biass"
    message = "The pattern 'output.biass' of the configuration matches none of the names 'hidden.weight', "
    assert [str(warning.message).startswith(message) for warning in caught] == [True] * is_wrong


def test_a_single_layer_has_parameter_names() -> None:
    model = torch.nn.Linear(2, 1)
    handle = ClipConfig(rule="global_norm", threshold=1.0, exclude=["*.bias"], nonfinite="skip").attach_to(
        optimizer := sgd(model), model
    )
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    optimizer.step()
    assert handle.last.norm == pytest.approx(18**0.5)
    assert model.bias.grad.item() == 3.0


@pytest.mark.filterwarnings("ignore:.*No clip calls:unified_clip.ClipWarning")
def test_patterns_need_names_of_all_parameters(tmp_path: Path) -> None:
    model = Model()
    with (
        record(tmp_path / "run.jsonl"),  # which finds names, but only for itself
        pytest.raises(
            ValueError, match=r"In this SGD, parameter 0 of shape \(6, 4\) has no name\. Pass .*\(optimizer, model\)"
        ),
    ):
        weights_only("*.bias").attach_to(sgd(model))
    with pytest.raises(ValueError, match=r"In this SGD, parameter 2 .* is missing in `names`\. Pass the model"):
        weights_only("*.bias").attach_to(sgd(model), dict(model.hidden.named_parameters()))
    with pytest.raises(TypeError, match="names= has the type int"):
        weights_only("*.bias").attach_to(sgd(model), 3)


@pytest.mark.parametrize("own", [False, True])
def test_parameters_added_later_have_names(own: bool) -> None:
    if own and not is_at_least("torch", "2.6"):
        pytest.skip("optimizers take (name, parameter) tuples since PyTorch 2.6")
    model, (inputs, targets) = Model(), next(batches())
    hidden, output = ([(f"{part}.{name}", parameter) for name, parameter in getattr(model, part).named_parameters()]
                      for part in ("hidden", "output"))  # fmt: skip
    optimizer = torch.optim.SGD(hidden if own else model.hidden.parameters(), lr=RATE)
    handle = weights_only("*.bias", "hidden.*").attach_to(optimizer, None if own else model)
    optimizer.add_param_group({"params": output if own else list(model.output.parameters())})
    model.loss(inputs, targets).backward()
    norm = float(model.output.weight.grad.norm())
    optimizer.step()
    assert handle.last.norm == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("fused", [False, True])
def test_parameters_added_later_without_names_are_rejected(fused: bool) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.hidden.parameters(), lr=RATE, fused=fused)
    weights_only("*.bias").attach_to(optimizer, model.hidden)
    optimizer.add_param_group({"params": list(model.output.parameters())})
    with pytest.raises(
        ValueError, match=r"In this SGD, parameter 2 .* Detach the clip, and attach it again with the model: "
    ):
        optimizer.step()


# -- the handle


def copied(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    return copy.deepcopy(optimizer)


def pickled(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    return pickle.loads(pickle.dumps(optimizer))


def from_a_state_dict(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    restored = one_parameter(0.0, 0.0)[1]
    restored.load_state_dict(optimizer.state_dict())
    return restored


@pytest.mark.parametrize("make_copy", [copied, pickled, from_a_state_dict])
def test_a_copied_optimizer_does_not_clip_until_a_clip_is_attached(make_copy: Callable[..., Any]) -> None:
    clip = ClipConfig(
        rule="global_norm", threshold={"schedule": "piecewise", "values": [1.0, 2.0], "boundaries": [1]}, eps=0.0
    )
    _, optimizer = one_parameter(3.0, 4.0)
    handle = clip.attach_to(optimizer)
    optimizer.step()
    optimizer_copy = make_copy(optimizer)
    (parameter,) = optimizer_copy.param_groups[0]["params"]
    parameter.grad = torch.tensor([3.0, 4.0])
    optimizer_copy.step()
    assert parameter.grad.tolist() == [3, 4]
    second_handle = clip.attach_to(optimizer_copy)
    assert second_handle.step == 0
    second_handle.step = handle.step
    optimizer_copy.step()
    assert parameter.grad.norm() == pytest.approx(2.0)
    assert optimizer.param_groups[0]["params"][0].grad.norm() == pytest.approx(1.0)


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda handle: pickle.loads(pickle.dumps(handle))])
def test_a_copied_handle_is_not_attached(make_copy: Callable[..., Any]) -> None:
    parameter, optimizer = one_parameter(3.0, 4.0)
    handle = SCHEDULED.attach_to(optimizer, {"weight": parameter})
    optimizer.step()
    copied = make_copy(handle)
    assert not copied.is_attached
    assert copied.step == 1
    with pytest.raises(RuntimeError, match="nothing has been clipped"):
        _ = copied.last
    copied.detach()
    assert handle.is_attached


# -- rejections


def test_other_objects_than_optimizers_are_rejected() -> None:
    with pytest.raises(TypeError, match=r"optimizer is a Linear"):
        GLOBAL.attach_to(torch.nn.Linear(1, 1))


class Lookahead(torch.optim.Optimizer):
    """A wrapper that does not call the constructor of Optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups


def test_a_wrapper_without_hooks_is_rejected() -> None:
    with pytest.raises(TypeError, match=r"This Lookahead has no hooks: .* wraps another optimizer, pass the wrapped"):
        GLOBAL.attach_to(Lookahead(one_parameter(3.0, 4.0)[1]))


@pytest.mark.parametrize("package", ["accelerate", "lightning", "pytorch_lightning"])
def test_a_clip_attaches_to_the_optimizer_inside_a_wrapper(package: str) -> None:
    parameter, optimizer = one_parameter(3.0, 4.0)
    wrapper = type("Wrapper", (), {"__module__": f"{package}.core.optimizer", "optimizer": optimizer})()
    torch_optimizers.attach(GLOBAL, wrapper)
    optimizer.step()
    assert parameter.grad.norm() == pytest.approx(THRESHOLD)
    with pytest.raises(ValueError, match="attached to this SGD already"):
        torch_optimizers.attach(GLOBAL, wrapper)


@pytest.fixture
def process_group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`", "ignore:.*NO_SHARD.*:FutureWarning")
def test_fsdp1_parameters_are_rejected_unless_ownership_is_declared() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    flat = FullyShardedDataParallel(Model(), device_id=torch.device("cpu"))
    original = FullyShardedDataParallel(Model(), device_id=torch.device("cpu"), use_orig_params=True)
    for parameters in (flat.parameters(), original.parameters()):
        optimizer = torch.optim.SGD(parameters, lr=1.0)
        with pytest.raises(RuntimeError, match=r"Pass process_group=model\.process_group, ownership=fsdp1_ow"):
            GLOBAL.attach_to(optimizer)
        world = torch.distributed.group.WORLD
        assert GLOBAL.attach_to(optimizer, process_group=world, ownership="distinct").is_attached


@pytest.mark.parametrize("nested", [False, True])
def test_a_compiled_step_clips_once_without_a_warning(nested: bool) -> None:
    class Twice(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step()
            return super().step()

    def train(compiled: bool) -> tuple[int, list[torch.Tensor]]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = (Twice if nested else torch.optim.SGD)(model.parameters(), 0.1)
        handle = ClipConfig(rule="global_norm", threshold=0.1).attach_to(optimizer)
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        for _ in range(3):
            model(torch.ones(1, 3)).sum().backward()
            step()
            optimizer.zero_grad()
        return handle.step, list(model.parameters())

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="(?s).*_getframe")  # PyTorch has own warnings
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        count, weights = train(compiled=True)
    expected_count, expected = train(compiled=False)
    assert count == expected_count == 3
    assert all(map(torch.equal, weights, expected))
