"""Names of types, for annotations alone: importing it needs numpy."""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Route = Literal["direct", "adaptive", "buffered", "hybrid"]
Array = np.ndarray[Any, np.dtype[Any]]
