"""Find code that trains, for `check.each`: optimizers that it builds, trainers that it starts, and optimizer steps."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from ...port.catalog import setting_of, setting_of_base
from ...source.constants import followed
from ...source.module import Module
from ...source.project import Project
from ...source.tree import DEFINITIONS, Function, Target, last_name, owner_of, shortened, text_of

MODULE = re.compile(r"(\w+\.)+optim(izers?)?")

BUILDER = re.compile(
    r"(?i)_*(build|configure|create|get|init(ialize)?|instantiate|make|prepare|set_?up)_?(\w+_)?optim(izer)?s?"
    r"(_v2|_(and|for|from)_\w+)?"
)
"""Matches the name of a function that builds an optimizer, such as timm's `create_optimizer_v2`."""

FACTORY = re.compile(r"(?i)(\w+_)?optim(izer)?(_?(class|cls|constructor|factory|fn|type))?")
"""Matches the name of an object that builds an optimizer from parameters, as in `hparams.optimizer(params=p)`."""

OPTIMIZER = re.compile(
    r"(?!.*\b(lr\w*|schedul(e|er|ing)s?|swa_utils)\.)"
    r"(?!.*(Schedule(?!Free)|Config|State|Param|Spec|Hook|Callback|Manager|Mixin|Model|Numbers|Options|Classifier|Regressor))"
    r"([a-z_]\w*\.)*(\w*optim(izers?)?\.([a-z]\w*\.)*(?!Optimizer$)[A-Z]\w*|keras\.optimizers\.(get|deserialize)"
    r"|train\.(experimental\.)?\w+Optimizer"
    r"|\w*(ADOPT|AdEMAMix|Ada(Belief|Bound|delta|[Ff]actor|[Gg]rad|m(ax)?|n)|CAME(?![A-Z])|DiffGrad|LAMB|LARS|LaProp|Lamb"
    r"|Lars|Lion|MADGRAD|Muon|NovoGrad|Prodigy|RMS[Pp]rop|Ranger|SGD|SOAP|Shampoo|Sophia|Yogi)(?![a-z])(?!\w*(Attention|Block"
    r"|Client|Dataset|Decoder|Embedding|Encoder|Error|Exception|Fault|Handler|Layer|Loss|Message|Net|Network|Parser|Request"
    r"|Response|Server|Service|Test)$)\w*)"
    r"|jax\.\w+\.optimizers\.(ada\w+|momentum|nesterov|rmsprop\w*|sgd|sm3)"
    r"|optax\.(contrib\.)?(a(cprop|dabelief|dadelta|dagrad|dan|dafactor|dam\w*|demamix|dopt|msgrad)|cocob|dadapt_adamw|dow?g"
    r"|fromage|lamb|lars|lbfgs|lion|madgrad|momo(_adam)?|muon|nadamw?|noisy_sgd|novograd|optimistic_\w+|polyak_sgd|prodigy|radam"
    r"|rmsprop|rprop|schedule_free_(adamw|sgd)|sgd|sign_sgd|signum|simplified_ademamix|sm3|sophia|yogi"
    r"|scale_by_(?!learning_rate|schedule)\w+|(named_)?chain)"
)
"""Matches names of optimizers, such as "torch.optim.SGD". Schedulers and PyTorch's class `Optimizer` do not match."""

KERAS = {"keras", "keras_core", "keras_hub", "tensorflow", "tf_keras"}

COMPARING = ("TypeVar", "cast", "hasattr", "isinstance", "issubclass", "object", "super")
"""Functions that can take an optimizer's class without building an optimizer. `object` is for `mock.patch.object`."""

BACKWARD = frozenset({"backward", "grad", "gradient", "gradients", "minimize", "value_and_grad"})
STEPS = frozenset({"apply_gradients", "apply_updates", "minimize", "step"})
STEPPER = re.compile(r"(?i)(?!.*(sched|engine)).*(opt|adam|sgd|scaler|solver)")

MAX_BASES = 10


