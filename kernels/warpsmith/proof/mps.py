"""NVIDIA's Multi-Process Service, under which processes run their kernels on a GPU at once.

Without it they take turns, and one that waits for many small kernels mostly waits for its turn.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_CONTROL = "nvidia-cuda-mps-control"
_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
#: What a process has to be able to do under the service before others are started under it.
_TRIAL = (sys.executable, "-c", "import torch; torch.zeros(1, device='cuda').item()")
#: Seconds that a call of it, its start or its end may take.
_LONGEST = 60.0


@contextlib.contextmanager
def service() -> Iterator[Mapping[str, str]]:
    """A service of this process's own, which ends with it.

    Yields:
        The environment of processes that are to share GPUs by it; empty where it cannot be had.
        A kernel that breaks the CUDA context of one of them breaks that of all.
    """
    control = shutil.which(_CONTROL)
    if control is None or _PIPES in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        ours = {_PIPES: folder, _LOGS: folder}
        everyone = {**os.environ, **ours}
        # It serves all GPUs, so that its clients count them as everyone does.
        daemon = {k: v for k, v in everyone.items() if k != "CUDA_VISIBLE_DEVICES"}
        # In the foreground, so that what ends this process's group ends it too.
        serving = subprocess.Popen(
            [control, "-f"],
            env=daemon,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield ours if _serves(serving, folder) and _run(_TRIAL, everyone) else {}
        finally:
            _run([control], daemon, "quit\n")
            with contextlib.suppress(subprocess.TimeoutExpired):
                serving.wait(_LONGEST)
            serving.kill()
            serving.wait()


def _serves(serving: subprocess.Popen[bytes], folder: str) -> bool:
    """Waits until it takes clients: before, they would go without it."""
    ends = time.monotonic() + _LONGEST
    while serving.poll() is None and time.monotonic() < ends:
        if Path(folder, "control").exists():
            return True
        time.sleep(0.05)
    return False


def _run(command: Sequence[str], environment: Mapping[str, str], said: str = "") -> bool:
    """Whether a command ended well."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            command,
            env=environment,
            input=said.encode(),
            timeout=_LONGEST,
            check=False,
            capture_output=True,
        )
        return done.returncode == 0
    return False
