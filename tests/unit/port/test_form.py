"""The form of ported code: the places of imports, the kept layout, and comments, which are never lost."""

from __future__ import annotations

import io
import tokenize
from collections import Counter
from pathlib import Path
from textwrap import dedent

import pytest

from unified_clip.port.catalog import KERAS_OPTIMIZER, clip_function, clip_pattern, may_clip
from unified_clip.port.file_rewrite import is_name_taken
from unified_clip.port.port_file import port
from unified_clip.port.ported_clip import Target
from unified_clip.source.module import Module

IMPORT = "import unified_clip.torch\n"


def port_source(source: str, target: Target = "torch") -> str:
    return port(Path("a.py"), dedent(source).encode(), target).after.decode()


def comments(source: str) -> Counter[str]:
    tokens = tokenize.generate_tokens(io.StringIO(dedent(source)).readline)
    return Counter(token.string for token in tokens if token.type == tokenize.COMMENT)


# -- where ours is imported


@pytest.mark.parametrize(
    ("binding", "call"),
    [
        ("import torch as t", "t.nn.utils.clip_grad_norm_"),
        ("from torch.nn import utils as t", "t.clip_grad_norm_"),
        ("from torch.nn.utils import clip_grad_norm_ as t", "t"),
    ],
)
def test_a_global_import_in_a_function_gets_an_import_of_the_file(binding: str, call: str) -> None:
    load = f"def load():\n    global t\n    {binding}\n"
    source = f"import os\n\n{load}\ndef clip(p):\n    {call}(p, 1.0)\n"
    text = port_source(source)
    assert text.startswith(f"import os\n{IMPORT}")
    assert load in text
    assert text.endswith("def clip(p):\n    unified_clip.torch.clip_grad_norm_(p, 1.0)\n")


def test_a_global_import_is_kept() -> None:
    load = "def load():\n    global c\n    from torch.nn.utils import clip_grad_norm_ as c\n"
    assert load in port_source(f"{load}\ndef clip(p):\n    c(p, 1.0)\n")


def test_a_nonlocal_import_gets_an_import_of_the_file() -> None:
    source = """\
    def outer(p):
        torch = None
        def load():
            nonlocal torch
            import torch
        load()
        torch.nn.utils.clip_grad_norm_(p, 1.0)
    """
    assert port_source(source).startswith(IMPORT)


def test_an_import_in_a_function_is_kept_beside_the_new_one() -> None:
    source = """\
    def clip(p):
        import torch
        torch.nn.utils.clip_grad_norm_(p, 1.0)
        return torch.ones(1)
    """
    lines = port_source(source).splitlines()
    assert lines[:3] == ["def clip(p):", "    import torch", "    import unified_clip.torch"]


def test_an_import_of_the_file_is_not_repeated_in_a_function() -> None:
    source = """\
    import torch

    def clip(p):
        torch.nn.utils.clip_grad_norm_(p, 1.0)
        import torch.nn as nn
        nn.utils.clip_grad_norm_(p, 1.0)
        return nn.Linear
    """
    assert port_source(source).count(IMPORT) == 1
    assert port_source(source).startswith("import torch\n" + IMPORT)


@pytest.mark.parametrize("first", ["", '"""Doc."""\n'])
def test_environment_variables_are_set_before_the_new_import(first: str) -> None:
    before = f'{first}import os\nos.environ["OMP_NUM_THREADS"] = "1"\nimport torch\n'
    clip = "\ndef clip(p):\n    {}.clip_grad_norm_(p, 1.0)\n"
    after = "\nimport json\n"
    text = port_source(before + clip.format("torch.nn.utils") + after)
    assert text == before + IMPORT + clip.format("unified_clip.torch") + after


@pytest.mark.parametrize("imports", ["import os; import torch", "if os: import torch"])
def test_an_import_that_shares_its_line_in_a_function_gets_an_import_of_the_file(imports: str) -> None:
    source = f"def clip(p):\n    {imports}\n    torch.nn.utils.clip_grad_norm_(p, 1.0)\n"
    text = port_source(source)
    assert text.startswith(IMPORT)
    assert imports in text


@pytest.mark.parametrize("line", ["try:", "if fast:"])
def test_a_conditional_import_is_unchanged(line: str) -> None:
    end = "except ImportError:\n    pass\n" if line == "try:" else ""
    source = f"{line}\n    from torch.nn.utils import clip_grad_norm_\n{end}clip_grad_norm_(p, 1.0)\n"
    text = port_source(source)
    assert text.startswith(f"{line}\n    from torch.nn.utils import clip_grad_norm_\n    {IMPORT}{end}")
    assert text.endswith("unified_clip.torch.clip_grad_norm_(p, 1.0)\n")


