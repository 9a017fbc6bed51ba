"""Readers and writers as streams of the standard library."""

from __future__ import annotations

import errno
import gc
import io
import os
import pathlib
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import diopter_io
import pytest
from conftest import skip

MIB = 1 << 20


def test_a_reader_reads_the_file_in_pieces_of_any_size(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    data = content(11 * MIB + 77)
    choose = random.Random(1)
    with diopter_io.open(path) as file, file.reader() as reader:
        pieces = []
        while piece := reader.read(choose.choice([1, 100, 4096, 70_000, 3 * MIB])):
            pieces.append(piece)
        assert b"".join(pieces) == data
        assert reader.tell() == len(data)
        assert reader.seek(-10, os.SEEK_END) == len(data) - 10
        assert reader.read() == data[-10:]
        assert reader.seek(5) == 5
        assert reader.peek(3) == data[5:8]
        assert reader.readall() == data[5:]
        assert reader.read(1) == b""


def test_a_reader_sees_a_file_grow(path: pathlib.Path, content: Callable[[int], bytes]) -> None:
    data = content(5000)
    with diopter_io.open(path, "r+") as file, file.reader() as reader:
        assert reader.read(10_000) == data
        assert reader.read(10) == b""
        file.write_at(b"more", 5000)
        assert reader.read(10) == b"more"


def test_what_is_forgotten_stays_forgotten_while_another_thread_reads(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    """A read that was under way does not put back what it had read ahead."""
    content(4 * MIB)
    old = path.read_bytes()
    with diopter_io.open(path, "r+") as file:
        for turn in range(200):
            reader = file.reader()
            reader.read(4096)
            ahead = reader._ahead
            assert ahead is not None

            def reads() -> None:
                for at in range(4096, MIB, 4096):
                    ahead.read(4096, at)  # noqa: B023

            new = bytes([turn]) * 4096
            with ThreadPoolExecutor(1) as pool:
                reading = pool.submit(reads)
                file.write_at(new, MIB)
                ahead.forget()
            reading.result()
            assert ahead.read(4096, MIB) == new
            file.write_at(old[MIB : MIB + 4096], MIB)


def test_a_reader_of_a_bad_sector_raises_and_returns_no_part(tmp_path: pathlib.Path) -> None:
    """A part would read as the end of the file."""
    image = tmp_path / "image"
    data = os.urandom(8 * MIB)
    image.write_bytes(data)
    attach = ["losetup", "--find", "--show", "--direct-io=on", image]
    try:
        attached = subprocess.run(attach, capture_output=True, text=True)  # noqa: S603
    except FileNotFoundError as error:
        skip("loop", str(error))
    if attached.returncode != 0:
        skip("loop", attached.stderr)
    device = attached.stdout.strip()
    try:
        # The device keeps its size, and fails reads of what its file no longer has.
        os.truncate(image, 5 * MIB)
        with diopter_io.open(device) as file, file.reader() as reader:
            assert reader.read(MIB) == data[:MIB]
            with pytest.raises(OSError) as caught:
                reader.read(6 * MIB)
            assert caught.value.errno == errno.EIO
            memory = bytearray(6 * MIB)
            with pytest.raises(OSError) as caught:
                reader.readinto(memory)
            assert caught.value.errno == errno.EIO
            assert reader.tell() == MIB
            assert reader.read(4 * MIB) == data[MIB : 5 * MIB]
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)  # noqa: S603, S607


def test_streams_are_those_of_the_standard_library(path: pathlib.Path) -> None:
    lines = [f"line {i}\n" for i in range(20_000)]
    with diopter_io.open(path, "w+") as file:
        writer = file.writer()
        assert isinstance(writer, io.RawIOBase)
        assert isinstance(writer, io.BufferedIOBase)
        with io.TextIOWrapper(writer) as text:
            text.writelines(lines)
        assert writer.closed
        reader = file.reader()
        assert isinstance(reader, io.RawIOBase)
        assert isinstance(reader, io.BufferedIOBase)
        with io.TextIOWrapper(reader) as text:
            assert list(text) == lines
        with io.BufferedReader(file.reader(), 5000) as buffered:
            assert buffered.readline() == b"line 0\n"
            buffered.seek(-8, os.SEEK_END)
            assert buffered.read() == b"e 19999\n"
        with io.BufferedWriter(file.writer(3), 5000) as out:
            out.write(b"X" * 6000)
        assert file.read_at(4, offset=2) == b"nXXX"


def test_a_writer_collects_and_flushes(path: pathlib.Path) -> None:
    with diopter_io.open(path, "w+") as file:
        writer = file.writer(10)
        assert writer.write(b"abc") == 3
        assert file.size == 0
        writer.flush()
        assert file.size == 13
        big = os.urandom(40 * MIB + 1)
        assert writer.write(big) == len(big)
        assert writer.tell() == 13 + len(big)
        assert writer.seek(0) == 0
        writer.write(b"0123456789")
        writer.close()
        assert writer.closed
        with pytest.raises(ValueError, match="closed file"):
            writer.write(b"x")
    assert path.read_bytes() == b"0123456789abc" + big


def test_a_writer_truncates_after_what_it_took(path: pathlib.Path) -> None:
    with diopter_io.open(path, "w+") as file, file.writer() as writer:
        writer.write(b"0123456789")
        assert writer.truncate(4) == 4
        assert file.size == 4
        writer.write(b"ab")
        assert writer.truncate() == 12
        assert file.read_at(20, offset=0) == b"0123" + bytes(6) + b"ab"


def test_a_writer_that_is_dropped_writes(path: pathlib.Path) -> None:
    with diopter_io.open(path, "w+") as file:
        writer = file.writer()
        writer.write(b"abc")
        del writer
        gc.collect()
        assert file.read_at(10, offset=0) == b"abc"
        stream = diopter_io._native.WriteBehind(file, 3)
        stream.write(b"def")
        del stream
        assert file.read_at(10, offset=0) == b"abcdef"


def test_a_writer_outlives_its_file(path: pathlib.Path) -> None:
    file = diopter_io.open(path, "w")
    writer = file.writer()
    writer.write(b"abc")
    file.close()
    with pytest.raises(ValueError, match="closed file"):
        writer.write(b"def")
    writer.close()
    assert path.read_bytes() == b"abc"


def test_threads_share_a_writer(path: pathlib.Path) -> None:
    """Each call is whole: the bytes of one are not between those of another."""
    size = 5 * MIB + 3
    with diopter_io.open(path, "w+") as file:
        writer = file.writer()
        work = [threading.Thread(target=writer.write, args=(bytes([i]) * size,)) for i in range(8)]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        writer.close()
    data = path.read_bytes()
    pieces = [data[i * size : (i + 1) * size] for i in range(8)]
    assert len(data) == 8 * size
    assert {piece[0] for piece in pieces} == set(range(8))
    assert all(piece == piece[:1] * size for piece in pieces)


def test_a_signal_handler_cannot_write_into_a_write(path: pathlib.Path) -> None:
    found: list[str] = []

    def handler(*_arguments: object) -> None:
        try:
            writer.write(b"x")
            found.append("written")
        except RuntimeError as error:
            found.append(str(error))

    with diopter_io.open(path, "w+") as file:
        writer = file.writer()
        before = signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            big = bytes(64 * MIB)
            deadline = time.monotonic() + 30
            while not any("signal handler" in one for one in found):
                assert time.monotonic() < deadline, found[:3]
                writer.seek(0)
                writer.write(big)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        writer.close()


def test_what_is_refused(path: pathlib.Path) -> None:
    with diopter_io.open(path, "w") as file:
        with pytest.raises(io.UnsupportedOperation):
            file.reader()
        with file.writer() as writer, pytest.raises(io.UnsupportedOperation):
            writer.read(1)
    with diopter_io.open(path) as file:
        with pytest.raises(io.UnsupportedOperation):
            file.writer()
        with file.reader() as reader:
            with pytest.raises(io.UnsupportedOperation):
                reader.write(b"x")
            for whence, offset in [(0, -1), (1, -1), (2, -1), (9, 0)]:
                with pytest.raises(ValueError):
                    reader.seek(offset, whence)
        with pytest.raises(ValueError, match="closed file"):
            reader.read(1)


def test_a_reader_goes_from_thread_to_thread(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    data = content(6 * MIB)
    found: list[bytes] = []
    with diopter_io.open(path) as file, file.reader() as reader:
        for _ in range(6):
            thread = threading.Thread(target=lambda: found.append(reader.read(MIB)))
            thread.start()
            thread.join()
    assert b"".join(found) == data
