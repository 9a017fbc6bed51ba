"""Tensors that have DLPack and no buffer protocol, as those of torch."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, ClassVar

Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype = ctypes.c_void_p
pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]

name_of = ctypes.pythonapi.PyCapsule_GetName
name_of.restype = ctypes.c_char_p
name_of.argtypes = [ctypes.py_object]

set_name = ctypes.pythonapi.PyCapsule_SetName
set_name.argtypes = [ctypes.py_object, ctypes.c_char_p]


class DLTensor(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Legacy(ctypes.Structure):
    _fields_: ClassVar = [
        ("tensor", DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
    ]


class Versioned(ctypes.Structure):
    _fields_: ClassVar = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


#: What consumers have of tensors: it stays in memory whatever becomes of the objects.
_kept: dict[int, Any] = {}
_numbers = itertools.count(1)


class Tensor:
    """A tensor of memory that counts what its consumers do."""

    def __init__(
        self,
        memory: bytearray,
        shape: tuple[int, ...] | None = None,
        strides: tuple[int, ...] | None = None,
        *,
        version: tuple[int, int] | None = (1, 0),
        device: int = 1,
        flags: int = 0,
        bits: int = 8,
        byte_offset: int = 0,
    ) -> None:
        self.memory, self.version, self.device, self.flags = memory, version, device, flags
        self.shape = (len(memory),) if shape is None else shape
        self.strides, self.bits, self.byte_offset = strides, bits, byte_offset
        self.exported = self.deleted = 0
        #: The last one.
        self.capsule: object = None

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **options: Any) -> object:
        if self.version is None and options:
            raise TypeError("__dlpack__() got an unexpected keyword argument")
        exported = (ctypes.c_char * len(self.memory)).from_buffer(self.memory)
        count = len(self.shape)
        shape = (ctypes.c_int64 * count)(*self.shape)
        strides = (ctypes.c_int64 * count)(*self.strides) if self.strides else None
        self.exported += 1
        number = next(_numbers)

        def delete(_address: int) -> None:
            self.deleted += 1
            del _kept[number]

        tensor = DLTensor(
            ctypes.addressof(exported), self.device, 0, count, 1, self.bits, 1, shape, strides
        )
        tensor.byte_offset = self.byte_offset
        deleter = Deleter(delete)
        made: Legacy | Versioned
        if self.version is None:
            made = Legacy(tensor, None, deleter)
        else:
            made = Versioned(*self.version, None, deleter, self.flags, tensor)
        _kept[number] = (made, exported, shape, strides, deleter)
        name = b"dltensor" if self.version is None else b"dltensor_versioned"
        self.capsule = new_capsule(ctypes.addressof(made), name, None)
        return self.capsule


class Bare:
    """An array of NumPy without its buffer protocol."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        found: tuple[int, int] = self.array.__dlpack_device__()
        return found

    def __dlpack__(self, **options: Any) -> object:
        return self.array.__dlpack__(**options)