class Training(NamedTuple):
    line: int
    words: str
    """What the code does, such as "builds an optimizer with optax.adamw"."""

    trainer: str = ""
    """The library's class that clips instead of this code, such as "speechbrain.Brain". Otherwise ''."""


Found = tuple[ast.expr, str]
"""(code, what it does)"""


class Trainings:
    """Finds files that train without a clip. clips: the lines of the clips in each file."""

    def __init__(self, project: Project, clips: Mapping[Path, Sequence[int]]) -> None:
        self._project = project
        self._clips = {os.path.realpath(path): lines for path, lines in clips.items()}

    def first(self, path: Path) -> Training | None:
        """Return the first code of a file that trains, or None if the file calls a function or a class that clips."""
        module = self._project.readable(path)
        if module is None:
            return None
        named = list(_named(module))
        building = named or [*_possible(module), *_trainers(module)]
        left = {node: trainer for node, _ in building if (trainer := self._trainer_of(module, node)) is not None}
        code = [each for each in building if each[0] not in left]
        if not named:
            code += _steps(module)
            if code and any(self._clips_in(module, call.func) for call in module.calls):
                return None
        if code:
            return min(Training(node.lineno, words) for node, words in code)
        trainers = (Training(node.lineno, words, left[node]) for node, words in building if left[node])
        return next(trainers, None)

    def _clips_in(self, module: Module, function: ast.expr) -> bool:
        found = self._project.definition(module, function)
        if isinstance(function, ast.Attribute) and not module.full_name(function):  # a method is found by its name
            return function.attr in self._methods
        return found is not None and found.module is not module and self._has_clip(found.module, found.node)

    @cached_property
    def _methods(self) -> set[str]:
        """The names of the methods that clip."""
        modules = [module for path in self._clips if (module := self._project.readable(Path(path))) is not None]
        return {
            node.name
            for module in modules
            for node in module.nodes
            if isinstance(node, Function)
            if isinstance(module.parents[node], ast.ClassDef) and self._has_clip(module, node)
        }

    def _has_clip(self, module: Module, node: ast.AST) -> bool:
        lines = self._clips.get(os.path.realpath(module.path), ()) if module.path else ()
        return isinstance(node, DEFINITIONS) and any(node.lineno <= line <= module.end(node) for line in lines)

    def _trainer_of(self, module: Module, node: ast.expr) -> str | None:
        """Return the library's class to which code leaves the clip, '' for a class of the project, or None.

        An optimizer belongs to the class that contains it. Outside of such classes, it belongs to the trainer that the
        file creates, as in `Trainer(model, optimizers=(optimizer, None))`.
        """
        around = (self._base(module, each) for each in module.ancestors(node) if isinstance(each, ast.ClassDef))
        created = (self._base_of(module, call.func) for call in module.calls)
        return next((base for bases in (around, created) for base in bases if base is not None), None)

    def _base_of(self, module: Module, node: ast.expr, depth: int = 0) -> str | None:
        node = node.value if isinstance(node, ast.Subscript) else node
        name = module.full_name(node)
        if setting_of_base(name) is not None:
            return name
        found = self._project.definition(module, node) if isinstance(node, Target) else None
        if found is None or not isinstance(found.node, ast.ClassDef) or depth > MAX_BASES:
            return None
        return "" if depth and self._has_clip(found.module, found.node) else self._base(found.module, found.node, depth)

    def _base(self, module: Module, node: ast.ClassDef, depth: int = 0) -> str | None:
        bases = (self._base_of(module, base, depth + 1) for base in node.bases)
        return next((base for base in bases if base is not None), None)


def _named(module: Module) -> Iterator[Found]:
    for node in built(module):
        is_class = isinstance(node, ast.Call) and last_name(node.func) != "compile"
        yield node, f"builds an optimizer with {shortened(node.func if is_class else node)}"  # type: ignore[attr-defined]
    for read in module.nodes:  # such as getattr(torch.optim, name)
        if isinstance(read, Target) and MODULE.fullmatch(module.full_name(read)):
            parent = module.parents[read]
            if isinstance(parent, ast.Call) or getattr(parent, "attr", "") == "__dict__":
                yield read, f"builds an optimizer with {shortened(parent)}"


