"""Files: the native class with streams and awaitables."""

from __future__ import annotations

import io
import os
from collections.abc import Coroutine, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from . import _native
from ._arguments import by_name
from ._asyncio import submit

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._types import Memory, Path, Route

#: Bytes of a read that asks for "all".
READ_BYTES = 8 << 20

#: What has the methods of a stream, which a file lacks: it has no position.
_STREAMS = {
    **dict.fromkeys(["read", "readinto", "readline", "readlines", "peek"], "reader()"),
    **dict.fromkeys(["write", "writelines", "flush"], "writer()"),
    **dict.fromkeys(["seek", "tell"], "reader() or writer()"),
}


class File(_native.File):
    """A file that is open for direct I/O, at any offset, with any length, from any memory.

    All methods may be called from any thread, and release the GIL. An error is an ``OSError`` with
    ``errno`` and ``filename``; ``outcome(error)`` has the state of each range.

    A file is pickled and copied by its absolute path, its mode and its options, and opened again by
    them, which neither creates nor truncates it. That is a ``TypeError`` for a file that was opened
    from a descriptor or that its path no longer names, and a ``ValueError`` for a closed one.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            what = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _STREAMS:
                what += f": a file has no position; call it on {_STREAMS[name]}"
            raise AttributeError(what, name=name, obj=self)

    def __enter__(self) -> Self:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"mode={self.mode!r}"
        return f"<diopter_io.File name={self.name!r} {state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        options = self.options()
        path = self._path(is_plain=not (options["striped"] or options["image"]))
        return partial(type(self), path, self.mode, creates=False, **options), ()

    def _path(self, *, is_plain: bool) -> str | bytes:
        """Return a path by which another process can open the file."""
        self.readable()
        if isinstance(self.name, int):
            raise TypeError("a file of a descriptor cannot be pickled: open it by its path")
        path = os.fspath(self.name)
        if isinstance(path, bytes):
            path = os.path.join(os.getcwdb(), path)
        else:
            path = os.path.join(os.getcwd(), path)
        if os.fsdecode(os.path.realpath(os.path.dirname(path))).startswith("/proc/"):
            raise TypeError(f"{path!r} is a file of this process alone, and cannot be pickled")
        # A striped file and an image have descriptors of other files.
        if is_plain and not _is_same(path, self.fileno()):
            raise TypeError(f"{path!r} no longer names the file, which cannot be pickled")
        return path

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """Read ``(offset, length)`` pairs in one call; return their bytes in this order.

        Ranges that are near each other become one request, and many requests are in flight.
        """
        return self._read(ranges).wait()

    def readinto_ranges(self, ranges: Iterable[tuple[int, Memory]]) -> list[int]:
        """Read ``(offset, buffer)`` pairs in one call, each into its buffer; return how many bytes of
        each were read, fewer than its length only at the end of the file.

        A buffer is anything writable with the buffer protocol, such as an array of NumPy, or a
        tensor on the CPU with DLPack; no other code may use the buffers meanwhile. As
        ``read_ranges`` otherwise, without a copy.
        """
        return self._readinto(ranges).wait()

    def write_ranges(self, ranges: Iterable[tuple[int, Memory]]) -> int:
        """Write ``(offset, buffer)`` pairs in one call, each all of its bytes at its offset; return
        how many bytes that is.

        Where they overlap, the later one wins. A buffer of 64 KiB or more that overlaps no other is
        written from its memory; no other code may change it meanwhile. On a file that was opened to
        append, use ``writev``.
        """
        return self._write(ranges).wait()

    def writev(self, buffers: Iterable[Memory], offset: int) -> int:
        """Write buffers one behind the other from ``offset`` on, in one call; return how many bytes
        that is.

        As ``write_ranges`` of ranges that touch. On a file that was opened to append they are
        copied to one buffer, and written at its end.
        """
        self.writable()
        return _native.Ranges.write_in_a_row(self, list(buffers), offset).wait()

    def _read(self, ranges: Iterable[tuple[int, int]]) -> _native.Ranges[list[bytes]]:
        self.readable()
        return _native.Ranges.read([(self, offset, length) for offset, length in ranges])

    def _readinto(self, ranges: Iterable[tuple[int, Memory]]) -> _native.Ranges[list[int]]:
        self.readable()
        return _native.Ranges.readinto([(self, offset, buffer) for offset, buffer in ranges])

    def _write(self, ranges: Iterable[tuple[int, Memory]]) -> _native.Ranges[int]:
        self.writable()
        return _native.Ranges.write(self, list(ranges))

    def reader(self, offset: int = 0) -> Reader:
        """Return a stream that reads from ``offset`` on, with requests ahead of it."""
        return Reader(self, offset)

    def writer(self, offset: int = 0) -> Writer:
        """Return a stream that writes from ``offset`` on, with writes in flight behind its caller."""
        return Writer(self, offset)

    @by_name(2, "read_at_async(length, offset=...)", "offset")
    def read_at_async(self, length: int, *, offset: int) -> Coroutine[Any, Any, bytes]:
        """``read_at`` on the running event loop."""
        return submit(self, "read-bytes", length, offset)

    def readinto_at_async(self, buffer: Memory, offset: int) -> Coroutine[Any, Any, int]:
        """``readinto_at`` on the running event loop. ``buffer`` stays exported meanwhile."""
        return submit(self, "read", buffer, offset)

    def write_at_async(self, buffer: Memory, offset: int) -> Coroutine[Any, Any, int]:
        """``write_at`` on the running event loop. ``buffer`` stays exported meanwhile."""
        return submit(self, "write", buffer, offset)

    def read_ranges_async(
        self, ranges: Iterable[tuple[int, int]]
    ) -> Coroutine[Any, Any, list[bytes]]:
        """``read_ranges`` on the running event loop."""
        return submit(self, "ranges", partial(self._read, ranges), 0)

    def readinto_ranges_async(
        self, ranges: Iterable[tuple[int, Memory]]
    ) -> Coroutine[Any, Any, list[int]]:
        """``readinto_ranges`` on the running event loop. The buffers stay exported meanwhile."""
        return submit(self, "ranges", partial(self._readinto, ranges), 0)

    def write_ranges_async(
        self, ranges: Iterable[tuple[int, Memory]]
    ) -> Coroutine[Any, Any, int]:
        """``write_ranges`` on the running event loop. The buffers stay exported meanwhile.

        If the task is cancelled, the requests that have begun complete and are reported by
        ``take_abandoned``; the other pieces are not written.
        """
        return submit(self, "ranges", partial(self._write, ranges), 0)

    async def fsync_async(self, *, data_only: bool = False) -> None:
        """``fsync`` on the running event loop."""
        await submit(self, "sync-data" if data_only else "sync", None, 0)
        if self.has_left_writes():
            # Those are not the loop's, so its engine has not waited for them.
            await submit(self, "ranges", partial(_native.Ranges.sync, self, data_only=data_only), 0)


def _is_same(path: str | bytes, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False


def open(  # noqa: A001
    path: Path | int,
    mode: str = "r",
    *,
    permissions: int = 0o666,
    strict: bool = False,
    shared_writers: bool = False,
    striped: bool = False,
    image: bool = False,
    sync: Literal["data", "all"] | None = None,
    route: Route | None = None,
) -> File:
    """Open a file for direct I/O.

    ``mode`` is that of the built-in ``open``: ``r``, ``r+``, ``w``, ``w+``, ``x``, ``x+``, ``a`` or
    ``a+``. Files are binary. ``path`` may be a descriptor, which stays the caller's; the file has a
    duplicate of it and the access that it was opened with.

    ``strict`` refuses requests that would use the page cache. ``shared_writers`` locks blocks
    against other processes that open with it. ``striped`` opens striped files as well as plain
    ones, and ``image`` accepts ``IMAGE::/PATH``. ``sync`` makes each write durable: its data, or
    all metadata too. ``route`` sends requests past the page cache, through it, or by size; ``adaptive`` reads
    what the page cache has from there, and all else directly. Without it the route is that of the
    environment variable ``DIOPTER_ROUTE``, ``adaptive`` or ``direct``; else ``adaptive``.
    """
    return File(
        path,
        mode,
        permissions=permissions,
        strict=strict,
        shared_writers=shared_writers,
        striped=striped,
        image=image,
        sync=sync,
        route=route,
    )


def outcome(error: OSError) -> _native.Outcome | None:
    """Return the state of each range of the request that failed, if ``error`` has one."""
    found = getattr(error, "outcome", None)
    return found if isinstance(found, _native.Outcome) else None


class _Stream(io.RawIOBase):
    """The position of a stream over a file."""

    def __init__(self, file: _native.File, offset: int) -> None:
        if offset < 0:
            raise ValueError("the offset is negative: pass 0 or more")
        self._file = file
        self._at = offset

    def readinto(self, buffer: Memory, /) -> int:
        raise io.UnsupportedOperation("the stream is not for reading")

    def write(self, data: Memory, /) -> int:
        raise io.UnsupportedOperation("the stream is not for writing")

    @property
    def name(self) -> object:
        return self._file.name

    def seekable(self) -> bool:
        self._check()
        return True

    def fileno(self) -> int:
        self._check()
        return self._file.fileno()

    def tell(self) -> int:
        self._check()
        return self._at

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _target(self, offset: int, whence: int) -> int:
        self._check()
        if whence == os.SEEK_SET:
            target = offset
        elif whence == os.SEEK_CUR:
            target = self.tell() + offset
        elif whence == os.SEEK_END:
            target = self._file.size + offset
        else:
            raise ValueError(f"invalid whence ({whence}): use 0, 1 or 2")
        if target < 0:
            raise ValueError(f"negative seek position {target}")
        return target


class Reader(_Stream):
    """Reads a file from front to back, with requests ahead of it.

    It is a raw stream of which every read is complete: fewer bytes than asked are the end of the
    file. So it serves as a buffered stream too, for ``io.TextIOWrapper`` and the like. Bytes that
    were written after they were read ahead are not seen; ``seek`` forgets what was read ahead.
    """

    _ahead: _native.ReadAhead | None = None

    def __init__(self, file: _native.File, offset: int = 0) -> None:
        super().__init__(file, offset)
        if not file.readable():
            raise io.UnsupportedOperation("the file is not open for reading")
        self._ahead = _native.ReadAhead(file)

    @property
    def mode(self) -> str:
        return "rb"

    def readable(self) -> bool:
        self._check()
        return True

    def readinto(self, buffer: Memory, /) -> int:
        at = self._at
        count = self._stream().readinto(buffer, at)
        self._at = at + count
        return count

    def readinto1(self, buffer: Memory, /) -> int:
        """As ``readinto``."""
        return self.readinto(buffer)

    def read(self, size: int | None = -1, /) -> bytes:
        """Read ``size`` bytes, or all up to the end of the file."""
        if size is None or size < 0:
            return self.readall()
        at = self._at
        found = self._fetch(min(size, max(self._left(at), READ_BYTES)), at)
        self._at = at + len(found)
        return found

    def read1(self, size: int = -1, /) -> bytes:
        """Read up to ``size`` bytes."""
        return self.read(io.DEFAULT_BUFFER_SIZE if size < 0 else size)

    def readall(self) -> bytes:
        at = self._at
        found = self._fetch(self._left(at), at)
        # The file may have grown.
        while found and (more := self._fetch(READ_BYTES, at + len(found))):
            found += more
        self._at = at + len(found)
        return found

    def _fetch(self, length: int, at: int) -> bytes:
        return self._stream().read(length, at)

    def peek(self, size: int = 0, /) -> bytes:
        """Return bytes at the position without moving it."""
        at = self.tell()
        size = size if size > 0 else io.DEFAULT_BUFFER_SIZE
        return self._fetch(min(size, max(self._left(at), READ_BYTES)), at)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = self._target(offset, whence)
        self._stream().forget()
        return self._at

    def _left(self, at: int) -> int:
        self._check()
        return max(self._file.size - at, 0)

    def close(self) -> None:
        if not self.closed and self._ahead is not None:
            self._ahead.forget()
        super().close()

    def _stream(self) -> _native.ReadAhead:
        self._check()
        if self._ahead is None:
            raise ValueError("the reader was not initialised")
        return self._ahead


class Writer(_Stream):
    """Writes a file from front to back, behind its caller.

    A byte that was taken is not yet written: bytes are collected in aligned buffers, of which
    several are in flight. ``flush`` writes what was taken, and ``close`` too. Neither makes anything
    durable: call ``fsync`` of the file.

    The first error ends the stream. It is raised once, by a later ``write``, ``flush`` or
    ``close``, and its ``outcome`` has the state of each range of the stream. ``write`` and
    ``flush`` then fail with ``ECANCELED``.
    """

    _behind: _native.WriteBehind | None = None

    def __init__(self, file: _native.File, offset: int = 0) -> None:
        super().__init__(file, offset)
        if not file.writable():
            raise io.UnsupportedOperation("the file is not open for writing")
        self._behind = _native.WriteBehind(file, offset)

    @property
    def mode(self) -> str:
        return "wb"

    def writable(self) -> bool:
        self._check()
        return True

    def tell(self) -> int:
        return self._stream().position

    def write(self, data: Memory, /) -> int:
        """Take all of ``data``."""
        if self._file.closed:
            raise ValueError("I/O operation on closed file")
        return self._stream().write(data)

    def flush(self) -> None:
        super().flush()
        if self._behind is not None:
            self._behind.flush()

    def truncate(self, size: int | None = None, /) -> int:
        self.flush()
        size = self.tell() if size is None else size
        self._file.truncate(size)
        return size

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self.flush()
        target = self._target(offset, whence)
        if target != self.tell():
            self._stream().finish()
            self._behind = _native.WriteBehind(self._file, target)
        return target

    def close(self) -> None:
        if self.closed:
            return
        try:
            if self._behind is not None:
                self._behind.finish()
        finally:
            self._behind = None
            super().close()

    def _stream(self) -> _native.WriteBehind:
        self._check()
        if self._behind is None:
            raise ValueError("the writer was not initialised")
        return self._behind


io.BufferedIOBase.register(Reader)
io.BufferedIOBase.register(Writer)
