"""Edits of source text: what is outside of an edit stays as it is, in every encoding and form of layout."""

from __future__ import annotations

import ast
from collections.abc import Callable
from textwrap import dedent

import pytest

from unified_clip.source.edits import Edits
from unified_clip.source.module import Module
from unified_clip.source.tree import keywords_of

Edit = Callable[[Edits, Module], None]


def edited(source: str | bytes, edit: Edit) -> str | bytes:
    content = source if isinstance(source, bytes) else dedent(source).encode()
    module = Module(content)
    edits = Edits(module)
    edit(edits, module)
    result = edits.to_bytes()
    return result if isinstance(source, bytes) else result.decode()


def remove_x(edits: Edits, module: Module) -> None:
    for call in module.calls:
        if (argument := keywords_of(call).get("x")) is not None:
            edits.remove_argument(argument)


def replace_f(edits: Edits, module: Module) -> None:
    for node in module.nodes:
        if isinstance(node, ast.Name) and node.id == "f":
            edits.replace(node, "long.name")


def insert_above_f(edits: Edits, module: Module) -> None:
    for call in module.calls:
        edits.insert_before(module.statement(call), ["a()", "for b in c:\n    b()"])


def remove_statements(edits: Edits, module: Module) -> None:
    for call in module.calls:
        edits.rewrite(module.statement(call), ())


def remove_b(edits: Edits, module: Module) -> None:
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom | ast.Import):
            edits.remove_names(node, [alias for alias in node.names if alias.name.startswith("b")])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(x=1)\n", "f()\n"),
        ("f(x=1,)\n", "f()\n"),
        ("f(a, x=1)\n", "f(a)\n"),
        ("f(x=1, y=2)\n", "f(y=2)\n"),
        ("f(a, x=(1, 2), y=2)\n", "f(a, y=2)\n"),
        ("f(\n    a,\n    x=1,\n)\n", "f(\n    a,\n)\n"),
        ("f(\n    a,\n    x=1\n)\n", "f(\n    a\n)\n"),
        ("f(a,\n  x=1)\n", "f(a)\n"),
        ("f(a,  # one\n  x=1)\n", "f(a  # one\n)\n"),
        ("f(\n    x=1,  # beside\n    y=2,\n)\n", "# beside\nf(\n    y=2,\n)\n"),
        ("f(\n    # above\n    x=1,\n    y=2,\n)\n", "f(\n    # above\n    y=2,\n)\n"),
        ("f(a, x=1,  # beside\n  y=2)\n", "# beside\nf(a,\n  y=2)\n"),
        ("f(x=g(  # inner\n    1), y=2)\n", "# inner\nf(y=2)\n"),
    ],
)
def test_an_argument_is_removed_with_its_comma(before: str, after: str) -> None:
    assert edited(before, remove_x) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from m import a, b\n", "from m import a\n"),
        ("from m import b, a\n", "from m import a\n"),
        ("from m import a, b, b2 as c\n", "from m import a\n"),
        ("from m import (a, b)\n", "from m import (a)\n"),
        ("from m import (\n    a,  # a\n    b\n)\n", "from m import (\n    a  # a\n)\n"),
        (
            "from m import (  # first\n    b,  # b\n    # above\n    a,\n)\n",
            "# b\nfrom m import (  # first\n    # above\n    a,\n)\n",
        ),
        ("import a, b.c, d\n", "import a, d\n"),
        ("from m import a, \\\n    b\n", "from m import a\n"),
    ],
)
def test_a_name_of_an_import_is_removed(before: str, after: str) -> None:
    assert edited(before, remove_b) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('é = "ä"; f(é)\n', 'é = "ä"; long.name(é)\n'),
        ("if x:\n\t f()  # é\n", "if x:\n\t long.name()  # é\n"),
        ("x = 1\r\nf()\r\n", "x = 1\r\nlong.name()\r\n"),
        ("x = 1\r\rf()", "x = 1\r\rlong.name()"),
        ("\x0cf()\n\x0c\nf()\n", "\x0clong.name()\n\x0c\nlong.name()\n"),
        ("x = \\\n  f()\n", "x = \\\n  long.name()\n"),
        ("(f)(f(f))\n", "(long.name)(long.name(long.name))\n"),
        ("@f\ndef g(): f()\n", "@long.name\ndef g(): long.name()\n"),
        ("x = '''\né\n''', f\n", "x = '''\né\n''', long.name\n"),
    ],
)
def test_the_rest_of_the_text_is_unchanged(before: str, after: str) -> None:
    assert edited(before.encode(), replace_f) == after.encode()


