"""Buffers as tensors of other libraries, and tensors of other libraries as buffers."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import diopter_io
import numpy as np
import pytest
from tensors import Bare, Legacy, Tensor, Versioned, name_of, pointer_of, set_name

MIB = 1 << 20


def is_mapped(address: int) -> bool:
    """Tell whether memory is mapped at an address."""
    with open("/proc/self/maps") as maps:
        ranges = [line.split()[0].split("-") for line in maps]
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)


@pytest.mark.parametrize("length", [0, 1, 4096, 5 * MIB + 1])
def test_numpy_shares_the_memory_of_a_buffer(length: int) -> None:
    memory = diopter_io.Buffer(length)
    array = np.from_dlpack(memory)
    assert (array.dtype, array.shape, array.flags.writeable) == (np.uint8, (length,), True)
    if length:
        array[-1] = 7
        assert bytes(memory)[-1] == 7
        assert array.ctypes.data == np.frombuffer(memory, np.uint8).ctypes.data
    assert memory.__dlpack_device__() == (1, 0)


def test_an_array_keeps_the_buffer_and_frees_it_once(path: pathlib.Path) -> None:
    path.write_bytes(b"\x05" * (64 * MIB))
    memory = diopter_io.Buffer(64 * MIB)
    count = sys.getrefcount(memory)
    arrays = [np.from_dlpack(memory) for _ in range(3)]
    assert sys.getrefcount(memory) == count + 3
    with diopter_io.open(path) as file:
        file.readinto_at(memory, 0)
    kept = arrays.pop()
    del arrays
    assert sys.getrefcount(memory) == count + 1
    address = kept.ctypes.data + 32 * MIB
    del memory
    gc.collect()
    assert is_mapped(address)
    assert (kept == 5).all()
    del kept
    assert not is_mapped(address)


@pytest.mark.parametrize(
    ("max_version", "name"),
    [
        (None, b"dltensor"),
        ((0, 8), b"dltensor"),
        ((1, 0), b"dltensor_versioned"),
        ((2, 5), b"dltensor_versioned"),
    ],
)
def test_a_capsule_that_no_code_takes_frees_the_buffer(
    max_version: tuple[int, int] | None, name: bytes
) -> None:
    memory = diopter_io.Buffer(10_000)
    count = sys.getrefcount(memory)
    capsules = [memory.__dlpack__(max_version=max_version) for _ in range(2)]
    assert sys.getrefcount(memory) == count + 2
    assert name_of(capsules[0]) == name
    form: Any = (Versioned if name.endswith(b"versioned") else Legacy).from_address(
        pointer_of(capsules[0], name)
    )
    tensor = form.tensor
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.ndim) == (1, 8, 1, 1)
    assert (tensor.shape[0], tensor.strides[0], tensor.byte_offset) == (10_000, 1, 0)
    del capsules
    assert sys.getrefcount(memory) == count


@pytest.mark.parametrize("max_version", [None, (1, 1)])
def test_a_consumer_frees_the_tensor_without_the_gil(max_version: tuple[int, int] | None) -> None:
    memory = diopter_io.Buffer(10_000)
    count = sys.getrefcount(memory)
    capsule = memory.__dlpack__(max_version=max_version)
    name = name_of(capsule)
    pointer = pointer_of(capsule, name)
    set_name(capsule, b"used_" + name)
    del capsule
    assert sys.getrefcount(memory) == count + 1, "it is the consumer's"
    form: Any = (Versioned if max_version else Legacy).from_address(pointer)
    # A call through ctypes has no GIL.
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.cast(form.deleter, ctypes.c_void_p).value)
    thread = threading.Thread(target=free, args=(pointer,))
    thread.start()
    thread.join()
    assert sys.getrefcount(memory) == count


def test_a_copy_of_a_buffer_and_what_is_refused() -> None:
    memory = diopter_io.Buffer(5000)
    memoryview(memory)[:3] = b"abc"
    capsule = memory.__dlpack__(max_version=(1, 0), copy=True)
    assert Versioned.from_address(pointer_of(capsule, b"dltensor_versioned")).flags == 2
    copied = np.from_dlpack(memory, copy=True)
    copied[0] = 0
    assert bytes(copied[:3]) == b"\0bc"
    assert bytes(memory)[:3] == b"abc"
    shared = np.from_dlpack(memory, copy=False, device="cpu")
    assert shared.ctypes.data == np.frombuffer(memory, np.uint8).ctypes.data
    bad: list[dict[str, Any]] = [{"stream": 1}, {"stream": -1}, {"dl_device": (2, 0)}]
    for options in [*bad, {"dl_device": (1, 1)}]:
        count = sys.getrefcount(memory)
        with pytest.raises(BufferError):
            memory.__dlpack__(**options)
        assert sys.getrefcount(memory) == count


@pytest.mark.parametrize(
    "make",
    [
        lambda n: Bare(np.zeros(n, np.uint8)),
        lambda n: Bare(np.zeros((n // 8, 2), np.float32)),
        lambda n: Bare(np.zeros((1, n // 16, 2), np.complex64)),
        lambda n: Bare(np.zeros(n + 100, np.uint8)[100:]),
        lambda n: Tensor(bytearray(n)),
        lambda n: Tensor(bytearray(n), version=None),
        lambda n: Tensor(bytearray(n), (n // 8, 4), bits=16),
        lambda n: Tensor(bytearray(n), (1, n // 2, 1), (77, 1, -5), bits=16),
        lambda n: Tensor(bytearray(n + 33), (n,), byte_offset=33),
        lambda n: Tensor(bytearray(n), device=3),
    ],
)
def test_every_call_takes_tensors(
    path: pathlib.Path, content: Callable[[int], bytes], make: Callable[[int], Any]
) -> None:
    data = content(40_000)
    other = path.with_name("other")

    def bytes_of(tensor: Any) -> bytes:
        if isinstance(tensor, Bare):
            return bytes(tensor.array.tobytes())
        return bytes(tensor.memory[tensor.byte_offset :])

    made = [make(40_000) for _ in range(7)]
    with diopter_io.open(path) as file:
        assert file.readinto_at(made[0], 0) == 40_000
        assert file.readv([made[1]], 0) == 40_000
        assert file.readinto_ranges([(0, made[2])]) == [40_000]
        assert file.reader().readinto(made[3]) == 40_000

        async def reads() -> None:
            assert await file.readinto_at_async(made[4], 0) == 40_000

        asyncio.run(reads())
    with diopter_io.open(other, "w+") as file:
        assert file.write_at(made[0], 0) == 40_000
        file.write_ranges([(40_000, made[1])])
        with file.writer(80_000) as writer:
            assert writer.write(made[2]) == 40_000

        async def writes() -> None:
            assert await file.write_at_async(made[3], 120_000) == 40_000

        asyncio.run(writes())
    for tensor in made[:5]:
        assert bytes_of(tensor) == data
        if isinstance(tensor, Tensor):
            assert tensor.exported == tensor.deleted
            assert name_of(tensor.capsule).startswith(b"used_dltensor"), "it is freed once"
            tensor.memory.clear()
    assert made[5].array.size if isinstance(made[5], Bare) else not made[5].exported
    assert other.read_bytes() == data * 4


def test_empty_tensors(path: pathlib.Path) -> None:
    tensors = [
        Tensor(bytearray(1), (0,)),
        Tensor(bytearray(1), (3, 0), (9, 9)),
        Bare(np.zeros((0, 7), np.float32)),
    ]
    with diopter_io.open(path, "w+") as file:
        for tensor in tensors:
            assert file.write_at(tensor, 0) == 0
            assert file.readinto_at(tensor, 0) == 0
        scalar = Tensor(bytearray(b"12345678"), (), bits=64)
        assert file.write_at(scalar, 0) == 8


class Refuses:
    """As a tensor of torch that needs a gradient."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **options: Any) -> object:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")


