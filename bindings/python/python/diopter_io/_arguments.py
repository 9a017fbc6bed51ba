"""Numbers that a caller could swap unnoticed: they are passed by their names."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def by_name(places: int, call: str, *names: str) -> Callable[[_Function], _Function]:
    """Take ``names``, keywords that come after ``places`` arguments, by their places as well.

    That is deprecated: the warning says to use the form ``call``, at the line of the caller.
    """

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def checked(*args: Any, **keywords: Any) -> Any:
            if len(args) > places:
                placed = dict(zip(names, args[places:], strict=False))
                if len(args) <= places + len(names) and not placed.keys() & keywords.keys():
                    why = f"pass {' and '.join(names)} by name: {call}"
                    warnings.warn(why, DeprecationWarning, stacklevel=2)
                    return function(*args[:places], **placed, **keywords)
            return function(*args, **keywords)

        return checked  # type: ignore[return-value]

    return decorate
