"""Direct I/O on Linux at any offset, any length and any address.

>>> import diopter_io
>>> with diopter_io.open("data.bin", "w+") as file:
...     file.write_at(b"any offset, any length", 7)
...     file.read_at(6, offset=11)
22
b'offset'
"""

from __future__ import annotations

from ._asyncio import set_in_flight
from ._files import File, Reader, Writer, open, outcome
from ._native import AbandonedWrite, Buffer, Outcome, __version__
from ._tensors import load_safetensors, save_safetensors
from ._tools import CopyError, copy, explain, probe, stripe_create

__all__ = [
    "AbandonedWrite",
    "Buffer",
    "CopyError",
    "File",
    "Outcome",
    "Reader",
    "Writer",
    "__version__",
    "copy",
    "explain",
    "load_safetensors",
    "open",
    "outcome",
    "probe",
    "save_safetensors",
    "set_in_flight",
    "stripe_create",
]
