"""Names of types, for annotations alone: importing it needs numpy."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Array = np.ndarray[Any, np.dtype[Any]]
