"""How blocks of the kernels are launched, as far as no compiled file says it: with how much dynamic
shared memory, and how many threads then.

`launches.json` has it on record, by architecture and source file, so that occupancy can be told of
every architecture without a GPU. `python tests/emulator/launches.py` records it anew.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

from warpsmith.core import json_files

RECORD = Path(__file__).with_name("launches.json")


@dataclass(frozen=True, order=True)
class Launch:
    """Of all launches with so many threads and blocks that with the most dynamic shared memory."""

    threads: int  # of a block
    cluster: int  # blocks
    dynamic_smem: int  # bytes of a block


#: Source file, "norm/rms_norm/registers.cu" -> its launches. Files whose kernels never get dynamic
#: shared memory are not in it.
Files = Mapping[str, tuple[Launch, ...]]


@functools.cache
def load() -> dict[str, Files]:
    """What is on record of each compute capability, "90"."""
    if not RECORD.exists():
        return {}
    return {
        sm: {name: tuple(Launch(*values) for values in found) for name, found in files.items()}
        for sm, files in json.loads(RECORD.read_text()).items()
    }


def summed_up(found: Iterable[Launch]) -> tuple[Launch, ...]:
    """The largest of each kind, sorted; none where none has dynamic shared memory."""
    most: dict[tuple[int, int], Launch] = {}
    for launch in found:
        kind = (launch.threads, launch.cluster)
        most[kind] = max(launch, most.get(kind, launch))
    known = tuple(sorted(most.values()))
    return known if any(launch.dynamic_smem for launch in known) else ()


def likely(found: Iterable[Launch], max_threads: int | None) -> Launch | None:
    """The launch that the occupancy of a kernel is told of: of those with as many threads as its
    launch bounds say, else of those with no more, that with the most dynamic shared memory.
    """
    fitting = [launch for launch in found if max_threads is None or launch.threads <= max_threads]
    exact = [launch for launch in fitting if launch.threads == max_threads]
    return max(exact or fitting, key=lambda launch: launch.dynamic_smem, default=None)


def save(record: Mapping[str, Files]) -> None:
    """A line for each source file, sorted."""
    json_files.write_json(
        RECORD,
        {
            sm: {name: [list(astuple(launch)) for launch in found] for name, found in files}
            for sm, of in sorted(record.items())
            if (files := sorted((name, found) for name, found in of.items() if found))
        },
    )
    load.cache_clear()
