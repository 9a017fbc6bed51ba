"""Transfers of each kind under valgrind. Run as a program, it starts itself under valgrind.

Valgrind does not know the mapping of an io_uring, so the backends are the other two. CPython runs
with malloc, and its own reads of uninitialised memory are not counted: an error counts if a frame
of it is in the extension.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile


def transfers(directory: pathlib.Path, backend: str) -> None:
    import diopter_io
    import numpy as np
    from diopter_io import _native
    from tensors import Bare

    _native.use_backend(backend)
    data = os.urandom(300_007)
    with diopter_io.open(directory / "data", "w+") as file:
        assert file.write_at(data, 13) == len(data)
        memory = bytearray(len(data) + 5)
        assert file.readinto_at(memory, 13) == len(data)
        assert memory[:-5] == data
        assert file.read_at(1 << 20, offset=13) == data
        assert file.readv([bytearray(5000), bytearray(70_000)], 100) == 75_000
        found = file.read_ranges([(13 + i * 1000, 999) for i in range(50)])
        assert found == [data[i * 1000 : i * 1000 + 999] for i in range(50)]
        file.write_at(bytes(3 << 20), 1 << 20)
        assert file.read_at(3 << 20, offset=1 << 20) == bytes(3 << 20)
        with file.reader(13) as reader:
            assert reader.read(len(data)) == data
        with file.writer(7) as writer:
            writer.write(data)
        tensors = [np.from_dlpack(diopter_io.Buffer(5000)) for _ in range(3)]
        tensors[0].__dlpack__()
        diopter_io.Buffer(7).__dlpack__(max_version=(1, 0), copy=True)
        assert file.readinto_at(Bare(tensors[0]), 7) == 5000
        assert file.write_at(Bare(tensors[0]), 7) == 5000
        assert file.readinto_ranges([(7, Bare(tensor)) for tensor in tensors]) == [5000] * 3
        assert (tensors[2] == np.frombuffer(data[:5000], np.uint8)).all()
        try:
            file.readinto_at(memory, -1)
        except ValueError:
            pass

        async def tasks() -> None:
            await asyncio.gather(*(file.write_at_async(data[:5001], i * 7001) for i in range(40)))
            task = asyncio.create_task(file.readinto_at_async(memory, 3))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            reads = (file.read_at_async(5001, offset=i * 7001) for i in range(40))
            assert await asyncio.gather(*reads) == [data[:5001]] * 40
            pieces = [(i * 7001, data[:5001]) for i in range(40)]
            assert await file.write_ranges_async(pieces) == 40 * 5001
            task = asyncio.create_task(file.readinto_ranges_async([(3, memory)]))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            ranges = [(at, len(piece)) for at, piece in pieces]
            assert await file.read_ranges_async(ranges) == [data[:5001]] * 40
            await file.fsync_async()

        asyncio.run(tasks())
    arrays = {"a": np.arange(10_000, dtype=np.float32), "b": np.arange(7, dtype=np.uint8)}
    diopter_io.save_safetensors(arrays, directory / "tensors")
    loaded = diopter_io.load_safetensors(directory / "tensors")
    del arrays["b"]
    kept = loaded.pop("a")
    del loaded
    assert (kept == arrays["a"]).all()
    diopter_io.copy(directory / "data", directory / "copied", verify=True)


def errors_of(log: str) -> list[str]:
    """Return the reports with a frame in the extension."""
    reports = re.split(r"\n==\d+== \n", log)
    return [report for report in reports if re.search(r"(at|by) 0x.*_native\.abi3\.so", report)]


def main() -> int:
    if len(sys.argv) > 1:
        transfers(pathlib.Path(sys.argv[1]), sys.argv[2])
        return 0
    if shutil.which("valgrind") is None:
        print("SKIP valgrind: it is not installed")
        return 0
    status = 0
    for backend in ("aio", "threads"):
        with tempfile.TemporaryDirectory(prefix="diopter-valgrind-") as name:
            log = pathlib.Path(name, "log")
            command = ["valgrind", "--leak-check=no", "--undef-value-errors=no"]
            command += [f"--log-file={log}", "--num-callers=20"]
            command += [sys.executable, __file__, name, backend]
            environment = os.environ | {"PYTHONMALLOC": "malloc"}
            done = subprocess.run(command, env=environment, check=False, timeout=280)
            found = errors_of(log.read_text())
            print(f"valgrind, {backend}: exit status {done.returncode}, {len(found)} errors")
            print("\n\n".join(found[:5]))
            status |= int(done.returncode != 0 or bool(found))
    return status


if __name__ == "__main__":
    sys.exit(main())
