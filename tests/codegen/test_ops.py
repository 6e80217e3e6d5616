"""Every op of the IR on every dtype that has it, native against ATen (through the interpreter), specials included."""

from __future__ import annotations

import math

import pytest
import torch

from graphlift.codegen.llvm import Target, host_target
from graphlift.codegen.llvm.ops import BOOL_OPS, FLOAT_OPS, INT_OPS, REGISTER, supported
from graphlift.lower.interpret import OPS
from graphlift.lower.ir import Node
from tests.codegen.building import axis, load, pointwise, same

FLOATS = (torch.float32, torch.float64)
LOW = (torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
TARGETS = [Target("avx2")] + [Target("avx512")] * (host_target().isa == "avx512")
SIZE = 77
LOW_OPS = (
    "add sub mul div min max where neg abs relu exp tanh sigmoid sqrt lt le gt ge eq ne isnan floor".split()
)

BINARY = set(
    "add sub mul div floordiv mod truncdiv fmod pow atan2 hypot copysign nextafter min max fmin fmax and or xor shl shr"
    " lt le gt ge eq ne".split()
)
BOOLEAN = set("lt le gt ge eq ne isnan isinf isfinite signbit".split())
# Arguments for which the functions are tame, where all reals are not.
DOMAIN = {"lgamma": (0.1, 30.0), "pow": (0.01, 4.0), "tan": (-1.4, 1.4), "acosh": (1.0, 50.0)}
# Within which the results agree, where the shared tolerance is too tight: ATen uses other algorithms here.
LOOSE = {"lgamma": 20.0, "pow": 4.0, "exp2": 2.0, "tan": 2.0, "sinh": 4.0, "cosh": 4.0, "erfc": 20.0}


def arguments(op: str, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(op))
    out = []
    for k in range(count):
        if dtype == torch.bool:
            x = torch.randint(0, 2, (SIZE,), generator=generator).bool()
        elif not dtype.is_floating_point:
            info = torch.iinfo(dtype)
            x = torch.randint(max(info.min, -100), min(info.max, 100), (SIZE,), generator=generator).to(dtype)
            x[:4] = torch.tensor([info.max, info.min, 1, 0], dtype=dtype)
            if k and op in ("floordiv", "mod", "truncdiv", "fmod"):
                x[x == 0] = 3
                x[x == -1] = 7
            if k and op in ("shl", "shr"):
                x = x.abs() % 8
        elif op in DOMAIN:
            low, high = DOMAIN[op]
            x = (torch.rand(SIZE, generator=generator) * (high - low) + low).to(dtype)
        else:
            x = (
                torch.randn(SIZE, generator=generator)
                * (1.0 if k or op in ("asin", "acos", "atanh") else 8.0)
            ).to(dtype)
            specials = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 1e-30, -1e-30]
            if op not in ("hypot", "nextafter", "sin", "cos", "floordiv", "mod", "fmod", "truncdiv"):
                x[: len(specials)] = torch.tensor(specials[k:] + specials[:k]).to(dtype)
        out.append(x)
    return out


def cases() -> list[tuple[str, torch.dtype]]:
    rows = [(op, d) for op in FLOAT_OPS for d in FLOATS]
    # Lowering computes in float32 between casts; these few are still defined on the types themselves.
    rows += [(op, d) for op in LOW_OPS for d in LOW]
    rows += [(op, d) for op in INT_OPS for d in INTS] + [(op, torch.bool) for op in BOOL_OPS]
    return rows


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.isa)
@pytest.mark.parametrize(("op", "dtype"), cases(), ids=lambda v: str(v).removeprefix("torch."))
def test_matches_aten(op: str, dtype: torch.dtype, target: Target) -> None:
    count = 3 if op in ("where", "fma") else 2 if op in BINARY else 1
    inputs = arguments(op, dtype, count)
    try:
        OPS[op](*([inputs[0] != 0, *inputs[1:]] if op == "where" else inputs))
    except RuntimeError as error:
        pytest.skip(f"ATen: {error}")
    loads = [load(k, axis(0), dtype) for k in range(count)]
    if op == "where":
        inputs[0] = inputs[0] != 0
        loads[0] = load(0, axis(0), torch.bool)
    node = Node(op, torch.bool if op in BOOLEAN else dtype, tuple(loads))
    kernel = pointwise((SIZE,), node, [(x.dtype, SIZE) for x in inputs])
    same(kernel, inputs, target, LOOSE.get(op, 1.0))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.isa)
@pytest.mark.parametrize("to", list(REGISTER), ids=str)
@pytest.mark.parametrize("source", list(REGISTER), ids=str)
def test_casts_as_aten(source: torch.dtype, to: torch.dtype, target: Target) -> None:
    if source.is_floating_point:
        x = torch.linspace(-120.0, 120.0, SIZE).to(source)  # negatives to uint8 wrap
        if to.is_floating_point or to == torch.bool:
            x[:5] = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.1]).to(source)
    else:
        x = torch.arange(-38, 39).to(source)
        if source not in (torch.bool, torch.uint8):
            x[:2] = torch.tensor([torch.iinfo(source).max, torch.iinfo(source).min], dtype=source)
    kernel = pointwise((SIZE,), Node("cast", to, (load(0, axis(0), source),)), [(source, SIZE)])
    same(kernel, [x], target)


def test_rounding_to_bfloat16_is_nearest_even() -> None:
    bits = torch.arange(0, 1 << 20, dtype=torch.int64) * 4093 % (1 << 32)
    x = torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)
    kernel = pointwise(
        (x.numel(),), Node("cast", torch.bfloat16, (load(0, axis(0)),)), [(torch.float32, x.numel())]
    )
    from tests.codegen.building import run_native

    out = torch.empty(x.numel(), dtype=torch.bfloat16)
    run_native(kernel, [x, out])
    want = x.bfloat16()
    assert torch.equal(out.view(torch.int16)[~x.isnan()], want.view(torch.int16)[~x.isnan()])
    assert out[x.isnan()].isnan().all()


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.isa)
@pytest.mark.parametrize("op", ["exp", "tanh", "erf", "log"])
def test_inlined_functions_are_accurate(op: str, target: Target) -> None:
    x = torch.cat(
        [torch.linspace(-105, 105, 200_001), torch.linspace(-2, 2, 200_001), torch.logspace(-45, 38, 100_001)]
    )
    kernel = pointwise(
        (x.numel(),), Node(op, torch.float32, (load(0, axis(0)),)), [(torch.float32, x.numel())]
    )
    from tests.codegen.building import run_native

    out = torch.empty(x.numel())
    run_native(kernel, [x, out], target)
    want = OPS[op](x.double())
    finite = want.abs().lt(3e38) & want.abs().gt(1.2e-38)
    ulp = torch.exp2(torch.floor(torch.log2(want[finite].abs())) - 23)
    error = ((out[finite].double() - want[finite]) / ulp).abs().max().item()
    assert error < 1.6, f"{op}: {error:.2f} units in the last place"
    assert torch.equal(out.isnan(), want.isnan())


def test_every_op_of_the_interpreter_has_a_form_or_is_listed() -> None:
    # fma, reciprocal and kin exist for floats alone; what is missing for ints stays with ATen.
    assert {op for op in OPS if not supported(op, torch.float32)} == {"and", "or", "xor", "not", "shl", "shr"}
    assert all(op in OPS for op in {*FLOAT_OPS, *INT_OPS, *BOOL_OPS})
