"""Processes that have imported PyTorch and nothing else: forks of one that waits, so that each of
them need not spend the seconds which that takes.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[1] / "kernels"
#: Reads programs, a line of JSON each, and answers with their status and what they printed.
_WAITING = """
import json, os, sys, tempfile, torch
for line in sys.stdin:
    outputs = [tempfile.TemporaryFile("w+") for _ in range(2)]
    child = os.fork()
    if not child:
        for number, output in enumerate(outputs, start=1):
            os.dup2(output.fileno(), number)
        exec(compile(json.loads(line), "<program>", "exec"), {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for output in outputs:
        output.seek(0)
    print(json.dumps([status, *(output.read() for output in outputs)]), flush=True)
"""


@contextlib.contextmanager
def waiting() -> Iterator[Callable[[str], str]]:
    """Runs programs; gives back what they print, and none may fail."""
    process = subprocess.Popen(
        [sys.executable, "-c", _WAITING],
        env={"PYTHONPATH": str(KERNELS), "PATH": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def run(code: str) -> str:
        print(json.dumps(code), file=process.stdin, flush=True)
        status, said, errors = json.loads(process.stdout.readline())
        assert status == 0, errors
        return said

    with process:
        yield run
