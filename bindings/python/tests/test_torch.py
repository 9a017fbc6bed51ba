"""Tensors of torch that are loaded from safetensors files: of torch itself where it is installed,
and of a stand-in that has its documented calls."""

from __future__ import annotations

import builtins
import ctypes
import gc
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import diopter_io
import ml_dtypes
import numpy as np
import pytest
from test_safetensors import made, tensor, write

STAND_IN = pathlib.Path(__file__).parent / "stand_in"


@pytest.fixture(params=["stand-in", "real"])
def torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if request.param == "real":
        yield pytest.importorskip("torch")
        return
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(STAND_IN)
    import torch

    yield torch
    # After this, what was imported before comes back.
    del sys.modules["torch"]


def octets(loaded: Any) -> bytes:
    return ctypes.string_at(loaded.data_ptr(), loaded.numel() * loaded.element_size())


def test_tensors_have_the_values_types_and_shapes_of_the_file(
    torch: Any, path: pathlib.Path
) -> None:
    arrays = made()
    diopter_io.save_safetensors(arrays, path)
    loaded = diopter_io.load_safetensors(path, framework="torch")
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        assert isinstance(loaded[name], torch.Tensor)
        assert loaded[name].dtype == getattr(torch, array.dtype.name)
        assert tuple(loaded[name].shape) == array.shape
        if array.size:
            assert octets(loaded[name]) == array.tobytes()
    part = diopter_io.load_safetensors(path, ["scalar", "empty"], framework="torch")
    assert {name: tuple(one.shape) for name, one in part.items()} == {"scalar": (), "empty": (0, 7)}


def test_tensors_share_one_buffer_that_each_keeps(torch: Any, path: pathlib.Path) -> None:
    arrays = {f"t{i}": np.full(1 << 18, i, np.float32) for i in range(8)}
    diopter_io.save_safetensors(arrays, path)
    loaded = diopter_io.load_safetensors(path, framework="torch")
    places = sorted(one.data_ptr() for one in loaded.values())
    assert [at - places[0] for at in places] == [i << 20 for i in range(8)]
    kept = loaded.pop("t3")
    del loaded
    gc.collect()
    assert octets(kept) == arrays["t3"].tobytes()
    kept.fill_(7)
    assert octets(kept) == np.full(1 << 18, 7, np.float32).tobytes()


def test_misaligned_tensors_are_copied(torch: Any, path: pathlib.Path) -> None:
    values = np.arange(3, dtype=np.float64)
    halves = np.arange(2).astype(ml_dtypes.bfloat16)
    header = {
        "a": tensor(0, 9),
        "b": tensor(9, 33, "F64", [3]),
        "c": tensor(33, 37, "BF16", [2, 1]),
        "d": tensor(37, 41),
    }
    data = bytes(range(9)) + values.tobytes() + halves.tobytes() + b"last"
    write(path, json.dumps(header).encode().ljust(400), data)
    loaded = diopter_io.load_safetensors(path, framework="torch")
    assert octets(loaded["b"]) == values.tobytes()
    assert octets(loaded["c"]) == halves.tobytes()
    assert octets(loaded["a"]) + octets(loaded["d"]) == bytes(range(9)) + b"last"
    assert loaded["b"].data_ptr() % 8 == loaded["c"].data_ptr() % 2 == 0
    assert loaded["d"].data_ptr() - loaded["a"].data_ptr() == 37


def test_ml_dtypes_are_not_needed(
    torch: Any, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, {"a": tensor(0, 4, "BF16", [2])}, b"1234")
    without(monkeypatch, "ml_dtypes")
    loaded = diopter_io.load_safetensors(path, framework="torch")["a"]
    assert (loaded.dtype, octets(loaded)) == (torch.bfloat16, b"1234")


def test_types_that_torch_lacks(
    torch: Any, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, {"one": tensor(0, 2, "F4", [4])}, b"12")
    with pytest.raises(TypeError, match="tensor 'one' has the type F4"):
        diopter_io.load_safetensors(path, framework="torch")
    write(path, {"one": tensor(0, 2, "F8_E8M0"), "two": tensor(2, 4)}, b"1234")
    monkeypatch.delattr(torch, "float8_e8m0fnu", raising=False)
    with pytest.raises(TypeError, match="tensor 'one' has the type F8_E8M0"):
        diopter_io.load_safetensors(path, framework="torch")
    loaded = diopter_io.load_safetensors(path, ["two"], framework="torch")
    assert octets(loaded["two"]) == b"34"


def without(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Have the import of a module fail."""
    real = builtins.__import__

    def imported(name: str, *rest: Any, **more: Any) -> Any:
        if name == module:
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(builtins, "__import__", imported)


def test_torch_that_is_not_installed(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, {"a": tensor(0, 2)}, b"12")
    without(monkeypatch, "torch")
    with pytest.raises(ImportError, match="install torch") as raised:
        diopter_io.load_safetensors(path, framework="torch")
    assert raised.value.name == "torch"
    assert diopter_io.load_safetensors(path)["a"].tobytes() == b"12"
    bad: Any = "jax"
    with pytest.raises(ValueError, match="'numpy' or 'torch'"):
        diopter_io.load_safetensors(path, framework=bad)
