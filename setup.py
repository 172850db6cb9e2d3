"""Packages the library; compiles the CUDA kernels ahead of time where torch and nvcc are at hand.

That is the case under `pip install --no-build-isolation .` beside an installed torch. Everywhere
else nothing is compiled here, and the first use on a GPU compiles what it needs.
"""

import os
import re
import shutil
import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "kernels"))


def ahead_of_time() -> bool:
    if os.environ.get("WARPSMITH_BUILD", "1") == "0":
        return False
    try:
        import torch
    except ImportError:
        return False
    # toolchain.MIN_TORCH: beside an older one the package cannot be imported.
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < (2, 11):
        return False
    from warpsmith.native import toolchain

    return toolchain.why_no_compiler() is None


class BuildPackage(build_py):
    """Puts the stable-ABI libraries into `warpsmith/lib`."""

    def run(self) -> None:
        if not self.editable_mode:
            # A folder left by an earlier build may hold libraries, or modules that are gone.
            shutil.rmtree(Path(self.build_lib) / "warpsmith", ignore_errors=True)
        super().run()
        if self.editable_mode or not ahead_of_time():
            return
        from warpsmith.native import build, finding, libraries, toolchain

        archs = os.environ.get("WARPSMITH_ARCHS", " ".join(toolchain.RELEASE_ARCHS)).split()
        scratch = ROOT / "build" / "wheel"
        lib = Path(self.build_lib) / "warpsmith" / "lib"
        lib.mkdir(parents=True, exist_ok=True)
        wanted = [name for name in libraries.all_libraries() if name != libraries.SELFTEST]
        stale = [name for name in wanted if not finding.is_current(scratch, name, archs)]
        if stale:
            print(f"warpsmith: compiling {len(stale)} libraries for {', '.join(archs)}", flush=True)
            try:
                build.build(stale, archs, scratch)
            except build.BuildError as error:  # tried on first use; the others serve
                print(f"warpsmith: {error}", flush=True)
        for name in wanted:
            if finding.is_current(scratch, name, archs):
                for file in finding.files(scratch, name):
                    shutil.copy2(file, lib / file.name)


cmdclass: dict[str, type] = {"build_py": BuildPackage}
if ahead_of_time():
    from setuptools.dist import Distribution

    class PlatformDistribution(Distribution):
        """Holds machine code, but none that knows a Python version: tagged py3-none-<platform>."""

        def has_ext_modules(self) -> bool:
            return True

    from setuptools.command.bdist_wheel import bdist_wheel

    class PlatformWheel(bdist_wheel):
        def get_tag(self) -> tuple[str, str, str]:
            return ("py3", "none", super().get_tag()[2])

    cmdclass["bdist_wheel"] = PlatformWheel
    extra = {"distclass": PlatformDistribution}
else:
    extra = {}

setup(
    packages=[*find_packages("kernels"), "warpsmith.csrc"],
    cmdclass=cmdclass,
    # Beside, not in, the folder to which `warpsmith build` writes.
    options={"build": {"build_base": "build/setuptools"}},
    **extra,
)
