"""Write the suite.toml that `unified-clip parity init` creates, with comments and the user's gradient files."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import jinja2

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

NEW_SUITE = Path(__file__).with_suffix(".toml.jinja")

EXAMPLE = """\
[[gradients]]
name = "worked example" # to use your own file, replace `tensors` by file = "gradients.npz"
tensors = [{ values = [3.0, 4.0] }, { values = [1.0, 2.0] }]
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
    text = atomic_files.read_text(NEW_SUITE)
    template = jinja2.Template(text, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    rendered: str = template.render(
        frameworks="\n".join(frameworks),
        gradients="\n".join(tables) or EXAMPLE,
        names=f"[{', '.join(map(_string, names))}]",
        rules=json.dumps(RULES),
        thresholds=thresholds,
        why=_why(norms, usable),
    )
    return rendered


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
