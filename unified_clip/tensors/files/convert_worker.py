"""Convert a file in a separate process, because only PyTorch can read the file, or call a function there.

python -m unified_clip.tensors.files.convert_worker KIND SOURCE OUT [ONLY ...]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.machinery
import importlib.util
import itertools
import json
import pickle
import re
import sys
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

from ..._dispatch import adapter_of
from ..._kit import atomic_files, workers
from ..._kit.display import describe_exception
from ..frameworks import converter
from ..types import Dense, Sparse, UnreadableError
from .entries import Item, describe_failure, flatten, select
from .limits import LimitError
from .memmap import FAILED, write

COPY_AGAIN = "Copy the file again, or save the gradients with torch.save"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Write the gradients of a file or function to a directory, tensor by tensor."
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("source")
    parser.add_argument("out", type=Path)
    parser.add_argument("only", nargs="*")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    try:
        items = KINDS[options.kind](options.source)
        size = None if options.kind == "function" else Path(options.source).stat().st_size
        write(select(items, options.only, size), options.out)
    except ModuleNotFoundError as error:
        failed = {"missing": str(error)}
    except (UnreadableError, LimitError) as error:
        failed = {"error": str(error)}
    except Exception as error:
        failed = {"error": describe_failure(error)}
    else:
        return
    atomic_files.write(options.out / FAILED, json.dumps(failed))


def from_torch(source: str) -> Iterator[Item]:
    import torch

    with atomic_files.reading(Path(source)) as file:
        is_zip = file.read(2) == b"PK"  # instead of a zip, PyTorch before 1.6 wrote a pickle, which cannot be mapped
    if is_zip and not zipfile.is_zipfile(source):
        raise UnreadableError("the file is incomplete: the end of the zip archive is missing. Copy the file again")
    try:
        loaded = torch.load(source, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        if rejected := re.search(r"GLOBAL ([\w.]+)", str(error)):
            problem = (
                f"the file contains {rejected[1]}, but only tensors are allowed. Save a dict of names and tensors, "
                'as in torch.save({"weight": gradient}, "gradients.pt")'
            )
        else:
            reason = re.search(r"WeightsUnpickler error:\s*(.*)", str(error)) or re.search("(.*)", str(error))
            problem = f"PyTorch cannot read the file: {reason[1] if reason else error}. {COPY_AGAIN}"
        raise UnreadableError(problem) from None
    for name, tensor in flatten(loaded, torch.is_tensor):
        dtype = str(tensor.dtype).removeprefix("torch.")
        yield Item(name, dtype, partial(read_tensor, name, tensor), tuple(tensor.shape))


def from_function(source: str) -> Iterator[Item]:
    path, _, name = source.rpartition(":")
    for key, tensor in _called(Path(path), name):
        gradient = read_tensor(key, tensor)
        yield Item(key, gradient.dtype, lambda gradient=gradient: gradient, gradient.shape)  # type: ignore[misc]


def _called(path: Path, name: str) -> Iterator[tuple[str, Any]]:
    function = load_function(path, name)
    if not callable(function):
        raise UnreadableError(
            f"{name!r} is of type {type(function).__name__}, not a function. Write the name of a function"
        )
    try:
        returned = function()
        if not _is_tensor(returned) and not isinstance(returned, Iterable):
            kind = "None" if returned is None else f"a value of type {type(returned).__name__}"
            raise UnreadableError(
                f"the function {name!r} returned {kind}. Return a tensor, or a list or a dict of tensors"
            )
        if _is_tensor(returned) or isinstance(returned, Mapping):
            returned = [returned]
        for index, entry in enumerate(returned):
            is_named = isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)
            title, value = entry if is_named else ("" if isinstance(entry, Mapping) else f"gradient {index}", entry)
            yield from flatten(value, _is_tensor, title)
    except (ModuleNotFoundError, UnreadableError, LimitError):
        raise
    except Exception as error:
        problem = f"the function {name!r} failed: {with_line(error, path)}"
        raise UnreadableError(f"{problem}. Correct the function") from None


def load_function(path: Path, name: str) -> Callable[..., Any]:
    try:
        return function_in(path, name)
    except ModuleNotFoundError:
        raise
    except Exception as error:
        if isinstance(error, AttributeError) and error.name == name:
            raise UnreadableError(f"the file has no function {name!r}. Correct the name") from None
        raise UnreadableError(f"the file cannot be imported: {with_line(error, path)}. Correct the file") from None
    except SystemExit as error:
        remedy = 'Put the code that ends the program below this line: if __name__ == "__main__":'
        raise UnreadableError(f"the file cannot be imported: {with_line(error, path)}. {remedy}") from None


def with_line(error: BaseException, path: Path) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line, text = lines[-1] if lines else None, describe_exception(error)
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line, text = error.lineno, f"{type(error).__name__}: {error.msg}"
    return f"line {line}: {text}" if line else text


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Compile the source at each import, because Python's cache can miss a change that keeps the size of the file."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def function_in(path: Path, name: str) -> Callable[..., Any]:
    stem = path.stem.replace(".", "_")  # with a dot, the module would count as part of a package
    module_name = next(f"{stem}#{count}" for count in itertools.count(1) if f"{stem}#{count}" not in sys.modules)
    spec = importlib.util.spec_from_file_location(module_name, path, loader=_SourceLoader(module_name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # so that the file can import modules beside it
    with suppress(OSError):  # and packages of the working directory, as with python -m, if it still exists
        sys.path += {str(Path.cwd())}.difference(sys.path)
    sys.modules[module_name] = module  # where dataclasses and typing look up the names in annotations
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(module_name, None)
        raise
    function: Callable[..., Any] = getattr(module, name)
    return function


def _is_tensor(value: Any) -> bool:
    return adapter_of(type(value)) is not None


def read_tensor(name: str, tensor: Any) -> Dense | Sparse:
    framework = adapter_of(type(tensor))
    try:
        assert framework is not None
        gradient = converter(framework).read(tensor)
        assert gradient is not None
        return gradient
    except Exception as error:
        kind = f"{type(tensor).__module__}.{type(tensor).__name__}"
        remedy = "Convert the gradient to a plain, dense float32 tensor"
        raise UnreadableError(f"{name!r} ({kind}) cannot be read: {error}. {remedy}") from None


KINDS = {"torch": from_torch, "function": from_function}

if __name__ == "__main__":
    workers.prepare()
    main()
