"""What this machine has."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path


def cores() -> int:
    """CPU cores that this process may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limit = Path("/sys/fs/cgroup/cpu.max")
    with contextlib.suppress(OSError, ValueError):
        quota, period = limit.read_text().split()
        count = min(count or 1, math.ceil(int(quota) / int(period)))
    return max(1, count or 1)
