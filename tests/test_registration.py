"""What specs may say: arguments by name, arguments that are written to, outputs that are left out,
and dtypes of several tensors at once, on small operators without kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from warpsmith.core import dispatch
from warpsmith.core.arguments_by_name import Call, asks_for_gpu, by_name
from warpsmith.core.catalogue import PACK, Gradients, Inputs, Needs, Op, Rung, Sample, Signature
from warpsmith.proof import testing
from warpsmith.proof.verify.run import Run

NAMES = ("x", "weight", "eps")

# --- arguments by name ----------------------------------------------------------------------------


def adapted(function: Callable[..., Any]) -> Callable[..., Any]:
    return by_name(function, NAMES, "norm")


def test_a_function_gets_the_arguments_that_it_names() -> None:
    assert adapted(lambda eps, x: (eps, x))(1, 2, 3) == (3, 1)
    assert adapted(lambda **rest: rest)(1, 2, 3) == {"x": 1, "weight": 2, "eps": 3}
    assert adapted(lambda x, **rest: rest)(1, 2, 3) == {"weight": 2, "eps": 3}
    assert adapted(lambda *args: args)(1, 2, 3) == (1, 2, 3)
    assert adapted(lambda call: (call.weight, *call))(1, 2, 3) == (2, 1, 2, 3)


def test_a_parameter_with_a_default_may_be_missing_from_the_schema() -> None:
    assert adapted(lambda x, bias=7: (x, bias))(1, 2, 3) == (1, 7)


def test_all_arguments_in_order_need_no_adapter() -> None:
    def whole(x: int, weight: int, eps: int) -> None: ...

    assert adapted(whole) is whole
    assert adapted(torch.nn.functional.silu) is torch.nn.functional.silu


def test_a_function_may_serve_operators_with_other_arguments() -> None:
    def width(weight: int) -> int:
        return weight

    assert by_name(adapted(width), ("weight", "x"), "other")(1, 2) == 1


def test_a_condition_may_ask_for_the_gpu() -> None:
    def by_call(call: Call, *, sm: int | None = None) -> tuple[int, int | None]:
        return call.weight, sm

    def named(weight: int, *, sm: int | None = None) -> tuple[int, int | None]:
        return weight, sm

    def in_order(*args: int, sm: int | None = None) -> tuple[int, int | None]:
        return args[1], sm

    for function in (by_call, named, in_order):
        condition = adapted(function)
        assert asks_for_gpu(condition)
        assert condition(1, 2, 3, sm=89) == (2, 89)
        assert condition(1, 2, 3) == (2, None)
    assert not asks_for_gpu(adapted(lambda weight: weight))


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"norm: .*<lambda> asks for wieght; there are x, weight"):
        adapted(lambda x, wieght: x)
    with pytest.raises(AttributeError, match="a call of x, weight has no bias"):
        _ = Call(("x", "weight"), (1, 2)).bias


def _op(schema: str, **settings: Any) -> Op:
    """An operator without kernels: a ladder of one rung, and no samples."""
    settings.setdefault("ladder", (Rung("naive", "one thread"),))
    return Op(schema, family="norm", triton="none:none", **settings)


def registered(schema: str, **settings: Any) -> Op:
    op = _op(schema, **settings)
    dispatch.register(op)
    return op


@pytest.mark.parametrize(
    "settings",
    [
        {"check": lambda y: None},
        {"ladder": (Rung("naive", "one thread", when=lambda y: None),)},
        {"backward": lambda grad, y: {}},
        {"saves": {"kept": lambda y: y}, "backward": lambda kept: {}},
        {"backward": lambda *args: {}},
    ],
    ids=["check", "when", "backward", "saves", "positional backward"],
)
def test_every_function_of_a_spec_is_looked_at(settings: dict[str, Any]) -> None:
    functions = {"reference": lambda x: x.clone(), "fake": torch.empty_like}
    with pytest.raises(TypeError, match=r"y|must name its arguments"):
        _op("unused(Tensor x) -> Tensor", **functions, **settings)


def test_samples_may_name_their_arguments() -> None:
    op = _op(
        "named(Tensor x, Tensor? weight=None, float eps=1e-6) -> Tensor",
        reference=lambda x: x,
        fake=torch.empty_like,
        samples=(
            Sample("eps", lambda i: {"eps": 0.5, "x": 1}),
            Sample("x alone", lambda i: {"x": 1}),
            Sample("unknown", lambda i: {"y": 1}),
        ),
    )
    assert [s.make(Inputs()) for s in op.samples[:2]] == [(1, None, 0.5), (1,)]
    with pytest.raises(TypeError, match="named takes no y"):
        op.samples[2].make(Inputs())


# --- derivatives ----------------------------------------------------------------------------------


def _scaled_gradients(grad_y: Tensor, x: Tensor, scale: Tensor, needs: Needs) -> Gradients:
    wanted = {"x": grad_y * scale, "scale": (grad_y * x).sum()}
    return {name: wanted[name] for name in needs}


def test_a_derivative_names_what_it_is_computed_from() -> None:
    op = registered(
        "test_scaled(Tensor x, Tensor scale, Tensor? unused=None) -> (Tensor y, Tensor sign)",
        reference=lambda x, scale: (x * scale, x.sign()),
        fake=lambda x: (torch.empty_like(x), torch.empty_like(x)),
        backward=_scaled_gradients,
        constants=("sign",),
    )
    assert op.derivative_takes == ("grad_y", "x", "scale", "needs")
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    function = torch.ops.warpsmith.test_scaled
    assert torch.autograd.gradcheck(lambda *args: function(*args)[0], (x, scale))
    assert not function(x, scale)[1].requires_grad


# --- arguments that are written to ----------------------------------------------------------------


def _appended(
    new: Tensor, cache: Tensor, place: int, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The sum of new rows, the cache with them at `place`, and their lengths."""
    filled = cache.clone()
    filled[place : place + new.shape[0]] = new
    return new.sum(), filled, None if lengths is None else new.square().sum(-1).sqrt()


