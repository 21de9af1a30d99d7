"""Write the suite.toml that `unified-clip parity init` creates, with comments and the user's gradient files."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from ..._dispatch import ADAPTERS
from ..._kit import atomic_files
from ..._kit.display import enumeration
from ...tensors import files
from ...tensors.norms import exact_norm, norm_dtype
from ...tensors.types import densify
from .load import FILE
from .schema import SuiteError

PACKAGES = {name: package for package, name in reversed(ADAPTERS.items())}
"""{framework: package}. A framework is treated as installed if Python finds the package."""

RULES = ("clip_grad_norm_", "clip_by_global_norm", "GradientClipByGlobalNorm", "GradientClipByNorm")
"""The last function clips per tensor."""

EXAMPLE = """\
[[gradients]]
name = "worked example" # to use your own file, replace `tensors` by file = "gradients.npz"
tensors = [{ values = [3.0, 4.0] }, { values = [1.0, 2.0] }]
"""

TEXT = """\
# `unified-clip parity` runs each case on every framework, with unified_clip and with the framework's own function.

# With a list of known differences, the run fails if a difference is not in the list, or if a listed difference no
# longer occurs. `unified-clip parity --accept` writes the list. Without a list, differences do not fail the run.
# known = "known.toml"

{frameworks}
# To test your own function in place of the framework's, set `known` and this table (see docs/own-functions.md):
# [frameworks.torch.functions]
# clip_by_global_norm = "../clip.py:clip_by_global_norm"

{gradients}
[[cases]]
gradients = {names}
rules = {rules}
thresholds = {thresholds} # {why}

# A small eps changes the result only if the norm is tiny.
[[gradients]]
name = "tiny norm"
tensors = [{{ values = [2e-4] }}, {{ values = [3e-4] }}]

[[cases]]
gradients = ["tiny norm"]
rules = {rules}
thresholds = [1.2e-4]

[[gradients]]
name = "tiniest norm"
tensors = [{{ values = [2e-8] }}, {{ values = [3e-8] }}, {{ values = [1e-8] }}]

[[cases]]
gradients = ["tiniest norm"]
rules = {rules}
thresholds = [1.2e-8]

# The total norm is 55677.6. A threshold far below it reveals an eps that is added to the coefficient. Thresholds
# close to the norm reveal a function that compares the norm with 1.001 or 0.999 times the threshold.
[[gradients]]
name = "large norm"
tensors = [{{ values = [1e4] }}, {{ values = [3e4, -4e4] }}, {{ values = [-1e4] }}, {{ values = [2e4] }}]

[[cases]]
gradients = ["large norm"]
rules = {rules}
thresholds = [4.7, 55650.0, 55700.0]

# Negative numbers, a gradient without axes, float64, and gradients that are not contiguous.
[[gradients]]
name = "signs and shapes"
tensors = [{{ values = [-1], shape = [] }}, {{ values = [-6, 4] }}, {{ values = [2, -5, 1.5, -2], shape = [2, 2] }}]

[[cases]]
gradients = ["signs and shapes"]
rules = {rules}
thresholds = [3.05]
dtypes = ["float32", "float64"]
transposed = true

# The total norm is 9.394. An infinite threshold changes nothing.
[[cases]]
gradients = ["signs and shapes"]
rules = {rules}
thresholds = [5.1, inf]

# A threshold of 0 gives zeros.
[[cases]]
gradients = ["signs and shapes"]
rules = {rules}
thresholds = [0.0]

[[gradients]]
name = "zeros"
tensors = [{{ values = [0.0, 0.0] }}, {{ values = [0.0] }}]

[[cases]]
gradients = ["zeros"]
rules = {rules}
thresholds = [1.0]

# The total norm is 418.9. bfloat16 rounds this norm to 418. With a sum of squares in bfloat16, the norm is 420.
[[gradients]]
name = "bfloat16"
tensors = [
  {{ values = [306.0, -77.5, 3.0], dtype = "bfloat16" }},
  {{ values = [153.0, -229.0], dtype = "bfloat16" }},
]

[[cases]]
gradients = ["bfloat16"]
rules = {rules}
thresholds = [10.3]

# A gradient with more than 65536 elements, and gradients with three and four axes. The total norm is 129.6.
[[gradients]]
name = "long"
tensors = [
  {{ values = [[30000, 0.25], [40000, -0.5]] }},
  {{ values = [[6, 4.0], [6, -8.0], [6, 12.0], [6, -16.0]], shape = [2, 3, 4] }},
  {{ values = [[5, -9.0], [4, 13.0], [3, -18.0]], shape = [3, 2, 2, 1] }},
]

[[cases]]
gradients = ["long"]
rules = {rules}
thresholds = [11.3]

# 64 gradients, to find a norm over only a part of the list. The total norm is 17.7.
[[gradients]]
name = "many gradients"
tensors = [
  {{ values = [2.0, -1.0], copies = 30 }},
  {{ values = [0.5], copies = 20 }},
  {{ values = [-3.0, 1.5, 0.25], copies = 14 }},
]

[[cases]]
gradients = ["many gradients"]
rules = {rules}
thresholds = [5.9]

