"""Requests on an asyncio event loop: one engine for each loop, on the loop's thread."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from . import _native

if TYPE_CHECKING:
    from ._types import Memory

_Result = TypeVar("_Result")

#: Seconds between two looks at requests that are under way. A sandbox may refuse the write to an
#: eventfd that a thread makes when a request completes, and then no other signal comes.
_LOOK_SECONDS = 0.5


def set_in_flight(requests: int) -> None:
    """Set how many requests an event loop has in its device at once: 1 to 4096, 128 by default.

    It applies to event loops that make their first request afterwards. Requests beyond this number
    wait for earlier ones. Raises ``ValueError`` for any other number.
    """
    _native.set_in_flight(requests)


class _Driver:
    """The engine of a loop, which the loop calls when its eventfd is readable."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = weakref.ref(loop)
        self.engine = _native.LoopEngine()
        self.is_scheduled = False
        #: Requests under way, and whether ``look`` is to be called.
        self.waiting = 0
        self.is_watched = False
        #: The engine is closed, or that of the parent. A loop may still have a call of ``turn``.
        self.is_closed = False
        self.descriptor = self.engine.event_fd()
        loop.add_reader(self.descriptor, self.turn)

    def turn(self) -> None:
        self.is_scheduled = False
        if not self.is_closed and self.engine.turn():
            self.schedule()

    def schedule(self) -> None:
        """Call ``turn`` after the tasks that are ready: their requests are submitted together."""
        loop = self.loop()
        if not self.is_scheduled and loop is not None and not loop.is_closed():
            loop.call_soon(self.turn)
            self.is_scheduled = True

    def watch(self) -> None:
        """Call ``look`` soon, and again as long as requests are under way."""
        loop = self.loop()
        if not self.is_watched and loop is not None and not loop.is_closed():
            loop.call_later(_LOOK_SECONDS, self.look)
            self.is_watched = True

    def look(self) -> None:
        self.is_watched = False
        if self.waiting > 0 and not self.is_closed:
            self.turn()
            self.watch()

    def close(self) -> None:
        self.is_closed = True
        loop = self.loop()
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self.descriptor)
        self.engine.close()


_drivers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Driver] = (
    weakref.WeakKeyDictionary()
)
_lock = threading.Lock()


def _driver(loop: asyncio.AbstractEventLoop) -> _Driver:
    driver = _drivers.get(loop)
    if driver is not None and not driver.engine.is_lost:
        return driver
    with _lock:
        closed = [other for other in list(_drivers) if other.is_closed()]
        unused = [_drivers.pop(other) for other in closed]
    for other in unused:
        # Only the thread of a closed loop can close its engine; another one leaves it to that.
        other.close()
    # Calls of many ranges outlive a lost engine: it stays the loop's reader for them.
    if driver is not None and driver.engine.in_flight == 0:
        driver.close()
    driver = _Driver(loop)
    with _lock:
        _drivers[loop] = driver
    return driver


@overload
def submit(
    file: _native.File, what: Literal["read-bytes"], argument: int, offset: int
) -> Coroutine[Any, Any, bytes]: ...
@overload
def submit(
    file: _native.File, what: Literal["read", "write"], argument: Memory, offset: int
) -> Coroutine[Any, Any, int]: ...
@overload
def submit(
    file: _native.File, what: Literal["sync", "sync-data"], argument: None, offset: int
) -> Coroutine[Any, Any, None]: ...
@overload
def submit(
    file: _native.File,
    what: Literal["ranges"],
    argument: Callable[[], _native.Ranges[_Result]],
    offset: int,
) -> Coroutine[Any, Any, _Result]: ...
async def submit(file: _native.File, what: str, argument: Any, offset: int) -> Any:
    """Serve one request on the running loop."""
    loop = asyncio.get_running_loop()
    driver = _driver(loop)
    future: asyncio.Future[Any] = loop.create_future()
    if what == "ranges":
        # Made here: a task that is cancelled before it begins exports nothing.
        argument = argument()
    number, length = driver.engine.submit(file, what, argument, offset, future)
    driver.schedule()
    driver.waiting += 1
    driver.watch()
    try:
        return await future
    except BaseException as raised:
        if not future.done() or future.cancelled():
            driver.engine.abandon(number)
            driver.schedule()
        elif (error := future.exception()) is not raised:
            # The task was cancelled after the request had completed, and did not take its result.
            if what == "ranges":
                argument.note_unseen(error)
            elif what == "write":
                with contextlib.suppress(ValueError):
                    file.note_unseen(offset, length, error)
        raise
    finally:
        driver.waiting -= 1


def _after_fork() -> None:
    """Fail what the parent has in flight: its results never come to this process."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    drivers = list(_drivers.values())
    _drivers.clear()
    for driver in drivers:
        driver.is_closed = True
        for future in driver.engine.disown():
            if not future.done():
                future.set_exception(OSError(errno.EOWNERDEAD, "the request is the parent's"))


os.register_at_fork(after_in_child=_after_fork)
# A loop that is not closed has its engine when the interpreter ends.
atexit.register(_native.close_engines)
