"""An invalid suite is rejected with the file, the place and what to write."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from support.parity.cases import suite
from support.parity.suites import CASES, GRADIENTS, NORM, ONE_CASE, cases_toml

from unified_clip.parity.suite import load as suites
from unified_clip.parity.suite.schema import SuiteError

NORM_IN_PLACE = "{ call = 'clip_grad_norm_', max_norm = 1 }"


def toml_with_tensor(text: str) -> str:
    return ONE_CASE.replace("values = [1.0]", text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[", "cases.toml, line 1: "),
        (GRADIENTS + 'only = ["x"]\n', "line [0-9]+, gradients 1, only: `only` needs `file`. Remove `only`"),
        (GRADIENTS, r"no cases here or in files = .*\[\[cases\]\] with gradients, rules and thresholds. Or"),
        (
            GRADIENTS + "[[cases]]\ngradients = []\ncalls = []",
            "cases 1, gradients: it is \\[\\]. List should have at least 1 item",
        ),
        (cases_toml(NORM, "colour = 1"), "line 7, cases 1, colour: there is no such key. Use one of gradients, calls"),
        (
            cases_toml("{ call = 'ClipGradByGlobalNorm', clip_norm = 1.0 }"),
            "suites use the older name of this class. Write GradientClipByGlobalNorm",
        ),
        (
            cases_toml("{ call = 'clip_norm' }"),
            "calls 1, call: 'clip_norm': there is no such function. Did you mean clip_by_norm\\?",
        ),
        (
            GRADIENTS + "[[cases]]\nrules = ['clip_by_norm']\nthresholds = [1.0]",
            'cases 1, gradients: it is missing. Add gradients = \\["NAME"\\] with the name of',
        ),
        ("[[gradients]]\ntensors = [{ values = [1] }]", 'gradients 1, name: it is missing. Add name = "NAME".'),
        (
            cases_toml("{ call = 'clip_by_norm' }"),
            "calls 1, clip_by_norm: clip_norm is missing. Add clip_norm",
        ),
        (
            cases_toml("{ call = 'clip_by_norm', clip_norm = 1, p = 2 }"),
            "clip_by_norm, p: there is no such argument. Use one of clip_norm, axes",
        ),
        (cases_toml("{ call = 'global_norm', p = 2 }"), "global_norm, p: there is no such argument. Remove it\\.$"),
        (cases_toml("{ call = 'clip_by_norm', clip_norm = 'one' }"), "clip_norm is 'one'. Give a number"),
        (cases_toml(f"{{ call = 'clip_by_norm', clip_norm = {10**309} }}"), "clip_norm is 1000.*. Give a number"),
        (
            cases_toml(NORM, "container = 'set'"),
            "container: it is 'set'. Give one of list, tuple, ",
        ),
        (cases_toml(NORM, "listed = [1]"), "`listed` needs a function that clips in place. Remove `listed`"),
        (
            cases_toml(NORM_IN_PLACE, "expanded = true"),
            "unified_clip's functions that clip in place reject gradients with expanded memory. Remove",
        ),
        (cases_toml(NORM_IN_PLACE, "listed = [1]"), "listed = \\[1\\] lacks the index 0. Add this index"),
        (
            cases_toml(NORM_IN_PLACE, "listed = [0, 1]"),
            "listed = \\[0, 1\\] has the index 1, but the number of gradients is 1. Remove this",
        ),
        (
            cases_toml(NORM, "expanded = true"),
            "gradients with expanded memory need a function that clips in place. Remove the key expanded$",
        ),
        (
            cases_toml(NORM, "tensor_arguments = true").replace("[1.0]", "[1.0], dtype = 'float16'"),
            "tensor_arguments needs float32 gradients, but some are float16. Remove tensor_arguments",
        ),
        (
            cases_toml("{ call = 'get_total_norm', norm_type = 1 }", "tensor_arguments = true"),
            "cannot pass norm_type as a tensor. Remove tensor_arguments, or remove norm_type",
        ),
        (
            cases_toml(NORM, "update = true").replace("[1.0]", "[1.0], dtype = 'float16'"),
            "`update` needs float32 or float64 gradients, but some are float16. Remove `update`",
        ),
        (cases_toml(NORM, "need_clip = [true, true]"), "need_clip has 2 entries for 1 gradients"),
        (cases_toml(NORM, "update = 'false'"), "update: it is 'false'. Give true or false"),
        (
            cases_toml("{ call = 'clip_by_norm', clip_norm = nan }"),
            "clip_norm is NaN. Give a number, or expect the error: raises = 'ValueError'",
        ),
        (cases_toml("{ call = 'clip_by_norm', clip_norm = -1.0 }"), "clip_norm is -1.0. Give 0 or more"),
        (
            cases_toml("{ call = 'clip_by_global_norm', clip_norm = 1, use_norm = -1 }"),
            "use_norm is -1. Give 0 or more",
        ),
        (
            cases_toml("{ call = 'clip_by_value', clip_value_min = 2, clip_value_max = 1 }"),
            "lower bound 2 is above the upper bound 1",
        ),
        (
            cases_toml("{ call = 'GradientClipByValue', max = -1.0 }"),
            "lower bound -max is 1.0. Give 0 or more, or add `min`",
        ),
        (cases_toml("{ call = 'clip_by_norm', clip_norm = true }"), "clip_norm is True. Give a number"),
        (cases_toml(f"{{ call = 'clip_by_norm', clip_norm = 1{'0' * 320} }}"), "clip_norm is 10+. Give a number"),
        (cases_toml("{ call = 'clip_by_norm', clip_norm = 1, axes = 0 }"), "axes is 0. Give a list of whole numbers"),
        (
            cases_toml("{ call = 'get_total_norm', error_if_nonfinite = 1 }"),
            "error_if_nonfinite is 1. Give true or false",
        ),
        (
            cases_toml("{ call = 'clip_by_norm', clip_norm = 1, axes = [0, -1] }"),
            "axes = \\[0, -1\\] names an axis twice. Name each axis once",
        ),
        (
            cases_toml("{ call = 'get_total_norm', norm_type = 1e300 }"),
            "norm_type is 1e\\+300. Give inf, or a number from 0.01 to 100",
        ),
        (
            cases_toml("{ call = 'clip_by_norm', clip_norm = 1, axes = [1] }"),
            "axes = \\[1\\] has an axis that a gradient does not have. Give axes from -1 to 0",
        ),
        (
            cases_toml("{ call = 'clip_by_norm', clip_norm = 1, axes = 0 }"),
            "a list of whole numbers",
        ),
        (cases_toml(NORM, "groups = ['a']"), "`groups` applies only to append_gradient_clip_ops. Remove `groups`"),
        (cases_toml("{ call = 'clip_by_norm', clip_norm = 1 }", "container = 'dict'"), "no container of gradients"),
        (toml_with_tensor("values = [[-3, 1.0]]"), "The integer n must be at least 1"),
        (toml_with_tensor("values = [[3]]"), "tensors 1: `values` has \\[3\\]"),
        (
            toml_with_tensor("random = 1, shape = [2], exponents = [-99999999999, 0]"),
            "exponents 1: it is -99999999999. Give a number greater than or equal to -2000",
        ),
        (toml_with_tensor("none = false"), "none: it is False. Give true"),
        (
            toml_with_tensor("none = true, shape = [2], dtype = 'float64'"),
            "a tensor with none = true cannot have dtype or shape. Remove dtype and shape",
        ),
        (
            toml_with_tensor("values = [1.0], rows = [0]"),
            "`rows` needs `shape`, the shape of the dense gradient. Add for example shape = ",
        ),
        (
            toml_with_tensor("values = [1.0], rows = [0], shape = []"),
            "`rows` needs a `shape` that begins with the number of rows",
        ),
        (toml_with_tensor("random = 1, shape = [2]"), "`random` needs `exponents`. Add for example exponents = "),
        (toml_with_tensor("random = 1, exponents = [0, 1]"), "`random` needs `shape`. Add for example shape = "),
        (
            toml_with_tensor("random = 1"),
            "`random` needs `exponents` and `shape`. Add for example exponents = .* and shape = ",
        ),
        (
            toml_with_tensor("values = [1.0], exponents = [0, 1]"),
            "`exponents` needs `random`. Remove",
        ),
        (
            toml_with_tensor("values = [1], dtype = 'int64'"),
            "only clip_by_value supports int64. Choose another dtype, or expect the error: raises = 'TypeError'",
        ),
        (
            toml_with_tensor("random = 1, shape = [2], exponents = [3, 2]"),
            "exponents = \\[3, 2\\] has the larger exponent first. Swap the exponents",
        ),
        (
            toml_with_tensor("values = [1.0], copies = -1"),
            "copies: it is -1. Give a number greater than or equal to 1",
        ),
        (
            cases_toml(NORM, "frameworks = ['caffe']"),
            "suite.toml: case 'a: global_norm..' names the framework 'caffe', but the suite has no such "
            "framework. Correct",
        ),
        (cases_toml(NORM, "modes = ['gpu']"), "modes 1: it is 'gpu'. Give 'host', 'device',"),
        (
            cases_toml("{ call = 'global_norm' }, { call = 'global_norm' }"),
            "the suite already contains the case 'a: global_norm.*'. Find the value that is listed twice",
        ),
        (
            cases_toml(NORM, "dtypes = ['int8']"),
            "dtypes 1: it is 'int8'. Give one of float16, ",
        ),
        (
            cases_toml(NORM, "dtypes = ['int64']"),
            "dtypes 1: it is 'int64'. Give one of float16, bfloat16, float32, float64.$",
        ),
        (
            cases_toml(NORM, "dtypes = ['float16']").replace("[1.0]", "[1.0, 2.0], dtype = 'complex64'"),
            "`dtypes` cannot convert 'a': 'gradient 0' has dtype complex64, not a float dtype. Remove `dtypes`, or ",
        ),
        ("a = " + "[" * 100_000, "cases.toml: its lists or tables are nested too deep"),
        (cases_toml("1"), "calls 1: it is 1. Give a table"),
        (ONE_CASE.replace('["a"]', '["b"]'), "no gradients have the name 'b'. Choose from a"),
        (GRADIENTS * 2 + CASES, "two lists of gradients have the name 'a'"),
        (
            toml_with_tensor("vales = [1.0]"),
            "cases.toml, line 3, gradients 1, tensors 1, vales: there is no such key. Did you mean values\\?",
        ),
        (toml_with_tensor("values = ['one']"), "tensors 1: `values` has 'one'. Give a float, or its hexadecimal form"),
        (
            toml_with_tensor("values = [1.0, 2.0, 3.0], dtype = 'complex64'"),
            "`values` has 3 numbers, but complex64 needs two numbers for",
        ),
        (
            toml_with_tensor("values = [1.0], shape = [2]"),
            "tensors 1: `values` has 1 numbers, but shape = \\[2\\] needs 2. Give 2 numbers, or correct `shape`",
        ),
        (
            toml_with_tensor("values = [1.0], dtype = 'int8'"),
            "dtype: it is 'int8'. Give one of float16, ",
        ),
        (
            toml_with_tensor("values = [1.0], rows = [3], shape = [2, 1]"),
            "`rows` has the index 3, but the shape has 2 rows. Give indices below 2",
        ),
        (
            ONE_CASE.replace("tensors", "file = 'x'\ntensors"),
            "the list of gradients has tensors and file. Give exactly one of `tensors`, `file` and `function`",
        ),
        (
            "[[gradients]]\nname = 'a'\nfunction = 'x.py'",
            "function: it is 'x.py'. Give a file and a function name, as in",
        ),
        (
            toml_with_tensor("values = [true]"),
            "line 3, gradients 1, tensors 1, values 1: it is True. Give a valid number",
        ),
        (toml_with_tensor("values = [1.0, [true, 3]]"), "values 2 1: it is True. Give a valid number"),
        (
            '[[gradients]]\nname = "a"\nfile = "absent.safetensors"\n' + CASES,
            "absent.safetensors: the file does not exist",
        ),
        ('[[gradients]]\nname = "a"\nfile = "a.npz"\nonly = []\n' + CASES, "gradients 1, only: it is \\[\\]"),
    ],
)
def test_an_invalid_suite_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SuiteError, match=message) as caught:
        suites.read(suite(tmp_path, text))
    assert not re.search(r"pydantic|constrained|function-|Input should|\[key\]", str(caught.value))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("/cases.toml", "line 1, files 1: it is '/cases.toml'. Give a pattern such as cases/\\*.toml, relative"),
        ("case/*.toml", "files: 'case/\\*.toml' matches no file in "),
        ("**x", "files: '\\*\\*x' is an invalid pattern: "),
    ],
)
def test_misspelt_files_of_cases_are_rejected(tmp_path: Path, pattern: str, message: str) -> None:
    (tmp_path / "suite.toml").write_text(f"files = ['{pattern}']\n[frameworks.numpy]\n{ONE_CASE}", encoding="utf-8")
    with pytest.raises(SuiteError, match=f"suite.toml, {message}"):
        suites.read(tmp_path)


def test_messages_name_the_file_of_the_suite(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(f"[frameworks.numpi]\n{ONE_CASE}", encoding="utf-8")
    with pytest.raises(SuiteError, match=r"other\.toml: unified_clip has no adapter for the framework 'numpi'"):
        suites.read(tmp_path / "other.toml")


def test_a_missing_suite_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="Pass the suite to --suite, or write one: unified-clip parity init"):
        suites.read(tmp_path)
    (tmp_path / "suite.toml").mkdir()
    with pytest.raises(SuiteError, match=r"suite\.toml is a directory, not a TOML file\. Correct the path"):
        suites.read(tmp_path)


@pytest.mark.parametrize(
    ("frameworks", "message"),
    [
        ("", r"suite.toml, frameworks: it is missing. Add a table for each framework, such as \[frameworks.torch\]."),
        ("frameworks = {}\ncolour = 1", "suite.toml, line 4, colour: there is no such key"),
        (
            "[frameworks.numpy]\nmissing = 'maybe'",
            "line 4, frameworks.numpy.missing: it is 'maybe'. Give 'allowed'",
        ),
        (
            "[frameworks.numpy]\nmodes = ['gpu']",
            "numpy.modes 1: it is 'gpu'. Give 'host', 'device', 'native', 'graph', 'compiled', 'static', ",
        ),
        (
            "[frameworks.numpy]\nleft_out = { graph = ['dense'] }",
            "numpy.left_out.graph 1: it is 'dense'. Give 'sparse', .*'hook', 'long' or 'adaptive'",
        ),
        ("[frameworks.numpy]\nleft_out = { host = [] }", "numpy.left_out.host: it is 'host'. Give 'graph'"),
        ("[frameworks]\nnumpy = 1", "frameworks.numpy: it is 1. Give a table"),
        (
            "[frameworks.numpy]\nmodes = ['graph']",
            "frameworks.numpy.modes: numpy has no mode 'graph'. Choose from host$",
        ),
        ("[frameworks.numpy]\nmodes = ['host', 'device']", "no mode 'device'. Choose from host$"),
        (
            "[frameworks.jax]\nmodes = ['static']",
            "no mode 'static'. Choose from host, device, native, compiled$",
        ),
        (
            "[frameworks.caffe]",
            "no adapter for the framework 'caffe'. Choose from jax, mlx, numpy, paddle, tensorflow, torch"
            ". For a table with another name, add the key `framework`$",
        ),
        ("[frameworks.ours]\nframework = 'caffe'", "no adapter for the framework 'caffe'. Choose from .*, torch$"),
        (
            "[frameworks.jax]\nframework = 'numpy'",
            r"frameworks.jax: the table of numpy cannot have this name\. Choose a name that is no framework",
        ),
        ("[frameworks.'a,b']\nframework = 'numpy'", "frameworks.a,b: the table of numpy cannot have this name"),
        ("[frameworks.-x]\nframework = 'numpy'", "frameworks.-x: the table of numpy cannot have this name"),
        ("[frameworks.ours]\nframework = 'numpy'", "frameworks.ours.modes: numpy has no mode 'native'"),
        ("timeout = nan\n[frameworks.numpy]", "timeout: it is nan. Give a finite number"),
        ("timeout = -5\n[frameworks.numpy]", "timeout: it is -5. Give a number greater than 0"),
        ("[frameworks.numpy]\nmodes = []", "modes: it is \\[\\]. List should have at least 1 item"),
        (
            "[frameworks.numpy]\npyton = 'x'",
            "suite.toml, line 4, frameworks.numpy.pyton: there is no such key. Did you mean python\\?",
        ),
    ],
)
def test_an_invalid_list_of_frameworks_is_rejected(tmp_path: Path, frameworks: str, message: str) -> None:
    with pytest.raises(SuiteError, match=message) as caught:
        suites.read(suite(tmp_path, GRADIENTS + CASES, frameworks=frameworks))
    assert not re.search(r"pydantic|constrained|function-|Input should|\[key\]", str(caught.value))


def test_an_unknown_key_is_rejected_with_the_known_keys(tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_text("zzz = 3\n[frameworks.numpy]", encoding="utf-8")
    with pytest.raises(SuiteError, match=r"line 1, zzz: there is no such key\. Use one of gradients, cases, "):
        suites.read(tmp_path)


KNOWN = """
    [[known]]
    framework = "numpy"
    function = "f"
    size = 0.1
    cases = ["*"]
    reason = "it is so"
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("size = 0.1", "size = 'odd'"), "known.toml, line 5, known 1, size: it is 'odd'. Give a number, inf for inf"),
        (("size = 0.1", "size = 'form odd'"), "known 1, size: it is 'form odd'. Give the largest relative difference"),
        (("size = 0.1", "size = -0.1"), "known 1, size: it is -0.1. Give the largest relative difference"),
        (("size = 0.1", ""), "known 1, size: it is missing. Add"),
        (("size = 0.1", "size = 0.1\n    within = 4.0"), "known.toml, line 2, known 1: an earlier version wrote this"),
        (
            ('framework = "numpy"', 'framework = "caffe"'),
            "suite.toml: the entry of 'f' in known.toml names the framework 'caffe', but the suite has no such "
            "framework.",
        ),
    ],
)
def test_an_invalid_list_of_known_differences_is_rejected(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    assert suites.read(suite(tmp_path, GRADIENTS + CASES, KNOWN)).known[0].size == 0.1
    with pytest.raises(SuiteError, match=message):
        suites.read(suite(tmp_path, GRADIENTS + CASES, KNOWN.replace(*change)))


def test_recorded_gradients_with_rows_outside_of_their_shape_are_rejected(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    rows = {"x.indices": np.array([5]), "x.values": np.ones((1, 2), np.float32)}
    text = "[[gradients]]\nname = 'a'\nfile = 'a.safetensors'\n" + CASES
    save_file(rows, tmp_path / "a.safetensors", metadata={"sparse": '{"x": [4, 2]}'})
    with pytest.raises(
        SuiteError,
        match=r"gradients 1: .*: 'x' has values for row 5, but its shape \[4, 2\] has only 4 rows",
    ):
        suites.read(suite(tmp_path, text))
