"""Find clip calls that run before the backward pass, after the optimizer's step, or only in some steps."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Iterator, Sequence

from ....config.formats.python_source import FUNCTIONS, Source, end_of, last_name, shortened
from ....errors import ConfigError
from ..configuration_uses import SHOWS
from ..optimizers import attached, is_made
from ..steps.gradient_events import MAX_DEPTH, Event, Timeline
from ..steps.value_flow import LOOPS

ADVICE = "If this is intended, add the clip to check.ignore with a reason."
SOME = "This clip runs only if {test}, but {step} in line {line} also runs without the clip. Clip before each step. "
LATE = "This clip comes after {step} in line {line}. The step has used the gradients already. Clip before the step. "
EARLY = "This clip comes before {step} in line {line}. That line computes gradients. Clip after that line. "
PARTIAL = (
    "{step} in line {line} uses the summed gradients of several backward passes, but this clip runs after each pass. "
    "Clip only the sum, directly before the step. "
)
CLOSURE = (
    "This clip comes before {step} in line {line}. That step runs a closure, which computes the gradients again. Clip "
    "in the closure, after its backward pass. "
)
REPEATED = (
    "Line {line} uses this configuration for another clip in the same step. Each call advances the schedule or the "
    "adaptive rule by one step. Clip all gradients in one call. "
)
REPLACED = (
    "Line {line} assigns a new optimizer to {name}. This clip is not attached to the new optimizer. Attach the clip "
    "after that line. "
)
CALLED = "Line {line} calls {call}, which runs this clip. {why}"
DETACHED = "{code} detaches the clip immediately, so the clip has no effect. {edit}. "

DETACHING = ("detach", "remove")
RUNNING = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom)


_timeline = functools.lru_cache(maxsize=4)(lambda source: Timeline(source, frozenset()))


def check(source: Source, call: ast.Call, depth: int = 0) -> None:
    for outer in source.around(call):
        if isinstance(outer, ast.Call) and "hook" in last_name(outer.func):
            check_detached(source, outer)
    events = _events(source, call)
    for caller in _timeline(source).callers(call) if not events and depth < MAX_DEPTH else ():
        try:
            check(source, caller, depth + 1)
        except ConfigError as error:
            raise ConfigError(CALLED.format(line=caller.lineno, call=shortened(caller), why=error)) from None
    before = [event for event in events if end_of(event.call) < end_of(call)]
    after = [event for event in events if end_of(event.call) > end_of(call)]
    has_backward = any(event.kind == "backward" for event in before)
    if has_backward and before[-1].kind == "step" and (not after or after[0].kind == "backward"):
        raise _wrong(LATE, before[-1])
    if after and after[0].kind == "backward" and _is_early(source, call, before, after):
        raise _wrong(EARLY, after[0])
    kinds = [event.kind for event in _timeline(source).of_callees(after[0].call)] if after else []
    if "backward" in kinds and "clip" not in kinds and after[0].kind == "step":
        raise _wrong(CLOSURE, after[0])
    if (step := _step_of_sum(source, call, events)) is not None and before and before[-1].kind == "backward":
        raise _wrong(PARTIAL, step)
    steps = [event for event in events if event.kind == "step"]
    for test in _counting(source, call):
        for event in steps:
            if not any(_counting(source, event.call)):
                raise _wrong(SOME, event, test)
    for branch in _comparing_counters(source, call):
        if steps and not any(branch in source.around(event.call) for event in steps):
            raise _wrong(SOME, steps[0], shortened(branch.test))


def check_once(source: Source, call: ast.Call) -> None:
    """Raise ConfigError if an earlier call of the same configuration clips in the same step."""
    timeline, code = _timeline(source), ast.unparse(call.func)
    ends = [end_of(event.call) for event in timeline.local(call)]
    for first in source.calls if ends else ():
        is_same = ast.unparse(first.func) == code and source.function(first) is source.function(call)
        is_before = end_of(first) < end_of(call) and not any(end_of(first) < end < end_of(call) for end in ends)
        if is_same and is_before and not timeline.exclude(first, call):
            raise ConfigError(REPEATED.format(line=first.lineno) + ADVICE)


def _is_early(source: Source, call: ast.Call, before: Sequence[Event], after: Sequence[Event]) -> bool:
    step = next((event for event in after if event.kind == "step"), None)
    if step is None or not before:
        return step is not None
    owners = {event.owner for event in after if event.kind == "step"}
    start, end = end_of(after[0].call), end_of(step.call)
    is_clipped = any(start < end_of(each) < end and _timeline(source).is_clip(each) for each in source.calls)
    return before[-1].kind == "backward" and len(owners) == 1 and not is_clipped


def _step_of_sum(source: Source, call: ast.Call, events: Sequence[Event]) -> Event | None:
    """If the clip runs after each of several backward passes, return the step that uses the summed gradients."""
    steps = [event for event in events if event.kind == "step"]
    passes = [event.call for event in events if event.kind == "backward"]
    if any(any(_counting(source, each)) for each in [call, *passes]):
        return None
    if steps:
        return steps[0] if all(any(_counting(source, step.call)) for step in steps) else None
    loop = next(outer for outer in source.around(call) if isinstance(outer, (*LOOPS, *FUNCTIONS, ast.Module)))
    if not isinstance(loop, LOOPS) or _names(getattr(loop, "target", None)) & _names(call):
        return None
    later = (event for event in _timeline(source).local(call) if end_of(event.call) > end_of(loop))
    return next((event for event in later if passes and event.kind == "step"), None)


def _names(node: ast.AST | None) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} if node is not None else set()


def check_attached(source: Source, call: ast.Call) -> None:
    check_detached(source, call)
    events = [event for event in _timeline(source).local(call) if event.kind == "step"]
    if events and all(end_of(event.call) < end_of(call) for event in events):
        raise _wrong(LATE, events[-1])
    if (line := _replaced(source, call)) is not None:
        raise ConfigError(REPLACED.format(line=line, name=attached(call)) + ADVICE)


def check_detached(source: Source, call: ast.Call) -> None:
    holder = source.parents[call]
    if getattr(holder, "attr", "") in DETACHING:
        method = ast.unparse(holder).rpartition(".")[2]
        code = f"{last_name(call.func)}(...).{method}()"
        raise ConfigError(DETACHED.format(code=code, edit=f"Remove .{method}()") + ADVICE)
    block = source.parents.get(holder)
    end: ast.expr | ast.stmt | None = None
    if isinstance(holder, ast.withitem) and isinstance(block, ast.With | ast.AsyncWith):
        end, code, edit = (
            block,
            f"The end of the with block in line {block.end_lineno}",
            "Put the training into the block",
        )
    elif isinstance(holder, ast.Assign):
        names = [f"{ast.unparse(holder.targets[0])}.{method}" for method in DETACHING]
        calls = [each for each in source.calls if ast.unparse(each.func) in names and end_of(each) > end_of(call)]
        end = next((each for each in calls if block in [*source.around(each)][:2]), None)
        code, edit = (f"{ast.unparse(end)} in line {end.lineno}", "Remove this call") if end else ("", "")
    running = (each for each in source.nodes if isinstance(each, RUNNING) and each is not end)
    between = (each for each in running if end and end_of(call) < end_of(each) <= end_of(end))
    if end and all(last_name(getattr(each, "func", each)) in SHOWS for each in between):
        raise ConfigError(DETACHED.format(code=code, edit=edit) + ADVICE)


def _replaced(source: Source, call: ast.Call) -> int | None:
    name, function = attached(call), source.function(call)
    if not isinstance(source.parents[call], ast.Expr):
        return None
    nodes = [node for node in source.nodes if source.function(node) is function]
    last = max(end_of(node) for node in nodes if isinstance(node, ast.Call) and attached(node) == name)
    for node in nodes:
        match node:
            case ast.Assign(targets=[target], value=value) if end_of(value) > last and ast.unparse(target) == name:
                if is_made(source, value) and not _timeline(source).exclude(node, call):
                    return node.lineno
    return None


def _wrong(text: str, event: Event, test: str = "") -> ConfigError:
    return ConfigError(text.format(step=shortened(event.call), line=event.call.lineno, test=test) + ADVICE)


def _events(source: Source, call: ast.Call) -> list[Event]:
    events = _timeline(source).local(call)
    for region in source.around(call):
        if isinstance(region, (ast.For, ast.While, ast.Module, *FUNCTIONS)):
            inner = [event for event in events if region in source.around(event.call)]
            if inner or isinstance(region, FUNCTIONS):
                return inner
    return []


def _counting(source: Source, node: ast.AST) -> list[str]:
    """Return the conditions around a node that use `%` to count steps, as in `if step % 4 == 0`."""
    outers = itertools.pairwise([node, *source.around(node)])
    steps = itertools.takewhile(lambda step: not isinstance(step[1], FUNCTIONS), outers)
    tests = [outer.test for inner, outer in steps if isinstance(outer, ast.If) and inner in outer.body]
    return [shortened(test) for test in tests if any(isinstance(part, ast.Mod) for part in ast.walk(test))]


def _comparing_counters(source: Source, call: ast.Call) -> list[ast.If]:
    counters = {last_name(node) for node in _counters(source)}
    return [
        outer
        for outer in itertools.takewhile(lambda outer: not isinstance(outer, FUNCTIONS), source.around(call))
        if isinstance(outer, ast.If) and isinstance(test := outer.test, ast.Compare)
        if any(
            isinstance(side, ast.Name | ast.Attribute) and last_name(side) in counters
            for side in (test.left, *test.comparators)
        )
    ]


def _counters(source: Source) -> Iterator[ast.expr]:
    for node in source.nodes:
        match node:
            case ast.AugAssign(target=counter, op=ast.Add(), value=ast.Constant(value=1)):
                yield counter
            case (
                ast.For(target=ast.Name() as counter, iter=ast.Call(func=ast.Name(id="range")))
                | ast.For(target=ast.Tuple(elts=[counter, *_]), iter=ast.Call(func=ast.Name(id="enumerate")))
            ):
                yield counter
