"""Files of the format safetensors, read into one aligned buffer and used where they are."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from . import _native
from ._frameworks import ML_DTYPES, NUMPY
from ._frameworks import framework as module_of
from ._new_file import new_file

if TYPE_CHECKING:
    from ._types import Array, Path, Route

#: Bytes before the header, which have its length.
PREFIX_BYTES = 8

#: Bytes of the first read: the headers of most files.
FIRST_BYTES = 256 << 10

#: Ranges begin and end on a multiple of it, so that they are read without a copy.
PAGE_BYTES = 4096

#: Tensors with less than this between them are read together.
GAP_BYTES = 256 << 10

#: Bytes of one request.
REQUEST_BYTES = 16 << 20

#: The order in which the reference implementation writes types: the largest elements first.
_ORDER = (
    "U64 I64 F64 C64 F32 U32 I32 BF16 F16 U16 I16 F8_E5M2FNUZ F8_E4M3FNUZ F8_E8M0 F8_E4M3 F8_E5M2 "
    "I8 U8 BOOL"
).split()


class _Tensor:
    """A tensor of a header: its place counts from the start of the file."""

    def __init__(self, fields: tuple[str, str, list[int], int, int], data: int) -> None:
        self.name, self.dtype, self.shape, begin, end = fields
        self.begin, self.end = data + begin, data + end


def _header(file: _native.File) -> list[_Tensor]:
    size = file.size
    first = file.read_at(min(FIRST_BYTES, size), offset=0)
    length = _native.safetensors_header_length(first[:PREFIX_BYTES], size)
    data = PREFIX_BYTES + length
    header = first[PREFIX_BYTES:data]
    if len(header) < length:
        header += file.read_at(length - len(header), offset=PREFIX_BYTES + len(header))
    tensors, _metadata = _native.safetensors_parse(header, size - data)
    return [_Tensor(fields, data) for fields in tensors]


def _ranges(tensors: Iterable[_Tensor]) -> list[tuple[int, int]]:
    """Return the ranges of whole pages that hold these tensors, which are in order."""
    ranges: list[tuple[int, int]] = []
    for tensor in tensors:
        if tensor.begin == tensor.end:
            continue
        begin = tensor.begin - tensor.begin % PAGE_BYTES
        end = tensor.end + -tensor.end % PAGE_BYTES
        if ranges and begin <= ranges[-1][1] + GAP_BYTES:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((begin, end))
    return ranges


def _read(file: _native.File, ranges: list[tuple[int, int]], stop: int) -> _native.Buffer:
    """Read ranges into one buffer, one after the other; ``stop`` is the end of the last tensor."""
    memory = _native.Buffer(sum(end - begin for begin, end in ranges))
    parts = []
    place = 0
    for begin, end in ranges:
        for offset in range(begin, end, REQUEST_BYTES):
            length = min(REQUEST_BYTES, end - offset)
            parts.append((offset, place, length))
            place += length
    count = file.readinto_parts(memory, parts)
    # The last page may be one that the file ends in.
    if ranges and count < place - (ranges[-1][1] - stop):
        raise OSError(errno.ENODATA, "the file ended while it was read")
    return memory


@overload
def load_safetensors(
    path: Path,
    names: Iterable[str] | None = None,
    *,
    framework: Literal["numpy"] = "numpy",
    route: Route | None = None,
) -> dict[str, Array]: ...
@overload
def load_safetensors(
    path: Path,
    names: Iterable[str] | None = None,
    *,
    framework: Literal["torch"],
    route: Route | None = None,
) -> dict[str, Any]: ...
def load_safetensors(
    path: Path,
    names: Iterable[str] | None = None,
    *,
    framework: Literal["numpy", "torch"] = "numpy",
    route: Route | None = None,
) -> dict[str, Any]:
    """Load the tensors of a safetensors file as arrays of numpy, or as tensors of torch on the CPU.

    What is in the page cache is taken from there, and all else is read past it; ``route`` as for
    ``open`` sets another route.

    All arrays are in one aligned buffer of huge pages, and none is copied: one array that is kept
    keeps the whole buffer. Copy it to keep it alone. ``names`` loads a part of the file, and the
    buffer then has that part. A tensor that is misaligned for its type in the file is copied.

    For numpy, BF16 and the types of 8-bit floats are those of ``ml_dtypes``, and need it; torch has
    them itself.

    Raises ``ValueError`` for a file that is not valid, ``KeyError`` for a name that it lacks,
    ``TypeError`` for a type that the framework lacks, ``ImportError`` where the framework is not
    installed, and ``OSError``.
    """
    module, dtype_of = module_of(framework)
    with _native_open(path, route) as file:
        tensors = _header(file)
        if names is not None:
            wanted = set(names)
            missing = wanted.difference(tensor.name for tensor in tensors)
            if missing:
                raise KeyError(f"no tensor is called {sorted(missing)[0]!r} in {path!r}")
            tensors = [tensor for tensor in tensors if tensor.name in wanted]
        dtypes = [dtype_of(tensor.dtype, tensor.name) for tensor in tensors]
        ranges = _ranges(tensors)
        stop = max((tensor.end for tensor in tensors), default=0)
        memory = _read(file, ranges, stop)
    arrays: dict[str, Any] = {}
    place = index = 0
    for tensor, dtype in zip(tensors, dtypes, strict=True):
        if tensor.begin == tensor.end:
            arrays[tensor.name] = module.empty(tensor.shape, dtype=dtype)
            continue
        while tensor.begin >= ranges[index][1]:
            place += ranges[index][1] - ranges[index][0]
            index += 1
        start = place + tensor.begin - ranges[index][0]
        length = tensor.end - tensor.begin
        # The buffer begins at a page. torch has no alignment other than the size.
        if start % getattr(dtype, "alignment", dtype.itemsize):
            part = bytearray(memoryview(memory)[start : start + length])
            octets = module.frombuffer(part, dtype=module.uint8)
        else:
            octets = module.frombuffer(memory, dtype=module.uint8, count=length, offset=start)
        arrays[tensor.name] = octets.view(dtype).reshape(tensor.shape)
    return arrays


class _native_open:  # noqa: N801
    """A file for reading that is closed at the end of the block."""

    def __init__(self, path: Path, route: Route | None) -> None:
        self.file = _native.File(path, route=route)

    def __enter__(self) -> _native.File:
        return self.file

    def __exit__(self, *_error: object) -> None:
        self.file.close()


def _type_name(array: Array, tensor: str) -> str:
    for name, dtype in (NUMPY | ML_DTYPES).items():
        if array.dtype.name == dtype:
            return name
    raise TypeError(f"tensor {tensor!r} has the type {array.dtype}, which the format lacks")


def _octets(array: Array) -> memoryview:
    """Return the bytes of an array in the order of the format, copied if need be."""
    import numpy as np

    array = np.ascontiguousarray(array)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array.reshape(-1).view(np.uint8).data


def save_safetensors(
    tensors: Mapping[str, Array], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Save numpy arrays as a safetensors file, past the page cache.

    The file gets its name when it is complete and durable; a file of this name is replaced.
    """
    header: dict[str, Any] = {}
    if metadata is not None:
        for key, value in metadata.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TypeError("the metadata is not of strings")
        header["__metadata__"] = dict(metadata)
    named = [(name, array, _type_name(array, name)) for name, array in tensors.items()]
    named.sort(key=lambda one: (_ORDER.index(one[2]), one[0]))
    at = 0
    for name, array, dtype in named:
        if name == "__metadata__":
            raise ValueError("a tensor cannot be called '__metadata__'")
        end = at + array.nbytes
        shape = [int(extent) for extent in array.shape]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with new_file(os.fsdecode(path), PREFIX_BYTES + len(text) + at) as stream:
        stream.write(len(text).to_bytes(PREFIX_BYTES, "little"))
        stream.write(text)
        for _name, array, _dtype_name in named:
            if array.nbytes:
                stream.write(_octets(array))
