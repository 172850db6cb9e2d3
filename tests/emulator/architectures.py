"""Which sources have code of their own for an older architecture, that it may run too.

The emulator compiles for sm_90. Where the preprocessor decides by `__CUDA_ARCH__`, or by what it
stands for, other code is compiled for sm_80 and sm_89: `differs` finds the files of which that is
so, and only their rungs are run again. How many blocks a multiprocessor is to hold (launch bounds)
and what stays in the cache (policies) make no difference to a result, and do not count.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from warpsmith.native import csrc, libraries

#: Beside sm_90.
OLDER = (80, 89)

#: What the preprocessor knows of an architecture, as 900 for sm_90.
_KNOWN = {
    "__CUDA_ARCH__": lambda arch: arch,
    "WARPSMITH_HAS_FP8_CVT": lambda arch: int(arch >= 890),
    "WARPSMITH_HAS_FP8_MMA": lambda arch: int(arch >= 890),
}
_MENTIONS = re.compile("|".join(_KNOWN))
_CONDITION = re.compile(r"\s*#\s*(?:el)?if\s+(.*)")
_NO_MATTER = re.compile(r"[bB]locks|policy")
_MIN_SM = re.compile(r"/\*min_sm=\*/\s*(\d+)")


def _value(line: str, arch: int) -> object:
    """What a line comes to on an architecture: a condition is true or false."""
    text = re.sub(r"defined\((\w+)\)", "1", line.partition("//")[0])
    for name, known in _KNOWN.items():
        text = text.replace(name, str(known(arch)))
    if condition := _CONDITION.match(text):
        text = condition[1].replace("&&", " and ").replace("||", " or ")
        return bool(eval(re.sub(r"!(?!=)", " not ", text)))
    return text


def _lines(path: Path) -> Iterator[str]:
    """Those by which an architecture can make a difference to a result."""
    lines = [] if "policy" in path.name else path.read_text().splitlines()
    for i, line in enumerate(lines):
        if not _MENTIONS.search(line.partition("//")[0]) or "HAS_CLUSTERS" in line:
            continue
        if re.match(r"\s*#\s*(ifdef|ifndef|define|if (!?defined\(__CUDA_ARCH__\))$)", line):
            continue
        if not _NO_MATTER.search("\n".join(lines[max(0, i - 3) : i + 3])):
            yield line


@functools.cache
def _differing(path: Path) -> frozenset[int]:
    """The older architectures on which a file, by itself, is another one than on sm_90; of sm_89,
    also than on sm_80.
    """
    found = set()
    for line in _lines(path):
        values = {sm: _value(line, 10 * sm) for sm in (*OLDER, 90)}
        found |= {sm for sm in OLDER if values[sm] != values[90]}
        if values[89] == values[80]:
            found.discard(89)
    return frozenset(found)


def _counts(header: Path, source: Path) -> bool:
    """Whether a header's differences are those of a source that includes it. Of the vocabulary of
    device/, instructions are emulated, what clusters need is sm_90's alone, and conversions are
    tested by themselves.
    """
    name = header.relative_to(csrc.CSRC).as_posix()
    if name in ("device/convert.h", "device/saturate.h"):
        return source.parent.name == "selftest" and f'"{name}"' in source.read_text()
    return not name.startswith("device/")


def differs(source: Path, sm: int) -> bool:
    """Whether a source that serves `sm` has code of its own for it."""
    least = [int(number) for number in _MIN_SM.findall(source.read_text())]
    if least and min(least) > sm:
        return False
    used = csrc.with_includes([source])
    return any(sm in _differing(path) for path in used if _counts(path, source))


def differs_in(library: str, sm: int) -> bool:
    """Whether any kernel of a library has code of its own for `sm`."""
    kernels = (path for path in libraries.sources(library) if path.suffix == ".cu")
    return any(differs(path, sm) for path in kernels)
