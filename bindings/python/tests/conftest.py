"""Where the tests write: a directory on the file system of the temporary files, and one on tmpfs."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator

import pytest

SHM = pathlib.Path("/dev/shm")


#: Lines for the summary of the lane: skips and campaigns.
LINES: list[str] = []


def skip(capability: str, why: str) -> None:
    """Skip a test for a capability of `crates/diopter-skip`, so that the lane counts it."""
    LINES.append(f"SKIP {capability}: {why}")
    pytest.skip(f"{capability}: {why}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in LINES:
        terminalreporter.write_line(line)


@pytest.fixture(params=["disk", "tmpfs"])
def directory(request: pytest.FixtureRequest) -> Iterator[pathlib.Path]:
    """An empty directory, on a disk and on tmpfs."""
    base = None if request.param == "disk" else SHM
    if base is not None and not os.path.ismount(base):
        skip("tmpfs", f"{base} is not a mount")
    path = pathlib.Path(tempfile.mkdtemp(prefix="diopter-python-", dir=base))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def path(directory: pathlib.Path) -> pathlib.Path:
    """The path of a file that does not exist."""
    return directory / "data"


@pytest.fixture
def content(path: pathlib.Path) -> Callable[[int], bytes]:
    """Write a file of so many bytes that differ, and return them."""

    def write(length: int) -> bytes:
        made = os.urandom(length)
        path.write_bytes(made)
        return made

    return write
