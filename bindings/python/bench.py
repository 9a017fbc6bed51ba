"""Loading of a safetensors file: diopter_io, the reference implementation with each of its backends,
and fio, in interleaved rounds. Run as a program.

    python bench.py DIRECTORY [--gib 2] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

GIB = 1 << 30

#: The largest resident memory of the process. `ru_maxrss` has that of the parent at its fork, too.
PEAK = """
import re
def peak():
    status = open("/proc/self/status").read()
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024
"""

LOAD = PEAK + """
import hashlib, json, sys, time
side, path, wants_hash = sys.argv[1], sys.argv[2], sys.argv[3] == "hash"
if side == "diopter":
    from diopter_io import load_safetensors as load
else:
    from functools import partial
    from safetensors.numpy import load_file
    load = partial(load_file, backend=side)
import numpy
started = time.perf_counter()
arrays = load(path)
seconds = time.perf_counter() - started
most = peak()
digest = ""
if wants_hash:
    one = hashlib.blake2b()
    for name in sorted(arrays):
        one.update(name.encode() + str(arrays[name].shape).encode())
        one.update(arrays[name].reshape(-1).view("u1").data)
    digest = one.hexdigest()
print(json.dumps({"seconds": seconds, "peak": most, "digest": digest}))
"""


def load(side: str, path: pathlib.Path, wants_hash: bool = False) -> dict[str, float]:
    arguments = [side, str(path), "hash" if wants_hash else ""]
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *arguments], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def fio(path: pathlib.Path) -> float:
    """Return the seconds of fio for the whole file."""
    command = ["fio", "--name=load", f"--filename={path}", "--rw=read", "--direct=1", "--bs=1M"]
    command += ["--iodepth=32", "--ioengine=libaio", "--readonly", "--output-format=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    job = json.loads(done.stdout)["jobs"][0]["read"]
    return float(path.stat().st_size / job["bw_bytes"])


def make_cold(path: pathlib.Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def make_warm(path: pathlib.Path) -> None:
    with path.open("rb") as file:
        while file.read(8 << 20):
            pass


def rotated(sides: dict[str, list[float]], by: int) -> list[str]:
    """Return the sides in an order that differs from round to round."""
    names = list(sides)
    by %= len(names)
    return names[by:] + names[:by]


def bare() -> int:
    """Return the peak memory of an interpreter that does nothing."""
    code = PEAK + "print(peak())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


def write(path: pathlib.Path, gib: float) -> None:
    import diopter_io
    import numpy as np

    count = max(1, int(gib * 32))
    random = np.random.default_rng(1)
    arrays = {
        f"layer.{i}": random.integers(0, 255, (4096, int(gib * GIB) // count // 4096), np.uint8)
        for i in range(count)
    }
    diopter_io.save_safetensors(arrays, path)


def main() -> int:
    parser = argparse.ArgumentParser(description="Loading of a safetensors file, next to others.")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    sides = ["diopter", "mmap", "pread"]
    with tempfile.TemporaryDirectory(prefix="diopter-bench-", dir=options.directory) as name:
        path = pathlib.Path(name, "model.safetensors")
        write(path, options.gib)
        size = path.stat().st_size
        digests = {side: load(side, path, wants_hash=True)["digest"] for side in sides}
        assert len(set(digests.values())) == 1, "the bytes differ"
        cold: dict[str, list[float]] = {side: [] for side in [*sides, "fio"]}
        warm: dict[str, list[float]] = {side: [] for side in sides}
        peaks: list[float] = []
        for number in range(options.rounds):
            for side in rotated(cold, number):
                make_cold(path)
                if side == "fio":
                    cold[side].append(fio(path))
                    continue
                found = load(side, path)
                cold[side].append(found["seconds"])
                if side == "diopter":
                    peaks.append(found["peak"])
        for number in range(options.rounds):
            for side in rotated(warm, number):
                make_warm(path)
                warm[side].append(load(side, path)["seconds"])
    for kind, sides_of in (("cold", cold), ("warm", warm)):
        for side, seconds in sides_of.items():
            median = statistics.median(seconds)
            every = " ".join(f"{one:.2f}" for one in seconds)
            print(f"{kind} {side:<12} {median:6.2f} s {size / median / GIB:6.2f} GiB/s   {every}")
    for kind, sides_of in (("cold", cold), ("warm", warm)):
        ours = statistics.median(sides_of["diopter"])
        for side in list(sides_of)[1:]:
            ratio = statistics.median(sides_of[side]) / ours
            print(f"{kind}, of the throughput of {side:<6} {ratio:.2f}")
    print(f"load of the machine {os.getloadavg()[1]:.0f} on {os.cpu_count()} processors")
    print(f"peak memory beyond an interpreter, of the file   {(max(peaks) - bare()) / size:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
