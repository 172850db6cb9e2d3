"""Object files kept by what they were made of, for all that compile: first uses, `warpsmith build`,
the emulator.

They lie in the cache, under a hash of the source and of every file of ours that it includes, of
the flags and of the compilers; comments and layout do not count. What was compiled once, whatever
for and whatever was edited since, is not compiled again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

#: What nobody has asked for in so many days goes.
_DAYS = 30
_MAKING: dict[str, threading.Lock] = {}


def cache_root() -> Path:
    if value := os.environ.get("WARPSMITH_CACHE"):
        return Path(value)
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(home or Path.home() / ".cache") / "warpsmith"
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir()) / f"warpsmith-{os.getuid()}"


@functools.cache
def _folder(root: Path) -> Path:
    folder = root / "objects"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:  # no right to write there; then for this process alone
        return Path(tempfile.mkdtemp(prefix="warpsmith_objects_"))


@dataclass(frozen=True)
class Object:
    path: Path
    log: str  # what the compiler said


def key_of(parts: Iterable[str]) -> str:
    """Of all that an object is made of."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:32]


def find(key: str) -> Object | None:
    """An object that was made before."""
    path = _folder(cache_root()) / key[:2] / f"{key}.o"
    try:
        os.utime(path)
        return Object(path, path.with_suffix(".log").read_text())
    except OSError:
        return None


class EditedError(RuntimeError):
    """Sources were edited while they were compiled: of which text the object is nobody knows."""


def obtain(key: str, make: Callable[[Path], str], key_now: Callable[[], str]) -> Object:
    """An object, made now if none of its key is kept.

    Args:
        key: of what it is made of.
        make: writes it to a path, and returns what the compiler said.
        key_now: the key of what lies there once it is made.

    Raises:
        EditedError: that is another key; nothing is kept.
    """
    with _MAKING.setdefault(key, threading.Lock()):  # threads make an object once
        if found := find(key):
            return found
        path = _folder(cache_root()) / key[:2] / f"{key}.o"
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.o")  # other processes may make it too
        try:
            log = make(partial)
            if key_now() != key:
                raise EditedError("edited while it was compiled: compile it again")
            path.with_suffix(".log").write_text(log)
            os.replace(partial, path)  # atomic: whoever looks for it finds all of it or nothing
        finally:
            partial.unlink(missing_ok=True)
        return Object(path, log)


def prune(days: float = _DAYS) -> None:
    """Removes what has not been asked for in so many days."""
    before = time.time() - days * 86400
    for path in _folder(cache_root()).glob("*/*.o"):
        with contextlib.suppress(OSError):  # another process removes it too
            if path.stat().st_mtime < before:
                path.unlink()
                path.with_suffix(".log").unlink(missing_ok=True)
