"""Read what only a framework can read: `python -m unified_clip.parity.convert KIND SOURCE OUT [ONLY ...]`.

Into the directory OUT go the gradients, as `mapped.write` writes them, or `failed.json`, which says why not.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import pickle
import re
import shutil
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from .._dispatch import adapter_of
from .adapter import Adapter
from .items import Item, flatten, from_array, name_of, select
from .mapped import FAILED, write
from .tensors import Dense, Gradient, Sparse, UnreadableError

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
"""What TensorFlow adds to the names of variables."""

WEIGHTS = "model.weights.h5"
"""In a `.keras` file."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Convert gradients, tensor by tensor.")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("source")
    parser.add_argument("out", type=Path)
    parser.add_argument("only", nargs="*")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    try:
        write(select(KINDS[options.kind](options.source, options.out), options.only), options.out)
    except ModuleNotFoundError as error:
        failed = {"missing": str(error)}
    except UnreadableError as error:
        failed = {"error": str(error)}
    except Exception as error:
        failed = {"error": f"{type(error).__name__}: {error}"}
    else:
        return
    (options.out / FAILED).write_text(json.dumps(failed), encoding="utf-8")


# -- files


def from_torch(source: str, out: Path) -> Iterator[Item]:
    import torch

    with Path(source).open("rb") as file:
        is_zip = file.read(2) == b"PK"  # or a pickle, as before PyTorch 1.6, which cannot be mapped
    if is_zip and not zipfile.is_zipfile(source):
        raise UnreadableError("it was cut short: it is a zip without an end; copy it again")
    try:
        loaded = torch.load(source, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        called = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = called[1] if called else "something else than tensors"
        raise UnreadableError(f"it holds {what}, and nothing but tensors is unpickled; save a dict of them") from None
    for name, tensor in flatten(loaded, torch.is_tensor):
        yield Item(name, str(tensor.dtype).removeprefix("torch."), partial(read_tensor, name, tensor))


def from_tensorflow(source: str, out: Path) -> Iterator[Item]:
    import tensorflow as tf

    checkpoint = tf.train.load_checkpoint(source)
    for name, dtype in sorted(checkpoint.get_variable_to_dtype_map().items()):
        yield Item(name.removesuffix(VALUE), dtype.name, partial(_get_tensor, checkpoint, name))


def _get_tensor(checkpoint: Any, name: str) -> Gradient:
    return from_array(np.asarray(checkpoint.get_tensor(name)))


def from_keras(source: str, out: Path) -> Iterator[Item]:
    import h5py

    zipped, found = Path(source).suffix.lower() == ".keras", []
    with tempfile.TemporaryFile(dir=out) as copy:
        if zipped:
            _extract(source, copy)
        with h5py.File(copy if zipped else source) as file:
            file.visititems(lambda name, each: found.append((name, each)) if isinstance(each, h5py.Dataset) else None)
            for name, dataset in found:
                yield Item(name, name_of(dataset.dtype), partial(_read_dataset, name, dataset))


def _extract(source: str, copy: IO[bytes]) -> None:
    """HDF5 cannot be read inside a zip. Keras stores it as it is, so that it cannot be longer than the zip."""
    with zipfile.ZipFile(source) as archive:
        if WEIGHTS not in archive.namelist() or archive.getinfo(WEIGHTS).compress_type != zipfile.ZIP_STORED:
            raise UnreadableError(f"it does not hold {WEIGHTS}, uncompressed, as model.save writes it")
        with archive.open(WEIGHTS) as member:
            shutil.copyfileobj(member, copy)


def _read_dataset(name: str, dataset: Any) -> Gradient:
    if dataset.id.get_storage_size() < dataset.nbytes:  # no memory for what a small file only says it has
        raise UnreadableError(f"{name!r} is compressed, not whole, or in another file; save it with save_weights")
    return from_array(dataset[()])


# -- a function


def from_function(source: str, out: Path) -> Iterator[Item]:
    """`source` is a Python file and, behind a colon, the name of a function in it."""
    path, _, name = source.rpartition(":")
    for key, tensor in _called(Path(path), name):
        gradient = read_tensor(key, tensor)
        yield Item(key, gradient.dtype, partial(_same, gradient))


def _same(gradient: Dense | Sparse) -> Dense | Sparse:
    return gradient


def _called(path: Path, name: str) -> Iterator[tuple[str, Any]]:
    """What the function gives, by name. What it raises is told with its place."""
    try:
        found = function_in(path, name)()
        if _is_tensor(found) or isinstance(found, Mapping):
            found = [found]
        for index, entry in enumerate(found):
            is_named = isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)
            title, value = entry if is_named else ("" if isinstance(entry, Mapping) else f"gradient {index}", entry)
            yield from flatten(value, _is_tensor, title)
    except ModuleNotFoundError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f"line {lines[-1]}: " if lines else ""
        raise UnreadableError(f"{name}, {where}{type(error).__name__}: {error}") from None


def function_in(path: Path, name: str) -> Callable[[], Any]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # as if it were run: it finds what lies beside it
    spec.loader.exec_module(module)
    function: Callable[[], Any] = getattr(module, name)
    return function


def _is_tensor(value: Any) -> bool:
    return adapter_of(type(value)) is not None


def read_tensor(name: str, tensor: Any) -> Dense | Sparse:
    """The bytes of a tensor of any framework."""
    framework = adapter_of(type(tensor))
    if framework == "numpy":
        return from_array(np.asarray(tensor))
    try:
        adapter: Adapter = importlib.import_module(f"unified_clip.parity.adapter_{framework}").Framework()
        gradient = adapter.read(tensor)
        assert gradient is not None
        return gradient
    except Exception as error:
        kind = f"{type(tensor).__module__}.{type(tensor).__name__}"
        raise UnreadableError(f"{name!r} ({kind}) cannot be read: {error}; save it as a dense tensor") from None


KINDS = {"torch": from_torch, "tensorflow": from_tensorflow, "keras": from_keras, "function": from_function}

if __name__ == "__main__":
    main()
