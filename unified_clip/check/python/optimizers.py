from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ...source.constants import followed
from ...source.module import Module
from ...source.tree import Target, last_name, text_of

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

KERAS = {"keras", "keras_core", "keras_cv", "keras_hub", "keras_nlp", "tensorflow", "tf_keras"}

COMPARING = ("TypeVar", "cast", "hasattr", "isinstance", "issubclass", "object", "super")
"""Functions that can take an optimizer's class without building an optimizer. `object` is for `mock.patch.object`."""


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
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "compile" or not module.packages & KERAS:
        return False
    if module.dotted(call.func.value).partition(".")[0] in ("re", "regex", "torch"):
        return False
    names = {each.arg: each.value for each in call.keywords}
    optimizer = next(iter(call.args), names.get("optimizer"))
    if optimizer is None:
        return "loss" in names and None not in names and ast.unparse(call.func.value) != "super()"
    values = followed(module, optimizer)
    parts = [values.body, values.orelse] if isinstance(values, ast.IfExp) else getattr(values, "values", [values])
    parts = parts if isinstance(values, ast.IfExp | ast.BoolOp) else [values]
    return any(isinstance(each, ast.Dict | ast.JoinedStr) or text_of(each) is not None for each in parts)