class OnDevice(Refuses):
    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


class NoCapsule(Refuses):
    def __dlpack__(self, **options: Any) -> object:
        return 5


class Twice(Refuses):
    """Returns a capsule that was taken already."""

    def __init__(self) -> None:
        self.array = np.zeros(4)
        self.capsule = self.array.__dlpack__()
        set_name(self.capsule, b"used_dltensor")

    def __dlpack__(self, **options: Any) -> object:
        return self.capsule


def test_tensors_that_are_refused(path: pathlib.Path, content: Callable[[int], bytes]) -> None:
    data = content(100)

    def tensor(*arguments: Any, **options: Any) -> Tensor:
        return Tensor(bytearray(64), *arguments, **options)

    cases: list[tuple[Any, type[Exception], str]] = [
        (OnDevice(), BufferError, "on a device of kind 2: copy it to the CPU"),
        (tensor(device=2), BufferError, "on a device of kind 2"),
        (Refuses(), BufferError, "require gradient"),
        (NoCapsule(), TypeError, "did not return a tensor of DLPack"),
        (Twice(), TypeError, "did not return a tensor of DLPack"),
        (tensor((4, 4), (1, 4)), BufferError, "not contiguous"),
        (tensor((4, 4), (8, 1)), BufferError, "not contiguous"),
        (tensor((4, 4), (0, 1)), BufferError, "not contiguous"),
        (tensor((4,), (-1,)), BufferError, "not contiguous"),
        (tensor((-4,)), BufferError, "no valid shape"),
        (tensor((1 << 40, 1 << 40)), BufferError, "larger than memory"),
        (tensor((1 << 61,), bits=64), BufferError, "larger than memory"),
        (tensor(bits=4), BufferError, "not whole bytes"),
        (tensor(version=(2, 0)), BufferError, "version of DLPack other than 1"),
        (Bare(np.zeros((4, 4), order="F")), BufferError, "not contiguous"),
    ]
    read_only = np.zeros(64, np.uint8)
    read_only.flags.writeable = False
    only_for_writes: list[tuple[Any, type[Exception], str]] = [
        (tensor(flags=1), BufferError, "read-only"),
        (tensor(flags=2), BufferError, "copied for this call"),
        (Bare(read_only), BufferError, "read-only"),
    ]
    with diopter_io.open(path, "r+") as file:
        for made, kind, why in cases + only_for_writes:
            with pytest.raises(kind, match=why):
                file.readinto_at(made, 0)
        for made, kind, why in cases:
            with pytest.raises(kind, match=why):
                file.write_at(made, 0)
        assert path.read_bytes() == data
        for made, _kind, _why in only_for_writes:
            assert file.write_at(made, 0) == 64
        for made, _kind, _why in cases + only_for_writes:
            if isinstance(made, Tensor):
                assert made.exported == made.deleted > 0