def _possible(module: Module) -> Iterator[Found]:
    own = {node.name for node in module.nodes if isinstance(node, DEFINITIONS)}
    for call in module.calls:
        name, owner = last_name(call.func), getattr(call.func, "value", call.func)
        is_built = BUILDER.fullmatch(name) is not None and ast.unparse(owner) not in ("self", "cls", "super()")
        is_built |= name == "instantiate" and any("optim" in last_name(each) for each in call.args[:1])
        is_built |= FACTORY.fullmatch(name) is not None and any(
            "param" in ast.unparse(each) for each in (*call.args, *call.keywords)
        )
        if is_built and name not in own:
            yield call, f"builds an optimizer with {shortened(call.func)}"


def _trainers(module: Module) -> Iterator[Found]:
    is_fitted = any(last_name(call.func) == "fit" for call in module.calls)
    for call in module.calls if is_fitted else ():
        if setting_of(module.full_name(call.func)) is not None:
            yield call, f"trains with {shortened(call.func)}"


def _steps(module: Module) -> Iterator[Found]:
    """Yield each optimizer step of a file that also computes gradients.

    Steps of an engine are left out, because an engine can clip its own gradients.
    """
    if not BACKWARD & {last_name(call.func) for call in module.calls}:
        return
    for call in module.calls:
        name, owner = last_name(call.func), last_name(getattr(call.func, "value", call.func))
        is_step = name in STEPS and (name != "step" or STEPPER.match(owner)) and "engine" not in owner.lower()
        if is_step and not (isinstance(call.func, ast.Attribute) and module.full_name(owner_of(call))):
            yield call, f"makes optimizer steps with {shortened(call.func)}"


def is_made(module: Module, node: ast.expr) -> bool:
    made = followed(module, node)
    return isinstance(made, ast.Call) and OPTIMIZER.fullmatch(module.dotted(made.func)) is not None


def built(module: Module) -> Iterator[ast.expr]:
    """Yield the optimizers that code builds: the calls, or the optimizer classes that code passes to a function."""
    for node in module.nodes:
        if isinstance(node, Target) and isinstance(node.ctx, ast.Load) and OPTIMIZER.fullmatch(module.dotted(node)):
            call = module.call_of(node)
            if call is not None or _is_passed(module, node):
                yield call or node
        elif isinstance(node, ast.Call) and _is_compiled(module, node):
            yield node


def _is_passed(module: Module, node: ast.expr) -> bool:
    parent = module.parents[node]
    if isinstance(parent, ast.keyword):
        parent = module.parents[parent]
    if isinstance(parent, ast.Call):
        return last_name(parent.func) not in COMPARING
    is_imported = module.full_name(node) != ""
    return is_imported and isinstance(parent, ast.Dict | ast.Assign | ast.IfExp)


def _is_compiled(module: Module, call: ast.Call) -> bool:
    """Return whether Keras builds the optimizer in a call such as `model.compile("adam")`."""
    if last_name(call.func) != "compile" or not isinstance(call.func, ast.Attribute) or not module.packages & KERAS:
        return False
    names = {each.arg: each.value for each in call.keywords}
    optimizer = next(iter(call.args), names.get("optimizer"))
    if optimizer is None:
        return "loss" in names and None not in names and ast.unparse(call.func.value) != "super()"
    is_of_keras = module.full_name(call.func.value).partition(".")[0] not in ("re", "regex", "torch")
    value = followed(module, optimizer)
    parts = [value.body, value.orelse] if isinstance(value, ast.IfExp) else getattr(value, "values", [value])
    parts = [value] if isinstance(value, ast.Dict | ast.JoinedStr) else parts
    return is_of_keras and any(isinstance(each, ast.Dict | ast.JoinedStr) or text_of(each) for each in parts)
