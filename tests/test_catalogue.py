"""The catalogue agrees with itself, the CUDA sources, PyTorch and its documentation."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch

import warpsmith
from warpsmith.core import catalogue, dispatch
from warpsmith.core.catalogue import DTYPES, FLOATS, Op
from warpsmith.core.families import FAMILIES
from warpsmith.native import csrc
from warpsmith.proof import testing

OPS = list(catalogue.load().values())
#: Rows that no variant answers, but a function of csrc/device: its self test, and its name there.
SELF_TESTED = {"warp_reduce_{all}": ("warp.cu", "warp_reduce<")}
#: Parts of names that the rows spell otherwise than the catalogue does.
SPELLINGS = {"_fp8_": "_", "(fence)": "_fence", "fast_gelu": "gelu_tanh"}
#: A row's name and, where the row says so beside its name, what it accumulates in.
ROWS = [
    [*line.split(), ""][:2]
    for line in (Path(__file__).parent / "seed_rows.txt").read_text().splitlines()
]
SEEDS = [row for row in ROWS if row[0] not in SELF_TESTED]
LADDERS = sorted({(op.family, op.source_dir) for op in OPS})
DTYPE = "|".join(DTYPES)
ACCUMULATOR = rf"{DTYPE}|i64"
VARIANT = re.compile(rf"({DTYPE})(x\d+)?(_pack)?(_[a-z][a-z0-9]*)*?(_({ACCUMULATOR}))?")
REGISTERED = re.compile(r'Register<\w+>\s+\w+\{\s*"([^"]+)",\s*(?:/\*min_sm=\*/)?\s*(\d+)')


def rungs_in_source(family: str, folder: str) -> dict[str, tuple[str, int]]:
    """File stem -> the name and minimum SM of the rung that the file registers. One that registers
    none holds what several rungs launch.
    """
    found = {}
    for path in sorted((csrc.CSRC / family / folder).glob("*.cu")):
        text = path.read_text()
        matches = REGISTERED.findall(text)
        wanted = 1 if "Register<" in text else 0
        assert len(matches) == wanted, f"{path.name}: one file is one rung, found {matches}"
        for name, min_sm in matches:
            found[path.stem] = (name, int(min_sm))
    return found


def test_there_are_operators() -> None:
    assert {op.family for op in OPS} == set(FAMILIES)


@pytest.mark.parametrize(("family", "folder"), LADDERS, ids=lambda part: str(part))
def test_ladder_and_sources_agree(family: str, folder: str) -> None:
    source = rungs_in_source(family, folder)
    for stem, (name, _) in source.items():
        assert stem == name, f"{family}/{folder}/{stem}.cu registers '{name}'"
    ladder = {
        rung.name: rung.min_sm
        for op in OPS
        if (op.family, op.source_dir) == (family, folder)
        for rung in op.ladder
    }
    assert ladder == dict(source.values())


@pytest.mark.parametrize(("family", "folder"), LADDERS, ids=lambda part: str(part))
def test_ladders_over_one_source_climb_in_one_order(family: str, folder: str) -> None:
    """They share one registry, whose order must hold for each of them."""
    sharing = [op for op in OPS if (op.family, op.source_dir) == (family, folder)]
    ladders = [[r.name for r in op.ladder] for op in sharing]
    longest = max(ladders, key=len)
    for ladder in ladders:
        assert ladder == [name for name in longest if name in ladder]


def test_every_source_folder_belongs_to_an_operator() -> None:
    on_disk = {
        (family, path.parent.relative_to(csrc.CSRC / family).as_posix())
        for family in FAMILIES
        for path in (csrc.CSRC / family).rglob("*.cu")
    }
    assert on_disk == set(LADDERS)


@pytest.mark.parametrize("op", OPS, ids=str)
def test_variants_have_names_of_their_own(op: Op) -> None:
    names = [variant.name for variant in op.variants]
    assert len(names) == len(set(names))
    for variant in op.variants:
        match = VARIANT.fullmatch(variant.name)
        assert match, (
            f"'{variant.name}' is not <dtype>[x<width>][_pack][_<technique>][_<accumulator>]"
        )
        assert match[1] == variant.dtype
        if op.accumulates and variant.dtype != "f32":
            assert match[6] == variant.accumulator


def test_torch_ops_have_names_of_their_own() -> None:
    names = [op.name for op in OPS] + [variant.op_name for variant in catalogue.variants()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("op", OPS, ids=str)
def test_every_variant_is_a_torch_op_of_one_signature(op: Op) -> None:
    wanted = op.schema[len(op.name) :]
    for name in (op.name, *(variant.op_name for variant in op.variants)):
        schema = getattr(torch.ops.warpsmith, name).default._schema
        assert schema == torch._C.parse_schema(f"warpsmith::{name}{wanted}"), name
        assert schema.is_mutable == bool(op.written)
        assert torch.Tag.pt2_compliant_tag in getattr(torch.ops.warpsmith, name).default.tags


@pytest.mark.parametrize("op", catalogue.load().values(), ids=lambda op: op.name)
def test_peers_take_the_arguments_of_their_operator(op: Op) -> None:
    for name, factory in op.peers.items():
        try:
            factory()
        except TypeError as error:  # of `arguments_by_name`
            pytest.fail(f"{name}: {error}")
        except Exception:  # its package is not here, or asks for a GPU
            continue


@pytest.mark.parametrize("row", SELF_TESTED)
def test_seed_row_has_a_self_test(row: str) -> None:
    assert [row, ""] in ROWS
    file, name = SELF_TESTED[row]
    assert name in (csrc.CSRC / "selftest" / file).read_text()


@pytest.mark.parametrize(("seed", "accumulator"), SEEDS, ids=[seed for seed, _ in SEEDS])
def test_seed_row_resolves(seed: str, accumulator: str) -> None:
    if seed in catalogue.peer_rows():
        op, peer = catalogue.peer_rows()[seed]
        assert peer in ("torch", "compile", *op.peers)
        return
    for theirs, ours in SPELLINGS.items():
        seed = seed.replace(theirs, ours)
    answer = catalogue.seed_rows().get(seed)
    assert answer, f"no variant answers the row '{seed}'"
    assert hasattr(torch.ops.warpsmith, answer)
    dtypes = [part.split("x")[0] for part in seed.split("_") if part.split("x")[0] in DTYPES]
    variant = next(v for v in catalogue.variants() if v.op_name == answer)
    assert variant.dtype in (dtypes[:1] or FLOATS)
    for named in (accumulator, *dtypes[1:]):
        assert named in ("", variant.accumulator), f"'{answer}' accumulates in another dtype"


@pytest.mark.parametrize("op", OPS, ids=str)
def test_names_and_aliases_lead_to_the_operator(op: Op) -> None:
    for name in (op.name, *op.aliases):
        assert catalogue.get(name) is op
    with pytest.raises(ValueError, match="unknown operator"):
        catalogue.get(f"no_{op.name}")
    with pytest.raises(ValueError, match=op.name):
        op.variant("no_such_variant")


@pytest.mark.parametrize("op", OPS, ids=str)
def test_spec_is_complete(op: Op) -> None:
    assert op.ladder
    assert op.samples
    assert op.cost is not None
    assert op.bench
    assert all(
        rung.story and rung.story[0].islower() | rung.story[0].isdigit() for rung in op.ladder
    )
    labels = [sample.label for sample in op.samples]
    assert len(labels) == len(set(labels)), "two samples of one label"
    assert any(sample.small and not sample.huge for sample in op.samples)
    for sample in op.samples:
        assert sample.dtypes is None or set(sample.dtypes) <= set(op.dtypes)
        assert not (sample.small and sample.huge), sample.label
    for dtype in op.dtypes:
        assert op.samples_for(dtype)
    assert set(op.constants) <= set(op.outputs)


@pytest.mark.parametrize("op", OPS, ids=str)
def test_samples_are_reproducible(op: Op) -> None:
    for dtype in op.dtypes:
        sample = op.samples_for(dtype)[0]
        first, again = (sample.make(op.inputs(dtype)) for _ in range(2))
        for a, b in zip(first, again, strict=True):
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(a.float(), b.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("op", OPS, ids=str)
def test_cost_counts_at_least_the_outputs(op: Op) -> None:
    assert op.cost is not None
    dtype = op.dtypes[0]
    for sample in [s for s in op.samples_for(dtype) if s.small and not s.huge]:
        args = dispatch.normalise(op, sample.make(op.inputs(dtype)))
        if any(isinstance(a, torch.Tensor) and not a.numel() for a in args):
            continue
        outputs = testing.promised(op, args)[: len(op.outputs)]
        written = sum(o.numel() * o.element_size() for o in outputs)
        assert op.cost.bytes(*args) >= written, sample.label
        assert op.cost.flops(*args) >= 0


def public_functions() -> list[str]:
    return [name for name in warpsmith.__all__ if inspect.isfunction(getattr(warpsmith, name))]


@pytest.mark.parametrize("name", public_functions())
def test_public_function_is_documented(name: str) -> None:
    function = getattr(warpsmith, name)
    text = inspect.getdoc(function) or ""
    for section in ("Args:", "Returns:"):
        assert section in text, f"{name} has no '{section}' in its docstring"
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty, f"{name}: {parameter.name}"
        named = rf"^\s*\*{{0,2}}{parameter.name}\b"
        assert re.search(named, text, re.M), f"{name}: {parameter.name}"


def test_variants_bear_the_names_of_an_alias() -> None:
    silu = catalogue.get("swish")
    assert silu.name == "silu"
    for name in ("f32x4_pack", "silu_f32x4_pack", "swish_f32x4_pack"):
        assert silu.variant(name).op_name == "silu_f32x4_pack"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("pack", "it is a rung, with the variants f32x4_pack, f16x8_pack_f32, "),
        ("f32x4pack", "did you mean f32x4_pack"),
        ("no_such", "`warpsmith list rms_norm` shows them all"),
    ],
)
def test_an_unknown_variant_meets_those_like_it(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"rms_norm: unknown variant '{name}'; {hint}"):
        warpsmith.rms_norm(torch.ones(2, 4), variant=name)


def test_which_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="unknown operator 'rmsnorm'; did you mean rms_norm"):
        warpsmith.which("rmsnorm", torch.ones(2, 4))
    with pytest.raises(TypeError, match="softmax: expected x to be a tensor, got list"):
        warpsmith.which("softmax", [torch.ones(8)])
    old = warpsmith.which("rms_norm", torch.ones(2, 4), sm=70)
    assert old.implementation != "cuda"
    assert old.reason.startswith("the GPU is sm_70, the kernels need sm_80")


def test_public_names_exist() -> None:
    for name in warpsmith.__all__:
        assert hasattr(warpsmith, name)
