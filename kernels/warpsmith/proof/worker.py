"""The process in which `pool` runs tasks: `python -m warpsmith.proof.worker <parent> <descriptor>`,
the numbers of the process that started it and of its end of their connection.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

import torch

from warpsmith.core import catalogue
from warpsmith.proof.pool import CrowdedError, LostDeviceError, Share, Task

#: How often a worker looks whether its parent still lives.
PARENT_SECONDS = 1.0


def _run(connection: Connection, task: Task, share: Share | None, crowded: bool) -> tuple[str, str]:
    """Runs a task; how it ended and what went wrong, as `pool` understands it."""
    state, fault = "done", ""
    try:
        if share is not None:
            torch.cuda.set_per_process_memory_fraction(share.fraction(), share.device)
        task.run(lambda item: connection.send(("item", item)), crowded)
    except CrowdedError:
        state = "crowded"
    except LostDeviceError:
        return "ended", ""
    except torch.cuda.OutOfMemoryError as error:
        state, fault = ("crowded", "") if crowded else ("done", f"{error!r}"[:2000])
    except Exception as error:
        fault = f"{error!r}"[:2000]
    gc.collect()
    if share is not None:
        try:
            torch.cuda.synchronize(share.device)
            torch.cuda.empty_cache()
        except RuntimeError as error:
            return "ended", fault or f"{error!r}"[:2000]
    return state, fault


def _end_with(parent: int) -> None:
    """Ends this process and what it started once its parent is gone, even amid a task."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Serves until the other end of the connection closes."""
    parent, descriptor = map(int, sys.argv[-2:])
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    connection = Connection(descriptor)
    catalogue.load()
    connection.send(("ready", ""))
    state = "done"
    while state != "ended":
        try:
            task, share, crowded = connection.recv()
        except EOFError:
            return
        state, fault = _run(connection, task, share, crowded)
        connection.send((state, fault))


if __name__ == "__main__":
    main()