APPEND = registered(
    "test_append(Tensor new, Tensor(a!) cache, int place, Tensor(b!)? lengths=None) -> Tensor",
    reference=_appended,
    fake=lambda new: new.new_empty(()),
    samples=(
        Sample("rows", lambda i: {"new": i.randn(2, 4), "cache": i.randn(8, 4), "place": 3}),
        Sample("lengths", lambda i: (i.randn(2, 4), i.randn(8, 4), 3, i.randn(2))),
        Sample("strided", lambda i: (i.randn(2, 4), i.randn(8, 9)[:, 3:7], 3, i.randn(4)[::2])),
    ),
)
append = torch.ops.warpsmith.test_append
variant_of_append = torch.ops.warpsmith.test_append_f32


def _given(sample: Sample) -> tuple[Any, ...]:
    return dispatch.normalise(APPEND, sample.make(APPEND.inputs("f32")))


@pytest.mark.parametrize("function", [append, variant_of_append], ids=str)
@pytest.mark.parametrize("sample", APPEND.samples, ids=str)
def test_a_call_writes_its_arguments(function: Any, sample: Sample) -> None:
    args = _given(sample)
    cache, lengths = args[1], args[3]
    total, wanted_cache, wanted_lengths = _appended(*args)
    version = cache._version
    assert torch.equal(function(*args), total)
    assert torch.equal(cache, wanted_cache)
    assert lengths is wanted_lengths is None or torch.equal(lengths, wanted_lengths)
    assert cache._version > version, "autograd was not told of the write"