def test_the_encoding_of_a_file_is_kept() -> None:
    latin = "# coding: latin-1\né = f()\n".encode("latin-1")
    assert edited(latin, replace_f) == "# coding: latin-1\né = long.name()\n".encode("latin-1")
    assert edited(b"\xef\xbb\xbff()\n", replace_f) == b"\xef\xbb\xbflong.name()\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f()\n", "a()\nfor b in c:\n    b()\nf()\n"),
        ("if x:\n\tf()\n", "if x:\n\ta()\n\tfor b in c:\n\t\tb()\n\tf()\n"),
        ("if x:\r\n  f()\r\n", "if x:\r\n  a()\r\n  for b in c:\r\n    b()\r\n  f()\r\n"),
        ("# above\nf()  # beside\n", "# above\na()\nfor b in c:\n    b()\nf()  # beside\n"),
    ],
)
def test_lines_are_inserted_with_the_indentation_and_the_line_ends_of_the_file(before: str, after: str) -> None:
    assert edited(before.encode(), insert_above_f) == after.encode()


@pytest.mark.parametrize("before", ["if x: f()\n", "f(); g\n", "g; f()\n"])
def test_a_block_is_not_inserted_into_a_line_with_several_statements(before: str) -> None:
    with pytest.raises(ValueError, match="line 1 contains several statements"):
        edited(before, insert_above_f)
    inserted = edited(before, lambda edits, module: edits.insert_before(module.statement(module.calls[0]), ["a()"]))
    assert inserted == before.replace("f()", "a(); f()")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x\n\nf()\n\ny\n", "x\n\ny\n"),
        ("x\n# above\nf()  # beside\ny\n", "x\n# above\n# beside\ny\n"),
        ("def g():\n    f()\n", "def g():\n    pass\n"),
        ("if x: f()\n", "if x: pass\n"),
        ("f(  # one\n    1)  # two\ny\n", "# one\n# two\ny\n"),
        ("f(\n    1,  # one\n)\ny\n", "# one\ny\n"),
    ],
)
def test_a_statement_is_removed_and_its_comments_stay(before: str, after: str) -> None:
    assert edited(before, remove_statements) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "import n\n"),
        ("x\n", "import n\n\nx\n"),
        ("# text\n\n@f\ndef g(): pass\n", "# text\n\nimport n\n\n@f\ndef g(): pass\n"),
        ('"""Doc."""\nimport a\n\nx\n', '"""Doc."""\nimport a\nimport n\n\nx\n'),
        ("import a\nimport n\n", "import a\nimport n\n"),
        ("import a; import b  # both", "import a; import b  # both\nimport n"),
        ("import a\nn = 1\nimport b\n", "import a\nimport n\nn = 1\nimport b\n"),
        ("try:\n    import a\nexcept E:\n    a = 1\nx\n", "try:\n    import a\nexcept E:\n    a = 1\nimport n\nx\n"),
    ],
)
def test_an_import_is_added_below_the_imports_of_the_file(before: str, after: str) -> None:
    assert edited(before, lambda edits, module: edits.add_import("n")) == after


def test_code_after_the_edits_inside_it_can_be_used_in_new_lines() -> None:
    def edit(edits: Edits, module: Module) -> None:
        replace_f(edits, module)
        remove_x(edits, module)
        value = keywords_of(module.calls[0])["x"].value
        edits.insert_before(module.statement(value), lambda: [f"y = {edits.updated(value)}"])

    assert edited("g(1, x=f(  # one\n  1))\n", edit) == "y = long.name(  # one\n  1)\ng(1)\n"


def test_nothing_is_written_without_an_edit() -> None:
    content = b"x = 1 \r\n\x0c"
    assert edited(content, lambda edits, module: None) == content
