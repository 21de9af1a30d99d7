"""Find out why gradients differ before the clip, for example because of a loss scale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ...causes.cause import Cause, joined, names_text
from ...causes.scaling import combined_norm
from ..divergence import DivergencePoint, numbers
from ..pairs.calls import CallPair, orders_of
from ..pairs.packed_parameters import packed_names, separate
from ..pairs.parameters import sorted_shape
from ..recorded_run import RecordedCall, RecordedRun
from ..rounding import ROUNDING, distance, is_near
from . import after_clips, gradient_hints, recurrent, square_weights

OUTSIDE_THE_CLIP = {"other data or loss", "other gradients", "other initial weights"}


def still_scaled(point: DivergencePoint, pair: CallPair) -> Cause | None:
    for run, line, other in _sides(point, pair):
        if line.loss_scale is None or other.loss_scale is not None:
            continue
        norms = [combined_norm(each.known_norms(), 2) for each in (line, other)]
        if not all(norms) or 0.5 < norms[0] / norms[1] / line.loss_scale < 2:
            sentence = (
                f"{run.name} clips gradients that are multiplied by the loss scale {line.loss_scale:.6g}. Before "
                "the clip, divide the gradients by the loss scale, as scaler.unscale_(optimizer) does"
            )
            return Cause("clipping before unscaling", sentence)
    return None


def repeated_parameter(point: DivergencePoint, pair: CallPair) -> Cause | None:
    for run, line, other in _sides(point, pair):
        if line.repeated and not other.repeated:
            count = f"{line.repeated} parameter{'s' * (line.repeated != 1)}"
            sentence = (
                f"{run.name} passes {count} more than once to {line.call}. {line.call} counts and scales a "
                "repeated gradient each time. Pass each parameter once"
            )
            return Cause("repeated parameter", sentence)
    return None


def tied_weights(point: DivergencePoint, pair: CallPair) -> Cause | None:
    """Weights with equal elements at the first clip that are one parameter in the other run."""
    if point.index:
        return None
    matrices = [
        Counter((sorted_shape(each.shape), each.weight) for each in line.parameters.values() if len(each.shape) > 1)
        for line in (pair.a, pair.b)
    ]
    sides = zip(point.both_ways(), (pair.a, pair.b), (matrices, matrices[::-1]), strict=True)
    for (run, other), line, (own, others) in sides:
        separate_weights = own - others
        if not separate_weights or others - own or not all(key[1] and others[key] for key in separate_weights):
            continue
        named = {name: (sorted_shape(each.shape), each.weight) for name, each in line.parameters.items()}
        sentence = (
            f"{names_text([name for name in named if named[name] in separate_weights])} of {run.name} have equal "
            f"norms at the first step, and {other.name} has one parameter in their place, whose gradient is the sum "
            "of their gradients. Tie these weights in both runs, or in neither"
        )
        return Cause("tied weights", sentence)
    return None


def zero_gradients(point: DivergencePoint, pair: CallPair) -> Cause | None:
    for run, line, other in _sides(point, pair):
        if line.known_norms() and not any(line.known_norms()) and any(other.known_norms()):
            sentence = (
                f"at step {line.step}, all gradients of {run.name} are 0 before the clip, and some gradients of the "
                "other run are not 0. Check whether zero_grad() runs between backward() and the clip. Also check "
                "for a detach() or stop_gradient between the loss and the clipped parameters"
            )
            return Cause("other gradients", sentence)
    return None


def missing_names(point: DivergencePoint, pair: CallPair) -> Cause | None:
    only_a = [name for name in pair.a.parameters if name not in pair.names]
    only_b = [name for name in pair.b.parameters if name not in {*pair.names.values()}]
    rest = only_a or only_b
    if pair.by_shape or not pair.names or bool(only_a) == bool(only_b) or any(name.isdecimal() for name in rest):
        return None
    run, line = (point.b, pair.b) if only_a else (point.a, pair.a)
    sentence = f"{names_text(rest)} {'are' if len(rest) > 1 else 'is'} missing"
    return point.cause("left out", joined(sentence, excluded_hint(point, run, line)), run)


MOST_GROWTH = 1000
"""The relative difference of gradients can be up to MOST_GROWTH times that of the weights."""

UNNAMED = "the other clip calls"

FROZEN = {"torch": "requires_grad=False", "paddle": "stop_gradient=True", "tensorflow": "trainable=False"}


def excluded_hint(point: DivergencePoint, run: RecordedRun, line: RecordedCall) -> str:
    """Advise how to clip the same parameters in run b as in run a. `line` is the call that leaves out parameters."""
    old, new = point.a.name, point.b.name
    frozen = FROZEN.get(line.framework or "")
    has_need_clip = line.framework == "paddle" or (line.framework == "torch" and not line.watched)
    if run is point.b:
        causes = [f"freeze them ({frozen})"] * bool(frozen) + ["set need_clip=False for them"] * has_need_clip
        advice = f"Do not {' or '.join(causes)}" if causes else ""
        return joined(f"Pass these parameters to the clip of {new}, too", advice)
    hints = [f"Leave these parameters out of the clip of {new}, too"]
    if frozen:
        hints.append(f"If {old} freezes these parameters ({frozen}), freeze them in {new}, too")
    if has_need_clip:
        hints.append(
            f"If {old} sets need_clip=False for these parameters, do the same in {new}. With unified_clip, set "
            "parameter.need_clip = False after the last copy.deepcopy of a PyTorch model, because the copy loses this "
            "attribute. PyTorch's own functions ignore need_clip: call them without these parameters"
        )
    return joined(*hints)


def inexact_norm(point: DivergencePoint, pair: CallPair) -> Cause | None:
    norms = list(numbers(pair, "norm"))
    if point.first.stage != "coefficient" or not norms or not all(_agree(a, b) for _, a, b in norms):
        return None
    reasons = [reason for run, line, _ in _sides(point, pair) for reason in _other_norms(run, line)]
    if not reasons:
        return None
    exact, (kind, _) = reasons[0]
    sentences = " and ".join(dict.fromkeys(cause.sentence for _, cause in reasons if cause.kind == kind))
    advice = "Compare the code that computes the passed norm" if kind == "given norm" else ""
    return Cause(kind, joined(f"the exact norms are equal ({exact:.9g}), but {sentences}", advice))


def _other_norms(run: RecordedRun, line: RecordedCall) -> Iterator[tuple[float, Cause]]:
    differing = [
        (exact, used) for exact, used in zip(line.norms(), line.used_norms(), strict=False) if not _agree(exact, used)
    ]
    if not differing:
        return
    exact, used = differing[0]
    rows = [line.stored_norm] if isinstance(line.stored_norm, float) else line.stored_norm or []
    if line.passed_norm is not None:
        sentence = f"{run.name} passes the norm {used:.9g} to {line.call}"
        if rows and _agree(rows[0], used):
            yield exact, Cause("rows", f"{sentence}, without summing the repeated rows of sparse gradients")
        else:
            yield exact, Cause("given norm", sentence)
        return
    verb = "returns" if line.returned_norm is not None else "clips by"
    sentence = f"{line.call} of {run.name} {verb} {used:.9g}"
    if line.sparse or rows:
        yield exact, Cause("rows", f"{sentence}, without summing the repeated rows of sparse gradients")
    else:
        yield exact, Cause("inexact norm", sentence)


def initial_weights(point: DivergencePoint, pair: CallPair) -> Cause | None:
    if point.index or point.first.stage not in ("weight", "gradient", "norm"):
        return None
    if any(run.optimizer_steps and run.optimizer_steps[0].calls == 0 for run in (point.a, point.b)):
        return None
    different = [name or "the weight" for name, a, b in numbers(pair, "weight") if not _agree(a, b)]
    if different:
        return Cause("other initial weights", f"the weights of {names_text(different)} differ before the first step")
    if point.first.stage == "weight":
        return None
    orders = orders_of(pair)
    if others := [name for name, order in orders.items() if order == "other"]:
        sentence = (
            f"before the first step, the weights of {names_text(others)} have equal norms, but different elements or "
            "a different order of elements"
        )
        return Cause("other initial weights", sentence)
    if cause := recurrent.other_gates(pair, orders):
        return cause
    shapes = {name: pair.a.parameters[name].shape for name in orders}
    is_transposed = {name: pair.b.parameters[pair.names[name]].shape != shape for name, shape in shapes.items()}
    orders = {n: "transposed" if each == "rearranged" and is_transposed[n] else each for n, each in orders.items()}
    right = [name for name, order in orders.items() if order == "same" and square_weights.is_right(point, pair, name)]
    return untransposed(shapes, {name: order for name, order in orders.items() if name not in right})


def untransposed(shapes: Mapping[str, Sequence[int | None]], orders: Mapping[str, str]) -> Cause | None:
    if reshaped := [name for name, order in orders.items() if order == "reshaped"]:
        sentence = f"the shapes of the weights {names_text(reshaped)} are transposed, but not the order of elements"
        hint = _kernel_hint(reshaped, shapes)
        return Cause("untransposed weight", joined(sentence, "Transpose them, do not reshape them", hint))
    if permuted := [name for name, order in orders.items() if order == "permuted"]:
        sentence = f"the weights of {names_text(permuted)} have their axes in an order that no framework uses"
        hint = _kernel_hint(permuted, shapes)
        return Cause("untransposed weight", joined(sentence, "Correct the transpose", hint))
    square = [
        name for name, order in orders.items()
        if order == "same" and len(shapes[name]) == 2 and len({*shapes[name]}) == 1 and 1 not in shapes[name]
        and not square_weights.is_embedding(name)
    ]  # fmt: skip
    rest = [name for name, order in orders.items() if order == "transposed" and len({*shapes[name]} - {1}) > 1]
    if not square or not rest:
        return None
    sentence = (
        f"one run transposes the weights of {names_text(rest)}, but not the square weights of {names_text(square)}. "
        "This is a possible cause. Transpose square weights too, unless they are embeddings. If the square weights are "
        "correct, compare data, forward pass and loss"
    )
    return Cause("untransposed weight", sentence)


def _kernel_hint(names: Sequence[str], shapes: Mapping[str, Sequence[int | None]]) -> str:
    axes = {4: "(3, 2, 0, 1)", 3: "(2, 1, 0)", 5: "(4, 3, 0, 1, 2)"}
    name = next((name for name in names if len(shapes[name]) in axes), None)
    if name is None:
        return ""
    shape = shapes[name]
    # a depthwise convolution has one channel for each input channel
    is_depthwise = len(shape) == 4 and (shape[-1] == 1 != shape[-2] or shape[1] == 1 != shape[0])
    order = "(2, 3, 0, 1)" if is_depthwise else axes[len(shape)]
    return f"To copy {name!r} from Keras or TensorFlow to PyTorch, use transpose{order}"


# -- if nothing else explains a difference


def by_elimination(point: DivergencePoint) -> Cause | None:
    if point.index >= len(point.pairs):
        return None
    pair = point.pairs[point.index]
    weights = list(numbers(pair, "weight"))
    if not weights or len(weights) < len(pair.a.parameters) or point.first.parameter is None:
        return None
    if point.first.stage == "gradient":
        return _other_gradients(point, pair)
    if point.first.stage == "weight" and point.index and _clips_agree(point.pairs[point.index - 1]):
        before = point.pairs[point.index - 1]
        sentence = (
            f"at step {before.a.step}, the gradients and coefficients agree, but the weights differ after the step"
        )
        if cause := after_clips.one_changes_after_clip(point, before, sentence):
            return cause
        hints = after_clips.hint_at_changes(point, before)
        if after_clips.have_same_optimizers(point, before):
            sentence += ". Both runs use the same optimizer with the same recorded settings"
            advice = "Compare the states and the parameter groups of the optimizers, and code that changes weights"
            return Cause("another update", joined(sentence, advice, hints))
        possible = "This is only a possible cause" if hints else ""
        advice = (
            "Compare the optimizers. Then compare their learning rates, other settings, initial states, and the bias "
            "correction of Adam"
        )
        return Cause("another optimizer", joined(sentence, possible, advice, hints))
    return None


def _other_gradients(point: DivergencePoint, pair: CallPair) -> Cause:
    later, missing = _weights_of_other_calls(point, pair)
    for index, names in later.items():
        if cause := _other_weights(point, pair, index, names):
            return cause
    place = f"at step {pair.a.step}, the clipped parameters have equal norms, and the gradients differ before the clip"
    most = gradient_hints.largest_share(pair)
    if 0 < most < gradient_hints.TINY:
        advice = (
            f"the norms of the gradients differ by at most {most:.2g} of the total norm. If the batches "
            "differed, the norms would differ more. Look for an eps in a formula of the forward pass or the loss. For "
            "example, gradients of paddle.norm and Paddle's weight_norm contain an eps of 1e-12"
        )
        return Cause("other gradients", f"{place}: {advice}")
    if missing:
        advice = f"The weights of {missing} were not compared"
        to_compare = "Compare these weights, data, forward pass and loss. Also check whether each run clears gradients"
        if missing == UNNAMED:
            to_compare += (
                ". Some recorded parameters have no names. To compare all weights, record with "
                "unified_clip.record(path, norms=True, names={name: parameter, ...})"
            )
        return Cause("other gradients", joined(place, advice, to_compare))
    if not is_clearing_known(point.a, point.b, pair.a.step):
        if uncleared := _uncleared(point, pair.a.step):
            return Cause("gradients are not cleared", joined(place, uncleared))
        advice = (
            "Compare data, forward pass, loss, and the weights that are not clipped. Also check whether each "
            "optimizer clears its gradients before the backward passes"
        )
        return Cause("other gradients", joined(place, advice))
    packed = packed_names(pair.a, pair.b, pair.names)
    order = f"Also compare the order of the parameters that are packed into {names_text(packed)}" if packed else ""
    unknown = square_weights.unknown_orders(point, pair)
    if unknown:
        what = (
            f"Norms do not show whether one run transposes the square weights {names_text(unknown)}: check this first"
        )
        return Cause("other data or loss", joined(place, f"{what}, then data, forward pass and loss", order))
    return Cause("other data or loss", joined(f"{place}: compare data, forward pass and loss", order))


def _other_weights(point: DivergencePoint, pair: CallPair, index: int, names: list[str]) -> Cause | None:
    later = point.pairs[index]
    before = [each for each in point.pairs[: point.index] if {*each.names} & {*names}]
    place = f"at step {pair.a.step}, the weights of the clipped parameters agree, but the weights of "
    least = gradient_hints.largest_difference(pair) / MOST_GROWTH
    changes = [(name, distance(a, b).relative) for name, a, b in numbers(later, "weight") if not _agree(a, b)]
    different = [name for name, change in changes if name in names and change >= least]
    if not different:
        orders = orders_of(later) if not before else {}
        others = [name for name in names if orders.get(name) == "other"]
        sentence = f"{place}{names_text(others)} have other elements" if others else ""
        return Cause("other initial weights", sentence) if sentence else None
    if later.a.step == pair.a.step:
        place += f"{names_text(different)} differ. Another call of this step clips their gradients"
    else:
        place += f"{names_text(different)} differ at step {later.a.step}, and have not changed since step {pair.a.step}"
    if not before:
        return Cause(
            "other initial weights", f"{place}. No earlier call clips their gradients: compare the initial weights"
        )
    step = before[-1].a.step
    gradients = [(a, b) for name, a, b in numbers(before[-1], "gradient") if name in different]
    if _clips_agree(before[-1]) and all(_agree(a, b) for a, b in gradients):
        sentence = f"{place}. At step {step}, the runs have equal gradients of these weights and equal coefficients"
        return Cause(
            "another optimizer", f"{sentence}: compare the optimizers of these parameters, including all settings"
        )
    advice = f"The clip of their gradients at step {step} differs, too: look for the cause in this clip first"
    return Cause("other gradients", f"{place}. {advice}")


def _weights_of_other_calls(point: DivergencePoint, pair: CallPair) -> tuple[dict[int, list[str]], str]:
    if not has_other_calls(point.a, pair.a) and not has_other_calls(point.b, pair.b):
        return {}, ""
    recorded = {name for line in point.a.lines for name in line.parameters}
    if any(map(str.isdecimal, recorded)):
        return {}, UNNAMED
    known: dict[int, list[str]] = {}
    rest = recorded - {name for name, _ in separate(pair.a)}
    for index in range(point.index + 1, len(point.pairs)):
        both = point.pairs[index]
        weights = [(name, a, b) for name, a, b in numbers(both, "weight") if name in rest]
        names = {name for name, *_ in weights}
        if not any({*each.names} & names for each in point.pairs[: point.index]):
            # at the first call, equal norms above 0 do not show whether the elements have the same order
            orders = orders_of(both)
            weights = [(name, a, b) for name, a, b in weights if name in orders or not _agree(a, b) or a == b == 0]
        if weights:
            known[index] = [name for name, *_ in weights]
            rest -= {*known[index]}
        if rest_here := rest & {*both.a.parameters}:
            return known, names_text(sorted(rest_here))
    return known, names_text(sorted(rest)) if rest else ""


def has_other_calls(run: RecordedRun, line: RecordedCall) -> bool:
    own = {(name, tuple(each.shape)) for name, each in separate(line)}
    every = {(name, tuple(each.shape)) for call in run.lines for name, each in call.parameters.items()}
    return bool(every - own)


def is_clearing_known(a: RecordedRun, b: RecordedRun, step: int) -> bool:
    both = [each for run in (a, b) for each in run.optimizer_steps if each.step == step]
    begins = min((run.optimizer_steps[0].step for run in (a, b) if run.optimizer_steps), default=step)
    if step <= begins or all(each.backward_calls is None for each in both):
        return True
    return all(each.cleared is True or each.backward_calls is None for each in both)


def _uncleared(point: DivergencePoint, step: int) -> str:
    for run, other in point.both_ways():
        if other.optimizer_steps or all(each.cleared is not False for each in run.optimizer_steps if each.step == step):
            continue
        may_keep = any(line.framework in ("torch", "paddle") for line in other.lines)
        unknown = "has no recorded optimizer steps, so check whether this run clears its gradients"
        return (
            f"{run.name} does not clear the gradients of step {step - 1} before the backward pass of step {step}. "
            f"{other.name} {unknown if may_keep else 'computes new gradients at each step'}"
        )
    return ""


def _clips_agree(pair: CallPair) -> bool:
    return all(_agree(a, b) for _, a, b in (*numbers(pair, "norm"), *numbers(pair, "coefficient")))


def _sides(point: DivergencePoint, pair: CallPair) -> list[tuple[RecordedRun, RecordedCall, RecordedCall]]:
    return [(point.b, pair.b, pair.a), (point.a, pair.a, pair.b)]


def _agree(a: float, b: float) -> bool:
    return is_near(a, b) or abs(a - b) <= ROUNDING * 2.0**-24 * max(abs(a), abs(b))
