"""How many blocks of a compiled kernel a multiprocessor holds, without a GPU to ask.

A cubin says the registers, the static shared memory and, of a kernel with launch bounds, the
threads of the largest block. The dynamic shared memory is not in it: a launch brings that along.
"""

from __future__ import annotations

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
