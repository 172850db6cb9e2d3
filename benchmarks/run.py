"""Benchmarks operators on the GPU at hand: `python benchmarks/run.py rms_norm --dtype bf16`.

The same as `warpsmith bench`, also from a checkout that is not installed.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("warpsmith") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))

from warpsmith.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
