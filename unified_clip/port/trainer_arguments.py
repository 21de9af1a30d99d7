"""Find arguments that switch a trainer's clipping on, such as `max_grad_norm=` and `gradient_clip_val=`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..source.module import SELF, Module
from ..source.tree import arguments_of, is_name, keywords_of, method_of
from .catalog import ENGINE_METHODS, TrainerSetting, setting_of, settings
from .found_clip import FoundClip, Imports, SettingEntry, entries_of, number_of
from .ported_clip import SET_OUTSIDE

PARSERS = ("ArgumentParser", "TrlParser")
"""The names of classes that parse dataclasses, such as HfArgumentParser."""


def clips_in_call(module: Module, imports: Imports, call: ast.Call) -> Iterator[FoundClip]:
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
                argument.node, f"{name or module.code(call.func)}({keyword}=)", call=call,
                why_not=_why_not(setting, argument.value),
                setting=setting, limit=argument.value, argument=argument,
            )  # fmt: skip
    if known is None or known.keyword in passed:
        yield from _parsed(module, call)
    elif name in known.elsewhere or name not in known.classes or any(argument.star for argument in arguments_of(call)):
        yield _with_unknown_value(call.func, name, known, call)
    elif known.default:
        why_not = f"{known.keyword}= is not passed, so its default of {known.default} applies. {known.why_not}"
        yield FoundClip(
            call.func, f"{name}({known.keyword}=)", call=call, why_not=why_not, setting=known,
            limit=module.expression(known.default),
        )  # fmt: skip


def _with_unknown_value(node: ast.AST, name: str, setting: TrainerSetting, call: ast.Call | None = None) -> FoundClip:
    why_not = f"{setting.keyword}= {SET_OUTSIDE}. {setting.why_not}"
    return FoundClip(node, f"{name}({setting.keyword}=)", call=call, why_not=why_not, setting=setting)


def _from_factory(module: Module, imports: Imports, call: ast.Call, name: str) -> TrainerSetting | None:
    known = (setting for setting in settings() if name in setting.factories)
    setting = next((setting for setting in known if imports.packages & set(setting.packages)), None)
    arguments = arguments_of(call) if setting is not None else []
    return setting if arguments and "trainer" in module.code(arguments[0].value).lower() else None


def _parsed(module: Module, call: ast.Call) -> Iterator[FoundClip]:
    """Find parsers of trainer arguments, such as HfArgumentParser((ModelArguments, TrainingArguments))."""
    if not module.code(call.func).endswith(PARSERS):
        return
    for argument in arguments_of(call):
        values = module.binding(argument.value).values or []
        classes = values[0] if len(values) == 1 else argument.value
        for element in classes.elts if isinstance(classes, ast.Tuple | ast.List) else [argument.value]:
            name = module.full_name(element)
            if (setting := setting_of(name)) is not None:
                yield _with_unknown_value(element, name, setting, call)


def clips_in_bases(module: Module, node: ast.ClassDef) -> Iterator[FoundClip]:
    """Find base classes that contain trainer arguments, such as TrainingArguments."""
    for base in node.bases:
        name = module.full_name(base)
        if (setting := setting_of(name)) is not None and (setting.default or name in setting.elsewhere):
            yield _with_unknown_value(base, name, setting)


def clips_in_entry(imports: Imports, entry: SettingEntry) -> Iterator[FoundClip]:
    """Find settings such as config["gradient_clipping"] = 1.0, args.max_grad_norm = 1.0, or {"grad_clip": 1.0}."""
    setting = _setting(imports, entry.keyword, entry.value)
    if setting is not None and entry.owner not in SELF:
        why_not = _why_not(setting, entry.value)
        yield FoundClip(entry.node, entry.name, why_not=why_not, setting=setting, limit=entry.value)


def _why_not(setting: TrainerSetting, limit: ast.expr) -> str:
    return setting.none if is_uncertain(setting, limit) else setting.why_not


def is_uncertain(setting: TrainerSetting, limit: ast.expr | None) -> bool:
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
    is_complete = clip.call is not None and not any(argument.star for argument in arguments_of(clip.call))
    return setting.rule if not chosen and (is_complete or setting.rule_keyword not in module.text.text) else ""


def chosen_rules(module: Module, clip: FoundClip, setting: TrainerSetting) -> set[str]:
    if clip.call is not None:
        passed = [(keyword, argument.value) for keyword, argument in keywords_of(clip.call).items()]
    else:
        entries = [entry for node in module.nodes for entry in entries_of(module, node)]
        passed = [(entry.keyword, entry.value) for entry in entries]
    return {module.code(value) for keyword, value in passed if keyword == setting.rule_keyword}


def is_off(module: Module, clip: FoundClip) -> bool:
    if clip.limit is None or clip.setting is None:
        return False
    number, off = number_of(module, clip.limit), clip.setting.off
    is_off = number is not None and ((number == 0 and "0" in off) or (number < 0 and off.endswith("0 or less")))
    return is_off or (is_name(clip.limit, "None") and not is_uncertain(clip.setting, clip.limit))


def _setting(imports: Imports, keyword: str, value: ast.expr) -> TrainerSetting | None:
    in_dict = isinstance(value, ast.Call) and is_name(value.func, "dict")
    in_dict = in_dict or (isinstance(value, ast.Dict) and bool(value.values))
    known = [setting for setting in settings() if setting.keyword == keyword]
    for setting in known:
        if in_dict if setting.in_dict else imports.packages & set(setting.packages):
            return setting
    return None


def _is_own_function(module: Module, call: ast.Call) -> bool:
    name = module.code(call.func)
    return name.removeprefix("self.").removeprefix("cls.") in module.function_names
