"""A stand-in for torch, whose wheel is too large to install for these tests: the functions that
`diopter_io` calls, with the checks that torch's documentation gives for them.

https://docs.pytorch.org/docs/stable/generated/torch.frombuffer.html
https://docs.pytorch.org/docs/stable/generated/torch.Tensor.view.html
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np


class dtype:  # noqa: N801
    def __init__(self, name: str, storage: str) -> None:
        self.name = name
        #: The type of numpy that has the bytes of an element.
        self.storage: np.dtype[Any] = np.dtype(storage)
        self.itemsize = self.storage.itemsize

    def __repr__(self) -> str:
        return f"torch.{self.name}"


_STORED = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 complex64"
for _name in _STORED.split():
    globals()[_name] = dtype(_name, _name)
globals()["bfloat16"] = dtype("bfloat16", "uint16")
for _name in "e4m3fn e5m2 e8m0fnu e4m3fnuz e5m2fnuz".split():
    globals()[f"float8_{_name}"] = dtype(f"float8_{_name}", "uint8")


class Tensor:
    def __init__(self, array: np.ndarray[Any, Any], dtype: dtype) -> None:
        assert array.dtype == dtype.storage
        self.array, self.dtype = array, dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def numel(self) -> int:
        return int(self.array.size)

    def element_size(self) -> int:
        return self.dtype.itemsize

    def fill_(self, value: int) -> Tensor:
        self.array.fill(value)
        return self

    def view(self, of: dtype) -> Tensor:
        """Return the same bytes as another type. The last dimension has to be whole elements."""
        size = self.shape[-1] * self.dtype.itemsize
        if size % of.itemsize:
            raise RuntimeError("self.size(-1) must be divisible by the ratio of the sizes")
        return Tensor(self.array.view(of.storage), of)

    def reshape(self, shape: Any) -> Tensor:
        if math.prod(shape) != self.numel():
            raise RuntimeError(f"shape '{shape}' is invalid for input of size {self.numel()}")
        return Tensor(self.array.reshape(tuple(shape)), self.dtype)


def frombuffer(
    buffer: Any, *, dtype: dtype, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:
    """Make a tensor of one dimension that shares the memory of a buffer."""
    memory = memoryview(buffer).cast("B")
    if memory.readonly:
        warnings.warn("The given buffer is not writable", UserWarning, stacklevel=2)
    if len(memory) == 0 or count == 0:
        raise ValueError(f"both buffer length ({len(memory)}) and count ({count}) must not be 0")
    if not 0 <= offset < len(memory):
        raise ValueError(f"offset ({offset} bytes) must be non-negative and no greater than buffer "
                         f"length ({len(memory)} bytes) minus 1")
    if count < 0:
        if (len(memory) - offset) % dtype.itemsize:
            raise ValueError("buffer length after offset must be a multiple of element size")
        count = (len(memory) - offset) // dtype.itemsize
    if offset + count * dtype.itemsize > len(memory):
        raise ValueError(f"requested buffer length ({count} * {dtype.itemsize} bytes) after offset "
                         f"({offset} bytes) must not be greater than actual buffer length")
    return Tensor(np.frombuffer(memory, dtype.storage, count, offset), dtype)


def empty(*size: Any, dtype: dtype) -> Tensor:
    shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return Tensor(np.empty(tuple(shape), dtype.storage), dtype)
