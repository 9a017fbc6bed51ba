"""The doors of the package for Python: ``door.py WAY FROM TO`` copies a file by one kind of call.

A way that writes reads FROM by plain calls, one that reads writes TO by plain calls.
``DIOPTER_BACKEND`` names the backend. Ends with 1 and a message for an error.

The library ``REFUSED_BY`` refuses a call once it is loaded. That is after the interpreter and the
modules have begun (``REFUSED_AT=first``), or after half of the pieces (``later``): what an
interpreter does without its files is not the package's. ``REFUSED_AT=never`` ends the program at
the first of these moments.
"""

import asyncio
import ctypes
import os
import sys

import diopter_io
from diopter_io import _native

#: Bytes of one request. The last one is shorter, and not aligned.
PIECE = 256 << 10


def now(moment: str) -> None:
    """Refuse the call if it is to be refused from this moment on."""
    wanted = os.environ.get("REFUSED_AT")
    if wanted == "never":
        os._exit(0)
    if wanted == moment:
        ctypes.CDLL(os.environ["REFUSED_BY"])
        os.environ["REFUSED_AT"] = "done"


def pieces(length: int) -> list[tuple[int, int]]:
    """Return offsets and lengths."""
    return [(at, min(PIECE, length - at)) for at in range(0, length, PIECE)]


def halves(length: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the pieces before and after the later moment."""
    whole = pieces(length)
    return whole[: len(whole) // 2], whole[len(whole) // 2 :]


def write(way: str, data: bytes, target: str) -> None:
    """Write a file with the package."""
    with diopter_io.open(target, "w+") as file:
        stream = file.writer() if way == "writer-write" else None
        for number, half in enumerate(halves(len(data))):
            if number == 1:
                now("later")
            for at, length in half:
                piece = data[at : at + length]
                done = stream.write(piece) if stream else file.write_at(piece, at)
                if done != length:
                    raise OSError(f"{target}: {done} of {length} bytes written at {at}")
        if stream:
            stream.close()
        file.fsync()


async def write_by_futures(data: bytes, target: str) -> None:
    """Write a file on an event loop."""
    now("first")
    with diopter_io.open(target, "w+") as file:
        for number, half in enumerate(halves(len(data))):
            if number == 1:
                now("later")
            writes = [file.write_at_async(data[at : at + length], at) for at, length in half]
            for (at, length), done in zip(half, await asyncio.gather(*writes), strict=True):
                if done != length:
                    raise OSError(f"{target}: {done} of {length} bytes written at {at}")
        await file.fsync_async()


def read(way: str, source: str) -> bytes:
    """Read a file with the package."""
    with diopter_io.open(source) as file:
        stream = file.reader() if way == "reader-read" else None
        data = b""
        for number, half in enumerate(halves(file.size)):
            if number == 1:
                now("later")
            if way == "ranges-read":
                data += b"".join(file.read_ranges(half))
                continue
            for at, length in half:
                data += stream.read(length) if stream else file.read_at(length, at)
        return data


async def read_by_futures(source: str) -> bytes:
    """Read a file on an event loop."""
    now("first")
    with diopter_io.open(source) as file:
        data = b""
        for number, half in enumerate(halves(file.size)):
            if number == 1:
                now("later")
            reads = [file.read_at_async(length, at) for at, length in half]
            data += b"".join(await asyncio.gather(*reads))
        return data


def write_plainly(data: bytes, target: str) -> None:
    """Write a file without the package."""
    try:
        with open(target, "wb") as file:
            file.write(data)
    except OSError as error:
        raise OSError(f"{target}: {error}") from error


def copy(way: str, source: str, target: str) -> None:
    """Copy a file."""
    _native.use_backend(os.environ["DIOPTER_BACKEND"])
    if way == "copy":
        now("first")
        diopter_io.copy(source, target)
    elif way.endswith("-read"):
        if way == "asyncio-read":
            data = asyncio.run(read_by_futures(source))
        else:
            now("first")
            data = read(way, source)
        write_plainly(data, target)
    else:
        with open(source, "rb") as file:
            data = file.read()
        if way == "asyncio-write":
            asyncio.run(write_by_futures(data, target))
        else:
            now("first")
            write(way, data, target)


if __name__ == "__main__":
    try:
        copy(*sys.argv[1:])
    except Exception as error:  # noqa: BLE001
        sys.exit(str(error))
    if os.environ.get("REFUSED_AT") in ("first", "later"):
        # Nothing was refused.
        os._exit(99)
