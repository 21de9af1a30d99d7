from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ...config.formats.python_source import Source, last_name

OTHER = (
    "Attention", "Block", "Client", "Dataset", "Decoder", "Embedding", "Encoder", "Error", "Exception", "Fault", "Net",
    "Handler", "Layer", "Loss", "Message", "Network", "Parser", "Request", "Response", "Server", "Service", "Test",
)  # fmt: skip
"""Words in names of classes that are not optimizers, such as SOAPClient."""

OPTIMIZER = re.compile(
    r"(?!.*\b(lr\w*|schedul(e|er|ing)s?|swa_utils)\.)"
    r"(?!.*(Schedule(?!Free)|Config|State|Param|Spec|Hook|Callback|Manager|Mixin|Model|Numbers|Options|Classifier|Regressor))"
    r"([a-z_]\w*\.)*(\w*optim(izers?)?\.([a-z]\w*\.)*(?!Optimizer$)[A-Z]\w*|keras\.optimizers\.(get|deserialize)"
    r"|train\.(experimental\.)?\w+Optimizer"
    r"|\w*(ADOPT|AdEMAMix|Ada(Belief|Bound|delta|[Ff]actor|[Gg]rad|m(ax)?|n)|CAME(?![A-Z])|DiffGrad|LAMB|LARS|LaProp|Lamb"
    r"|Lars|Lion|MADGRAD|Muon|NovoGrad|Prodigy|RMS[Pp]rop|Ranger|SGD|SOAP|Shampoo|Sophia|Yogi)(?![a-z])\w*"
    + "".join(f"(?<!{noun})" for noun in OTHER)
    + r")"
    r"|jax\.\w+\.optimizers\.(ada\w+|momentum|nesterov|rmsprop\w*|sgd|sm3)"
    r"|optax\.(contrib\.)?(a(cprop|dabelief|dadelta|dagrad|dan|dafactor|dam\w*|demamix|dopt|msgrad)|cocob|dadapt_adamw|dow?g"
    r"|fromage|lamb|lars|lbfgs|lion|madgrad|momo(_adam)?|muon|nadamw?|noisy_sgd|novograd|optimistic_\w+|polyak_sgd|prodigy|radam"
    r"|rmsprop|rprop|schedule_free_(adamw|sgd)|sgd|sign_sgd|signum|simplified_ademamix|sm3|sophia|yogi"
    r"|scale_by_(?!learning_rate|schedule)\w+|(named_)?chain)"
)
"""Matches names of optimizers, such as "torch.optim.SGD". Schedulers and PyTorch's class `Optimizer` do not match."""

STEPPER = re.compile(r"(?i)(?!.*sched).*(opt|adam|sgd|scaler|solver|engine)")

CLIPPING = ("grad_clip", "clipnorm", "clipvalue", "global_clipnorm")

KERAS = {"keras", "keras_core", "keras_cv", "keras_hub", "keras_nlp", "tensorflow", "tf_keras"}

COMPARING = ("TypeVar", "cast", "hasattr", "isinstance", "issubclass", "object", "super")
"""Functions that can take an optimizer's class without building an optimizer. `object` is for `mock.patch.object`."""


def is_made(source: Source, node: ast.expr) -> bool:
    made = source.followed(node)
    return isinstance(made, ast.Call) and OPTIMIZER.fullmatch(source.dotted(made.func)) is not None


def built(source: Source) -> Iterator[tuple[ast.expr, str]]:
    """Yield (node, full name) for each optimizer that code builds, in the order of the source.

    The node is the call that builds the optimizer, or the optimizer class if code passes the class to a function.
    """
    nodes = [(_call(source, node), source.dotted(node)) for node in source.nodes if _is_optimizer(source, node)]
    package = "tf_keras" if "tf_keras" in source.packages else "keras"
    nodes += [(call, f"{package}.Model.compile") for call in source.calls if _is_compiled(source, call)]
    yield from sorted(nodes, key=lambda each: (each[0].lineno, each[0].col_offset))


def _is_optimizer(source: Source, node: ast.AST) -> bool:
    if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
        return False
    if OPTIMIZER.fullmatch(source.dotted(node)) is None:
        return False
    if _call(source, node) is not node:
        return True
    if isinstance(node, ast.Attribute) and source.dotted(node).partition(".")[0] not in source.packages:
        return False
    inner: ast.AST = node
    for outer in source.around(node):
        match outer:
            case ast.arg() | ast.Compare() | ast.MatchClass():
                return False
            case ast.BinOp(op=ast.BitOr()) if inner is node:  # a type such as Adam | SGD
                return False
            case ast.AnnAssign(annotation=part) | ast.Subscript(slice=part) if part is inner:
                return False
            case ast.FunctionDef(returns=part) | ast.AsyncFunctionDef(returns=part) if part is inner:
                return False
            case ast.ClassDef(bases=bases) if inner in bases:
                return False
            case ast.Call(func=function) if function is not inner and last_name(function) in COMPARING:
                return False
        inner = outer
    return True


def _call(source: Source, node: ast.AST) -> ast.expr:
    parent = source.parents[node]
    assert isinstance(node, ast.expr)
    return parent if isinstance(parent, ast.Call) and parent.func is node else node


def _is_compiled(source: Source, call: ast.Call) -> bool:
    """Return whether Keras builds the optimizer in a call such as `model.compile("adam")`."""
    match call.func:
        case ast.Attribute(value=owner, attr="compile"):
            names = {each.arg: each.value for each in call.keywords}
            if not source.packages & KERAS or source.dotted(owner).partition(".")[0] in ("re", "regex", "torch"):
                return False
            optimizer = next(iter(call.args), names.get("optimizer"))
            if optimizer is None:
                return "loss" in names and None not in names and ast.unparse(owner) != "super()"
            values = source.bound.get(optimizer.id, []) if isinstance(optimizer, ast.Name) else [optimizer]
            return any(map(_is_text, values))
    return False


def _is_text(node: ast.expr | None) -> bool:
    match node:
        case ast.IfExp(body=body, orelse=other):
            return _is_text(body) or _is_text(other)
        case ast.BoolOp(values=values):
            return any(map(_is_text, values))
    return isinstance(node, ast.Dict | ast.JoinedStr) or isinstance(getattr(node, "value", None), str)


def has_clip(node: ast.expr) -> bool:
    arguments = node.keywords if isinstance(node, ast.Call) else []
    return any(each.arg in CLIPPING and ast.unparse(each.value) != "None" for each in arguments)


def attached(call: ast.Call) -> str:
    arguments = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "optimizer")]
    return ast.unparse(arguments[0]) if arguments and getattr(call.func, "attr", "") == "attach_to" else ""
