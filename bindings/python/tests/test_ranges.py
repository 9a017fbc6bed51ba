"""Calls of many ranges on an event loop, writes of buffers in a row, and atomic writes."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import pathlib
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import diopter_io
import pytest
from tensors import Tensor

MIB = 1 << 20


def engine() -> diopter_io._native.LoopEngine:
    """Return the engine of the running loop."""
    return diopter_io._asyncio._driver(asyncio.get_running_loop()).engine


def free(memory: bytearray) -> None:
    """Clear memory, once no request has it."""
    deadline = time.monotonic() + 10
    while memory:
        try:
            memory.clear()
        except BufferError:
            assert time.monotonic() < deadline, "the export stays"
            time.sleep(0.001)


def test_ranges_on_a_loop(path: pathlib.Path, content: Callable[[int], bytes]) -> None:
    data = bytearray(content(4 * MIB))
    choose = [(i * 7919 % (4 * MIB), i * 37 % 9000) for i in range(200)]
    ranges = [*choose, (4 * MIB - 5, 100), (1 << 40, 7), (3, 0), (MIB, 2 * MIB)]

    async def run() -> None:
        with diopter_io.open(path, "r+") as file:
            expected = [data[at : at + length] for at, length in ranges]
            calls = [file.read_ranges_async(iter(ranges)) for _ in range(10)]
            assert await asyncio.gather(*calls) == [expected] * 10
            buffers = [bytearray(length) for _, length in ranges]
            pairs = [(at, buffer) for (at, _), buffer in zip(ranges, buffers, strict=True)]
            counts = await file.readinto_ranges_async(pairs)
            assert counts == [len(part) for part in expected]
            for count, buffer, part in zip(counts, buffers, expected, strict=True):
                assert buffer[:count] == part
                buffer.append(1)
            pieces = [(7, b"first"), (MIB + 3, os.urandom(MIB)), (9, b"later"), (4 * MIB, b"end")]
            assert await file.write_ranges_async(pieces) == 5 + MIB + 5 + 3
            for at, piece in pieces:
                data[at : at + len(piece)] = piece
            await file.fsync_async()
            assert await file.read_ranges_async([(0, 5 * MIB)]) == [data]
            empty: list[Any] = []
            assert await file.read_ranges_async(empty) == []
            assert await file.readinto_ranges_async(empty) == []
            assert await file.write_ranges_async(empty) == 0
            tensor = Tensor(bytearray(9000))
            assert await file.readinto_ranges_async([(11, tensor)]) == [9000]
            assert (tensor.memory, tensor.deleted) == (data[11:9011], 1)
            assert engine().in_flight == 0

    asyncio.run(run())


def test_errors_are_those_of_the_blocking_calls(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    content(9000)

    async def run() -> None:
        with diopter_io.open(path) as file, diopter_io.open(path, "a") as unreadable:
            calls: list[Callable[[], Any]] = [
                lambda: unreadable.read_ranges_async([(5, 7), (100, 1)]),
                lambda: unreadable.readinto_ranges_async([(5, bytearray(7)), (100, bytearray(1))]),
                lambda: file.write_ranges_async([(5, b"7 bytes"), (100, b"1")]),
            ]
            for call in calls:
                with pytest.raises(OSError) as raised:
                    await call()
                assert (raised.value.errno, raised.value.filename) == (errno.EBADF, path)
                states = diopter_io.outcome(raised.value)
                assert states is not None
                assert states.failed == [(5, 12), (100, 101)]
            with pytest.raises(ValueError):
                await file.read_ranges_async([(-1, 1)])
            with pytest.raises(BufferError):
                await file.readinto_ranges_async([(0, b"read-only")])
        for call in calls:
            with pytest.raises(ValueError, match="closed file"):
                await call()

    asyncio.run(run())


def test_a_loop_that_waits_for_ranges_does_not_spin(
    path: pathlib.Path, content: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    content(4 * MIB)
    turns = 0
    turn = diopter_io._asyncio._Driver.turn

    def counted(self: Any) -> None:
        nonlocal turns
        turns += 1
        turn(self)

    monkeypatch.setattr(diopter_io._asyncio._Driver, "turn", counted)
    # The signals alone have it turn.
    monkeypatch.setattr(diopter_io._asyncio, "_LOOK_SECONDS", 3600)

    async def run() -> None:
        with diopter_io.open(path, route="direct") as file:
            for _ in range(20):
                call = file.read_ranges_async([(at * 65_536, 65_536) for at in range(64)])
                await asyncio.wait_for(call, 60)
            before = turns
            await asyncio.sleep(0.05)
            assert turns - before <= 1

    asyncio.run(run())
    assert turns <= 20 * (2 * 64 + 2)


def test_ranges_complete_where_no_signal_comes(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    data = content(4 * MIB)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        with diopter_io.open(path, route="direct") as file:
            assert await file.read_at_async(1, offset=0) == data[:1]
            assert loop.remove_reader(diopter_io._asyncio._drivers[loop].descriptor)
            call = file.read_ranges_async([(0, 2 * MIB), (3 * MIB, MIB)])
            found = await asyncio.wait_for(call, 60)
            assert found == [data[: 2 * MIB], data[3 * MIB :]]

    asyncio.run(run())


def test_cancelled_reads_let_their_memory_go(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    content(16 * MIB)

    async def run() -> None:
        with diopter_io.open(path, route="direct") as file:
            for turns in range(4):
                buffers = [bytearray(2 * MIB) for _ in range(8)]
                pairs = [(i * 2 * MIB, buffer) for i, buffer in enumerate(buffers)]
                task = asyncio.create_task(file.readinto_ranges_async(pairs))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                del pairs
                for buffer in buffers:
                    free(buffer)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0):
                        await file.read_ranges_async([(0, 16 * MIB)])
            assert engine().in_flight == 0
            assert file.take_abandoned() == ([], 0)

    asyncio.run(run())


def test_cancelled_writes_are_reported(path: pathlib.Path) -> None:
    pieces = [(i * MIB, bytes([i + 1]) * MIB) for i in range(8)]
    expected = {(at, len(piece)) for at, piece in pieces}

    async def run() -> None:
        with diopter_io.open(path, "w+") as file:
            # In flight: what has begun completes, before the next flush ends.
            task = asyncio.create_task(file.write_ranges_async(pieces))
            for _ in range(2):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await file.fsync_async()
            writes, lost = file.take_abandoned()
            assert {(one.offset, one.length) for one in writes} <= expected
            assert lost == 0
            for one in writes:
                for start, end in one.outcome.done:
                    piece = pieces[one.offset // MIB][1]
                    assert file.read_at(end - start, offset=start) == piece[: end - start]
            # Before the loop starts what it was passed.
            call = file.write_ranges_async(pieces)
            call.send(None)
            assert engine().in_flight == 1
            with pytest.raises(asyncio.CancelledError):
                call.throw(asyncio.CancelledError())
            assert engine().in_flight == 0
            writes, _ = file.take_abandoned()
            assert {(one.offset, one.length) for one in writes} == expected
            assert all(one.errno == errno.ECANCELED and one.outcome.not_tried for one in writes)
            file.fsync()
            await file.fsync_async(data_only=True)

    asyncio.run(run())


@pytest.mark.parametrize("cancels_first", [True, False])
def test_writes_that_complete_before_their_task_sees_it_are_reported(
    path: pathlib.Path, cancels_first: bool
) -> None:
    """The cancellation comes around the turn that has the result."""

    async def run() -> None:
        with diopter_io.open(path, "w+") as file, diopter_io.open(path) as unwritable:
            calls: list[tuple[diopter_io.File, Callable[[], Any]]] = [
                (file, lambda: file.write_ranges_async([(3, b"12345"), (90_000, b"6")])),
                (file, lambda: file.write_at_async(b"12345", 3)),
                (unwritable, lambda: unwritable.write_ranges_async([(3, b"12345")])),
                (unwritable, lambda: unwritable.write_at_async(b"12345", 3)),
            ]
            for opened, call in calls:
                task = asyncio.create_task(call())
                await asyncio.sleep(0)
                if cancels_first:
                    task.cancel()
                deadline = time.monotonic() + 10
                while engine().in_flight:
                    engine().turn()
                    assert time.monotonic() < deadline
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                writes, _ = opened.take_abandoned()
                assert (writes[0].offset, writes[0].length) == (3, 5)
                assert [one.errno for one in writes] == (
                    [0] * len(writes) if opened is file else [errno.EBADF]
                ), [one.message for one in writes]
            for flush in (file.fsync, unwritable.fsync):
                if flush == file.fsync:
                    flush()
                    continue
                with pytest.raises(OSError) as raised:
                    flush()
                assert raised.value.errno == errno.EBADF
        assert path.read_bytes()[3:8] == b"12345"

    asyncio.run(run())


def test_a_loop_that_is_closed_finishes_writes_and_cancels_reads(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    data = content(32 * MIB)
    memory = bytearray(32 * MIB)
    with diopter_io.open(path.with_name("other"), "w+") as other, diopter_io.open(path) as file:
        loop = asyncio.new_event_loop()

        async def start() -> list[asyncio.Task[Any]]:
            pieces = [(at, data[at : at + 65_536]) for at in range(0, 32 * MIB, 65_536)]
            calls: list[Any] = [
                other.write_ranges_async(pieces),
                file.readinto_ranges_async([(0, memory)]),
                file.read_ranges_async([(0, 32 * MIB)]),
            ]
            tasks = [asyncio.ensure_future(call) for call in calls]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return tasks

        for task in loop.run_until_complete(start()):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        del task
        loop.close()

        async def another() -> None:
            assert await file.read_ranges_async([(1, 5)]) == [data[1:6]]

        asyncio.run(another())
        assert other.read_at(32 * MIB, offset=0) == data
        del loop
        gc.collect()
        free(memory)


def run(code: str, path: pathlib.Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr


def test_a_fork_fails_ranges_in_the_child(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    content(8 * MIB)
    run(
        """
        import asyncio, errno, os, sys, diopter_io
        file = diopter_io.open(sys.argv[1], "r+", route="direct")
        memory = bytearray(8 << 20)
        async def main():
            calls = [
                file.read_ranges_async([(0, 8 << 20)]),
                file.readinto_ranges_async([(0, memory)]),
                file.write_ranges_async([(at << 20, bytes(1 << 20)) for at in range(8, 16)]),
            ]
            tasks = [asyncio.create_task(call) for call in calls]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            child = os.fork()
            if child == 0:
                for task in tasks:
                    try:
                        await task
                    except OSError as error:
                        if error.errno != errno.EOWNERDEAD:
                            os._exit(8)
                    else:
                        os._exit(9)
                assert len(file.read_ranges([(0, 100)])[0]) == 100
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            (found,), counts, count = await asyncio.gather(*tasks)
            assert (len(found), counts, count) == (8 << 20, [8 << 20], 8 << 20)
        asyncio.run(main())
        print("fine")
        """,
        path,
    )


def test_an_interpreter_ends_with_ranges_in_flight(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    content(8 * MIB)
    run(
        """
        import asyncio, sys, diopter_io
        file = diopter_io.open(sys.argv[1], "r+")
        loop = asyncio.new_event_loop()
        async def main():
            calls = [
                file.readinto_ranges_async([(0, bytearray(8 << 20))]),
                file.write_ranges_async([(at << 16, b"w" * 65536) for at in range(128)]),
            ]
            tasks = [asyncio.ensure_future(call) for call in calls]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return tasks
        tasks = loop.run_until_complete(main())
        print("fine")
        """,
        path,
    )
    assert path.read_bytes() == b"w" * (8 * MIB), "the writes were finished"


@pytest.mark.parametrize("mode", ["w+", "a+"])
def test_buffers_in_a_row(path: pathlib.Path, mode: str) -> None:
    large = [os.urandom(MIB + i) for i in range(8)]
    buffers = [b"any", bytearray(b"thing"), b"", *large, Tensor(bytearray(b"tensor"))]
    parts = [bytes(b.memory) if isinstance(b, Tensor) else bytes(b) for b in buffers]
    data = b"".join(parts)
    at = 0 if mode == "a+" else 7
    with diopter_io.open(path, mode) as file:
        assert file.writev(buffers, 7) == len(data)
        assert file.writev([], 100) == 0
        assert file.writev(iter([b"-"]), 100) == 1
        expected = bytearray(bytes(at) + data)
        if mode == "a+":
            expected += b"-"
        else:
            expected[100:101] = b"-"
        assert file.read_at(16 * MIB, offset=0) == expected
        with pytest.raises(ValueError):
            file.writev([b"x"], -1)
        with pytest.raises(TypeError):
            file.writev(["x"], 0)  # type: ignore[list-item]
        with pytest.raises(OverflowError):
            file.writev([b"xy", b"z"], 1 << 63)
    with pytest.raises(ValueError, match="closed file"):
        file.writev([], 0)
    with diopter_io.open(path) as unwritable, pytest.raises(OSError) as raised:
        unwritable.writev([b"12", b"3"], 5)
    assert raised.value.errno == errno.EBADF
    states = diopter_io.outcome(raised.value)
    assert states is not None
    assert states.failed == [(5, 7), (7, 8)]
    assert states.done == states.not_tried == states.unknown == []


def test_atomic_writes(path: pathlib.Path) -> None:
    """All or nothing where the file offers it; otherwise nothing is tried."""
    with diopter_io.open(path, "w+") as file:
        offered = file.atomic_write
        least, most = offered or (4096, 4096)
        memory = diopter_io.Buffer(2 * most)
        memoryview(memory)[:] = b"\x5a" * (2 * most)
        view = memoryview(memory)
        refused = [(view[: least - 1], 0), (view[: 2 * most], 0), (view[:least], 1)]
        for buffer, offset in refused if offered else [*refused, (view[:least], 0)]:
            with pytest.raises(OSError) as raised:
                file.write_atomic_at(buffer, offset)
            assert (raised.value.errno, raised.value.filename) == (errno.EINVAL, path)
            states = diopter_io.outcome(raised.value)
            assert states is not None
            assert states.not_tried == [(offset, offset + len(buffer))]
        assert file.size == 0
        if offered:
            file.write_atomic_at(view[:least], least)
            assert file.read_at(least, offset=least) == view[:least]
        with pytest.raises(ValueError):
            file.write_atomic_at(memory, -1)
        with pytest.raises(TypeError):
            file.write_atomic_at("text", 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="closed file"):
        file.write_atomic_at(memory, 0)
