"""Find arguments that switch a trainer's clipping on, such as `max_grad_norm=` and `gradient_clip_val=`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from .catalog import ENGINE_METHODS, TrainerSetting, setting_of, settings
from .found_clip import FoundClip, Imports, SettingEntry, entry_of
from .ported_clip import SET_OUTSIDE
from .source.module import SELF, Module
from .source.syntax_tree import is_name, keywords_of, method_of

PARSERS = ("ArgumentParser", "TrlParser")
"""The names of classes that parse dataclasses, such as HfArgumentParser."""


def clips_in_call(module: Module, imports: Imports, call: cst.Call) -> Iterator[FoundClip]:
    if method_of(call) in ENGINE_METHODS:
        return  # `find` finds this call as a method
    passed = keywords_of(call)
    # the first full name of a file takes most of the time
    name = module.full_name(call.func) if imports.has_trainers else ""
    known = setting_of(name) or setting_of(name.rpartition(".")[0]) or _from_factory(module, imports, call, name)
    for keyword, argument in passed.items():
        is_known = known is not None and known.keyword == keyword
        setting = known if is_known else _setting(imports, keyword, argument.value)
        if setting is not None and not _is_own_function(module, call):
            yield FoundClip(
                argument, f"{name or module.code(call.func)}({keyword}=)", call=call,
                why_not=_why_not(setting, argument.value),
                setting=setting, limit=argument.value,
            )  # fmt: skip
    if known is None or known.keyword in passed:
        yield from _parsed(module, call)
    elif name in known.elsewhere or name not in known.classes or any(argument.star for argument in call.args):
        yield _with_unknown_value(call.func, name, known, call)
    elif known.default:
        why_not = f"{known.keyword}= is not passed, so its default of {known.default} applies. {known.why_not}"
        yield FoundClip(
            call.func, f"{name}({known.keyword}=)", call=call, why_not=why_not, setting=known,
            limit=cst.parse_expression(known.default),
        )  # fmt: skip


def _with_unknown_value(
    node: cst.CSTNode, name: str, setting: TrainerSetting, call: cst.Call | None = None
) -> FoundClip:
    why_not = f"{setting.keyword}= {SET_OUTSIDE}. {setting.why_not}"
    return FoundClip(node, f"{name}({setting.keyword}=)", call=call, why_not=why_not, setting=setting)


def _from_factory(module: Module, imports: Imports, call: cst.Call, name: str) -> TrainerSetting | None:
    if not call.args or "trainer" not in module.code(call.args[0].value).lower():
        return None
    known = (setting for setting in settings() if name in setting.factories)
    return next((setting for setting in known if imports.packages & set(setting.packages)), None)


def _parsed(module: Module, call: cst.Call) -> Iterator[FoundClip]:
    """Find parsers of trainer arguments, such as HfArgumentParser((ModelArguments, TrainingArguments))."""
    if not module.code(call.func).endswith(PARSERS):
        return
    for argument in call.args:
        values = module.binding(argument.value).values or []
        classes = values[0] if len(values) == 1 else argument.value
        elements = classes.elements if isinstance(classes, cst.Tuple | cst.List) else [argument]
        for element in elements:
            name = module.full_name(element.value)
            if (setting := setting_of(name)) is not None:
                yield _with_unknown_value(element.value, name, setting, call)


def clips_in_bases(module: Module, node: cst.ClassDef) -> Iterator[FoundClip]:
    """Find base classes that contain trainer arguments, such as TrainingArguments."""
    for base in node.bases:
        name = module.full_name(base.value)
        if (setting := setting_of(name)) is not None and (setting.default or name in setting.elsewhere):
            yield _with_unknown_value(base.value, name, setting)


def clips_in_entry(imports: Imports, entry: SettingEntry) -> Iterator[FoundClip]:
    """Find settings such as config["gradient_clipping"] = 1.0, args.max_grad_norm = 1.0, or {"grad_clip": 1.0}."""
    setting = _setting(imports, entry.keyword, entry.value)
    if setting is not None and entry.owner not in SELF:
        why_not = _why_not(setting, entry.value)
        yield FoundClip(entry.node, entry.name, why_not=why_not, setting=setting, limit=entry.value)


def _why_not(setting: TrainerSetting, limit: cst.BaseExpression) -> str:
    return setting.none if is_uncertain(setting, limit) else setting.why_not


def is_uncertain(setting: TrainerSetting, limit: cst.BaseExpression | None) -> bool:
    return bool(setting.none) and is_name(limit, "None")


def rule_of_argument(module: Module, clip: FoundClip, setting: TrainerSetting) -> str:
    if is_uncertain(setting, clip.limit):
        return ""
    if not setting.rule_keyword:
        return setting.rule
    chosen = chosen_rules(module, clip, setting)
    if len(chosen) == 1:
        code = ".".join(chosen.pop().split(".")[-2:]).strip("\"'")
        return setting.rule if code == "None" else setting.rules.get(code, "")
    is_complete = clip.call is not None and not any(argument.star for argument in clip.call.args)
    return setting.rule if not chosen and (is_complete or setting.rule_keyword not in module.tree.code) else ""


def chosen_rules(module: Module, clip: FoundClip, setting: TrainerSetting) -> set[str]:
    if clip.call is not None:
        passed = [(keyword, argument.value) for keyword, argument in keywords_of(clip.call).items()]
    else:
        entries = [entry_of(module, node) for node in module.nodes]
        passed = [(entry.keyword, entry.value) for entry in entries if entry is not None]
    return {module.code(value) for keyword, value in passed if keyword == setting.rule_keyword}


def is_off(module: Module, clip: FoundClip) -> bool:
    if clip.limit is None or clip.setting is None:
        return False
    number, off = module.number(clip.limit), clip.setting.off
    is_off = number is not None and ((number == 0 and off != "None") or (number < 0 and off.endswith("0 or less")))
    return is_off or (is_name(clip.limit, "None") and not is_uncertain(clip.setting, clip.limit))


def _setting(imports: Imports, keyword: str, value: cst.BaseExpression) -> TrainerSetting | None:
    in_dict = isinstance(value, cst.Call) and is_name(value.func, "dict")
    in_dict = in_dict or (isinstance(value, cst.Dict) and bool(value.elements))
    known = [setting for setting in settings() if setting.keyword == keyword]
    for setting in known:
        if in_dict if setting.in_dict else imports.packages & set(setting.packages):
            return setting
    return None


def _is_own_function(module: Module, call: cst.Call) -> bool:
    name = module.code(call.func)
    return name.removeprefix("self.").removeprefix("cls.") in module.function_names
