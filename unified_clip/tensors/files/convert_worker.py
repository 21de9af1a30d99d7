"""Convert a file in a separate process, because only a framework or h5py can read the file.

python -m unified_clip.tensors.files.convert_worker KIND SOURCE OUT [ONLY ...]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.machinery
import importlib.util
import itertools
import json
import math
import pickle
import pickletools
import re
import sys
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from ..._dispatch import adapter_of
from ..._kit import atomic_files, workers
from ..._kit.display import describe_exception
from ..._kit.limits import LimitError, Tree
from ..frameworks import converter
from ..types import Dense, Gradient, Sparse, UnreadableError, from_numpy, name_of
from .entries import Item, describe_failure, flatten, select, size_of
from .memmap import FAILED, write

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"

WEIGHTS = "model.weights.h5"

GZIP = 1

CHECKED_FILTERS = (GZIP, 2, 3)
"""The filters gzip, shuffle and fletcher32 of HDF5."""

CHECKSUM = 4
"""The number of bytes that fletcher32 adds to a chunk."""

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
        items = KINDS[options.kind](options.source, options.out)
        size = None if options.kind == "function" else size_of(Path(options.source))
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


def from_torch(source: str, out: Path) -> Iterator[Item]:
    import torch

    with atomic_files.reading(Path(source)) as file:
        is_zip = file.read(2) == b"PK"  # instead of a zip, PyTorch before 1.6 wrote a pickle, which cannot be mapped
    if is_zip and not zipfile.is_zipfile(source):
        raise UnreadableError("the file is incomplete: the end of the zip archive is missing. Copy the file again")
    try:
        loaded = torch.load(source, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:
        if not is_zip and not _has_complete_pickles(source):
            raise UnreadableError(f"the file is incomplete, or torch.save did not write it. {COPY_AGAIN}") from None
        if not isinstance(error, pickle.UnpicklingError):
            raise
        if rejected := re.search(r"GLOBAL ([\w.]+)", str(error)):
            problem = (
                f"the file contains {rejected[1]}, but only tensors are allowed. Save a dict of names and tensors, "
                'as in torch.save({"weight": gradient}, "gradients.pt")'
            )
        else:
            reason = re.search(r"WeightsUnpickler error:\s*(.*)", str(error)) or re.search("(.*)", str(error))
            problem = f"PyTorch cannot read the file: {reason[1] if reason else error}. {COPY_AGAIN}"
        raise UnreadableError(problem) from None
    for name, tensor in flatten(loaded, torch.is_tensor, tree=Tree(size_of(Path(source)))):
        dtype = str(tensor.dtype).removeprefix("torch.")
        yield Item(name, dtype, partial(read_tensor, name, tensor), tuple(tensor.shape))


def _has_complete_pickles(source: str) -> bool:
    """Return whether a file begins with five pickles, as torch.save wrote them before PyTorch 1.6."""
    try:
        with atomic_files.reading(Path(source)) as file:
            for _ in range(5):
                for _opcode in pickletools.genops(file):
                    pass
    except Exception:  # genops raises errors of many types for bytes that are not a pickle
        return False
    return True


def from_tensorflow(source: str, out: Path) -> Iterator[Item]:
    workers.import_tensorflow()
    import tensorflow as tf

    latest = tf.train.latest_checkpoint(source) if Path(source).is_dir() else None
    if latest is None and Path(source).is_dir():
        raise UnreadableError(
            "TensorFlow finds no checkpoint. The file `checkpoint` is damaged, or names a checkpoint that does not "
            "exist. Pass the prefix of a checkpoint, as in DIRECTORY/ckpt-1"
        )
    if latest and not Path(latest).resolve().is_relative_to(Path(source).resolve()):
        raise UnreadableError(
            f"the file `checkpoint` names {latest}, which is in another directory. Pass that directory, or the prefix "
            "of a checkpoint in your directory, as in DIRECTORY/ckpt-1"
        )
    checkpoint = tf.train.load_checkpoint(source)

    def read_variable(name: str) -> Gradient:
        return from_numpy(np.asarray(checkpoint.get_tensor(name)))

    shapes = checkpoint.get_variable_to_shape_map()
    for name, dtype in sorted(checkpoint.get_variable_to_dtype_map().items()):
        yield Item(name.removesuffix(VALUE), dtype.name, partial(read_variable, name), shapes[name])


def from_keras(source: str, out: Path) -> Iterator[Item]:
    import h5py

    is_hdf5 = Path(source).suffix.lower() != ".keras" or h5py.is_hdf5(source)  # as Keras 2 wrote also .keras files
    file = h5py.File(source if is_hdf5 else _extract(source, out))
    root, tree = file["/"], Tree(Path(source).stat().st_size)
    for name, dataset in _datasets(root, h5py, {root.id}, tree):
        yield Item(name, name_of(dataset.dtype), partial(_read_dataset, name, dataset), dataset.shape or ())


def _datasets(group: Any, h5py: Any, visited: set[Any], tree: Tree, prefix: str = "", depth: int = 0) -> Iterator[Any]:
    for key in group:
        name = f"{prefix}{key}"
        tree.enter(name, depth)
        link = group.get(key, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            elsewhere = repr(link.filename)
            raise UnreadableError(
                f"{name!r} is a link to another file, {elsewhere}. Save the linked arrays in this file"
            )
        if isinstance(link, h5py.SoftLink):
            continue  # the target has its own name in this file
        entry = group[key]
        if entry.id in visited:
            continue
        visited.add(entry.id)
        if isinstance(entry, h5py.Group):
            yield from _datasets(entry, h5py, visited, tree, f"{name}/", depth + 1)
        elif isinstance(entry, h5py.Dataset):
            yield name, entry


def _extract(source: str, out: Path) -> Path:
    with zipfile.ZipFile(source) as archive:
        if WEIGHTS not in archive.namelist() or archive.getinfo(WEIGHTS).compress_type != zipfile.ZIP_STORED:
            problem = "is compressed in" if WEIGHTS in archive.namelist() else "is missing from"
            raise UnreadableError(
                f'{WEIGHTS} {problem} this zip archive. Save the model again: model.save("model.keras")'
            )
        return Path(archive.extract(WEIGHTS, out))


def _read_dataset(name: str, dataset: Any) -> Gradient:
    if dataset.external:
        elsewhere = dataset.external[0][0]
        raise UnreadableError(f"{name!r} has its data in another file, {elsewhere!r}. Save all data in one file")
    if dataset.chunks:
        _check_chunks(name, dataset)
    # a small file may claim to have huge data: reserve no memory for it
    elif dataset.id.get_storage_size() < dataset.nbytes:
        raise UnreadableError(f"the data of {name!r} is missing or in another file. Save all data in one file")
    return from_numpy(dataset[()])


def _check_chunks(name: str, dataset: Any) -> None:
    """Reject missing chunks, and chunks that are too large after decompression. HDF5 checks neither."""
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(index) for index in range(properties.get_nfilters())]
    codes = [code for code, *_ in filters]
    unchecked = [title.decode(errors="replace") or code for code, *_, title in filters if code not in CHECKED_FILTERS]
    if unchecked or codes.count(GZIP) > 1:
        methods = ", ".join(map(str, unchecked)) or "gzip twice"
        raise UnreadableError(
            f"{name!r} is compressed by {methods}. Save the array with compression='gzip', or uncompressed"
        )
    chunks: list[Any] = []
    dataset.id.chunk_iter(chunks.append)
    lengths = zip(dataset.shape, dataset.chunks, strict=True)
    if len(chunks) < math.prod(-(-length // chunk) for length, chunk in lengths):
        raise UnreadableError(f"{name!r} is incomplete: some of its chunks are missing. Save the file again")
    if GZIP not in codes:
        return
    most = math.prod(dataset.chunks) * dataset.dtype.itemsize + CHECKSUM
    for chunk in chunks:
        skipped, data = dataset.id.read_direct_chunk(chunk.chunk_offset)
        if not skipped >> codes.index(GZIP) & 1:
            data = zlib.decompressobj().decompress(data, most + 1)
        if len(data) > most:
            raise UnreadableError(f"{name!r} is damaged: a chunk is too large after decompression. Save the file again")


def from_function(source: str, out: Path) -> Iterator[Item]:
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


KINDS = {"torch": from_torch, "tensorflow": from_tensorflow, "keras": from_keras, "function": from_function}

if __name__ == "__main__":
    workers.prepare()
    main()
