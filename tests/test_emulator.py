"""The emulator itself: that it runs what is right, and notices what is wrong."""

from __future__ import annotations

import ctypes
import re
import shutil
from collections.abc import Callable

import pytest
import torch

import emulator
from emulator import architectures, drift, gpus
from warpsmith.core import catalogue, dispatch
from warpsmith.native import csrc, toolchain

Probe = Callable[[str], tuple[torch.Tensor, str]]

FROM = torch.arange(128, dtype=torch.float32) + 1
TURNED = FROM[:64].flip(0)


@pytest.fixture(scope="module")
def probes() -> ctypes.CDLL:
    if shutil.which("g++") is None or toolchain.cuda_home() is None:
        pytest.skip("needs g++ and the headers of CUDA")
    library = emulator.load(emulator.library("probe", emulator.probe_sources()))
    library.emulator_probe.restype = ctypes.c_char_p
    return library


@pytest.fixture(scope="module")
def probe(probes: ctypes.CDLL) -> Probe:
    def run(name: str) -> tuple[torch.Tensor, str]:
        to = torch.zeros(128)
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (FROM, to)]
        return to, probes.emulator_probe(name.encode(), *pointers).decode()

    return run


@pytest.fixture(params=["in order", "reversed"])
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPSMITH_EMULATOR_REVERSED", str(int(request.param == "reversed")))


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize(
    "name", ["turn", "background", "bulk", "over writes", "over reads", "multiply", "store", "box"]
)
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
@pytest.mark.parametrize("name", ["background, no wait", "bulk, no wait", "multiply, no wait"])
def test_copies_are_made_no_sooner_than_they_are_waited_for(probe: Probe, name: str) -> None:
    to, message = probe(name)
    assert message == ""
    assert to[:64].isnan().all()


def test_shared_memory_that_nothing_wrote_is_nan(probe: Probe) -> None:
    to, message = probe("unwritten")
    assert message == ""
    assert to[0].isnan()
    assert torch.equal(to[1:64], TURNED[1:])


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("name", ["store, no fence", "store, fence before the writes"])
def test_copies_out_see_nothing_that_was_not_fenced(probe: Probe, name: str) -> None:
    to, message = probe(name)
    assert message == ""
    wrong = to[:64].isnan()
    # a fence of one thread shows what others wrote before it, and none what itself writes after it
    assert wrong.all() if name == "store, no fence" else wrong.any()


@pytest.mark.usefixtures("order")
def test_products_see_nothing_that_was_not_fenced(probe: Probe) -> None:
    to, message = probe("multiply, no fence")
    assert message == ""
    assert to[:64].isnan().all()


@pytest.mark.usefixtures("order")
def test_what_was_not_fenced_may_land_on_a_copy(probe: Probe) -> None:
    to, message = probe("over writes, no fence")
    assert message == ""
    assert torch.equal(to[:64], torch.full((64,), -1.0))


_BEFORE = "a box stored from before its tensor on: an illegal instruction"
_NOT_COMMITTED = "a copy in the background that no commit puts into a group"
_NOT_FENCED = "a copy over shared memory that a thread waited for and did not fence since"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("background, no commit", _NOT_COMMITTED),
        ("background, neither", _NOT_COMMITTED),
        ("over reads, no fence", _NOT_FENCED),
        ("over reads, one thread without a fence", _NOT_FENCED),
        ("bulk, barrier not shown", "an mbarrier that no fence has shown to it"),
        ("multiply, sums not fenced", "wgmma without wgmma_fence()"),
        ("box, from before the first row", _BEFORE),
        ("box, from before the first column", _BEFORE),
        ("box, from the middle of 16 bytes", "a box that begins at no multiple of 16 bytes"),
        ("box, misaligned", "misaligned: a box of a tensor map"),
        ("box, of another rank", "a box of another rank than its tensor map"),
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


