"""``dio://``: local files for fsspec, by direct I/O.

Names, directories and attributes are those of fsspec's local file system. Reads, writes and copies
are diopter's. Importing this module needs fsspec.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fsspec.compression import compr
from fsspec.core import get_compression
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import isfilelike

from ._files import File, Reader, Writer
from ._files import open as _open
from ._native import Ranges
from ._new_file import new_file
from ._tools import copy

if TYPE_CHECKING:
    from ._types import Route

#: Bytes that a copy to or from a stream moves at once.
COPY_BYTES = 8 << 20


class _DioReader(Reader):
    """A stream that reads, and has its file to itself.

    Threads may share it, as those of DuckDB do: a position that a thread has set by ``seek`` is that
    of its next ``read`` or ``readinto``, whatever other threads do in between. Any other read begins
    where the last read or ``seek`` of any thread has ended.
    """

    def __init__(self, fs: DioFileSystem, path: str, file: File) -> None:
        self._own = threading.local()
        super().__init__(file)
        self.fs, self.path, self.size, self.blocksize = fs, path, file.size, COPY_BYTES

    @property
    def closed(self) -> bool:
        return bool(super().closed)

    @closed.setter
    def closed(self, value: bool) -> None:
        """Ignore what the caches of fsspec set after they closed the stream."""

    def _sought(self) -> int | None:
        """Return the position that this thread has set for its next read."""
        return getattr(self._own, "sought", None)

    @property
    def _at(self) -> int:
        sought = self._sought()
        return self._end if sought is None else sought

    @_at.setter
    def _at(self, at: int) -> None:
        self._own.sought = None
        self._end = at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        at = self._end = self._target(offset, whence)
        self._own.sought = at
        self._stream().forget()
        return at

    def _fetch(self, length: int, at: int) -> bytes:
        if self._sought() is None:
            return super()._fetch(length, at)
        return self._file.read_at(length, offset=at)

    def _fetch_range(self, start: int, end: int) -> bytes:
        """Read a range, for the caches of fsspec."""
        return self._file.read_at(max(0, end - start), offset=start)

    def close(self) -> None:
        super().close()
        self._file.close()


class _DioWriter(Writer):
    """A stream that writes, and has its file to itself."""

    def __init__(self, fs: DioFileSystem, path: str, file: File, offset: int) -> None:
        super().__init__(file, offset)
        self.fs, self.path, self.blocksize = fs, path, COPY_BYTES
        self.autocommit = True

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._file.close()


class DioFileSystem(LocalFileSystem):  # type: ignore[misc]
    """Local files whose bytes move by direct I/O.

    ``auto_mkdir`` makes missing directories, as that of fsspec's local file system. ``route`` is
    the route of the files that it opens and copies, as that of ``diopter_io.open``. Without it,
    they follow ``DIOPTER_ROUTE``.
    """

    protocol = "dio"

    def __init__(
        self, auto_mkdir: bool = False, *, route: Route | None = None, **kwargs: Any
    ) -> None:
        super().__init__(auto_mkdir=auto_mkdir, **kwargs)
        self.route = route

    @property
    def fsid(self) -> str:
        return "dio"

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        plain = mode.replace("b", "").replace("t", "")
        if plain == "r+" or not autocommit or "+" in plain:
            # Streams in both directions, and files that a transaction names later.
            return super()._open(
                path, mode, block_size, autocommit=autocommit, compression=compression, **kwargs
            )
        if self.auto_mkdir and plain != "r":
            self.makedirs(self._parent(path), exist_ok=True)
        file = _open(path, plain, route=self.route)
        stream: Any
        if plain == "r":
            stream = _DioReader(self, path, file)
        else:
            stream = _DioWriter(self, path, file, file.size if plain == "a" else 0)
        compression = get_compression(path, compression)
        if compression:
            return compr[compression](stream, mode=plain + "b")
        return stream

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.auto_mkdir:
            self.makedirs(self._parent(target), exist_ok=True)
        if not os.path.isfile(source) or (
            os.path.lexists(target) and not os.path.isfile(target)
        ):
            super().cp_file(source, target, **kwargs)
        elif not os.path.lexists(target):
            if self.route is None:
                copy(source, target)
            else:
                self._copy(source, target)
        elif os.path.samefile(source, target):
            raise shutil.SameFileError(f"{source!r} and {target!r} are the same file")
        else:
            # The file stays, with its owner, permissions and other names.
            with self.open(target, "wb") as stream:
                self.get_file(source, stream)

    def _copy(self, source: str, target: str) -> None:
        """Copy to a new file by the route, which ``diopter_io.copy`` does not take."""
        mode = os.stat(source).st_mode & 0o777
        size = os.path.getsize(source)
        with new_file(target, size, permissions=mode, route=self.route) as stream:
            self._read_all(source, stream.write)

    def _read_all(self, path: str, write: Callable[[bytes], object]) -> None:
        with self.open(path, "rb") as source:
            while piece := source.read(COPY_BYTES):
                write(piece)

    def get_file(self, path1: str, path2: Any, callback: Any = None, **kwargs: Any) -> None:
        if not isfilelike(path2):
            self.cp_file(path1, path2, **kwargs)
            return
        self._read_all(path1, path2.write)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        with _open(self._strip_protocol(path), route=self.route) as file:
            at, stop = _bounds(start, end, file.size)
            return file.read_at(stop - at, offset=at)

    def cat_ranges(
        self,
        paths: Sequence[str],
        starts: Sequence[int] | int | None,
        ends: Sequence[int] | int | None,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """Read ranges of several files, all of them in one call."""
        count = len(paths)
        firsts = starts if isinstance(starts, Sequence) else [starts] * count
        lasts = ends if isinstance(ends, Sequence) else [ends] * count
        if len(firsts) != count or len(lasts) != count:
            raise ValueError("paths, starts and ends have different lengths")
        found: list[Any] = [None] * count
        wanted: list[tuple[File, int, int]] = []
        indexes: list[int] = []
        with contextlib.ExitStack() as stack:
            files: dict[str, File | OSError] = {}
            for index, path in enumerate(map(self._strip_protocol, paths)):
                if path not in files:
                    files[path] = _opened(path, self.route, stack)
                file = files[path]
                if isinstance(file, OSError):
                    found[index] = file
                    continue
                at, stop = _bounds(firsts[index], lasts[index], file.size)
                wanted.append((file, at, stop - at))
                indexes.append(index)
            parts = Ranges.read(wanted, returns_errors=True).wait()
            for index, part in zip(indexes, parts, strict=True):
                found[index] = part
        if on_error == "raise":
            for part in found:
                if isinstance(part, OSError):
                    raise part
        return found

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)


def _opened(path: str, route: Route | None, stack: contextlib.ExitStack) -> File | OSError:
    """Open a file up to the end of a block, or return why not."""
    try:
        return stack.enter_context(_open(path, route=route))
    except OSError as error:
        return error


def _bounds(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    """Return a range as those of a slice: negative numbers count from the end."""
    at, stop, _step = slice(start, end).indices(size)
    return at, max(at, stop)
