"""The file system of fsspec: its own abstract tests, and what is ours."""

from __future__ import annotations

import concurrent.futures
import gc
import os
import pathlib
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import diopter_io.fsspec
import fsspec
import fsspec.tests.abstract as abstract
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem, make_path_posix


class DioFixtures(abstract.AbstractFixtures):  # type: ignore[misc]
    @pytest.fixture(scope="class")
    def fs(self) -> Any:
        return diopter_io.fsspec.DioFileSystem(auto_mkdir=True)

    @pytest.fixture
    def fs_path(self, tmpdir: Any) -> str:
        return str(tmpdir)

    @pytest.fixture
    def fs_sanitize_path(self) -> Callable[[str], str]:
        return make_path_posix  # type: ignore[no-any-return]


class TestDioCopy(abstract.AbstractCopyTests, DioFixtures):  # type: ignore[misc]
    pass


class TestDioGet(abstract.AbstractGetTests, DioFixtures):  # type: ignore[misc]
    pass


class TestDioPut(abstract.AbstractPutTests, DioFixtures):  # type: ignore[misc]
    pass


class TestDioOpen(abstract.AbstractOpenTests, DioFixtures):  # type: ignore[misc]
    pass


class TestDioPipe(abstract.AbstractPipeTests, DioFixtures):  # type: ignore[misc]
    pass


@pytest.fixture
def url(path: pathlib.Path) -> str:
    return f"dio://{path}"


def test_the_protocol_is_registered(url: str) -> None:
    assert fsspec.get_filesystem_class("dio") is diopter_io.fsspec.DioFileSystem
    with fsspec.open(url, "wb") as file:
        file.write(b"bytes")
    with fsspec.open(url) as file:
        assert isinstance(file, diopter_io.Reader)
        assert file.read() == b"bytes"
    fs, path = fsspec.url_to_fs(url)
    assert fs.unstrip_protocol(path) == url
    assert fs.info(path)["size"] == 5


def test_modes_and_text(url: str) -> None:
    with fsspec.open(url, "w") as file:
        file.write("line 1\nline 2\n")
    with fsspec.open(url, "a") as file:
        file.write("line 3\n")
    with fsspec.open(url, "r") as file:
        assert list(file) == ["line 1\n", "line 2\n", "line 3\n"]
    fs = fsspec.filesystem("dio")
    with fs.open(url, "r+b") as file:
        file.seek(5)
        file.write(b"X")
    assert fs.cat_file(url)[:8] == b"line X\nl"
    with pytest.raises(FileExistsError):
        fs.pipe_file(url, b"", mode="create")
    with pytest.raises(FileNotFoundError):
        fs.open(url + ".missing")


def test_compression(path: pathlib.Path, url: str) -> None:
    data = os.urandom(100_000) * 3
    with fsspec.open(url + ".gz", "wb", compression="infer") as file:
        file.write(data)
    assert pathlib.Path(f"{path}.gz").read_bytes()[:2] == b"\x1f\x8b"
    with fsspec.open(url + ".gz", "rb", compression="infer") as file:
        assert file.read() == data


def test_ranges(path: pathlib.Path, url: str, content: Callable[[int], bytes]) -> None:
    data = content(100_000)
    other = path.with_name("other")
    other.write_bytes(b"0123456789")
    fs = fsspec.filesystem("dio")
    for start, end in [(None, None), (5, 10), (-10, None), (None, -10), (10, 5), (99_990, 1 << 40)]:
        assert fs.cat_file(url, start, end) == data[start:end]
    found = fs.cat_ranges([url, other, url], [7, -3, 0], [5000, None, 1])
    assert found == [data[7:5000], b"789", data[:1]]
    assert fs.cat_ranges([url, url], 1, 3) == [data[1:3]] * 2
    found = fs.cat_ranges([url, str(path) + ".missing"], 0, 4)
    assert found[0] == data[:4]
    assert isinstance(found[1], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([url, str(path) + ".missing"], 0, 4, on_error="raise")
    with pytest.raises(ValueError, match="different lengths"):
        fs.cat_ranges([url], [0, 1], 4)


def test_transactions(path: pathlib.Path, url: str) -> None:
    fs = fsspec.filesystem("dio")
    with fs.transaction, fs.open(url, "wb") as file:
        file.write(b"bytes")
        assert not path.exists()
    assert path.read_bytes() == b"bytes"


def test_numpy_reads_and_writes_streams(url: str) -> None:
    array = np.arange(1 << 20).reshape(1024, 1024)
    with fsspec.open(url, "wb") as file:
        np.save(file, array)
    with fsspec.open(url, "rb") as file:
        assert (np.load(file) == array).all()


@pytest.fixture
def tmpdir() -> Iterator[str]:
    """A directory on the disk."""
    with tempfile.TemporaryDirectory(prefix="diopter-python-") as path:
        yield path


def test_the_rest_is_the_local_file_system(tmpdir: str) -> None:
    fs = fsspec.filesystem("dio")
    assert isinstance(fs, LocalFileSystem)
    fs.makedirs(f"dio://{tmpdir}/a/b")
    fs.touch(f"{tmpdir}/a/b/c")
    assert fs.find(f"dio://{tmpdir}") == [f"{tmpdir}/a/b/c"]
    fs.rm(f"{tmpdir}/a", recursive=True)
    assert fs.ls(tmpdir) == []


# The block cache of fsspec leaves its own file to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("cache", ["blockcache", "filecache", "simplecache"])
def test_caches_of_fsspec(path: pathlib.Path, content: Callable[[int], bytes], cache: str) -> None:
    data = content(100_000)
    with tempfile.TemporaryDirectory() as storage:
        url = f"{cache}::dio://{path}"
        with fsspec.open(url, **{cache: {"cache_storage": storage}}) as file:
            file.seek(1000)
            assert file.read(50_000) == data[1000:51_000]
        assert file.closed
        del file
        gc.collect()


def test_a_copy_over_a_file_keeps_its_owner_permissions_and_names(
    directory: pathlib.Path, content: Callable[[int], bytes], path: pathlib.Path
) -> None:
    fs, data = fsspec.filesystem("dio"), content(3_000_000)
    target, other = directory / "target", directory / "other"
    for longer in (b"", b"x" * 4_000_000):
        target.write_bytes(longer)
        target.chmod(0o600)
        if not other.exists():
            os.link(target, other)
        before = target.stat()
        fs.cp(str(path), str(target))
        after = target.stat()
        assert target.read_bytes() == data == other.read_bytes()
        assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)


