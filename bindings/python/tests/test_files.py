"""Transfers at an offset, buffers of every kind, and what is refused."""

from __future__ import annotations

import array
import errno
import mmap
import os
import pathlib
import threading
from collections.abc import Callable

import diopter_io
import numpy as np
import pytest
from conftest import skip

MIB = 1 << 20


def test_any_offset_and_any_length(path: pathlib.Path) -> None:
    with diopter_io.open(path, "w+") as file:
        assert file.write_at(b"any offset, any length", 7) == 22
        assert file.read_at(6, offset=11) == b"offset"
        assert file.read_at(100, offset=24) == b"ength"
        assert file.read_at(1 << 60, offset=29) == b""
        assert file.read_at(0, offset=0) == b""
        assert file.size == 29
    assert path.read_bytes() == bytes(7) + b"any offset, any length"


@pytest.mark.parametrize("offset", [0, 1, 511, 4096, 5000])
@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 70_001, 3 * MIB + 5])
def test_what_is_written_is_read(path: pathlib.Path, offset: int, length: int) -> None:
    data = os.urandom(length)
    with diopter_io.open(path, "w+") as file:
        assert file.write_at(data, offset) == length
        file.fsync()
        file.fsync(data_only=True)
        assert file.read_at(length + 10, offset=offset) == data
        memory = bytearray(length + 3)
        assert file.readinto_at(memory, offset) == length
        assert memory == data + bytes(3)
    assert path.read_bytes() == (bytes(offset) + data if length else b"")


