"""Arrays of numpy and tensors of torch in a buffer, by the types of the format safetensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

#: Types of numpy.
NUMPY = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
}

#: Types of ml_dtypes.
ML_DTYPES = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


def numpy_dtype(name: str, tensor: str) -> np.dtype[Any]:
    """Return the type of an array, or raise what to do to have it."""
    import numpy as np

    if name in NUMPY:
        # The format is little-endian.
        little: np.dtype[Any] = np.dtype(NUMPY[name]).newbyteorder("<")
        return little
    if name not in ML_DTYPES:
        raise TypeError(f"tensor {tensor!r} has the type {name}, which numpy has no array for")
    try:
        import ml_dtypes
    except ImportError as error:
        message = f"tensor {tensor!r} has the type {name}: install ml_dtypes to load it"
        raise ImportError(message, name="ml_dtypes") from error
    found = getattr(ml_dtypes, ML_DTYPES[name], None)
    if found is None:
        raise ImportError(
            f"tensor {tensor!r} has the type {name}: install a newer ml_dtypes", name="ml_dtypes"
        )
    dtype: np.dtype[Any] = np.dtype(found)
    return dtype


def torch_dtype(name: str, tensor: str) -> Any:
    """Return the type of a tensor of torch, or raise that there is none."""
    import torch

    # The names are those of numpy and of ml_dtypes.
    found = getattr(torch, (NUMPY | ML_DTYPES).get(name, ""), None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"tensor {tensor!r} has the type {name}, which this torch has no type for")
    return found


def framework(name: str) -> tuple[Any, Callable[[str, str], Any]]:
    """Return a module that makes arrays, and the function for their types."""
    if name == "numpy":
        import numpy

        return numpy, numpy_dtype
    if name == "torch":
        try:
            import torch
        except ImportError as error:
            message = "install torch to load tensors of torch, or load arrays of numpy"
            raise ImportError(message, name="torch") from error
        return torch, torch_dtype
    raise ValueError(f"invalid framework {name!r}: use 'numpy' or 'torch'")
