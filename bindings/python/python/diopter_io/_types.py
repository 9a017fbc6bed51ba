"""Names of types, for annotations alone: importing it needs numpy."""

from __future__ import annotations

import os
from typing import Any, Literal, Protocol

import numpy as np
from typing_extensions import Buffer

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Route = Literal["direct", "adaptive", "buffered", "hybrid"]
Array = np.ndarray[Any, np.dtype[Any]]


class Tensor(Protocol):
    """A tensor with DLPack. A call takes it if it is on the CPU, with elements in the order of C."""

    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


#: What a request reads into or writes from.
Memory = Buffer | Tensor