@pytest.mark.parametrize(
    "make",
    [
        bytearray,
        lambda n: memoryview(bytearray(n)),
        lambda n: memoryview(bytearray(n + 7))[7:],
        lambda n: array.array("B", bytes(n)),
        lambda n: array.array("Q", bytes(n)),
        lambda n: np.zeros(n, np.uint8),
        lambda n: np.zeros((n // 8, 2), np.float32),
        lambda n: np.zeros((n // 8,), np.complex64),
        lambda n: mmap.mmap(-1, n),
        diopter_io.Buffer,
    ],
)
def test_every_kind_of_buffer(
    path: pathlib.Path, content: Callable[[int], bytes], make: Callable[[int], object]
) -> None:
    data = content(40_000)
    memory = make(40_000)
    with diopter_io.open(path, "r+") as file:
        assert file.readinto_at(memory, 0) == 40_000  # type: ignore[arg-type]
        assert bytes(memoryview(memory).cast("B")) == data  # type: ignore[arg-type]
        assert file.write_at(memory, 1234) == 40_000  # type: ignore[arg-type]
    assert path.read_bytes() == data[:1234] + data


def test_buffers_that_are_refused(path: pathlib.Path, content: Callable[[int], bytes]) -> None:
    data = content(4096)
    with diopter_io.open(path, "r+") as file:
        with pytest.raises(BufferError):
            file.readinto_at(bytes(10), 0)  # type: ignore[arg-type]
        with pytest.raises(BufferError):
            file.readinto_at(memoryview(bytearray(10))[::2], 0)
        with pytest.raises(BufferError):
            file.write_at(np.zeros((4, 4), order="F"), 0)
        with pytest.raises(TypeError):
            file.write_at("text", 0)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            file.readinto_at(None, 0)  # type: ignore[arg-type]
        released = memoryview(bytearray(4))
        released.release()
        with pytest.raises(ValueError, match="released"):
            file.readinto_at(released, 0)
    assert path.read_bytes() == data


def test_arguments_that_are_refused(path: pathlib.Path, content: Callable[[int], bytes]) -> None:
    data = content(4096)
    with diopter_io.open(path, "r+") as file:
        for call in [
            lambda: file.read_at(1, offset=-1),
            lambda: file.read_at(-1, offset=0),
            lambda: file.readinto_at(bytearray(1), -1),
            lambda: file.write_at(b"x", -1),
            lambda: file.readv([bytearray(1)], -1),
            lambda: file.read_ranges([(0, 1), (-1, 1)]),
            lambda: file.truncate(-1),
            lambda: file.allocate(offset=-1, length=1),
            lambda: file.allocate(offset=0, length=0),
            lambda: file.reader(-1),
            lambda: file.writer(-1),
        ]:
            with pytest.raises(ValueError):
                call()
        for offset in [1 << 63, 1 << 200]:
            with pytest.raises(OverflowError):
                file.read_at(1, offset=offset)
        with pytest.raises(OSError) as raised:
            file.write_at(b"xy", (1 << 63) - 2)
        assert raised.value.errno == errno.EFBIG
    assert path.read_bytes() == data


def test_a_closed_file_refuses_everything(path: pathlib.Path) -> None:
    file = diopter_io.open(path, "w+")
    reader, writer = file.reader(), file.writer()
    file.close()
    file.close()
    assert file.closed
    for call in [
        lambda: file.read_at(1, offset=0),
        lambda: file.readinto_at(bytearray(1), 0),
        lambda: file.write_at(b"x", 0),
        lambda: file.readv([bytearray(1)], 0),
        lambda: file.read_ranges([(0, 1)]),
        file.fsync,
        lambda: file.truncate(0),
        lambda: file.allocate(offset=0, length=1),
        lambda: file.size,
        file.fileno,
        file.readable,
        file.reader,
        file.writer,
        file.__enter__,
        lambda: reader.read(1),
        lambda: writer.write(bytes(2 * MIB)),
    ]:
        with pytest.raises(ValueError, match="closed file"):
            call()


@pytest.mark.parametrize("mode", ["", "rw", "r++", "wa", "q", "rt", "bb", "+"])
def test_modes_that_are_refused(path: pathlib.Path, mode: str) -> None:
    with pytest.raises(ValueError, match="invalid mode"):
        diopter_io.open(path, mode)
    assert not path.exists()


def test_modes(path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        diopter_io.open(path)
    with diopter_io.open(path, "xb") as file:
        file.write_at(b"first", 0)
        with pytest.raises(OSError) as raised:
            file.read_at(1, offset=0)
        assert raised.value.errno == errno.EBADF
    with pytest.raises(FileExistsError):
        diopter_io.open(path, "x")
    with diopter_io.open(path, "a+") as file:
        assert file.write_at(b", second", 0) == 8
        assert file.read_at(100, offset=0) == b"first, second"
    with diopter_io.open(path) as file:
        with pytest.raises(OSError) as raised:
            file.write_at(b"x", 0)
        assert raised.value.errno == errno.EBADF
    with diopter_io.open(path, "w"):
        assert path.stat().st_size == 0


def test_a_path_of_any_kind_and_a_descriptor(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    data = content(5000)
    for name in [path, str(path), os.fsencode(path)]:
        with diopter_io.open(name) as file:
            assert file.read_at(5000, offset=0) == data
            assert file.name == name
    with path.open("rb") as plain:
        with diopter_io.open(plain.fileno()) as file:
            assert file.read_at(5000, offset=0) == data
        assert plain.read() == data, "the descriptor stays open"
    with pytest.raises(OSError) as raised:
        diopter_io.open(12345)
    assert raised.value.errno == errno.EBADF
    with pytest.raises(ValueError, match="null"):
        diopter_io.open("a\0b")


def test_truncate_and_allocate(path: pathlib.Path) -> None:
    with diopter_io.open(path, "w+") as file:
        file.allocate(offset=0, length=MIB)
        assert file.size == 0
        assert path.stat().st_blocks >= MIB // 512
        file.truncate(10_000)
        assert file.read_at(20_000, offset=0) == bytes(10_000)


def test_several_buffers_and_ranges(path: pathlib.Path, content: Callable[[int], bytes]) -> None:
    data = content(100_000)
    with diopter_io.open(path) as file:
        parts = [bytearray(n) for n in (1, 4096, 0, 50_000, 50_000)]
        assert file.readv(parts, 3) == 100_000 - 3
        assert b"".join(parts)[: 100_000 - 3] == data[3:]
        assert file.readv([], 0) == 0
        ranges = [(i * 7 % 90_000, i * 13 % 5000) for i in range(1000)]
        found = file.read_ranges([*ranges, (99_990, 100), (1 << 40, 5)])
        assert found[:-2] == [data[at : at + length] for at, length in ranges]
        assert found[-2:] == [data[-10:], b""]
        assert file.read_ranges([]) == []
        assert file.read_ranges([(3, 1 << 50)]) == [data[3:]]


def test_ranges_into_buffers(path: pathlib.Path, content: Callable[[int], bytes]) -> None:
    data = content(3 * MIB)
    with diopter_io.open(path) as file:
        lengths = [1, 4096, 0, MIB, 77, 300, 2 * MIB]
        places = [i * 31_337 for i in range(len(lengths))]
        places[-1] = 3 * MIB - 5
        buffers = [bytearray(b"\xa5" * length) for length in lengths]
        counts = file.readinto_ranges(zip(places, buffers, strict=True))
        assert counts == [*lengths[:-1], 5]
        for at, count, buffer in zip(places, counts, buffers, strict=True):
            assert buffer[:count] == data[at : at + count]
            assert buffer[count:] == b"\xa5" * (len(buffer) - count)
        buffers[0].append(1)  # no export is left
        array = diopter_io.Buffer(8192)
        assert file.readinto_ranges([(4096, array), (0, memoryview(buffers[3])[10:20])]) == [8192, 10]
        assert (bytes(array), bytes(buffers[3][10:20])) == (data[4096:12288], data[:10])
        assert file.readinto_ranges([]) == []
        with pytest.raises(BufferError):
            file.readinto_ranges([(0, b"read-only")])
    with pytest.raises(ValueError, match="closed file"):
        file.readinto_ranges([(0, bytearray(1))])
    with diopter_io.open(path.with_name("other"), "w") as unreadable:
        with pytest.raises(OSError) as raised:
            unreadable.readinto_ranges([(5, bytearray(7)), (100, bytearray(1))])
        assert raised.value.errno == errno.EBADF
        states = diopter_io.outcome(raised.value)
        assert states is not None
        assert states.failed == [(5, 12), (100, 101)]


def test_ranges_from_buffers(path: pathlib.Path, content: Callable[[int], bytes]) -> None:
    data = bytearray(content(3 * MIB))
    with diopter_io.open(path, "r+") as file:
        array = diopter_io.Buffer(MIB)
        memoryview(array)[:] = b"\x5a" * MIB
        part = memoryview(bytearray(b"part of more"))[5:7]
        growing = bytearray(b"grows")
        pieces = [(7, b"first"), (MIB, array), (9, b"later"), (100, part), (3 * MIB + 5, growing)]
        file.write_ranges(pieces)
        data.extend(b"\0" * 10)
        for at, piece in pieces:
            data[at : at + len(piece)] = piece
        assert file.size == len(data)
        assert file.read_at(len(data), offset=0) == data
        growing.append(1)  # no export is left
        file.write_ranges([])
        with pytest.raises(ValueError):
            file.write_ranges([(-1, b"x")])
    with pytest.raises(ValueError, match="closed file"):
        file.write_ranges([(0, b"x")])
    with diopter_io.open(path) as unwritable, pytest.raises(OSError) as raised:
        unwritable.write_ranges([(5, b"seven 7"), (100, b"")])
    assert raised.value.errno == errno.EBADF
    states = diopter_io.outcome(raised.value)
    assert states is not None
    assert states.failed == [(5, 12)]


def test_a_range_that_cannot_be_read(path: pathlib.Path, content: Callable[[int], bytes]) -> None:
    data = content(9000)
    other = path.with_name("other")
    with diopter_io.open(path) as file, diopter_io.open(other, "w") as unreadable:
        wanted = [(file, 0, 10), (unreadable, 5, 7), (file, 8990, 100), (unreadable, 100, 1)]
        found = diopter_io._native.Ranges.read(wanted, returns_errors=True).wait()
        assert (found[0], found[2]) == (data[:10], data[-10:])
        assert isinstance(found[1], OSError)
        assert isinstance(found[3], OSError)
        assert (found[1].errno, found[1].filename) == (errno.EBADF, other)
        with pytest.raises(OSError) as raised:
            diopter_io._native.Ranges.read(wanted).wait()
        assert raised.value.errno == errno.EBADF
        states = diopter_io.outcome(raised.value)
        assert states is not None
        assert states.failed == [(5, 12), (100, 101)]
        with pytest.raises(OSError) as raised:
            unreadable.read_ranges([(5, 7)])
        assert raised.value.errno == errno.EBADF
    for ranges in ([], [(0, 1)]):
        with pytest.raises(ValueError, match="closed file"):
            file.read_ranges(ranges)


def test_errors_have_errno_filename_and_outcome(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    missing = str(path) + ".missing"
    with pytest.raises(FileNotFoundError) as raised:
        diopter_io.open(missing)
    assert raised.value.errno == errno.ENOENT
    assert raised.value.filename == missing
    assert diopter_io.outcome(raised.value) is None
    content(4096)
    with diopter_io.open(path) as file, pytest.raises(OSError) as failed:
        file.write_at(b"12345", 7)
    assert failed.value.filename == path
    found = diopter_io.outcome(failed.value)
    assert found is not None
    assert found.not_tried == [(7, 12)]
    assert found.done == found.failed == found.unknown == []
    assert repr(found).startswith("Outcome(done=[]")


def test_an_exported_bytearray_is_not_resized(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    content(64 * MIB)
    memory = bytearray(64 * MIB)
    refused, tries = 0, 0
    with diopter_io.open(path) as file:
        thread = threading.Thread(target=file.readinto_at, args=(memory, 0))
        thread.start()
        while thread.is_alive():
            tries += 1
            try:
                memory.append(1)
                memory.pop()
            except BufferError:
                refused += 1
        thread.join()
    assert refused > 0, tries
    memory.clear()


def test_memory_is_aligned_and_zeroed() -> None:
    for length in [0, 1, 4096, 5 * MIB + 1]:
        memory = diopter_io.Buffer(length)
        view = np.frombuffer(memory, np.uint8)
        assert len(memory) == len(view) == length
        assert not view.any()
        assert length == 0 or view.ctypes.data % (2 * MIB if length >= 2 * MIB else 4096) == 0
    with pytest.raises(ValueError):
        diopter_io.Buffer(-1)
    with pytest.raises(MemoryError):
        diopter_io.Buffer(1 << 62)


def test_tools(path: pathlib.Path, content: Callable[[int], bytes]) -> None:
    data = content(100_001)
    copied = path.with_name("copied")
    report = diopter_io.copy(path, copied, verify=True)
    assert copied.read_bytes() == data
    assert report["bytes"] == 100_001
    with pytest.raises(diopter_io.CopyError) as raised:
        diopter_io.copy(path.with_name("missing"), copied)
    assert raised.value.report["exit_status"] == 2
    found = diopter_io.probe(path)
    assert found["kind"] == "file"
    assert found["size"] == 100_001
    plan = diopter_io.explain(path, "read", offset=0, length=100_000)
    assert sum(bio["length"] for bio in plan["bios"]) >= 100_000
    with pytest.raises(FileNotFoundError):
        diopter_io.probe(path.with_name("missing"))
    with pytest.raises(ValueError):
        diopter_io.explain(path, "scan", offset=0, length=1)  # type: ignore[arg-type]


def test_striped_files(directory: pathlib.Path) -> None:
    objects = [directory / f"disk{i}" for i in range(3)]
    for each in objects:
        each.mkdir()
    manifest = directory / "set.dio"
    try:
        diopter_io.stripe_create(manifest, objects, stripe_size=65536)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            skip("xattr", f"no user attributes in {directory.parent}")
        raise
    data = os.urandom(MIB + 17)
    with diopter_io.open(manifest, "r+", striped=True) as file:
        file.write_at(data, 5)
        assert file.read_at(2 * MIB, offset=5) == data
        assert len(file.read_ranges([(5, 100), (MIB, 100)])) == 2
    with pytest.raises(FileExistsError):
        diopter_io.stripe_create(manifest, objects)
