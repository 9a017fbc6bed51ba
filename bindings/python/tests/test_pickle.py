"""Files that are pickled: by path, mode and options."""

from __future__ import annotations

import copy
import errno
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable

import diopter_io
import pytest
from conftest import skip


class Dataset:
    """As a data set whose workers have copies of it."""

    def __init__(self, file: diopter_io.File) -> None:
        self.file = file

    def __getitem__(self, number: int) -> tuple[int, bytes]:
        return os.getpid(), self.file.read_at(100, offset=100 * number)


def test_a_file_is_opened_again(path: pathlib.Path, content: Callable[[int], bytes]) -> None:
    data = content(5000)
    for name in [path, str(path), os.fsencode(path)]:
        with diopter_io.open(name, "r+", route="buffered", sync="data", strict=False) as file:
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                with pickle.loads(pickle.dumps(file, protocol)) as loaded:
                    assert type(loaded) is diopter_io.File
                    assert loaded.read_at(5000, offset=0) == data
                    assert (loaded.mode, loaded.options()) == ("r+", file.options())
                    assert os.fsencode(loaded.name) == os.fsencode(path)
                    assert loaded.fileno() != file.fileno()
            with copy.copy(file) as copied, copy.deepcopy([file])[0] as deep:
                assert copied.read_at(10, offset=0) == deep.read_at(10, offset=0) == data[:10]
    assert file.options()["route"] == "buffered"


@pytest.mark.parametrize("mode", ["w", "w+", "x", "x+", "a", "a+"])
def test_a_file_is_neither_created_nor_truncated_again(path: pathlib.Path, mode: str) -> None:
    with diopter_io.open(path, mode) as file:
        file.write_at(b"12345", 0)
        saved = pickle.dumps(file)
        with pickle.loads(saved) as loaded:
            assert (path.read_bytes(), loaded.mode) == (b"12345", mode)
            assert (loaded.readable(), loaded.writable()) == ("+" in mode, True)
            loaded.write_at(b"6", 4)
        assert path.read_bytes() == (b"123456" if "a" in mode else b"12346")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        pickle.loads(saved)
    assert not path.exists()


def test_a_relative_path_is_made_absolute(
    path: pathlib.Path, content: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = content(100)
    monkeypatch.chdir(path.parent)
    for name in ["data", b"data", pathlib.Path("data")]:
        with diopter_io.open(name) as file:
            saved = pickle.dumps(file)
            monkeypatch.chdir("/")
            with pickle.loads(saved) as loaded:
                assert loaded.read_at(100, offset=0) == data
            with pytest.raises(TypeError, match="no longer names"):
                pickle.dumps(file)
            monkeypatch.chdir(path.parent)


def test_files_that_cannot_be_pickled(path: pathlib.Path) -> None:
    path.write_bytes(b"x")
    with path.open("rb") as plain:
        with diopter_io.open(plain.fileno()) as file, pytest.raises(TypeError, match="descriptor"):
            pickle.dumps(file)
        name = f"/proc/self/fd/{plain.fileno()}"
        with diopter_io.open(name) as file, pytest.raises(TypeError, match="of this process"):
            pickle.dumps(file)
    with diopter_io.open(path) as file:
        path.unlink()
        with pytest.raises(TypeError, match="no longer names"):
            pickle.dumps(file)
        path.write_bytes(b"another")
        with pytest.raises(TypeError, match="no longer names"):
            copy.copy(file)
    with pytest.raises(ValueError, match="closed file"):
        pickle.dumps(file)


def test_a_striped_file(directory: pathlib.Path) -> None:
    objects = [directory / name for name in ("one", "other")]
    for each in objects:
        each.mkdir()
    try:
        diopter_io.stripe_create(directory / "set.dio", objects, stripe_size=65536)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            skip("xattr", f"no user attributes in {directory.parent}")
        raise
    with diopter_io.open(directory / "set.dio", "r+", striped=True) as file:
        file.write_at(bytes(100_000) + b"end", 0)
        with pickle.loads(pickle.dumps(file)) as loaded:
            assert loaded.read_at(10, offset=100_000) == b"end"


def test_processes_of_their_own_have_copies(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(1000)
    (tmp_path / "data").write_bytes(data)
    monkeypatch.chdir(tmp_path)
    with diopter_io.open("data") as file:
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            found = pool.map(Dataset(file).__getitem__, range(10), chunksize=1)
            pool.close()
            pool.join()
    assert [part for _, part in found] == [data[i * 100 :][:100] for i in range(10)]
    assert os.getpid() not in {process for process, _ in found}


def test_a_copy_goes_to_a_child_of_fork_and_back(
    path: pathlib.Path, content: Callable[[int], bytes]
) -> None:
    content(5000)
    code = """
        import os, pickle, sys, diopter_io
        data = open(sys.argv[1], "rb").read()
        file = diopter_io.open(sys.argv[1])
        saved = pickle.dumps(file)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            loaded = pickle.loads(saved)
            assert loaded.read_at(5000, offset=0) == file.read_at(5000, offset=0) == data
            os.write(writing, pickle.dumps(loaded))
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert pickle.loads(os.read(reading, 65536)).read_at(5000, offset=0) == data
        print("fine")
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr
