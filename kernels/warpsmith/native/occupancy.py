"""How many blocks of a compiled kernel a multiprocessor holds, without a GPU to ask.

A cubin says the registers, the static shared memory and, of a kernel with launch bounds, the
threads of the largest block. The dynamic shared memory is not in it: a launch brings that along.
"""

from __future__ import annotations

import struct

#: Threads, blocks and bytes of shared memory that a multiprocessor holds: CUDA C++ Programming
#: Guide, "Technical Specifications per Compute Capability".
MULTIPROCESSORS = {
    "80": (2048, 32, 164 << 10),
    "86": (1536, 16, 100 << 10),
    "89": (1536, 24, 100 << 10),
    "90": (2048, 32, 228 << 10),
    "100": (2048, 32, 228 << 10),
    "120": (1536, 24, 100 << 10),
}
WARP = 32
#: A multiprocessor has four parts of so many registers, of which a warp gets a multiple of 256.
PARTS, REGISTERS, REGISTERS_AT_ONCE = 4, 16384, 256
#: The system keeps so much of a block's shared memory, and the sum is a multiple of 128 bytes.
RESERVED, SHARED_AT_ONCE = 1024, 128


def largest_smem(arch: str) -> int | None:
    """Bytes of shared memory that a block may have; None for an unknown architecture."""
    limits = MULTIPROCESSORS.get(arch.rstrip("af"))
    return None if limits is None else limits[2] - RESERVED


def occupancy(arch: str, threads: int, registers: int, shared: int) -> tuple[int, float] | None:
    """Blocks that a multiprocessor holds at once, and the share of its threads that they are.

    The rules are those of NVIDIA's `cuda_occupancy.h`.

    Args:
        arch: "90a".
        threads: of a block.
        registers: of a thread.
        shared: bytes of a block, static and dynamic, less what the system keeps.

    Returns:
        None for an architecture that is not known here.
    """
    limits = MULTIPROCESSORS.get(arch.rstrip("af"))
    if limits is None:
        return None
    most_threads, most_blocks, most_shared = limits
    warps = -(-threads // WARP)
    of_a_warp = -(-max(registers, 1) * WARP // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
    of_a_block = -(-(shared + RESERVED) // SHARED_AT_ONCE) * SHARED_AT_ONCE
    blocks = min(
        most_blocks,
        most_threads // WARP // warps,
        REGISTERS // of_a_warp * PARTS // warps,
        most_shared // of_a_block,
    )
    return blocks, round(blocks * threads / most_threads, 4)


#: Entries of the section `.nv.info.<kernel>`: the format of those that say how long they are, and
#: the attribute that holds the largest block, as three 32-bit sizes.
_SIZED, _MAX_THREADS = 4, 5
_INFO = b".nv.info."


def largest_blocks(cubin: bytes) -> dict[str, int]:
    """Symbols of the kernels with launch bounds in a cubin -> threads of the largest block."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)  # of section headers, in 64-bit ELF
    size, count, names_of = struct.unpack_from("<3H", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    names = headers[names_of][4]
    found = {}
    for name_at, _, _, _, start, length in headers:
        name = cubin[names + name_at : cubin.index(b"\0", names + name_at)]
        threads = _largest_block(cubin[start : start + length]) if name.startswith(_INFO) else 0
        if threads:
            found[name.removeprefix(_INFO).decode()] = threads
    return found


def _largest_block(info: bytes) -> int:
    at = 0
    while at + 4 <= len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if (form, attribute) == (_SIZED, _MAX_THREADS):
            x, y, z = struct.unpack_from("<3I", info, at)
            return int(x * y * z)
        at += value if form == _SIZED else 0
    return 0
