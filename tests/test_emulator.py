"""The emulator itself: that it runs what is right, and notices what is wrong."""

from __future__ import annotations

import ctypes
import re
import shutil
from collections.abc import Callable

import pytest
import torch

import emulator
from warpsmith.native import csrc, toolchain

Probe = Callable[[str], tuple[torch.Tensor, str]]

FROM = torch.arange(128, dtype=torch.float32) + 1
TURNED = FROM[:64].flip(0)


@pytest.fixture(scope="module")
def probe() -> Probe:
    if shutil.which("g++") is None or toolchain.cuda_home() is None:
        pytest.skip("needs g++ and the headers of CUDA")
    library = ctypes.CDLL(str(emulator.library("probe", [emulator.probe_source()])))
    library.emulator_probe.restype = ctypes.c_char_p

    def run(name: str) -> tuple[torch.Tensor, str]:
        to = torch.zeros(128)
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (FROM, to)]
        return to, library.emulator_probe(name.encode(), *pointers).decode()

    return run


@pytest.fixture(params=["in order", "reversed"])
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPSMITH_EMULATOR_REVERSED", str(int(request.param == "reversed")))


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("name", ["turn", "background", "bulk"])
def test_what_is_right_runs_in_both_orders(probe: Probe, name: str) -> None:
    to, message = probe(name)
    assert message == ""
    assert torch.equal(to[:64], TURNED)


@pytest.mark.usefixtures("order")
def test_blocks_of_a_cluster_reach_each_other(probe: Probe) -> None:
    to, message = probe("trade")
    assert message == ""
    assert torch.equal(to, torch.cat([FROM[64:], FROM[:64]]))


def test_a_missing_barrier_shows_in_one_of_the_orders(
    probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    for order in "01":
        monkeypatch.setenv("WARPSMITH_EMULATOR_REVERSED", order)
        answers.append(probe("turn, no barrier")[0][:64])
    assert not all(torch.equal(answer, TURNED) for answer in answers)


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("name", ["background, no wait", "bulk, no wait"])
def test_copies_are_made_no_sooner_than_they_are_waited_for(probe: Probe, name: str) -> None:
    to, message = probe(name)
    assert message == ""
    assert to[:64].isnan().all()


def test_shared_memory_that_nothing_wrote_is_nan(probe: Probe) -> None:
    to, message = probe("unwritten")
    assert message == ""
    assert to[0].isnan()
    assert torch.equal(to[1:64], TURNED[1:])


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("absent lanes", "deadlock"),
        ("bulk, too many bytes expected", "deadlock"),
        ("misaligned", "misaligned: a load, thread 0 of block 0"),
    ],
)
def test_what_cannot_go_on_ends_with_a_reason(probe: Probe, name: str, wanted: str) -> None:
    assert wanted in probe(name)[1]
    to, message = probe("turn")  # and the next launch is none the worse for it
    assert message == ""
    assert torch.equal(to[:64], TURNED)


_FUNCTION = re.compile(r"^(?:__device__ __forceinline__ )[^=;]*?\b(\w+)\(", re.MULTILINE)


def test_every_instruction_has_its_emulation() -> None:
    texts = "".join((emulator.HERE / name).read_text() for name in ("ptx.h", "matrix.h"))
    headers = sorted((csrc.CSRC / "device" / "ptx").glob("*.h"))
    wanted = {name for header in headers for name in _FUNCTION.findall(header.read_text())}
    assert len(wanted) > 50
    assert sorted(n for n in wanted if re.search(rf"\b{n}\b", texts) is None) == []


def test_a_header_that_changed_is_noticed() -> None:
    with pytest.raises(ValueError, match=r"device/cluster\.h: no 'int cluster_rank"):
        emulator.rewritten("device/cluster.h", "")
    with pytest.raises(ValueError, match=r"host/launch\.h"):
        emulator.rewritten("host/launch.h", "")
