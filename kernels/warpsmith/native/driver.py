"""The CUDA driver, and what code it runs."""

from __future__ import annotations

import ctypes

#: Older drivers cannot unpack what nvcc packs by --compress-mode.
MIN_CUDA = (12, 4)


def cuda() -> tuple[int, int] | None:
    """The CUDA that the driver supports; None where there is no driver."""
    version = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except OSError:
        return None
    return version.value // 1000, version.value % 1000 // 10


def too_old() -> str:
    """What is to be done where no library of kernels runs on the driver; empty where one does."""
    found = cuda()
    if found is None or found >= MIN_CUDA:
        return ""
    wanted = ".".join(map(str, MIN_CUDA))
    return f"the driver is too old: the CUDA kernels need one for CUDA {wanted} (550)"


def too_old_for(toolkit: int) -> str:
    """What is to be done where code of a toolkit of that major version does not run on the driver;
    empty where it does: within a major version, older drivers take the code of newer toolkits.
    """
    found = cuda()
    if found is None or toolkit <= found[0]:
        return ""
    return (
        f"the driver is too old for code of CUDA {toolkit}: update it, or set CUDA_HOME to a "
        f"toolkit of CUDA {found[0]}"
    )


def lacks(toolkit: int) -> str:
    """Why kernels that a toolkit of that major version compiled do not run; empty where they do."""
    return too_old() or too_old_for(toolkit)
