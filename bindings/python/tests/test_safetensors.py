"""Files of the format safetensors, against the reference implementation."""

from __future__ import annotations

import builtins
import gc
import json
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import diopter_io
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

TYPES: list[Any] = [
    np.bool_,
    *(np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64),
    *(np.float16, np.float32, np.float64, np.complex64),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    ml_dtypes.float8_e8m0fnu,
]


def made(seed: int = 1) -> dict[str, Any]:
    """Arrays of every type, and of odd shapes."""
    choose = np.random.default_rng(seed)
    arrays: dict[str, Any] = {}
    for i, dtype in enumerate(TYPES):
        size = np.dtype(dtype).itemsize
        raw = choose.integers(0, 2 if dtype is np.bool_ else 256, (i + 1, 33 * size), np.uint8)
        arrays[f"type.{np.dtype(dtype).name}"] = raw.view(dtype)
    arrays["scalar"] = np.array(3.5, np.float32)
    arrays["empty"] = np.zeros((0, 7), np.float32)
    arrays["large"] = choose.standard_normal((700, 1000), np.float32)
    arrays["\u00fcmlaut \"quoted\""] = np.arange(3, dtype=np.int16)
    return arrays


def same(found: Any, expected: Any) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def write(path: pathlib.Path, header: object, data: bytes = b"", length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    path.write_bytes(size.to_bytes(8, "little") + text + data)


def tensor(begin: int, end: int, dtype: str = "U8", shape: list[int] | None = None) -> object:
    shape = [end - begin] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_what_is_saved_is_loaded(path: pathlib.Path) -> None:
    arrays = made()
    diopter_io.save_safetensors(arrays, path, {"format": "np", "a": "\u00e9"})
    loaded = diopter_io.load_safetensors(path)
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        same(loaded[name], array)
    assert os.listdir(path.parent) == [path.name]


def test_the_reference_implementation_reads_what_is_saved(path: pathlib.Path) -> None:
    arrays = {name: array for name, array in made().items() if "float8" not in name}
    diopter_io.save_safetensors(arrays, path, {"format": "np"})
    for name, array in safetensors.numpy.load_file(path).items():
        assert array.tobytes() == arrays[name].tobytes()
        assert array.shape == arrays[name].shape
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"format": "np"}


def test_a_file_has_the_bytes_that_the_reference_implementation_writes(
    path: pathlib.Path,
) -> None:
    names = ("bool", "uint8", "int16", "float16", "float32", "int64", "float64")
    arrays = {f"b.{name}": np.arange(6).reshape(2, 3).astype(name) for name in names}
    arrays |= {f"a.{name}": np.arange(4).astype(name) for name in names}
    other = path.with_name("other")
    for metadata in (None, {"one": "text"}):
        safetensors.numpy.save_file(arrays, other, metadata)
        diopter_io.save_safetensors(arrays, path, metadata)
        loaded = diopter_io.load_safetensors(other)
        for name, array in arrays.items():
            same(loaded[name], array)
        assert path.read_bytes() == other.read_bytes()


def test_arrays_are_in_one_buffer_that_each_keeps(path: pathlib.Path) -> None:
    arrays = {f"t{i}": np.full(1 << 18, i, np.float32) for i in range(8)}
    diopter_io.save_safetensors(arrays, path)
    loaded = diopter_io.load_safetensors(path)
    bases = {id(_owner(array)) for array in loaded.values()}
    assert len(bases) == 1
    kept = loaded.pop("t3")
    assert kept.flags.writeable
    kept[0] = 7
    del loaded
    gc.collect()
    assert kept[0] == 7
    assert (kept[1:] == 3).all()


def _owner(array: Any) -> object:
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array.obj if isinstance(array, memoryview) else array


def test_a_part_of_the_names(path: pathlib.Path) -> None:
    arrays = {f"t{i}": np.full(1 << 18, i, np.float32) for i in range(8)}
    diopter_io.save_safetensors(arrays, path)
    loaded = diopter_io.load_safetensors(path, ["t5", "t1"])
    assert sorted(loaded) == ["t1", "t5"]
    for name in loaded:
        same(loaded[name], arrays[name])
    owner = _owner(loaded["t1"])
    assert isinstance(owner, diopter_io.Buffer)
    assert len(owner) < 3 << 20
    assert diopter_io.load_safetensors(path, []) == {}
    with pytest.raises(KeyError, match="t9"):
        diopter_io.load_safetensors(path, ["t1", "t9"])


def test_misaligned_tensors_are_copied(path: pathlib.Path) -> None:
    data = bytes(range(1, 10)) + np.arange(3, dtype=np.float64).tobytes()
    header = {"a": tensor(0, 9), "b": tensor(9, 33, "F64", [3])}
    write(path, header, data)
    loaded = diopter_io.load_safetensors(path)
    same(loaded["a"], np.arange(1, 10, dtype=np.uint8))
    same(loaded["b"], np.arange(3, dtype=np.float64))
    assert loaded["b"].flags.aligned


