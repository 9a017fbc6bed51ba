"""A state machine of hypothesis: every call against a model, which is a `bytearray`.

The lane runs some examples; with DIOPTER_SOAK, 10,000 on each file system. The seed of the lane is
that of the run.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable

import diopter_io
import hypothesis
import pytest
from conftest import LINES, SHM, skip
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

EXAMPLES = 10_000 if os.environ.get("DIOPTER_SOAK") else 60

#: Offsets and lengths around blocks and pages, and others.
SIZES = st.one_of(
    st.integers(0, 20_000),
    st.builds(
        lambda block, shift: max(0, block + shift),
        st.sampled_from([512, 4096, 8192, 65_536, 131_072]),
        st.integers(-2, 2),
    ),
)


def pattern(length: int, seed: int) -> bytes:
    """Bytes that differ from their neighbours and from those of other seeds."""
    block = bytes((seed * 131 + i * 7 + (i >> 8)) % 255 + 1 for i in range(min(length, 1021)))
    return (block * (length // max(len(block), 1) + 1))[:length]


class Machine(RuleBasedStateMachine):
    """One file, open several times over, and what it should hold."""

    base: pathlib.Path | None = None

    def __init__(self) -> None:
        super().__init__()
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="diopter-model-", dir=self.base))
        self.path = self.directory / "data"
        self.model = bytearray()
        self.file = diopter_io.open(self.path, "w+")
        self.loop = asyncio.new_event_loop()
        self.reader: diopter_io.Reader | None = None
        self.writer: diopter_io.Writer | None = None

    def teardown(self) -> None:
        if self.reader:
            self.reader.close()
        if self.writer:
            self.settle()
        assert self.path.read_bytes() == self.model
        self.file.close()
        self.loop.close()
        shutil.rmtree(self.directory)

    def put(self, data: bytes, at: int) -> None:
        if data:
            self.model.extend(bytes(max(0, at - len(self.model))))
            self.model[at : at + len(data)] = data

    def settle(self) -> None:
        """Close the writer: what it collected is in the model since its `write`."""
        if self.writer:
            self.writer.close()
            self.writer = None

    def seen(self) -> None:
        """Make what a writer holds back visible to other calls."""
        if self.writer:
            self.writer.flush()

    @initialize(length=SIZES)
    def fill(self, length: int) -> None:
        data = pattern(length, 3)
        self.file.write_at(data, 0)
        self.put(data, 0)

    @rule(at=SIZES, length=SIZES, seed=st.integers(0, 99))
    def write_at(self, at: int, length: int, seed: int) -> None:
        self.seen()
        data = pattern(length, seed)
        assert self.file.write_at(data, at) == length
        self.put(data, at)

    @rule(at=SIZES, length=SIZES)
    def read_at(self, at: int, length: int) -> None:
        self.seen()
        assert self.file.read_at(length, offset=at) == self.model[at : at + length]

    @rule(at=SIZES, length=SIZES, shift=st.integers(0, 600))
    def readinto_at(self, at: int, length: int, shift: int) -> None:
        self.seen()
        memory = memoryview(bytearray(b"\xff" * (shift + length + 600)))
        count = self.file.readinto_at(memory[shift : shift + length], at)
        expected = self.model[at : at + length]
        assert memory[shift : shift + count] == expected
        # A device may have filled the rest of the buffer, and nothing outside of it.
        assert memory[:shift] == b"\xff" * shift
        assert memory[shift + length :] == b"\xff" * 600

    @rule(at=SIZES, lengths=st.lists(SIZES, max_size=5))
    def readv(self, at: int, lengths: list[int]) -> None:
        self.seen()
        parts = [bytearray(length) for length in lengths]
        count = self.file.readv(parts, at)
        assert b"".join(parts)[:count] == self.model[at : at + sum(lengths)]

    @rule(ranges=st.lists(st.tuples(SIZES, SIZES), max_size=8))
    def read_ranges(self, ranges: list[tuple[int, int]]) -> None:
        self.seen()
        found = self.file.read_ranges(ranges)
        assert found == [self.model[at : at + length] for at, length in ranges]

    @rule(at=SIZES, lengths=st.lists(SIZES, max_size=5), seed=st.integers(0, 99))
    def writev(self, at: int, lengths: list[int], seed: int) -> None:
        self.seen()
        parts = [pattern(length, seed + i) for i, length in enumerate(lengths)]
        assert self.file.writev(parts, at) == sum(lengths)
        self.put(b"".join(parts), at)

    @rule(pieces=st.lists(st.tuples(SIZES, SIZES), max_size=5), seed=st.integers(0, 99))
    def ranges_async(self, pieces: list[tuple[int, int]], seed: int) -> None:
        """Writes that may overlap, then reads of each, on an event loop."""
        self.seen()
        datas = [(at, pattern(length, seed + i)) for i, (at, length) in enumerate(pieces)]

        async def run() -> list[bytes]:
            assert await self.file.write_ranges_async(datas) == sum(len(data) for _, data in datas)
            return await self.file.read_ranges_async(pieces)

        for at, data in datas:
            self.put(data, at)
        found = self.loop.run_until_complete(run())
        assert found == [self.model[at : at + length] for at, length in pieces]

    @rule(length=SIZES)
    def truncate(self, length: int) -> None:
        self.seen()
        self.file.truncate(length)
        del self.model[length:]
        self.model.extend(bytes(length - len(self.model)))

    @rule(at=SIZES, length=st.integers(1, 100_000))
    def allocate(self, at: int, length: int) -> None:
        self.file.allocate(offset=at, length=length)

    @rule(data_only=st.booleans())
    def fsync(self, data_only: bool) -> None:
        self.file.fsync(data_only=data_only)

    @rule()
    def reopen(self) -> None:
        self.settle()
        if self.reader:
            self.reader.close()
            self.reader = None
        self.file.close()
        self.file = diopter_io.open(self.path, "r+")
        assert self.file.size == len(self.model)

    @rule(at=SIZES, length=SIZES)
    def append(self, at: int, length: int) -> None:
        self.seen()
        data = pattern(length, 77)
        with diopter_io.open(self.path, "a") as file:
            assert file.write_at(data, at) == length
        self.put(data, len(self.model))

    @rule(at=SIZES)
    def start_reader(self, at: int) -> None:
        if self.reader:
            self.reader.close()
        self.reader = self.file.reader(at)

    @precondition(lambda self: self.reader is not None)
    @rule(length=SIZES, is_fresh=st.booleans())
    def read_on(self, length: int, is_fresh: bool) -> None:
        assert self.reader is not None
        self.seen()
        # Bytes that were read ahead may be older than a write: a seek forgets them.
        at = self.reader.seek(0, os.SEEK_CUR)
        found = self.reader.read(length)
        assert found == self.model[at : at + length]
        if is_fresh:
            assert self.reader.read(length) == self.model[at + len(found) :][:length]

    @rule(at=SIZES)
    def start_writer(self, at: int) -> None:
        self.settle()
        self.writer = self.file.writer(at)

    @precondition(lambda self: self.writer is not None)
    @rule(length=SIZES, seed=st.integers(0, 99))
    def write_on(self, length: int, seed: int) -> None:
        assert self.writer is not None
        data = pattern(length, seed)
        at = self.writer.tell()
        assert self.writer.write(data) == length
        self.put(data, at)

    @rule(at=SIZES, lengths=st.lists(st.integers(1, 9000), min_size=1, max_size=8))
    def tasks(self, at: int, lengths: list[int]) -> None:
        """Writes side by side, then reads of each, on an event loop."""
        self.seen()
        places = [at + sum(lengths[:i]) for i in range(len(lengths))]
        datas = [pattern(length, i) for i, length in enumerate(lengths)]

        async def run() -> None:
            pairs = list(zip(datas, places, strict=True))
            counts = await asyncio.gather(*(self.file.write_at_async(*pair) for pair in pairs))
            assert counts == lengths
            await self.file.fsync_async()
            found = await asyncio.gather(
                *(self.file.read_at_async(len(data), offset=place) for data, place in pairs)
            )
            assert found == datas

        self.loop.run_until_complete(run())
        for data, place in zip(datas, places, strict=True):
            self.put(data, place)

    @rule(at=SIZES, length=SIZES)
    def cancelled_read(self, at: int, length: int) -> None:
        self.seen()

        async def run() -> bytes:
            task = asyncio.create_task(self.file.read_at_async(length, offset=at))
            await asyncio.sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
            return await self.file.read_at_async(length, offset=at)

        assert self.loop.run_until_complete(run()) == self.model[at : at + length]


@pytest.mark.parametrize("where", ["disk", "tmpfs"])
def test_every_call_against_a_bytearray(where: str) -> None:
    base: pathlib.Path | None = None
    if where == "tmpfs":
        if not SHM.is_mount():
            skip("tmpfs", f"{SHM} is not a mount")
        base = SHM
    elif os.environ.get("DIOPTER_MODEL_DIR"):
        base = pathlib.Path(os.environ["DIOPTER_MODEL_DIR"])
    machine = type("Machine", (Machine,), {"base": base})
    seed: Callable[..., object] = hypothesis.seed(int(os.environ.get("DIOPTER_SEED", "1")))
    settings = hypothesis.settings(
        max_examples=EXAMPLES,
        stateful_step_count=30,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    run_state_machine_as_test(seed(machine), settings=settings)
    LINES.append(f"TRIED python-{where}: {EXAMPLES} examples")
