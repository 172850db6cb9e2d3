"""The package as a repository of kernels of Hugging Face's Hub, which its `kernels` package loads.

    python -m warpsmith.native.hub_layout FOLDER

writes `FOLDER/build/torch-universal`: the package with its sources, which are compiled on first use
as those of a wheel are, what it is in `metadata.json`, and `layers` for models that mark theirs.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from warpsmith.native import csrc

#: For all versions of PyTorch and of CUDA, and for none: references serve tensors of a CPU.
VARIANT = "torch-universal"
VERSION = 1
_ABOUT = {
    "name": "warpsmith",
    "version": VERSION,
    "license": "Apache-2.0",
    "python-depends": [],
    "backend": {"type": "cuda"},
}
#: One that is imported already stays; a second would register the operators again.
_INIT = '''"""warpsmith, as a kernel of the Hub."""

import sys
from pathlib import Path

if "warpsmith" not in sys.modules:
    _here = str(Path(__file__).parent)
    sys.path.insert(0, _here)
    try:
        import warpsmith
    finally:
        sys.path.remove(_here)

import warpsmith
from warpsmith import layers

__all__ = ["layers", "warpsmith"]


def __getattr__(name):
    return getattr(warpsmith, name)
'''


def write(folder: Path) -> Path:
    """Writes the layout, in the place of one that is there.

    Returns:
        The folder of its one variant.

    Raises:
        FileExistsError: the folder has something else in the variant's place.
    """
    to = folder / "build" / VARIANT
    if to.exists():
        if not (to / "metadata.json").is_file():
            raise FileExistsError(f"{to} is there, and no layout")
        shutil.rmtree(to)
    left_out = shutil.ignore_patterns("__pycache__", "lib", "csrc", "*.so")
    shutil.copytree(csrc.PACKAGE, to / "warpsmith", ignore=left_out)
    shutil.copytree(csrc.CSRC, to / "warpsmith" / "csrc")
    (to / "__init__.py").write_text(_INIT)
    identity = f"_warpsmith_{csrc.digest(csrc.code(csrc.CSRC))}"
    (to / "metadata.json").write_text(json.dumps({"id": identity, **_ABOUT}, indent=2) + "\n")
    return to


def main() -> None:
    parser = argparse.ArgumentParser(description="writes the layout of a repository of the Hub")
    parser.add_argument("folder", type=Path)
    print(write(parser.parse_args().folder))


if __name__ == "__main__":
    main()
