"""Arguments by name and by place, and errors that say what to pass or call."""

from __future__ import annotations

import asyncio
import inspect
import linecache
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import diopter_io
import pytest


def test_a_number_by_its_place_warns_at_the_line_of_the_caller(path: pathlib.Path) -> None:
    """The old order of arguments still works."""
    path.write_bytes(b"0123456789")

    async def awaited(file: Any) -> object:
        return await file.read_at_async(3, 4)

    with diopter_io.open(path, "r+") as opened:
        file: Any = opened
        calls: list[tuple[Callable[[], object], object, str]] = [
            (lambda: file.read_at(3, 4), b"456", r"read_at\(length, offset=\.\.\.\)"),
            (lambda: file.read_at(length=3, offset=4), b"456", ""),
            (lambda: file.read_at(offset=4, length=3), b"456", ""),
            (lambda: asyncio.run(awaited(file)), b"456", r"read_at_async\(length, offset="),
            (lambda: file.allocate(0, 1), None, r"allocate\(offset=\.\.\., length=\.\.\.\)"),
            (lambda: file.allocate(0, length=1), None, "allocate"),
        ]
        for call, expected, form in calls:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", DeprecationWarning)
                assert call() == expected
            assert bool(caught) == bool(form)
            for warning in caught:
                assert warning.category is DeprecationWarning
                line = linecache.getline(warning.filename, warning.lineno)
                assert "file." in line, f"the line of the caller, not {line!r}"
            if form:
                with pytest.warns(DeprecationWarning, match=form):
                    call()
        explain: Any = diopter_io.explain
        with pytest.warns(DeprecationWarning, match="pass offset and length by name") as found:
            plan = explain(path, "read", 3, 4)
        assert (plan["offset"], plan["length"], found[0].filename) == (3, 4, __file__)


def test_a_number_that_is_missing_or_passed_twice(path: pathlib.Path) -> None:
    with diopter_io.open(path, "w+") as opened:
        file: Any = opened
        for call in [
            lambda: file.read_at(1),
            lambda: file.read_at(1, 2, offset=3),
            lambda: file.read_at(1, 2, 3),
            lambda: file.read_at(offset=0),
            lambda: file.allocate(),
            lambda: file.allocate(offset=0),
            lambda: file.read_at_async(1),
            lambda: file.read_at_async(1, 2, offset=3),
            lambda: file.read_at_async(1, 2, 3),
            lambda: diopter_io.explain(path, "read", offset=0),  # type: ignore[call-arg]
        ]:
            with pytest.raises(TypeError):
                call()


def test_the_signatures_are_those_of_the_form_to_use() -> None:
    file = diopter_io.File
    assert str(inspect.signature(file.read_at)) == "(self, /, length, *, offset)"
    assert str(inspect.signature(file.allocate)) == "(self, /, *, offset, length)"
    assert list(inspect.signature(file.read_at_async).parameters) == ["self", "length", "offset"]
    explain = list(inspect.signature(diopter_io.explain).parameters)
    assert explain[:4] == ["path", "op", "offset", "length"]


@pytest.mark.parametrize("name", ["sync", "route"])
@pytest.mark.parametrize("value", [True, 1, "fast"])
def test_an_option_that_is_no_name_of_it(path: pathlib.Path, name: str, value: object) -> None:
    names = {"sync": "use data, all or None", "route": "use direct, adaptive, buffered or hybrid"}
    options: Any = {name: value}
    with pytest.raises(ValueError, match=f"invalid {name} `{value}`: {names[name]}"):
        diopter_io.open(path, "w", **options)
    assert not path.exists()


def test_methods_that_streams_have(path: pathlib.Path) -> None:
    with diopter_io.open(path, "w+") as file:
        for name, stream in [("read", "reader"), ("readlines", "reader"), ("write", "writer")]:
            assert not hasattr(file, name)
            with pytest.raises(AttributeError, match=rf"no position; call it on {stream}\(\)"):
                getattr(file, name)
        with pytest.raises(AttributeError, match="no attribute 'raed_at'") as raised:
            file.raed_at  # type: ignore[attr-defined]  # noqa: B018
        assert "position" not in str(raised.value)
    with pytest.raises(TypeError, match="list"):
        diopter_io.stripe_create(path, "abc")