# Other norms. Delete the table below if you test your own clip_grad_norm_ and it has no argument norm_type.
[[cases]]
gradients = ["signs and shapes"]
calls = [
  {{ call = "clip_grad_norm_", max_norm = 3.05, norm_type = 1 }},
  {{ call = "clip_grad_norm_", max_norm = 3.05, norm_type = inf }},
]
"""


def chosen_files(paths: Sequence[Path]) -> list[Path]:
    return list(dict.fromkeys(paths)) or _in_this_directory(files.READ_HERE)


def files_to_pass() -> list[Path]:
    """Return the gradient files in the current directory that only PyTorch can read. init reads these files only if
    the user passes them.
    """
    return _in_this_directory(files.READ_BY_TORCH)


def _in_this_directory(suffixes: Collection[str]) -> list[Path]:
    return sorted(each for each in Path().iterdir() if each.suffix in suffixes)


def write(suite: Path, chosen: Sequence[Path], frameworks: Sequence[str] = ()) -> tuple[Path, dict[Path, float]]:
    """Write a suite for the gradient files in `chosen`, or an example if there are no files. Return (path of the suite,
    {file: total norm}).

    suite: The directory of the new suite.toml, or a path that ends in `.toml`.
    frameworks: The default is all installed frameworks.
    """
    if unknown := [name for name in frameworks if name not in PACKAGES]:
        known = ", ".join(sorted(PACKAGES))
        raise SuiteError(f"--frameworks: unified_clip has no framework {unknown[0]!r}. Choose from {known}", "UC203")
    path = suite if suite.suffix == ".toml" else suite / FILE
    if path.exists():
        raise SuiteError(f"{path} exists already. Edit the file, or pass another directory to --suite", "UC206")
    tables = [_framework(name, is_chosen=bool(frameworks)) for name in frameworks or PACKAGES]
    norms = {file: _norm(file) for file in chosen}
    text = _text(norms, path.parent, tables)
    atomic_files.make_directory(path.parent)
    atomic_files.write(path, text)
    return path, norms


def _text(chosen: Mapping[Path, float], directory: Path, frameworks: Sequence[str]) -> str:
    norms = [*chosen.values()] or [30**0.5]
    names = [path.name for path in chosen] or ["worked example"]
    if len(set(names)) < len(names):
        names = [path.as_posix() for path in chosen]
    usable = [norm for norm in norms if 0 < norm < math.inf]
    thresholds = f"[{_below(usable)}, {max(usable) * 2:.3g}]" if usable else "[1.0, 100.0]"
    tables = [
        f"[[gradients]]\nname = {_string(name)}\nfile = {_string(os.path.relpath(path, directory))}\n"
        for name, path in zip(names, chosen, strict=False)
    ]
    return TEXT.format(
        frameworks="\n".join(frameworks),
        gradients="\n".join(tables) or EXAMPLE,
        names=f"[{', '.join(map(_string, names))}]",
        rules=json.dumps(RULES),
        thresholds=thresholds,
        why=_why(norms, usable),
    )


def notes(norms: Mapping[Path, float]) -> Iterator[str]:
    for path, norm in norms.items():
        if not 0 < norm < math.inf:
            effect = "changes nothing" if norm == 0 else "returns only NaN and zeros"
            yield (
                f"The total norm of {path} is {norm:g}, so clipping by this norm {effect}, whatever the threshold. "
                "To test thresholds, also pass gradients with a finite norm above 0."
            )


def _below(norms: Sequence[float]) -> str:
    """Return a threshold of about a third of the smallest norm.

    Avoid thresholds whose clip coefficient is close to a bfloat16 or float16 number. So the suite detects a function
    that wrongly rounds the coefficient to 16 bits.
    """
    thresholds = [f"{min(norms) / (3 + step / 20):.3g}" for step in range(20)]
    return min(thresholds, key=lambda text: sum(_is_short(float(text) / norm) for norm in norms))


def _is_short(coef: float) -> bool:
    mantissa = math.frexp(coef)[0]
    return any(abs(mantissa * 2**bits - round(mantissa * 2**bits)) < 1 / 8 for bits in (8, 11))


def _why(norms: Sequence[float], usable: Sequence[float]) -> str:
    values = enumeration([f"{norm:.4g}" for norm in norms])
    text, them = ("the total norm is", "it") if len(norms) == 1 else ("the total norms are", "all")
    places = f": the first threshold is below {them}, the second above {them}" if len(usable) == len(norms) else ""
    return f"{text} {values}{places}"


def _string(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise SuiteError(
            f"The path {text!r} is not UTF-8, so a suite cannot contain it. Rename the file or the directory"
        )
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _norm(path: Path) -> float:
    present = [dense for each in files.read(path, files.scratch()).values() if (dense := densify(each))]
    return exact_norm(present, 2, norm_dtype(present))


def _framework(name: str, *, is_chosen: bool) -> str:
    if importlib.util.find_spec(PACKAGES[name]):
        return f"[frameworks.{name}]\n"
    python = f'# python = "../{name}/bin/python"\n'
    why = f"# {name} is not installed here"
    remedy = f"set python to an interpreter that has {name} and unified_clip[cli]"
    if is_chosen:
        return f"{why}. Install it, or {remedy}.\n[frameworks.{name}]\n{python}"
    return f"{why}. To add it, uncomment these lines, and {remedy}:\n# [frameworks.{name}]\n{python}"
