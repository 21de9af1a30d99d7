"""Results of the user's functions: their form, errors, and what has to be declared."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from pathlib import Path
from typing import Any

from support.parity.cases import WORKED, case

import unified_clip.numpy
from unified_clip.parity.adapters.numpy import FrameworkAdapter as Adapter
from unified_clip.parity.call_outcome import CallOutcome
from unified_clip.parity.judge import oracle
from unified_clip.parity.known import measure
from unified_clip.parity.suite.case import Case
from unified_clip.parity.workers import user_function, worker
from unified_clip.parity.workers.user_function import UserFunction


def call_function(folder: Path, body: str, clip_case: Case | None = None, returns: str = "") -> dict[str, Any]:
    return call_with_tensors(folder, body, clip_case, returns)[0]


def call_with_tensors(folder: Path, body: str, clip_case: Case | None, returns: str) -> worker.Packed:
    file = Path(tempfile.mkdtemp(dir=folder)) / "clip.py"  # Python keeps the compiled code of a path for a second
    file.write_text(f"import numpy as np\ndef clip(grads, limit):\n    {body}\n", encoding="utf-8")
    user_function._load.cache_clear()  # of the file of an earlier call
    clip_case = clip_case or GLOBAL
    call = {
        "call": clip_case.call_name,
        "arguments": clip_case.arguments,
        "call_form": clip_case.call_form.model_dump(),
    }
    call |= {"update": False, "raises": "", "user_function": None}
    call["user_function"] = UserFunction("clip.py:clip", file, "clip", f"numpy.{clip_case.call_name}", returns)
    (packed,) = worker.run_cases(Adapter(), unified_clip.numpy, "native", [(call, clip_case.gradients)])
    return packed


GLOBAL = case([*WORKED], "clip_by_global_norm", clip_norm=0.5)
IN_PLACE = case([*WORKED], "clip_grad_norm_", max_norm=0.5)
BY_VALUE = case([*WORKED], "clip_grad_value_", clip_value=0.5)

WRONG_RESULTS = {
    "raise SystemExit(3)": "clip.py:clip ended with SystemExit: 3",
    "raise KeyboardInterrupt": "clip.py:clip ended with KeyboardInterrupt",
    "return grads, 1.0\nraise SystemExit(5)": "line 4: SystemExit: 5",
    "return grads[:1]": "returned a list of 1. Return \\(clipped gradients, norm\\)",
    "return ['a', 'b'], 1.0": "returned str as a clipped gradient",
    "return [Box() for g in grads], 1.0\nclass Box: pass": "returned clip.Box as a clipped gradient",
    "return grads, 1.0\nassert not clip": "cannot be imported: line 4: AssertionError",
    "return grads, None": "returned a tuple of 2. Return \\(clipped gradients, norm\\)",
    "return grads, grads[0]": "returned numpy.ndarray with 2 elements as the norm",
    "return grads, 1.0\nraise KeyError(3)": "cannot be imported: line 4: KeyError: 3",
    "return grads, 1.0\ndel clip": "the file has no function 'clip'",
    "return grads, 1.0\nclass clip: pass": "clip.py:clip is a class, not a function",
    "return grads, 1.0\nclip = 3": "clip.py:clip is of type int, not a function",
}


def test_a_result_of_a_wrong_type_is_unreadable(tmp_path: Path) -> None:
    for body, message in WRONG_RESULTS.items():
        result = call_function(tmp_path, body)
        assert set(result) == {"unreadable"}, body
        assert re.search(message, result["unreadable"]), result


NEW = "[g * 1 for g in grads]"
RETURNS = {
    "nothing": "grads[0][...] = 0",
    "norm": "grads[0][...] = 0\n    return 1.0",
    "gradients": f"return {NEW}",
    "gradients and None": f"return {NEW}, None",
    "gradients and norm": f"return {NEW}, 1.0",
    "other items": "grads[:] = [g * 0 for g in grads]\n    return 1.0",
}
ACCEPTED = {
    (GLOBAL, ""): {"gradients and norm"},
    (GLOBAL, "gradients"): {"gradients", "gradients and None"},
    (IN_PLACE, ""): {"norm"},
    (IN_PLACE, "nothing"): {"nothing"},
    (IN_PLACE, "gradients"): {"gradients", "gradients and None"},
    (BY_VALUE, ""): {"nothing", "norm"},
    (BY_VALUE, "gradients"): {"gradients", "gradients and None"},
}
"""{(case, what the suite declares): what the function may return}"""


def test_a_function_returns_what_its_name_or_its_declaration_says(tmp_path: Path) -> None:
    """A function that no longer returns its norm must not pass, and the setting that an error advises is accepted."""
    for (clip_case, declared), accepted in ACCEPTED.items():
        results = {name: call_function(tmp_path, body, clip_case, declared) for name, body in RETURNS.items()}
        assert {name for name, result in results.items() if result.get("name") == "clip.py:clip"} == accepted
        for name, result in results.items():
            advised = re.findall(r'"(gradients|nothing)"', result.get("unreadable", ""))
            assert not (advised and declared) or name == "other items"
            if name in ("nothing", "gradients", "gradients and None") and name not in accepted and not declared:
                assert any(name in ACCEPTED[clip_case, each] for each in advised) or clip_case is GLOBAL
            if name == "gradients and norm" and name not in accepted:
                assert not advised


def test_errors_and_other_dtypes_are_differences(tmp_path: Path) -> None:
    assert call_function(tmp_path, "raise KeyError(3)")["message"] == "KeyError: 3"
    assert call_function(tmp_path, "raise OverflowError")["message"] == "OverflowError"
    result = call_function(tmp_path, "return list(grads), 1.0")
    assert (result["name"], result["fault"]) == ("clip.py:clip", "")
    clip_case = GLOBAL
    outcome = CallOutcome(
        name="clip.py:clip", fault=call_function(tmp_path, "return [g * 1.0 for g in grads], 1.0")["fault"]
    )
    assert outcome.fault == ""
    outcome.fault = call_function(tmp_path, "return [np.float64(g) for g in grads], 1.0")["fault"]
    deviation = measure.measure(clip_case, oracle.expect(clip_case), outcome)
    assert deviation
    assert (deviation.kind, deviation.detail) == ("form", "gradient 0 is float64 instead of float32")


def kind_of_call(folder: Path, body: str, clip_case: Case) -> str:
    outcome, expected = CallOutcome(**call_function(folder, body, clip_case)), oracle.expect(clip_case)
    outcome.norm, outcome.gradients = expected.norm, expected.gradients
    deviation = measure.measure(clip_case, expected, outcome)
    assert deviation
    return deviation.kind


def test_a_function_must_not_change_gradients_of_which_it_returns_new_ones(tmp_path: Path) -> None:
    functional = GLOBAL
    assert kind_of_call(tmp_path, "return [g * 1 for g in grads], 1.0", functional) == ""
    assert kind_of_call(tmp_path, "grads[0][...] = 0\n    return [g * 1 for g in grads], 1.0", functional) == "inputs"
    assert kind_of_call(tmp_path, "grads[0] = grads[0] * 1\n    return [*grads], 1.0", functional) == "inputs"
    assert kind_of_call(tmp_path, "grads[0][...] = 0\n    return 1.0", IN_PLACE) == ""


def test_a_function_must_return_the_container_that_it_got(tmp_path: Path) -> None:
    named = "[(f'gradient {i}', grads[i][1] * 1) for i in (0, 1)]"
    for container, expected, right in (
        ("dict", "dict", "{key: grads[key] * 1 for key in grads}"),
        ("named", "list of pairs", named),
        (
            "nested",
            "dict of (list, list of list)",
            "{'first': [grads['first'][0] * 1], 'rest': [[grads['rest'][0][0]]]}",
        ),
        ("tuple", "list", "tuple(g * 1 for g in grads)"),
    ):
        clip_case = case([*WORKED], "clip_by_global_norm", call_form={"container": container}, clip_norm=0.5)
        flat = "[np.ones(2, np.float32)] * 2"
        faults = [call_function(tmp_path, f"return {each}, 1.0", clip_case)["fault"] for each in (right, flat)]
        assert faults == ["", "" if expected == "list" else f"returned a list instead of a {expected}"]


def test_a_function_may_return_its_dict_in_another_order(tmp_path: Path) -> None:
    """JAX sorts dicts by their keys."""
    clip_case = case([*WORKED], "clip_by_global_norm", call_form={"container": "dict"}, clip_norm=0.5)
    body = "return {key: grads[key] * 1 for key in reversed(grads)}, 1.0"
    gradients = call_with_tensors(tmp_path, body, clip_case, "")[1]["gradients"]
    assert [each.values().tolist() for each in gradients if each] == [[3.0, 4.0], [1.0, 2.0]]


def test_a_function_must_raise_the_expected_error_before_it_changes_gradients(tmp_path: Path) -> None:
    clip_case = case([*WORKED], "clip_grad_norm_", max_norm=0.5, raises="ArithmeticError")
    assert kind_of_call(tmp_path, "raise OverflowError", clip_case) == ""
    assert kind_of_call(tmp_path, "raise TypeError", clip_case) == "error"
    assert kind_of_call(tmp_path, "grads[0][...] = 0\n    raise OverflowError", clip_case) == "inputs"


def test_required_arguments_are_passed_by_position_and_optional_ones_by_keyword(tmp_path: Path) -> None:
    clip_case = case([*WORKED], "clip_by_global_norm", clip_norm=0.5, use_norm=2.0)
    remedy = "Delete the suite's calls of clip_by_global_norm with use_norm, or add use_norm to the function"
    assert call_function(tmp_path, "return grads, 1.0", clip_case)["message"] == (
        f"TypeError: clip() got an unexpected keyword argument 'use_norm'. {remedy}"
    )
    for parameters in ("use_norm", "**rest"):
        body = f"pass\ndef clip(grads, limit, {parameters}): raise TypeError('own')"
        assert call_function(tmp_path, body, clip_case)["message"] == "TypeError: own"
    assert call_function(tmp_path, "return grads, limit", dataclasses.replace(clip_case, arguments={"clip_norm": 0.5}))[
        "name"
    ]
