"""A disk that is full."""

from __future__ import annotations

import asyncio
import errno
import os
import pathlib
import subprocess
import time
from collections.abc import Iterator

import diopter_io
import numpy as np
import pytest
from conftest import skip

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A tmpfs of 8 MiB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8M", "tmpfs", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        skip("mount", mounted.stderr.strip())
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_disk_that_is_full(small_disk: pathlib.Path) -> None:
    with diopter_io.open(small_disk / "data", "w+") as file:
        with pytest.raises(OSError) as raised:
            file.write_at(bytes(16 * MIB), 4096)
        assert raised.value.errno == errno.ENOSPC
        found = diopter_io.outcome(raised.value)
        assert found is not None
        ranges = sorted(found.done + found.failed + found.not_tried + found.unknown)
        assert ranges[0][0] == 4096
        assert ranges[-1][1] == 16 * MIB + 4096
        assert all(before[1] == after[0] for before, after in zip(ranges, ranges[1:]))


def test_a_disk_that_becomes_full_ends_a_stream(small_disk: pathlib.Path) -> None:
    data = os.urandom(300_001)
    with diopter_io.open(small_disk / "data", "w+") as file:
        writer = file.writer(5)
        with pytest.raises(OSError) as raised:
            for _ in range(100):
                writer.write(data)
            writer.flush()
        assert raised.value.errno == errno.ENOSPC
        assert raised.value.filename == file.name
        found = diopter_io.outcome(raised.value)
        assert found is not None
        assert found.failed
        ranges = sorted(found.done + found.failed + found.not_tried + found.unknown)
        assert (ranges[0][0], ranges[-1][1]) == (5, writer.tell())
        assert all(before[1] == after[0] for before, after in zip(ranges, ranges[1:]))
        for start, end in found.done:
            first = data[(start - 5) % len(data) :][:1000]
            assert file.read_at(min(end - start, len(first)), offset=start) == first
        # It is raised once, and nothing more is written, also where there is room.
        file.truncate(0)
        for call in [lambda: writer.write(b"x"), writer.flush]:
            with pytest.raises(OSError) as raised:
                call()
            assert raised.value.errno == errno.ECANCELED
        writer.close()
        assert writer.closed
        assert file.size == 0
        with pytest.raises(OSError) as raised, file.writer() as writer:
            writer.write(bytes(16 * MIB))
        assert raised.value.errno == errno.ENOSPC
        assert writer.closed


def test_a_full_disk_leaves_no_part_of_a_safetensors_file(small_disk: pathlib.Path) -> None:
    with pytest.raises(OSError) as raised:
        diopter_io.save_safetensors({"a": np.zeros(16 * MIB, np.uint8)}, small_disk / "data")
    assert raised.value.errno == errno.ENOSPC
    assert os.listdir(small_disk) == []


@pytest.mark.parametrize("of_ranges", [False, True])
def test_a_cancelled_write_that_fails_makes_every_flush_fail(
    small_disk: pathlib.Path, of_ranges: bool
) -> None:
    async def main() -> None:
        with diopter_io.open(small_disk / "data", "w+") as file:
            data = bytes(16 * MIB)
            call = file.write_ranges_async([(0, data)]) if of_ranges else None
            task = asyncio.create_task(call or file.write_at_async(data, 0))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            # Until it has begun. The loop does not run meanwhile.
            deadline = time.monotonic() + 10
            while os.statvfs(small_disk).f_bfree > 0 and time.monotonic() < deadline:
                pass
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            for _ in range(2):
                with pytest.raises(OSError) as raised:
                    await file.fsync_async()
                assert raised.value.errno == errno.ENOSPC
                with pytest.raises(OSError) as raised:
                    file.fsync()
                assert raised.value.errno == errno.ENOSPC
            writes, lost = file.take_abandoned()
            assert [one.errno for one in writes] == [errno.ENOSPC]
            assert lost == 0

    asyncio.run(main())