def test_a_thread_may_begin_with_a_tensor_map(probe: Probe, probes: ctypes.CDLL) -> None:
    """Autograd's does; the driver refuses where no context is current."""
    assert probe("turn")[1] == ""
    first_map = probes.emulator_probe_first_map
    first_map.restype = ctypes.c_char_p
    data = (ctypes.c_float * 128)()
    aligned = -(-ctypes.addressof(data) // 16) * 16
    assert first_map(ctypes.c_void_p(aligned)).decode() == ""


def test_arguments_are_noted_without_what_lies_between_their_members(probes: ctypes.CDLL) -> None:
    bytes_ = (ctypes.c_ubyte * 256)()
    count = probes.emulator_probe_padding(0xAA, bytes_)
    base = b"\xaa" + 7 * b"\0" + 80 * b"\xaa"
    assert bytes(bytes_[:count]) == base + b"\xaa" + 7 * b"\0" + 8 * b"\xaa"


_FUNCTION = re.compile(r"^(?:__device__ __forceinline__ )[^=;]*?\b(\w+)\(", re.MULTILINE)
#: What they are made of.
_DETAIL = re.compile(r"\bdetail::(\w+)")


def test_every_instruction_has_its_emulation() -> None:
    files = (*emulator.HERE.glob("ptx*.h"), emulator.HERE / "matrix.h")
    texts = "".join(path.read_text() for path in files)
    headers = sorted((csrc.CSRC / "device" / "ptx").glob("*.h"))
    instructions = "".join(header.read_text() for header in headers)
    wanted = set(_FUNCTION.findall(instructions)) - set(_DETAIL.findall(instructions))
    assert len(wanted) > 50
    assert sorted(n for n in wanted if re.search(rf"\b{n}\b", texts) is None) == []


def test_a_header_that_changed_is_noticed() -> None:
    with pytest.raises(ValueError, match=r"device/cluster\.h: no 'int cluster_rank"):
        emulator.rewritten("device/cluster.h", "")
    with pytest.raises(ValueError, match=r"host/launch\.h"):
        emulator.rewritten("host/launch.h", "")


def test_sources_with_code_for_older_architectures_are_found() -> None:
    def differing(sm: int) -> set[str]:
        kernels = csrc.CSRC.rglob("*.cu")
        return {
            p.relative_to(csrc.CSRC).as_posix() for p in kernels if architectures.differs(p, sm)
        }

    older = differing(80)
    assert {"gemm/matmul/mma_peak.cu", "norm/group_norm/nhwc_split.cu", "reduce/dot/x2.cu"} <= older
    assert "gemm/matmul/mma_tma.cu" not in older  # of sm_90 alone
    assert "reduce/cumsum/look_back.cu" not in older  # launch bounds
    # where sm_89 has the code of sm_80, that is run once
    assert "gemm/matmul/mma_peak.cu" in differing(89)
    assert "norm/group_norm/nhwc_split.cu" not in differing(89)


def test_a_choice_that_is_another_in_c_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    op = catalogue.get("relu")
    args = dispatch.normalise(op, (torch.ones(64),))
    taken = dispatch.pick(op, args, 90)
    assert taken is not None
    monkeypatch.setattr(gpus, "chosen", lambda *call: taken.rung.name)
    assert drift.choice(op, args, 90) == ""
    monkeypatch.setattr(gpus, "chosen", lambda *call: "naive")
    assert drift.choice(op, args, 90) == f"Python takes {taken.rung.name}, C++ naive"
    monkeypatch.setattr(gpus, "chosen", lambda *call: "")
    assert drift.choice(op, args, 90).endswith("C++ none")
    assert drift.choice(op, dispatch.normalise(op, (torch.ones(0),)), 90) == ""


@pytest.mark.parametrize(("shape", "says"), [((4, 0), "needs values to reduce"), ((0, 16), None)])
def test_a_refusal_of_an_empty_call_is_compared(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], says: str | None
) -> None:
    op = catalogue.get("sum")
    args = dispatch.normalise(op, (torch.empty(shape), 1))
    variant = next(v for v in op.variants if v.dtype == "f32" and v.rung.name != "naive")
    monkeypatch.setattr(drift, "_outcome", lambda call: (None, None))  # C++ takes it
    wanted = f"Python refuses: {says}; C++ runs" if says else ""
    assert drift.refusal(variant, args, 90) == wanted
