"""The CUDA sources: where they lie, what they include, and hashes of what they say."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
#: Beside the package in an installed wheel, at the repository's root in a checkout.
CSRC = PACKAGE / "csrc" if (PACKAGE / "csrc").is_dir() else PACKAGE.parents[1] / "csrc"

_SUFFIXES = (".cu", ".cuh", ".cpp", ".h")
_COMMENT_OR_LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL
)
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def home() -> Path:
    """The checkout that this package runs from, else the working directory: where records are, and
    what says what they speak for.
    """
    checkout = PACKAGE.parents[1]
    runs_from_it = (checkout / "benchmarks").is_dir() and CSRC.parent == checkout
    return checkout if runs_from_it else Path.cwd()


def without_comments(source: str) -> str:
    """C++ less its comments and its layout, on which nothing depends that is measured."""
    bare = _COMMENT_OR_LITERAL.sub(lambda m: m[0] if m[0][0] in "\"'" else " ", source)
    return " ".join(bare.split())


@functools.lru_cache(maxsize=4096)
def _read(path: Path, modified: int, size: int) -> tuple[str, tuple[str, ...]]:
    text = path.read_text()
    return without_comments(text), tuple(_INCLUDE.findall(text))


def _file(path: Path) -> tuple[str, tuple[str, ...]]:
    """A file without comments, and what it includes; read once while it stays the same."""
    found = path.stat()
    return _read(path, found.st_mtime_ns, found.st_size)


def digest(paths: Iterable[Path], *extra: str, root: Path | None = None) -> str:
    """Identifies files below `root`, by default csrc, less their comments, and texts."""
    found = hashlib.sha256()
    for path in paths:
        found.update(path.relative_to(root or CSRC).as_posix().encode())
        found.update(_file(path)[0].encode())
    for text in extra:
        found.update(text.encode() + b"\0")
    return found.hexdigest()[:16]


def code(*folders: Path) -> list[Path]:
    """Every file of code below the folders."""
    return sorted(p for folder in folders for p in folder.rglob("*") if p.suffix in _SUFFIXES)


def with_includes(paths: Iterable[Path], root: Path | None = None) -> list[Path]:
    """The files and every file of `root`, by default csrc, that they include, directly or not."""
    root = root or CSRC
    found: set[Path] = set()
    waiting = list(paths)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting.extend(p for name in _file(path)[1] if (p := root / name).is_file())
    return sorted(found)


def source_hash(family: str, source_dir: str | None = None) -> str:
    """Identifies the CUDA code behind a family, or behind one source folder of it ("rms_norm",
    "rms_norm/backward"): its sources, every header that the kernels include, what launches them and
    what chooses between them. A folder inside another one is not part of it, but for the groups of
    functions (`parts`) that one is cut into.
    """
    own = code(CSRC / family)
    if source_dir:
        folder = CSRC / family / source_dir
        own = [path for path in own if path.parent in (folder, folder / "parts")]
    host = (CSRC / "host" / name for name in ("launch.cpp", "ladder.h"))
    kernels = with_includes([*host, *(p for p in own if p.suffix == ".cu")])
    return digest(sorted({*own, *kernels}))


def file_hash(path: Path) -> str:
    """Identifies a file of CUDA code, with every header that it includes."""
    return digest(with_includes([path]))
