"""New files that get their name when they are complete and durable."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import _native

if TYPE_CHECKING:
    from ._types import Route


@contextlib.contextmanager
def new_file(
    target: str, size: int, *, permissions: int = 0o666, route: Route | None = None
) -> Iterator[_native.WriteBehind]:
    """Give a stream for a file of ``size`` bytes, which has its name after the block.

    A file of this name is replaced. An exception leaves nothing of the new one.
    """
    temporary = f"{target}.{secrets.token_hex(4)}.part"
    try:
        file = _native.File(temporary, "x+", permissions=permissions, route=route)
        try:
            # No other name shows the file while it is longer than its data.
            stream = _native.WriteBehind(file, 0, size_hint=size)
            try:
                yield stream
            finally:
                stream.finish()
            file.fsync()
        finally:
            file.close()
        os.replace(temporary, target)
    except BaseException:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise
    _sync_directory(os.path.dirname(target) or ".")


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