def test_a_tensor_stays_until_its_cancelled_read_has_completed(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    content(16 * MIB)
    tensor = Tensor(bytearray(16 * MIB))

    async def run() -> None:
        with diopter_io.open(path, route="direct") as file:
            engine = diopter_io._asyncio._driver(asyncio.get_running_loop()).engine
            for _ in range(100):
                task = asyncio.create_task(file.readinto_at_async(tensor, 0))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                task.cancel()
                is_under_way = engine.in_flight > 0
                assert not is_under_way or tensor.deleted < tensor.exported
                with pytest.raises(asyncio.CancelledError):
                    await task
                if is_under_way:
                    break
            deadline = time.monotonic() + 5
            while tensor.deleted < tensor.exported and time.monotonic() < deadline:
                await asyncio.sleep(0.001)

    asyncio.run(run())
    assert tensor.deleted == tensor.exported > 0
    tensor.memory.clear()


def test_a_cancelled_write_of_a_tensor_is_reported(path: pathlib.Path) -> None:
    async def run() -> None:
        with diopter_io.open(path, "w+") as file, diopter_io.open(path) as unwritable:
            for opened, number in [(file, 0), (unwritable, errno.EBADF)]:
                tensor = Tensor(bytearray(b"12345"))
                task = asyncio.create_task(opened.write_at_async(tensor, 3))
                await asyncio.sleep(0)
                engine = diopter_io._asyncio._driver(asyncio.get_running_loop()).engine
                while engine.in_flight:
                    engine.turn()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                writes, _ = opened.take_abandoned()
                assert [(one.offset, one.length, one.errno) for one in writes] == [(3, 5, number)]
                assert tensor.deleted == tensor.exported == 1
        assert path.read_bytes() == bytes(3) + b"12345"

    asyncio.run(run())


def test_a_loop_that_is_closed_frees_its_tensors(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    data = content(4 * MIB)
    tensors = [Tensor(bytearray(4 * MIB)) for _ in range(2)]
    with diopter_io.open(path, "r+") as file:
        loop = asyncio.new_event_loop()

        async def start() -> list[asyncio.Task[int]]:
            calls = [file.readinto_at_async(tensors[0], 0), file.write_at_async(tensors[1], 0)]
            tasks = [asyncio.ensure_future(call) for call in calls]
            await asyncio.sleep(0)
            return tasks

        for task in loop.run_until_complete(start()):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        del task
        loop.close()

        async def another() -> None:
            assert len(await file.read_at_async(100, offset=4 * MIB - 100)) == 100

        asyncio.run(another())
        del loop
        gc.collect()
        file.size  # noqa: B018  a call lets go what another thread has dropped
        assert all(tensor.deleted == tensor.exported for tensor in tensors)
        assert file.size == len(data)


def test_torch_reads_into_its_tensors(path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    path.write_bytes(os.urandom(8192))
    tensor = torch.zeros(1024, 2, dtype=torch.float32)
    with diopter_io.open(path, "r+") as file:
        assert file.readinto_at(tensor, 0) == 8192
        assert tensor.numpy().tobytes() == path.read_bytes()
        assert file.write_at(tensor.to(torch.bfloat16), 0) == 4096
        with pytest.raises(BufferError):
            file.readinto_at(tensor.requires_grad_(), 0)
        with pytest.raises(BufferError):
            file.readinto_at(torch.zeros(8, 8).T, 0)
    memory = diopter_io.Buffer(4096)
    shared = torch.from_dlpack(memory)
    shared[5] = 9
    assert bytes(memory)[5] == 9
