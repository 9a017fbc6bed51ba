"""What the commands of ``dio`` do: ``copy``, ``stripe_create``, ``probe`` and ``explain``."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from . import _native
from ._arguments import by_name

if TYPE_CHECKING:
    from ._types import Path


class CopyError(OSError):
    """A copy that failed in part or that verified a difference; ``report`` has the details."""

    def __init__(self, message: str, filename: object, report: dict[str, Any]) -> None:
        super().__init__(errno.EIO, message, filename)
        self.report = report

    def __reduce__(self) -> tuple[Any, ...]:
        return (CopyError, (self.strerror, self.filename, self.report))


def copy(
    source: Path | Sequence[Path],
    target: Path,
    *,
    recursive: bool = False,
    verify: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    striped: bool = False,
    sparse: Literal["auto", "always", "never"] = "auto",
    reflink: bool = True,
) -> dict[str, Any]:
    """Copy files by direct I/O, as ``dio cp`` does; return its report.

    A copy gets its name when it is durable. ``verify`` reads the copy back
    past the page cache and compares. Bytes of a source that are cached are read from the cache.
    With several sources ``target`` is a directory.
    """
    sources = [source] if isinstance(source, (str, bytes, os.PathLike)) else list(source)
    report: dict[str, Any] = json.loads(
        _native.copy_json(
            sources,
            target,
            recursive=recursive,
            verify=verify,
            resume=resume,
            overwrite=overwrite,
            striped=striped,
            sparse=sparse,
            reflink=reflink,
        )
    )
    if report["exit_status"] == 0:
        return report
    for failure in report["failures"]:
        message = f"{failure['what']}: {failure['cause']}; {failure['remedy']}"
        raise CopyError(message, failure["path"], report)
    raise CopyError("the bytes that were read back differ", target, report)


def stripe_create(
    path: Path, objects: Sequence[Path], *, stripe_size: int = 1 << 20, size: int | None = None
) -> None:
    """Create a striped file, durably, with its objects in these directories or on these devices.

    ``open`` with ``striped=True`` opens it.
    """
    if isinstance(objects, (str, bytes)):
        raise TypeError("objects is one path: pass a list of them")
    _native.stripe_create(path, list(objects), stripe_size=stripe_size, size=size)


def probe(path: Path) -> dict[str, Any]:
    """Return what the kernel, the file system and the device allow for direct I/O on a path.

    ``findings`` are the causes of slow direct I/O, the worst first, each with evidence and remedy.
    """
    found: dict[str, Any] = json.loads(_native.probe_json(path))
    return found


@by_name(2, "explain(path, op, offset=..., length=...)", "offset", "length")
def explain(
    path: Path,
    op: Literal["read", "write"],
    *,
    offset: int,
    length: int,
    address: int = 0,
    striped: bool = False,
    image: bool = False,
) -> dict[str, Any]:
    """Return how one request would be served: route, bios, waits. Nothing is read or written.

    ``address`` is that of the memory; only its alignment matters.
    """
    if op not in ("read", "write"):
        raise ValueError(f"invalid op {op!r}: use 'read' or 'write'")
    plan: dict[str, Any] = json.loads(
        _native.explain_json(
            path, op == "write", offset, length, address=address, striped=striped, image=image
        )
    )
    return plan
