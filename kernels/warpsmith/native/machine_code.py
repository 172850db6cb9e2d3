"""Digests of compiled kernels: what the hardware gets, nothing that a name or a line can change.

A digest is over a kernel's instructions, what these refer to, its registers, its static shared
memory, its constant banks and what is laid down for its launch (the largest block, parameters,
stack). Not over symbols, which hold the names of files, types and functions; not over debug
sections, notes, or the version of CUDA that a kernel was compiled for. So kernels keep theirs when
a type is renamed, a header is split, a function is extracted or a file is moved.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from warpsmith.native.cubins import Cubin, extract

#: ELF: types of sections, and the bit of a symbol that says it is a kernel.
#: https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html
_SYMBOLS, _RELOCATIONS, _NO_BITS = 2, 4, 8
_ENTRY = 0x10
#: Entries of `.nv.info`: the format of those that say how long they are, and the attributes that
#: are read here or left out. `cuobjdump -elf` prints their names.
_SIZED = 4
_MAX_THREADS, _PARAMETER_BANK, _EXTERNS = 0x05, 0x0A, 0x0F
_FRAME_SIZE, _STACK_SIZE, _REGISTERS, _API_VERSION = 0x11, 0x12, 0x2F, 0x37
#: Bytes of an instruction from sm_70 on, and how `EXIT` begins, under the predicate that is true.
_INSTRUCTION, _EXIT = 16, b"\x4d\x79"
#: Instructions of tensor cores on sm_90a by their low 12 bits, and what `nvdisasm` calls them:
#: mma.sync, and wgmma with a in shared memory and in registers. Then what their low bytes are.
_MMA = {0x23C: "HMMA", 0x237: "IMMA"}
_WGMMA = {0x9F0: "HGMMA", 0xDF0: "HGMMA", 0x9F1: "IGMMA", 0xDF1: "IGMMA"}
_WGMMA |= {0x9F3: "QGMMA", 0xDF3: "QGMMA"}
_LOW_BYTES = re.compile(rb"[\x37\x3c\xf0\xf1\xf3]")
#: wgmma says its columns from this bit on; of s8 in thirds of an index of those that there are.
_COLUMNS_AT, _COLUMNS_OF_S8 = 53, (8, 16, 24, *range(32, 257, 16))
#: How nvcc packs machine code into libraries: containers that begin with this, of an entry for each
#: architecture. Worked out by others: https://github.com/n-eiling/cuda-fatbin-decompression
_CONTAINER = b"\x50\xed\x55\xba"


@dataclass(frozen=True)
class Code:
    """A kernel in a compiled file."""

    symbol: str
    arch: str  # "90a"
    digest: str
    #: The file that it was compiled from, below csrc; None where that is not known.
    source: str | None = None
    #: Threads of the largest block; None without launch bounds.
    max_threads: int | None = None
    #: Whether it ends at once: the preprocessor left nothing of it for this architecture.
    empty: bool = False
    #: The instructions of tensor cores in it (`products`).
    products: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Section:
    name: str
    type: int
    size: int
    link: int
    info: int
    data: bytes


def _sections(elf: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_of = struct.unpack_from("<3H", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQII", elf, table + i * size) for i in range(count)]
    names = headers[names_of][4]
    found = []
    for name_at, kind, _, _, start, length, link, info in headers:
        name = elf[names + name_at : elf.index(b"\0", names + name_at)].decode()
        data = b"" if kind == _NO_BITS else elf[start : start + length]
        found.append(_Section(name, kind, length, link, info, data))
    return found


@dataclass(frozen=True)
class _Symbol:
    name: str
    other: int
    section: int
    value: int


def _symbols(sections: Sequence[_Section]) -> list[_Symbol]:
    table = next(s for s in sections if s.type == _SYMBOLS)
    names = sections[table.link].data
    found = []
    for name_at, _, other, section, value, _ in struct.iter_unpack("<IBBHQQ", table.data):
        name = names[name_at : names.index(b"\0", name_at)].decode()
        found.append(_Symbol(name, other, section, value))
    return found


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """The entries of a section `.nv.info`: attribute and value."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        at += 4
        yield attribute, info[at : at + value] if form == _SIZED else struct.pack("<H", value)
        at += value if form == _SIZED else 0


