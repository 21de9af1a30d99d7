"""Find limits of trainers that clip by themselves: `max_grad_norm=`, `gradient_clip_val=`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from .catalog import ENGINE_METHODS, Setting, setting_of, settings
from .clip_call import Entry, FoundClip, Imports
from .source.module import SELF, Module
from .source.syntax_tree import is_name, keywords_of, method_of


def in_call(module: Module, imports: Imports, call: cst.Call) -> Iterator[FoundClip]:
    """Yield the limit that a call passes, or the default of the trainer."""
    if method_of(call) in ENGINE_METHODS:
        return  # found as a method
    name = module.full_name(call.func)
    known = setting_of(name) or setting_of(name.rpartition(".")[0]) or _from_factory(module, imports, call, name)
    passed = keywords_of(call)
    for keyword, argument in passed.items():
        is_known = known is not None and known.keyword == keyword
        setting = known if is_known else _setting(imports, keyword, argument.value)
        if setting is not None and not _is_own_function(module, call):
            yield FoundClip(argument, f"{name or '?'}({keyword}=)", call=call, why_not=setting.why_not, setting=setting)
    if known is None or known.keyword in passed:
        yield from _parsed(module, call)
    elif name in known.elsewhere or name not in known.classes or any(argument.star for argument in call.args):
        yield _unseen(call.func, name, known, call)
    elif known.default:
        why_not = f"{known.keyword}= is not passed, so its default of {known.default} applies. {known.why_not}"
        yield FoundClip(call.func, f"{name}({known.keyword}=)", call=call, why_not=why_not, setting=known)


def _unseen(node: cst.CSTNode, name: str, setting: Setting, call: cst.Call | None = None) -> FoundClip:
    """Return a limit whose value is not in the file."""
    sources = "a file, the command line, or arguments that cannot be inferred"
    why_not = f"{setting.keyword}= may be set by {sources}. {setting.why_not}"
    return FoundClip(node, f"{name}({setting.keyword}=)", call=call, why_not=why_not, setting=setting)


def _from_factory(module: Module, imports: Imports, call: cst.Call, name: str) -> Setting | None:
    """Return the setting of hydra.utils.instantiate(cfg.trainer), if the file imports the trainer's package."""
    if not call.args or "trainer" not in module.code(call.args[0].value).lower():
        return None
    known = (setting for setting in settings() if name in setting.factories)
    return next((setting for setting in known if imports.packages & set(setting.packages)), None)


def _parsed(module: Module, call: cst.Call) -> Iterator[FoundClip]:
    """Yield the setting of HfArgumentParser((ModelArguments, TrainingArguments))."""
    if not module.code(call.func).endswith("ArgumentParser"):
        return
    for argument in call.args:
        elements = argument.value.elements if isinstance(argument.value, cst.Tuple | cst.List) else [argument]
        for element in elements:
            name = module.full_name(element.value)
            if (setting := setting_of(name)) is not None:
                yield _unseen(element.value, name, setting, call)


def derived(module: Module, node: cst.ClassDef) -> Iterator[FoundClip]:
    """Yield the setting of class Arguments(TrainingArguments), whose values a parser sets."""
    for base in node.bases:
        name = module.full_name(base.value)
        if (setting := setting_of(name)) is not None and setting.default:
            yield _unseen(base.value, name, setting)


def entry(imports: Imports, entry: Entry) -> Iterator[FoundClip]:
    """Yield {"gradient_clip_val": 0.5}, config["gradient_clipping"] = 1.0, and training_args.max_grad_norm = 1.0."""
    setting = _setting(imports, entry.keyword, entry.value)
    if setting is not None and entry.owner not in SELF:
        yield FoundClip(entry.node, entry.name, why_not=setting.why_not, setting=setting)


def limit(clip: FoundClip) -> cst.BaseExpression | None:
    """Return the expression of a limit; None if it is not passed."""
    return clip.node.value if isinstance(clip.node, cst.Arg | cst.DictElement) else None


def is_off(module: Module, clip: FoundClip) -> bool:
    """Return whether a setting switches clipping off: None or 0."""
    value = limit(clip)
    return value is not None and (module.code(value) == "None" or module.number(value) == 0)


def _setting(imports: Imports, keyword: str, value: cst.BaseExpression) -> Setting | None:
    """Return the setting of a keyword in this file."""
    in_dict = isinstance(value, cst.Call) and is_name(value.func, "dict")
    in_dict = in_dict or (isinstance(value, cst.Dict) and bool(value.elements))
    known = [setting for setting in settings() if setting.keyword == keyword]
    for setting in known:
        if in_dict if setting.in_dict else imports.packages & set(setting.packages):
            return setting
    return None


def _is_own_function(module: Module, call: cst.Call) -> bool:
    """Return whether a call is of a function or method of the file, whose own clips are found."""
    name = module.code(call.func)
    return name.removeprefix("self.").removeprefix("cls.") in module.function_names
