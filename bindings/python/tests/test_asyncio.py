"""Awaitables: results, many at once, cancellation, closed loops."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import pathlib
import threading
import time
from collections.abc import Callable, Coroutine

import diopter_io
import pytest

MIB = 1 << 20


async def read_at(file: diopter_io.File, length: int, offset: int) -> bytes:
    return await file.read_at_async(length, offset=offset)


def test_a_call_serves_the_loop_that_awaits_it(path: pathlib.Path) -> None:
    with diopter_io.open(path, "w+") as file:
        write = file.write_at_async(b"any offset", 7)
        assert file.size == 0, "nothing is done before it is awaited"
        assert asyncio.run(write) == 10
        assert asyncio.run(file.read_at_async(6, offset=11)) == b"offset"
        assert asyncio.run(file.read_ranges_async([(7, 3), (11, 6)])) == [b"any", b"offset"]
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        read = asyncio.run_coroutine_threadsafe(file.read_at_async(3, offset=7), loop)
        assert read.result(10) == b"any"
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_transfers(path: pathlib.Path) -> None:
    async def run() -> None:
        with diopter_io.open(path, "w+") as file:
            assert await file.write_at_async(b"any offset", 7) == 10
            await file.fsync_async()
            await file.fsync_async(data_only=True)
            assert await file.read_at_async(6, offset=11) == b"offset"
            assert await file.read_at_async(100, offset=11) == b"offset"
            memory = bytearray(20)
            assert await file.readinto_at_async(memory, 0) == 17
            assert memory == bytes(7) + b"any offset" + bytes(3)
            with pytest.raises(ValueError):
                await file.read_at_async(1, offset=-1)
            with pytest.raises(BufferError):
                await file.readinto_at_async(b"", 0)
        with pytest.raises(ValueError, match="closed file"):
            await file.read_at_async(1, offset=0)
        with diopter_io.open(path) as file, pytest.raises(OSError) as raised:
            await file.write_at_async(b"x", 3)
        found = diopter_io.outcome(raised.value)
        assert found is not None
        assert found.not_tried == [(3, 4)]
        assert raised.value.filename == path

    asyncio.run(run())


def test_many_requests_at_once(path: pathlib.Path, content: Callable[[int], bytes]) -> None:
    expected = content(4 * MIB)

    async def run() -> None:
        with diopter_io.open(path) as file:
            offsets = [4097 * n for n in range(1000)]
            parts = await asyncio.gather(*(file.read_at_async(100, offset=at) for at in offsets))
            assert parts == [expected[at : at + 100] for at in offsets]

    try:
        for requests in (1, 1024, 4096):
            diopter_io.set_in_flight(requests)
            asyncio.run(run())
        for requests in (0, 4097):
            with pytest.raises(ValueError, match="1 to 4096"):
                diopter_io.set_in_flight(requests)
    finally:
        diopter_io.set_in_flight(128)


def test_requests_complete_where_no_signal_comes(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    path.write_bytes(content(4 * MIB))

    async def run() -> None:
        loop = asyncio.get_running_loop()
        with diopter_io.open(path, "r+") as file:
            assert await file.read_at_async(1, offset=0) != b""
            # As where the write to the eventfd is refused.
            assert loop.remove_reader(diopter_io._asyncio._drivers[loop].descriptor)
            for _ in range(3):
                reads = [file.read_at_async(MIB, offset=at * 4096) for at in range(64)]
                await asyncio.wait_for(asyncio.gather(*reads), 60)
            await asyncio.wait_for(file.fsync_async(), 60)

    asyncio.run(run())


def test_a_thousand_tasks(path: pathlib.Path, content: Callable[[int], bytes]) -> None:
    data = bytearray(content(4 * MIB))

    async def one(file: diopter_io.File, i: int) -> None:
        at = i * 4096 + i % 7
        mine = os.urandom(3000)
        assert await file.write_at_async(mine, at) == 3000
        assert await file.read_at_async(3000, offset=at) == mine
        data[at : at + 3000] = mine

    async def run() -> None:
        with diopter_io.open(path, "r+") as file:
            await asyncio.gather(*(one(file, i) for i in range(1000)))
            await file.fsync_async()

    before = threading.active_count()
    asyncio.run(run())
    assert threading.active_count() == before
    assert path.read_bytes() == data


def test_eight_threads_with_loops_and_blocking_calls(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    """Four of them run 250 tasks each."""
    data = content(8 * MIB)
    failed: list[BaseException] = []

    async def reads(file: diopter_io.File, number: int) -> None:
        async def one(i: int) -> None:
            at = (number * 997 + i * 4099) % (7 * MIB)
            assert await file.read_at_async(5000, offset=at) == data[at : at + 5000]

        await asyncio.gather(*(one(i) for i in range(250)))

    def work(file: diopter_io.File, number: int) -> None:
        try:
            if number % 2:
                asyncio.run(reads(file, number))
            for i in range(200):
                at = (number * 7919 + i * 65_537) % (7 * MIB)
                assert file.read_at(9000, offset=at) == data[at : at + 9000]
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    with diopter_io.open(path) as file:
        threads = [threading.Thread(target=work, args=(file, i)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []


async def in_flight(
    start: Callable[[], Coroutine[None, None, int]], length: int
) -> asyncio.Task[int] | None:
    """Start requests until one is in flight; `None` where each completes when it is submitted."""
    engine = diopter_io._asyncio._driver(asyncio.get_running_loop()).engine
    for _ in range(100):
        task = asyncio.create_task(start())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if engine.in_flight:
            return task
        assert await task == length
    return None


def test_a_cancelled_read_lets_its_memory_go(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    content(16 * MIB)

    async def run() -> None:
        with diopter_io.open(path) as file:
            memory = bytearray(16 * MIB)
            task = await in_flight(lambda: file.readinto_at_async(memory, 0), 16 * MIB)
            if task is None:
                return
            with pytest.raises(BufferError):
                memory.clear()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                try:
                    memory.clear()
                    break
                except BufferError:
                    await asyncio.sleep(0.001)
            assert memory == b""
            assert await file.read_at_async(10, offset=0)

    asyncio.run(run())


def test_memory_in_flight_cannot_be_released_by_one_that_finds_it(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    data = content(8 * MIB)
    memory = bytearray(8 * MIB)

    async def run() -> None:
        with diopter_io.open(path) as file:
            task = asyncio.ensure_future(file.readinto_at_async(memory, 0))
            await asyncio.sleep(0)
            found = [one for one in gc.get_objects() if isinstance(one, memoryview)]
            for view in found:
                if view.obj is memory:
                    with pytest.raises(BufferError):
                        view.release()
            with pytest.raises(BufferError):
                memory.clear()
            del found
            assert await task == len(data)

    asyncio.run(run())
    assert memory == data
    memory.clear()


def test_a_cancelled_write_is_completed_and_reported(path: pathlib.Path) -> None:
    data = os.urandom(8 * MIB)

    async def run() -> None:
        with diopter_io.open(path, "w+") as file:
            task = asyncio.create_task(file.write_at_async(data, 0))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await file.fsync_async()
            writes, lost = file.take_abandoned()
            assert lost == 0
            assert [(one.offset, one.length, one.errno) for one in writes] == [(0, 8 * MIB, 0)]
            assert writes[0].outcome.done == [(0, 8 * MIB)]
            assert file.take_abandoned() == ([], 0)
            # One that waits behind 128 others is not started.
            first = [asyncio.create_task(file.write_at_async(b"x", i)) for i in range(128)]
            last = asyncio.create_task(file.write_at_async(b"y" * 10, 9 * MIB))
            await asyncio.sleep(0)
            last.cancel()
            await asyncio.gather(*first)
            with pytest.raises(asyncio.CancelledError):
                await last
            writes, _ = file.take_abandoned()
            assert [one.outcome.not_tried for one in writes] == [[(9 * MIB, 9 * MIB + 10)]]
            await file.fsync_async()
        assert path.read_bytes() == b"x" * 128 + data[128:]

    asyncio.run(run())


def test_a_write_that_completes_before_its_task_sees_it_is_reported(path: pathlib.Path) -> None:
    """The cancellation comes between the result of the future and the next step of the task."""

    async def run() -> None:
        with diopter_io.open(path, "w+") as file, diopter_io.open(path) as unwritable:
            for opened, is_written in [(file, True), (unwritable, False)]:
                task = asyncio.create_task(opened.write_at_async(b"12345", 3))
                await asyncio.sleep(0)
                engine = diopter_io._asyncio._driver(asyncio.get_running_loop()).engine
                while engine.in_flight:
                    engine.turn()
                assert not task.done()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                writes, _ = opened.take_abandoned()
                assert [(one.offset, one.length) for one in writes] == [(3, 5)]
                assert writes[0].errno == (0 if is_written else errno.EBADF)
                states = writes[0].outcome
                assert (states.done if is_written else states.not_tried) == [(3, 8)]
                if is_written:
                    opened.fsync()
                else:
                    with pytest.raises(OSError) as raised:
                        opened.fsync()
                    assert raised.value.errno == errno.EBADF
        assert path.read_bytes() == bytes(3) + b"12345"

    asyncio.run(run())


def test_timeouts(path: pathlib.Path, content: Callable[[int], bytes]) -> None:
    data = content(32 * MIB)

    async def run() -> None:
        with diopter_io.open(path) as file:
            for _ in range(20):
                try:
                    async with asyncio.timeout(0.001):
                        assert await file.read_at_async(32 * MIB, offset=0) == data
                except TimeoutError:
                    pass
            assert await file.read_at_async(100, offset=5) == data[5:105]

    asyncio.run(run())


def test_a_loop_that_is_closed_with_requests_in_flight(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    data = content(16 * MIB)
    memory = bytearray(16 * MIB)
    started = time.monotonic()
    with diopter_io.open(path, "r+") as file:
        loop = asyncio.new_event_loop()

        async def reads() -> None:
            await file.readinto_at_async(memory, 0)

        async def writes() -> None:
            await file.write_at_async(data, 16 * MIB)

        read, write = loop.create_task(reads()), loop.create_task(writes())
        loop.call_soon(lambda: loop.call_soon(loop.call_soon, loop.stop))
        loop.run_forever()
        loop.close()
        pending = read_at(file, 1, 0)
        with pytest.raises(RuntimeError):
            loop.run_until_complete(pending)
        pending.close()
        for task in (read, write):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        del read, write, task
        # Another loop works, and closes the engine of the closed one: the write is finished.
        assert asyncio.run(read_at(file, 100, 7)) == data[7:107]
        del loop
        gc.collect()
        memory.clear()
        assert file.read_at(16 * MIB, offset=16 * MIB) == data
    assert time.monotonic() - started < 10


def test_a_loop_that_moves_to_another_thread(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    data = content(4096)
    loop = asyncio.new_event_loop()
    found: list[object] = []

    def run() -> None:
        try:
            found.append(loop.run_until_complete(read_at(file, 10, 0)))
        except RuntimeError as error:
            found.append(str(error))

    with diopter_io.open(path) as file:
        assert loop.run_until_complete(read_at(file, 10, 0)) == data[:10]
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        loop.close()
    assert found == ["the event loop runs on another thread than the one that its requests use"]