class _File:
    """The kernels of one cubin."""

    def __init__(self, elf: bytes) -> None:
        self._sections = _sections(elf)
        self._symbols = _symbols(self._sections)
        self._by_name = {section.name: section for section in self._sections}
        self.kernels = [s.name for s in self._symbols if s.other & _ENTRY]
        #: Kernel -> its registers, frame and stack, which one section holds for all.
        self._sizes: dict[str, list[tuple[int, int]]] = {}
        file_wide = self._by_name.get(".nv.info")
        for attribute, value in _attributes(file_wide.data if file_wide else b""):
            if attribute in (_REGISTERS, _FRAME_SIZE, _STACK_SIZE):
                index, size = struct.unpack("<II", value)
                name = self._symbols[index].name
                self._sizes.setdefault(name, []).append((attribute, size))
        self._own: dict[str, list[_Section]] = {name: [] for name in self.kernels}
        #: What all kernels of the file may refer to: variables, tables, functions.
        self._shared: list[bytes] = []
        for section in self._sections:
            if section.name.startswith((".text.", ".nv.constant", ".nv.shared.", ".nv.local.")):
                owner = self._own.get(section.name.rpartition(".")[2])
                if owner is not None:
                    owner.append(section)
                elif not section.name.startswith(".nv.shared."):
                    self._shared += self._section(section)
            elif section.name.startswith(".nv.global"):
                self._shared += self._section(section)

    def _section(self, section: _Section) -> Iterator[bytes]:
        kind = section.name.split(".")[1 if section.name.startswith(".text") else 2]
        yield f"{kind} {section.size}".encode()
        yield section.data
        relocations = self._by_name.get(f".rela{section.name}")
        if relocations is not None:
            for offset, info, addend in struct.iter_unpack("<QQq", relocations.data):
                to = self._symbols[info >> 32]
                yield struct.pack("<QIqQ", offset, info & 0xFFFFFFFF, addend, to.value)

    def digest(self, kernel: str) -> str:
        digest = hashlib.sha256()

        def enter(part: bytes) -> None:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)

        for section in self._own[kernel]:
            for part in self._section(section):
                enter(part)
        for attribute, size in sorted(self._sizes.get(kernel, ())):
            enter(struct.pack("<II", attribute, size))
        info = self._by_name.get(f".nv.info.{kernel}")
        for attribute, value in _attributes(info.data if info else b""):
            if attribute in (_EXTERNS, _API_VERSION):
                continue
            if attribute == _PARAMETER_BANK:  # begins with the index of a symbol
                value = value[4:]
            enter(bytes([attribute]) + value)
        for part in self._shared:
            enter(part)
        return digest.hexdigest()[:16]

    def code(self, kernel: str) -> bytes:
        return next((s.data for s in self._own[kernel] if s.name.startswith(".text.")), b"")

    def is_empty(self, kernel: str) -> bool:
        """Whether the first or second instruction is an unconditional end."""
        code = self.code(kernel)
        return any(code[at : at + 2] == _EXIT for at in (0, _INSTRUCTION))

    def max_threads(self, kernel: str) -> int | None:
        info = self._by_name.get(f".nv.info.{kernel}")
        for attribute, value in _attributes(info.data if info else b""):
            if attribute == _MAX_THREADS:
                x, y, z = struct.unpack("<3I", value)
                return int(x * y * z)
        return None


def products(code: bytes) -> frozenset[str]:
    """Which instructions of tensor cores there are in machine code of sm_90a: "HMMA", or of wgmma
    with rows and columns, "HGMMA.64x128". To disassemble it all would take minutes.
    """
    found = set()
    for match in _LOW_BYTES.finditer(code[::_INSTRUCTION]):
        (word,) = struct.unpack_from("<Q", code, _INSTRUCTION * match.start())
        if mma := _MMA.get(word & 0xFFF):
            found.add(mma)
        elif wgmma := _WGMMA.get(word & 0xFFF):
            at = word >> _COLUMNS_AT & 0x3F
            columns = _COLUMNS_OF_S8[at // 3] if wgmma == "IGMMA" else 8 * (at % 32 + 1)
            found.add(f"{wgmma}.64x{columns}")
    return frozenset(found)


def packed(path: Path) -> dict[int, int]:
    """Bytes of machine code in a library, compressed as it is there, by compute capability."""
    found: dict[int, int] = {}
    sections = [s.data for s in _sections(path.read_bytes()) if s.name == ".nv_fatbin"]
    for data in sections:
        begin = data.find(_CONTAINER)
        while begin >= 0:
            header, size = struct.unpack_from("<HQ", data, begin + 6)
            at, end = begin + header, begin + header + size
            while at < end:
                header, size = struct.unpack_from("<IQ", data, at + 4)
                (sm,) = struct.unpack_from("<I", data, at + 28)
                found[sm] = found.get(sm, 0) + header + size
                at += header + size
            begin = data.find(_CONTAINER, end)
    return found


def of_cubin(cubin: Cubin, source: str | None = None) -> list[Code]:
    """The kernels of one file."""
    file = _File(cubin.elf)
    return [
        Code(
            name,
            cubin.arch,
            file.digest(name),
            source,
            file.max_threads(name),
            file.is_empty(name),
            products(file.code(name)) if cubin.arch == "90a" else frozenset(),
        )
        for name in file.kernels
    ]


def read(path: Path, sources: Sequence[str] = (), arch: str | None = None) -> list[Code]:
    """Every kernel of a library or an object file.

    Args:
        path: the file.
        sources: what it was linked from and has kernels, below csrc, in the order of the link.
        arch: leaves out all others.

    Raises:
        InspectionError: there is no cuobjdump.
    """
    found = list(extract(path, arch))
    counts = {name: sum(c.arch == name for c in found) for name in {c.arch for c in found}}
    return [
        code
        for cubin in found
        for code in of_cubin(
            cubin, sources[cubin.index] if counts[cubin.arch] == len(sources) else None
        )
    ]


def combined(digests: Iterable[str]) -> str:
    """The digest of kernels together, in whatever order they stand."""
    return hashlib.sha256(" ".join(sorted(digests)).encode()).hexdigest()[:12]