def test_an_import_that_shares_its_line_is_unchanged() -> None:
    source = "import os; from torch.nn.utils import clip_grad_norm_\nclip_grad_norm_(p, 1.0)\n"
    first, second, third = port_source(source).splitlines()
    assert (first, second) == (source.splitlines()[0], IMPORT.strip())
    assert third == "unified_clip.torch.clip_grad_norm_(p, 1.0)"


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        ("import unified_clip.torch\nunified_clip.torch.clip_grad_norm_(p)\n", False),
        ("import unified_clip\n", False),
        ("import unified_clip as uc\nf(unified_clip=1)\nself.unified_clip = 1\n", False),
        ("from unified_clip import torch\n", False),
        ("unified_clip = 1\n", True),
        ("def f(unified_clip):\n    pass\n", True),
        ("def f():\n    for unified_clip in x:\n        pass\n", True),
        ("def unified_clip():\n    pass\n", True),
        ("import torch as unified_clip\n", True),
        ("import unified_clip.torch as unified_clip\n", True),
        ("from mine import unified_clip\n", True),
        ("from mine import x as unified_clip\n", True),
        ("import unified_clip\ndef f():\n    unified_clip = 1\n", True),
    ],
)
def test_a_file_may_use_the_name_unified_clip_otherwise(source: str, taken: bool) -> None:
    assert is_name_taken(Module(source.encode())) is taken


# -- names


@pytest.mark.parametrize(
    ("name", "known_as"),
    [
        ("tensorflow.clip_by_norm", "tf.clip_by_norm"),
        ("tensorflow.compat.v1.clip_by_norm", "tf.clip_by_norm"),
        ("tensorflow.python.ops.clip_ops.clip_by_norm", "tf.clip_by_norm"),
        ("optax.transforms.clip", "optax.clip"),
        ("optax.transforms._clipping.clip_by_block_rms", "optax.clip_by_block_rms"),
        ("optax._src.clipping.adaptive_grad_clip", "optax.adaptive_grad_clip"),
        ("optax._src.transform.clip", "optax.clip"),
        ("optax.contrib.dpsgd", "optax.per_example_global_norm_clip"),
        ("optax.contrib._privacy.dpsgd", "optax.per_example_global_norm_clip"),
        ("optax._src.contrib.privacy.dpsgd", "optax.per_example_global_norm_clip"),
        (
            "paddle.incubate.distributed.models.moe.grad_clip.ClipGradForMOEByGlobalNorm",
            "paddle.incubate.distributed.models.moe.ClipGradForMOEByGlobalNorm",
        ),
    ],
)
def test_a_function_has_the_names_of_all_modules_that_contain_it(name: str, known_as: str) -> None:
    function = clip_function(name)
    assert function is not None
    assert function.name == known_as


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("tensorflow.keras.optimizers.Adam", True),
        ("tensorflow.python.keras.optimizers.Adam", True),
        ("keras.optimizers.legacy.Adam", True),
        ("tf_keras.optimizers.Adam", True),
        ("mykeras.optimizers.Adam", False),
        ("keras.layers.Dense", False),
    ],
)
def test_an_optimizer_of_keras_is_recognized_by_its_module(name: str, is_one: bool) -> None:
    assert (KERAS_OPTIMIZER.match(name) is not None) is is_one


@pytest.mark.parametrize(
    "source",
    [
        "from optax import clip",
        "from optax.transforms import _clipping\n_clipping.clip(1.0)",
        "from optax import (\n    adam,\n    clip,\n)",
        "accelerator.clip_grad_norm_(1.0)",
        "scaler.clip_grad_by_norm()",
        "accelerator.clip_gradients(optimizer)",
    ],
)
def test_no_file_with_a_clip_is_skipped(source: str) -> None:
    assert clip_pattern().search(source.encode())
    assert may_clip(set(source.replace(".", " ").replace("(", " ").replace(",", " ").split()))


def test_a_clip_of_all_experts_is_flagged() -> None:
    source = """\
    import paddle
    from paddle.incubate.distributed.models.moe import ClipGradForMOEByGlobalNorm

    clip = ClipGradForMOEByGlobalNorm(1.0)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters(), grad_clip=clip)
    """
    result = port(Path("a.py"), dedent(source).encode())
    assert not result.is_changed
    assert [site.verdict for site in result.sites if site.name.endswith("MOEByGlobalNorm")] == ["flagged"]