def test_headers_of_every_length(path: pathlib.Path) -> None:
    values = np.arange(5000, dtype=np.int32)
    for length in [4080, 4088, 4096, 5000, 262_136, 262_144, 300_000]:
        text = json.dumps({"a": tensor(0, 20_000, "I32", [5000])}).encode()
        write(path, text.ljust(length), values.tobytes())
        same(diopter_io.load_safetensors(path)["a"], values)


def test_files_that_are_not_valid(path: pathlib.Path) -> None:
    good = {"a": tensor(0, 4)}
    cases: list[Callable[[], None]] = [
        lambda: path.write_bytes(b"") and None,
        lambda: path.write_bytes(b"\x02\0\0") and None,
        lambda: write(path, b"{}", length=3),
        lambda: write(path, b"{}", length=(1 << 64) - 1),
        lambda: write(path, b"{}", length=100_000_001),
        lambda: write(path, b"[]"),
        lambda: write(path, b"{" * 1000),
        lambda: write(path, b'{"a":\xff}'),
        lambda: write(path, good, b"123"),
        lambda: write(path, good, b"12345"),
        lambda: write(path, {"a": tensor(0, 4), "b": tensor(3, 7)}, b"1234567"),
        lambda: write(path, {"a": tensor(0, 4), "b": tensor(5, 9)}, b"123456789"),
        lambda: write(path, {"a": tensor(4, 0, shape=[4])}, b"1234"),
        lambda: write(path, {"a": tensor(0, 4, shape=[5])}, b"1234"),
        lambda: write(path, {"a": tensor(0, 0, shape=[1 << 63, 1 << 63])}, b""),
        lambda: write(path, {"a": tensor(0, 4, shape=[-4])}, b"1234"),
        lambda: write(path, {"a": tensor(0, 4, "F99")}, b"1234"),
        lambda: write(path, {"a": {"dtype": "U8", "shape": [4]}}, b"1234"),
        lambda: write(path, b'{"a":1,"a":2}'),
        lambda: write(path, {"__metadata__": {"a": 1}}),
    ]
    for case in cases:
        case()
        with pytest.raises(ValueError, match="not a safetensors file"):
            diopter_io.load_safetensors(path)


def test_every_truncation_and_every_changed_byte(path: pathlib.Path) -> None:
    diopter_io.save_safetensors({"a": np.arange(4), "b": np.arange(3.0)}, path, {"k": "v"})
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError):
            diopter_io.load_safetensors(path)
    header = 8 + int.from_bytes(data[:8], "little")
    for at in range(header):
        for change in (0x01, 0x80):
            path.write_bytes(data[:at] + bytes([data[at] ^ change]) + data[at + 1 :])
            try:
                diopter_io.load_safetensors(path)
            except (ValueError, TypeError):
                pass


def test_a_file_that_is_cut_while_it_is_read(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diopter_io import _tensors

    arrays = {name: np.full(100_000, 7, np.uint8) for name in ("a", "b")}
    diopter_io.save_safetensors(arrays, path)
    size = path.stat().st_size
    ranges = _tensors._ranges
    for length in (size - 1, size - 100_000, 4096, 100):

        def cut(tensors: Any, length: int = length) -> list[tuple[int, int]]:
            os.truncate(path, length)
            return ranges(tensors)

        diopter_io.save_safetensors(arrays, path)
        monkeypatch.setattr(_tensors, "_ranges", cut)
        with pytest.raises(OSError, match="ended while it was read"):
            diopter_io.load_safetensors(path)
        monkeypatch.setattr(_tensors, "_ranges", ranges)


def test_types_that_numpy_lacks(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, {"a": tensor(0, 2, "F4", [4])}, b"12")
    with pytest.raises(TypeError, match="F4"):
        diopter_io.load_safetensors(path)
    write(path, {"a": tensor(0, 4, "BF16", [2]), "b": tensor(4, 5)}, b"12345")
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "ml_dtypes":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "ml_dtypes")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="install ml_dtypes"):
        diopter_io.load_safetensors(path)
    assert diopter_io.load_safetensors(path, ["b"])["b"][0] == ord("5")


def test_arrays_that_cannot_be_saved(path: pathlib.Path) -> None:
    for bad in [
        {"a": np.array(["text"])},
        {"a": np.array([object()])},
        {"a": np.zeros(2, np.longdouble)},
    ]:
        with pytest.raises(TypeError):
            diopter_io.save_safetensors(bad, path)
    with pytest.raises(ValueError):
        diopter_io.save_safetensors({"__metadata__": np.zeros(1)}, path)
    with pytest.raises(TypeError):
        diopter_io.save_safetensors({}, path, {"a": 1})  # type: ignore[dict-item]
    with pytest.raises(FileNotFoundError):
        diopter_io.save_safetensors({}, path / "missing" / "file")
    assert os.listdir(path.parent) == []


def test_arrays_of_other_orders_are_saved_by_their_values(path: pathlib.Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays = {"t": values.T, "big": values.astype(">f4"), "step": values[:, ::2]}
    diopter_io.save_safetensors(arrays, path)
    loaded = diopter_io.load_safetensors(path)
    for name, array in arrays.items():
        assert (loaded[name] == array).all(), name
