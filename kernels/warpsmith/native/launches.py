"""How blocks of the kernels are launched, as far as no compiled file says it: with how much dynamic
shared memory, and how many threads then.

`launches.json` has it on record, so that occupancy can be told of every architecture without a GPU.
`python tests/emulator/launches.py` records it anew.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

from warpsmith.core import json_files

RECORD = Path(__file__).with_name("launches.json")


@dataclass(frozen=True)
class Launch:
    """Of all launches of a kernel that with the most dynamic shared memory."""

    threads: int  # of a block
    cluster: int  # blocks
    dynamic_smem: int  # bytes of a block


#: Compute capability -> name of a kernel -> its launch; of kernels with dynamic shared memory.
Family = Mapping[str, Mapping[str, Launch]]


@functools.cache
def load() -> dict[str, Family]:
    """What is on record of each family."""
    if not RECORD.exists():
        return {}
    return {
        family: {
            sm: {name: Launch(*values) for name, values in kernels.items()}
            for sm, kernels in record.items()
        }
        for family, record in json.loads(RECORD.read_text()).items()
    }


def enter(known: dict[str, Launch], name: str, launch: Launch) -> None:
    """Keeps the launch if it takes more dynamic shared memory than what is known of the kernel."""
    before = known.get(name)
    if launch.dynamic_smem > (before.dynamic_smem if before else 0):
        known[name] = launch


def save(families: Mapping[str, Family]) -> None:
    """A line for each kernel, sorted."""
    json_files.write_json(
        RECORD,
        {
            family: {
                sm: {name: list(astuple(launch)) for name, launch in sorted(kernels.items())}
                for sm, kernels in sorted(record.items())
            }
            for family, record in sorted(families.items())
        },
    )
    load.cache_clear()
