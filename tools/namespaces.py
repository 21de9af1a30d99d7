"""Write the namespaces, such as unified_clip/torch.py, from namespaces.toml and the signatures of unified_clip/_api."""

from __future__ import annotations

import argparse
import ast
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any

TEXT = Path(__file__).with_suffix(".toml")
PACKAGE = Path(__file__).parents[1] / "unified_clip"
WIDTH = 120
MODULES = ("functions", "settings", "classes")

KEYWORD_ONLY = "process_group"
"""The first keyword-only parameter of public functions."""

HEADER = """# `python tools/namespaces.py` writes this file from tools/namespaces.toml.
# fmt: off
\"\"\"{doc}\"\"\"

from __future__ import annotations

{imports}

{exported}


def __dir__() -> list[str]:
    return __all__
"""

ALIASES = {f"ClipGradBy{kind}": f"GradientClipBy{kind}" for kind in ("Value", "Norm", "GlobalNorm")}
"""{name of a class in Paddle 2 and 3: name of the class in Paddle 1}."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--package", type=Path, default=PACKAGE, help="the folder of the namespaces")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a namespace is stale")
    options = parser.parse_args(arguments)
    stale = []
    for name, text in namespaces():
        path = options.package / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not options.check:
                path.write_text(text, encoding="utf-8")
    for name in stale if options.check else ():
        print(f"{name} is stale. Run: python tools/namespaces.py", file=sys.stderr)
    return int(options.check and bool(stale))


def namespaces() -> Iterable[tuple[str, str]]:
    text = tomllib.loads(TEXT.read_text(encoding="utf-8"))
    signatures = {module: read_signatures(PACKAGE / "_api" / f"{module}.py") for module in MODULES}
    for name in text["frameworks"]:
        file = f"_{name}.py" if name == "any_framework" else f"{name}.py"
        yield file, Namespace(text, signatures, name).source()


Signature = dict[str, str | None]
"""{parameter: source of its default}, with None for a parameter without a default."""


def read_signatures(path: Path) -> dict[str, Signature]:
    """Read signatures without an import, because a stale namespace must not stop this script."""
    signatures = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            signatures[node.name] = read_signature(node.args)
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                    signatures[node.name] = read_signature(member.args)
    return signatures


def read_signature(arguments: ast.arguments) -> Signature:
    positional = arguments.args[1:]
    without_default = len(positional) - len(arguments.defaults)
    defaults = [*[None] * without_default, *arguments.defaults, *arguments.kw_defaults]
    return {
        argument.arg: code(default)
        for argument, default in zip([*positional, *arguments.kwonlyargs], defaults, strict=True)
    }


def code(default: ast.expr | None) -> str | None:
    if isinstance(default, ast.Constant) and isinstance(default.value, str):
        return f'"{default.value}"'
    return None if default is None else ast.unparse(default)


class Namespace:
    def __init__(self, text: dict[str, Any], signatures: dict[str, dict[str, Signature]], framework: str) -> None:
        self.framework, self.types, self.args, self.names = framework, text["types"], text["args"], text["names"]
        self.signatures = signatures
        self.phrases = {**text["phrases"], **text["frameworks"][framework]}

    def source(self) -> str:
        phrases = self.phrases
        body = "\n\n\n".join(map(self.definition, self.names))
        about = '"""The name of `{}` in Paddle 2 and 3."""'
        aliases = "\n\n".join(f"{alias} = {name}\n{about.format(name)}" for alias, name in ALIASES.items())
        collections = [name for name in ("Iterable", "Sequence") if f"{name}[" in body]
        standard = f"from collections.abc import {', '.join(collections)}\nfrom typing import Any"
        modules = ["classes", "functions"] + ["settings"] * (phrases["settings"] == "settings")
        own = [phrases["backend_import"].strip(), f"from ._api import {', '.join(modules)}", "from ._core import entry"]
        own = sorted("\n".join(own).split("\n"))
        names = sorted([*self.names, *ALIASES, *phrases["more"].split()])
        doc = phrases["doc"].strip()
        header = HEADER.format(
            doc=doc + "\n" * ("\n" in doc),
            imports="\n\n".join(filter(None, [standard, phrases["framework_import"], "\n".join(own)])),
            exported=bracketed("__all__ = [", [f'"{name}"' for name in names], "]"),
        )
        return f"{header}\n\n{body}\n\n\n{aliases}\n"

    def definition(self, name: str) -> str:
        module, signature = next((at, names[name]) for at, names in self.signatures.items() if name in names)
        if module == "classes":
            return self.clip_class(name, signature)
        return self.function(self.phrases["settings"] if module == "settings" else module, name, signature)

    def function(self, module: str, name: str, signature: Signature) -> str:
        parameters = []
        for parameter, default in signature.items():
            parameters += ["*"] * (parameter == KEYWORD_ONLY)
            declared = f"{parameter}: {self.fill(self.types[parameter])}"
            parameters.append(declared if default is None else f"{declared} = {default}")
        returned = self.fill(self.names[name].get("type", "None"))
        statement = "entry.run(" if returned == "None" else "return entry.run("
        lines = [
            bracketed(f"def {name}(", parameters, f") -> {returned}:"),
            self.docstring(name, signature),
            bracketed(f"    {statement}", [f"{module}.{name}", self.phrases["backend"], *signature], ")", "    "),
        ]
        return "\n".join(lines)

    def clip_class(self, name: str, signature: Signature) -> str:
        bases = f"classes.{name}" + (self.phrases["bases"] if name.startswith("GradientClip") else "")
        lines = [f"class {name}({bases}):", self.docstring(name, signature), ""]
        return "\n".join([*lines, f"    _backend = {self.phrases['backend']}"])

    def docstring(self, name: str, parameters: Signature) -> str:
        words = {**self.names[name], **self.for_framework(self.names[name])}
        own = {**self.names[name].get("args", {}), **words.get("args", {})}
        if unknown := sorted(own.keys() - set(parameters)):
            raise SystemExit(f"names.{name}.args: {', '.join(unknown)} is no parameter of {name}.")
        args = {**self.args, **own}
        uc = "unified_clip" if self.framework == "any_framework" else f"unified_clip.{self.framework}"
        imports = f">>> {self.phrases.get('example_import', self.phrases['framework_import'])}\n>>> import {uc} as uc\n"
        example = imports + self.fill(words["example"].strip(), words).strip()
        sections = [f'"""{wrapped(words["summary"], self.fill)}']
        sections.append(wrapped(f"{words.get('text', '')} Source: {words['source']}.".lstrip(), self.fill))
        sections.append(section("Args", {key: args[key] for key in parameters}, self.fill))
        if "returns" in words:
            sections.append("Returns:\n" + wrapped(words["returns"], self.fill, "    "))
        sections.append(section("Raises", words["raises"], self.fill))
        sections.append("Example:\n" + textwrap.indent(example, "    "))
        return textwrap.indent("\n\n".join(sections) + '\n"""', "    ")

    def for_framework(self, words: dict[str, Any]) -> dict[str, Any]:
        end = f"_{self.framework}"
        return {key.removesuffix(end): value for key, value in words.items() if key.endswith(end)}

    def fill(self, text: str, more: dict[str, Any] | None = None) -> str:
        while "$" in text:
            text = Template(text).substitute({**(more or {}), **self.phrases})
        return text


def bracketed(before: str, items: Sequence[str], after: str, indent: str = "") -> str:
    line = f"{before}{', '.join(items)}{after}"
    if len(line) <= WIDTH:
        return line
    lines = [f"{indent}   "]
    for item in items:
        if len(f"{lines[-1]} {item},") > WIDTH:
            lines.append(f"{indent}   ")
        lines[-1] += f" {item},"
    return "\n".join([before, *lines, f"{indent}{after}"])


def wrapped(text: str, fill: Callable[[str], str], indent: str = "", hanging: str = "") -> str:
    options: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(fill(text), WIDTH - 4, initial_indent=indent, subsequent_indent=hanging or indent, **options)


def section(title: str, entries: dict[str, str], fill: Callable[[str], str]) -> str:
    lines = [wrapped(f"{name}: {text}", fill, "    ", "        ") for name, text in entries.items()]
    return "\n".join([f"{title}:", *lines])


if __name__ == "__main__":
    sys.exit(main())