def test_a_copy_of_a_file_to_itself_is_refused(
    directory: pathlib.Path, content: Callable[[int], bytes], path: pathlib.Path
) -> None:
    fs, data = fsspec.filesystem("dio"), content(10_000)
    other, link = directory / "other", directory / "link"
    os.link(path, other)
    link.symlink_to(path)
    for target in (path, other, link):
        with pytest.raises(shutil.SameFileError):
            fs.cp_file(str(path), str(target))
    assert path.read_bytes() == data


def test_threads_that_share_a_stream_read_where_each_of_them_has_set_it(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    data = content(1 << 20)
    interval = sys.getswitchinterval()
    with fsspec.open(f"dio://{path}", "rb") as file:

        def read_many(seed: int) -> int:
            positions = random.Random(seed)
            wrong = 0
            for number in range(300):
                at, length = positions.randrange(len(data)), positions.randrange(1, 5000)
                if number % 50 == 0:
                    file.seek(-length, 2)
                    wrong += file.read() != data[-length:]
                    continue
                file.seek(at)
                expected = data[at : at + length]
                if number % 3 == 0:
                    memory = bytearray(length)
                    wrong += memory[: file.readinto(memory)] != expected
                    continue
                if number % 3 == 1:
                    wrong += file.peek(length) != expected
                wrong += file.read(length) != expected
            return wrong

        try:
            sys.setswitchinterval(1e-6)
            with concurrent.futures.ThreadPoolExecutor(8) as threads:
                assert sum(threads.map(read_many, range(8))) == 0
        finally:
            sys.setswitchinterval(interval)


def test_a_stream_goes_on_in_another_thread(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    data = content(300_000)
    with (
        fsspec.open(f"dio://{path}", "rb") as file,
        concurrent.futures.ThreadPoolExecutor(1) as one,
        concurrent.futures.ThreadPoolExecutor(1) as other,
    ):
        found = [thread.submit(file.read, 1000).result() for thread in (one, other, one, other)]
        assert b"".join(found) == data[:4000]
        assert one.submit(file.seek, 7).result() == 7
        assert other.submit(file.tell).result() == 7
        assert other.submit(file.read, 10).result() == data[7:17]
        assert file.tell() == 17
        assert one.submit(file.read, 3).result() == data[7:10], "where this thread has set it"


@pytest.mark.parametrize("route", [None, "direct", "buffered"])
def test_a_copy_has_the_route_the_bytes_and_the_permissions(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, route: Any
) -> None:
    data = os.urandom(9_000_001)
    path.write_bytes(data)
    path.chmod(0o640)
    opened: list[Any] = []
    real = diopter_io.fsspec._open

    def noted(*arguments: Any, **options: Any) -> Any:
        opened.append(options["route"])
        return real(*arguments, **options)

    monkeypatch.setattr(diopter_io.fsspec, "_open", noted)
    files = diopter_io.fsspec.DioFileSystem(route=route, skip_instance_cache=True)
    target = path.with_name("target")
    files.cp_file(str(path), str(target))
    assert target.read_bytes() == data
    assert target.stat().st_mode & 0o777 == 0o640
    assert opened == ([] if route is None else [route]), "the source"
    # A copy that fails leaves nothing.
    monkeypatch.setattr(diopter_io.fsspec, "_open", lambda *_, **__: 1 / 0)
    if route is not None:
        with pytest.raises(ZeroDivisionError):
            files.cp_file(str(path), str(path.with_name("third")))
    assert sorted(os.listdir(path.parent)) == ["data", "target"]
