"""How blocks of the kernels are launched, as far as no compiled file says it: with how much dynamic
shared memory, and how many threads then.

`launches.json` has it on record, so that occupancy can be told of every architecture without a GPU.
`python benchmarks/launches.py` records it anew.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from warpsmith import limits

RECORD = Path(__file__).with_name("launches.json")


@dataclass(frozen=True)
class Launch:
    """Of all launches of a kernel that with the most dynamic shared memory."""

    threads: int  # of a block
    cluster: int  # blocks
    dynamic_smem: int  # bytes of a block


@functools.cache
def load(path: Path = RECORD) -> dict[str, dict[str, Launch]]:
    """Family -> name of a kernel -> its launch; kernels without dynamic shared memory are left
    out.
    """
    if not path.exists():
        return {}
    families = json.loads(path.read_text())
    return {
        family: {name: Launch(*values) for name, values in kernels.items()}
        for family, kernels in families.items()
    }


def enter(known: dict[str, Launch], name: str, launch: Launch) -> None:
    """Keeps the launch if it takes more dynamic shared memory than what is known of the kernel."""
    before = known.get(name)
    if launch.dynamic_smem > (before.dynamic_smem if before else 0):
        known[name] = launch


def save(families: dict[str, dict[str, Launch]], path: Path = RECORD) -> None:
    """A line for each kernel, sorted."""
    limits.write_json(
        path,
        {
            family: {
                name: [launch.threads, launch.cluster, launch.dynamic_smem]
                for name, launch in sorted(kernels.items())
            }
            for family, kernels in sorted(families.items())
            if kernels
        },
    )
    load.cache_clear()