# -- comments and layout


TAPE = """\
    import tensorflow as tf

    def train(model, optimizer, x, variables):
        with tf.GradientTape() as tape:
            loss = model(x)
        # above
        grads = tape.gradient(
            loss,  # the loss
            variables,  # what is trained
        )  # beside
        # above the clip
        grads, _ = tf.clip_by_global_norm(
            grads,  # these
            1.0,  # the limit
        )  # beside the clip
        optimizer.apply_gradients(  # now
            # above the pairs
            zip(grads, variables)
        )  # done
    """
REMOVED = """\
    import paddle

    def train(model, loader):
        # above the clip
        clip = paddle.nn.ClipGradByNorm(1.0)  # beside the clip
        optimizer = paddle.optimizer.SGD(
            0.1,  # the rate
            parameters=model.parameters(),  # all
            grad_clip=clip,  # the clip
        )
        for batch in loader:
            model(batch).backward()
            optimizer.step()
    """
IMPORTS = """\
    from torch.nn.utils import (  # first
        # above
        parameters_to_vector,  # stays
        clip_grad_norm_,  # goes
        # between
        vector_to_parameters,  # stays too
        clip_grad_value_,  # goes too
    )

    clip_grad_norm_(p, 1.0)
    clip_grad_value_(p, 1.0)
    """
HOISTED = """\
    import paddle

    def train(model, loader):
        optimizer = paddle.optimizer.SGD(
            0.1,  # the rate
            parameters=model.parameters(),  # all
            grad_clip=paddle.nn.ClipGradByNorm(
                1.0,  # the limit
            ),  # the clip
        )
        for batch in loader:
            model(batch).backward()
            optimizer.step()
    """
KERAS = """\
    import tensorflow as tf

    optimizer = tf.keras.optimizers.SGD(
        0.1,  # the rate
        global_clipnorm=1.0,  # the limit
    )

    def train(model, x, variables):
        with tf.GradientTape() as tape:
            loss = model(x)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    """


@pytest.mark.parametrize(
    "source",
    [TAPE, REMOVED, IMPORTS, HOISTED, KERAS],
    ids=["tape", "removed", "imports", "hoisted", "argument"],
)
def test_each_comment_is_kept_once(source: str) -> None:
    text = port_source(source)
    assert text != dedent(source)
    assert comments(text) == comments(source)


def test_comments_of_a_replaced_statement_are_above_its_replacement() -> None:
    text = port_source(TAPE)
    assert "    # the loss\n    # what is trained\n    optimizer.zero_grad()\n" in text
    assert text.endswith("  # done\n")


def test_names_that_are_kept_in_an_import_keep_their_lines() -> None:
    assert port_source(IMPORTS).startswith(
        dedent("""\
        # goes
        # goes too
        from torch.nn.utils import (  # first
            # above
            parameters_to_vector,  # stays
            # between
            vector_to_parameters,  # stays too
        )
        from unified_clip.torch import clip_grad_norm_, clip_grad_value_
        """)
    )


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        ("(\n    a,  # a\n    clip_grad_norm_\n)", "(\n    a  # a\n)"),
        ("(a, clip_grad_norm_)", "(a)"),
        ("(clip_grad_norm_, a)", "(a)"),
        ("a, clip_grad_norm_", "a"),
        ("(\n    a,\n    clip_grad_norm_,\n)", "(\n    a,\n)"),
    ],
)
def test_an_import_keeps_its_parentheses_and_its_end(names: str, kept: str) -> None:
    text = port_source(f"from torch.nn.utils import {names}\nclip_grad_norm_(p, 1.0)\n")
    assert text.startswith(f"from torch.nn.utils import {kept}\nfrom unified_clip.torch import clip_grad_norm_\n")


def test_a_file_without_a_rewritten_clip_is_unchanged() -> None:
    source = "import optax\n\x0cdef f():\n    return optax.clip(1.0)\n"
    assert port_source(source) == source


def test_a_name_keeps_its_parentheses() -> None:
    source = "import torch\n(torch.nn.utils.clip_grad_norm_)(p, 1.0)\n"
    assert port_source(source).endswith("\n(unified_clip.torch.clip_grad_norm_)(p, 1.0)\n")


def test_comments_above_the_first_statement_are_below_the_new_import() -> None:
    source = "def clip(p):\n    import os, torch as t; t.nn.utils.clip_grad_norm_(p, 1.0)\n"
    assert port_source(f"# about clip\n{source}").startswith(f"# about clip\n{IMPORT}\ndef clip(p):\n")