@pytest.mark.parametrize("sample", APPEND.samples, ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_code_writes_them_too(sample: Sample, dynamic: bool) -> None:
    """Between reads of the cache, of which the second has to see the write."""

    def around(new: Tensor, cache: Tensor, place: int, lengths: Tensor | None) -> Any:
        before = cache.sum()
        total = append(new, cache, place, lengths)
        return before, total, cache.sum()

    torch._dynamo.reset()
    ours, theirs = _given(sample), _given(sample)
    found = torch.compile(around, fullgraph=True, dynamic=dynamic, backend="aot_eager")(*ours)
    for a, b in zip((*found, *ours), (*around(*theirs), *theirs), strict=True):
        if isinstance(a, Tensor):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("sample", APPEND.samples, ids=str)
def test_opcheck_of_a_call_that_writes(sample: Sample) -> None:
    for function in (append.default, variant_of_append.default):
        torch.library.opcheck(function, sample.make(APPEND.inputs("f32")))


@pytest.mark.parametrize("sample", APPEND.samples, ids=str)
def test_the_checks_judge_what_was_written(sample: Sample) -> None:
    run = Run(APPEND, torch.device("cpu"), frozenset(), ("f32",), [])
    args = run.make(sample, "f32")
    with testing.unchanged(args):
        out = run.function()(*args)
    testing.assert_matches(APPEND, out, args)
    total, cache, lengths = out
    assert not testing.compare(APPEND, (total, cache + 1, lengths), args).ok
    other = cache if lengths is None else None
    assert not testing.compare(APPEND, (total, cache, other), args).ok


def test_the_checks_see_a_write_beside_the_argument() -> None:
    def careless(new: Tensor, cache: Tensor, place: int, lengths: Tensor | None) -> Any:
        torch.empty(0).set_(cache.untyped_storage()).zero_()
        return new.sum()

    with pytest.raises(AssertionError, match="wrote beside cache"):
        testing.with_written(APPEND, careless)(*_given(APPEND.samples[2]))


def test_what_cannot_be_written_to_raises() -> None:
    new, cache = torch.randn(2, 4), torch.randn(8, 4)
    with pytest.raises(RuntimeError, match="test_append: not differentiable"):
        append(new.requires_grad_(), cache, 0)
    with pytest.raises(RuntimeError, match="expected cache that are not expanded"):
        append(new.detach(), torch.randn(4).expand(8, 4), 0)


def test_what_writes_has_no_derivative() -> None:
    with pytest.raises(ValueError, match="PyTorch differentiates no operator that writes"):
        _op(
            "writing(Tensor(a!) x) -> ()",
            reference=lambda x: x + 1,
            fake=lambda x: None,
            backward=lambda x: {},
        )
    with pytest.raises(ValueError, match="only where all outputs are there"):
        _op("writing(Tensor(a!) x) -> Tensor?", reference=lambda x: (None, x), fake=lambda: None)


def test_a_call_may_have_no_outputs_at_all() -> None:
    registered(
        "test_increment(Tensor(a!) x, Tensor by) -> ()",
        reference=lambda x, by: x + by,
        fake=lambda: None,
    )
    x = torch.zeros(3)
    function = torch.ops.warpsmith.test_increment
    assert function(x, torch.ones(3)) is None
    torch.compile(function, fullgraph=True, backend="aot_eager")(x, torch.ones(3))
    assert torch.equal(x, torch.full((3,), 2.0))


# --- outputs that are left out --------------------------------------------------------------------


def _normalised(x: Tensor, want_length: bool) -> tuple[Tensor, Tensor | None]:
    length = x.square().sum(-1, keepdim=True).sqrt()
    return x / length, length.squeeze(-1) if want_length else None


NORMALISE = registered(
    "test_normalise(Tensor x, bool want_length=False) -> (Tensor y, Tensor? length)",
    reference=_normalised,
    fake=lambda x, want_length: (
        torch.empty_like(x),
        x.new_empty(x.shape[:-1]) if want_length else None,
    ),
    backward=lambda grad_y, grad_length, y: {"x": grad_y if grad_length is None else grad_y + y},
    samples=(
        Sample("alone", lambda i: (i.randn(3, 4),)),
        Sample("length", lambda i: (i.randn(3, 4), True)),
    ),
)
normalise = torch.ops.warpsmith.test_normalise


@pytest.mark.parametrize("sample", NORMALISE.samples, ids=str)
def test_an_output_may_be_left_out(sample: Sample) -> None:
    args = dispatch.normalise(NORMALISE, sample.make(NORMALISE.inputs("f32")))
    out = normalise(*args)
    assert (out[1] is None) != args[1]
    testing.assert_matches(NORMALISE, out, args)
    assert not testing.compare(NORMALISE, (out[0], out[0] if out[1] is None else None), args).ok
    for function in (normalise.default, torch.ops.warpsmith.test_normalise_f32.default):
        torch.library.opcheck(function, args)
        torch.library.opcheck(function, (args[0].requires_grad_(), args[1]))
    torch._dynamo.reset()
    compiled = torch.compile(normalise, fullgraph=True, backend="aot_eager")
    testing.assert_matches(NORMALISE, compiled(*args), args)
    x = args[0].detach().requires_grad_()
    sum(o.sum() for o in normalise(x, *args[1:]) if o is not None).backward()
    assert torch.equal(x.grad, torch.ones_like(x) + (out[0] if args[1] else 0))


# --- dtypes of several tensors --------------------------------------------------------------------

ATTEND = registered(
    "test_attend(Tensor q, Tensor cache) -> Tensor",
    reference=lambda q, cache: q @ cache.to(q.dtype).t(),
    fake=lambda q, cache: q.new_empty(q.shape[0], cache.shape[0]),
    ladder=(
        Rung("naive", "one thread", dtypes=("f32", "bf16", "bf16_e4m3")),
        Rung(
            "pack",
            "128-bit accesses",
            dtypes=("bf16", "bf16_e4m3", "w8a16"),
            width=PACK,
            pack=True,
            accumulators=("f32", "same"),
        ),
    ),
    accumulates=True,
    signatures=(
        Signature("bf16", {"q": "bf16", "cache": "bf16"}, pack=8),
        Signature("bf16_e4m3", {"q": "bf16", "cache": "e4m3"}, pack=8),
        Signature("w8a16", {"q": "f16", "cache": "i8"}, pack=16),
    ),
    samples=(Sample("rows", lambda i: (i.randn(3, 16), i.of("cache").randn(5, 16))),),
)


def test_variants_bear_the_names_of_signatures() -> None:
    assert ATTEND.dtypes == ("f32", "bf16", "bf16_e4m3", "w8a16")
    assert [v.name for v in ATTEND.variants] == [
        "f32",
        "bf16_f32",
        "bf16_e4m3_f32",
        "bf16x8_pack_f32",
        "bf16x8_pack_bf16",
        "bf16_e4m3x8_pack_f32",
        "bf16_e4m3x8_pack_bf16",
        "w8a16x16_pack_f32",
        "w8a16x16_pack_f16",
    ]


@pytest.mark.parametrize("dtype", ATTEND.dtypes)
def test_a_signature_makes_its_samples_and_takes_no_others(dtype: str) -> None:
    args = ATTEND.samples[0].make(ATTEND.inputs(dtype))
    taken = {v.dtype for v in ATTEND.variants if dispatch.refusal(v, args, 90) is None}
    assert taken == {dtype}
    served = dispatch.pick(ATTEND, args, 90)
    assert served is not None
    assert served.dtype == dtype
    assert not served.low_precision
    ran = getattr(torch.ops.warpsmith, served.op_name)(*args)
    assert torch.equal(ran, torch.ops.warpsmith.test_attend(*args))


def test_a_refusal_names_the_argument() -> None:
    args = ATTEND.samples[0].make(ATTEND.inputs("bf16"))
    with pytest.raises(RuntimeError, match=r"bf16_e4m3_f32: takes cache in e4m3, got bf16; got q"):
        torch.ops.warpsmith.test_attend_bf16_e4m3_f32(*args)
