"""The namespaces are what `tools/namespaces.py` writes, and tools that only read them find documented functions."""

from __future__ import annotations

import ast
import inspect
import shutil
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from unified_clip._api import classes, functions, settings

ROOT = Path(__file__).parents[2]
SPEC = spec_from_file_location("namespaces", ROOT / "tools" / "namespaces.py")
assert SPEC
assert SPEC.loader
namespaces = module_from_spec(SPEC)
SPEC.loader.exec_module(namespaces)

FILES = [name for name, _ in namespaces.namespaces()]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name in FILES:
        shutil.copy(ROOT / "unified_clip" / name, tmp_path)
    return tmp_path


def test_they_are_up_to_date() -> None:
    assert namespaces.main(["--check"]) == 0


@pytest.mark.parametrize("name", FILES)
def test_a_stale_one_is_reported_and_written(name: str, package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (package / name).read_text(encoding="utf-8")
    (package / name).write_text(text.replace("Nothing is clipped.", ""), encoding="utf-8")
    assert namespaces.main(["--check", "--package", str(package)]) == 1
    assert capsys.readouterr().err == f"{name} is stale. Run: python tools/namespaces.py\n"
    assert namespaces.main(["--package", str(package)]) == 0
    assert (package / name).read_text(encoding="utf-8") == text


def test_a_description_of_no_parameter_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = namespaces.TEXT.read_text(encoding="utf-8").replace('total_norm = "The total', 'totl_norm = "The total')
    (tmp_path / "namespaces.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(namespaces, "TEXT", tmp_path / "namespaces.toml")
    with pytest.raises(
        SystemExit, match=r"names\.clip_grads_with_norm_\.args: totl_norm is no parameter of clip_grads_with"
    ):
        namespaces.main(["--check"])


@pytest.mark.parametrize("file", FILES)
def test_a_reader_of_the_source_finds_functions_with_the_signature_of_their_body(file: str) -> None:
    tree = ast.parse((ROOT / "unified_clip" / file).read_text(encoding="utf-8"))
    definitions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names = definitions.keys() - {"__dir__"}
    assert len(names) == 14
    for name in names:
        node = definitions[name]
        documented = ast.get_docstring(node) or ""
        assert {"Args:", "Raises:", "Example:"} <= set(documented.splitlines()), name
        module = next(module for module in (functions, settings, classes) if hasattr(module, name))
        body = list(inspect.signature(getattr(module, name)).parameters.values())
        if isinstance(node, ast.FunctionDef):
            body = body[1:]  # without the backend
            arguments = [*node.args.args, *node.args.kwonlyargs]
            defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            assert [argument.arg for argument in arguments] == [argument.name for argument in body], name
            expected = [each.default for each in body if each.default is not each.empty]
            assert [ast.literal_eval(default) for default in defaults] == expected, name
        for parameter in body:
            assert f"    {parameter.name}: " in documented, f"{name}: {parameter.name} is not described"
