"""Edits of source text: what is outside of an edit stays as it is, in every encoding and form of layout."""

from __future__ import annotations

import ast
from collections.abc import Callable
from textwrap import dedent

import pytest

from unified_clip.source.edits import Edits
from unified_clip.source.module import Module

Edit = Callable[[Edits, Module], None]


def edited(source: str | bytes, edit: Edit) -> str | bytes:
    content = source if isinstance(source, bytes) else dedent(source).encode()
    module = Module(content)
    edits = Edits(module)
    edit(edits, module)
    result = edits.to_bytes()
    return result if isinstance(source, bytes) else result.decode()


def replace_f(edits: Edits, module: Module) -> None:
    for node in module.nodes:
        if isinstance(node, ast.Name) and node.id == "f":
            edits.replace(node, "long.name")


def import_of(module: Module) -> ast.Import | ast.ImportFrom:
    return next(node for node in module.nodes if isinstance(node, ast.Import | ast.ImportFrom))


def remove_b(edits: Edits, module: Module) -> None:
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom | ast.Import):
            edits.remove_names(node, [alias for alias in node.names if alias.name.startswith("b")])


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
        ("if x:\n\timport b\n\ty\n", "if x:\n\timport b\n\tnew\n\ty\n"),
        ("import b  # beside\r\nx\r\n", "import b  # beside\r\nnew\r\nx\r\n"),
        ("import b", "import b\nnew"),
        ("from b import (  # one\n    c,  # two\n)\n", "from b import (  # one\n    c,  # two\n)\nnew\n"),
    ],
)
def test_a_line_is_inserted_once_with_the_indentation_and_the_line_ends_of_the_file(before: str, after: str) -> None:
    def insert(edits: Edits, module: Module) -> None:
        for _ in range(2):
            edits.insert_after(import_of(module), "new")

    assert edited(before.encode(), insert) == after.encode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from b import c  # beside\n", "import n  # beside\n"),
        (
            "if x:\n    from b import (  # one\n        c,  # two\n    )\n",
            "if x:\n    # one\n    # two\n    import n\n",
        ),
    ],
)
def test_an_import_is_replaced_and_its_comments_stay(before: str, after: str) -> None:
    assert edited(before, lambda edits, module: edits.replace(import_of(module), "import n")) == after


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


def test_nothing_is_written_without_an_edit() -> None:
    content = b"x = 1 \r\n\x0c"
    assert edited(content, lambda edits, module: None) == content
