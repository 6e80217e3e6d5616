"""How often a scripted run of changes makes a function compile, against torch.compile in the same run.

In: which compilers. Out: one table: for each case, the graphs that each compiler made.
Always: both see the same calls in the same order, default settings (dynamic=None), a backend that only counts; results
are compared with eager.

    python -m benchmarks.recompiles
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Calls = Callable[[], Iterator[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Case:
    """`make` gives the function or module to compile, `calls` the arguments of one call after the other."""

    name: str
    make: Callable[[], Callable[..., Any]]
    calls: Calls
    between: Callable[[Any, int], None] | None = None  # what happens to it before the call of that number


CASES: list[Case] = []


def case(name: str, calls: Calls, between: Callable[[Any, int], None] | None = None) -> Callable[..., Any]:
    def register(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        CASES.append(Case(name, make, calls, between))
        return make

    return register


def _batches() -> Iterator[tuple[Any, ...]]:
    for n in (8, 16, 8, 24, 32, 5, 64, 7):
        yield (torch.randn(n, 16),)


def _last_batch() -> Iterator[tuple[Any, ...]]:
    for n in (32, 32, 32, 19, 32, 32, 19, 1):
        yield (torch.randn(n, 16),)


def _sequences() -> Iterator[tuple[Any, ...]]:
    for n in (32, 48, 40, 128, 64, 33):
        yield (torch.randn(4, n, 16),)


def _two_dimensions() -> Iterator[tuple[Any, ...]]:
    for batch, length in ((4, 32), (8, 32), (8, 48), (2, 40), (16, 64), (3, 33)):
        yield (torch.randn(batch, length, 16),)


def _both_at_once() -> Iterator[tuple[Any, ...]]:
    for batch, length in ((4, 32), (8, 48), (2, 40), (16, 64), (3, 33)):
        yield (torch.randn(batch, length, 16),)


def _squares() -> Iterator[tuple[Any, ...]]:
    for n in (32, 48, 40, 64):
        yield (torch.randn(2, 3, n, n),)


def _int_argument() -> Iterator[tuple[Any, ...]]:
    for k in (2, 3, 4, 5, 7, 9):
        yield torch.randn(8, 16), k


def _float_argument() -> Iterator[tuple[Any, ...]]:
    for k in range(6):
        yield torch.randn(8, 16), 0.1 + k / 7


def _list_lengths() -> Iterator[tuple[Any, ...]]:
    for n in (2, 3, 2, 4, 3, 2):
        yield ([torch.randn(8, 16) for _ in range(n)],)


def _dtypes() -> Iterator[tuple[Any, ...]]:
    for dtype in (torch.float32, torch.float64, torch.float32, torch.bfloat16, torch.float64):
        yield (torch.randn(8, 16).to(dtype),)


def _modes() -> Iterator[tuple[Any, ...]]:
    for _ in range(6):
        yield (torch.randn(8, 16),)


def _growing_cache() -> Iterator[tuple[Any, ...]]:
    for n in range(1, 12):
        yield torch.randn(1, 2, 1, 8), torch.randn(1, 2, n, 8)


def _thresholds() -> Iterator[tuple[Any, ...]]:
    for n in (4, 20, 6, 40, 12, 8):
        yield (torch.randn(n, 16),)


def _optional() -> Iterator[tuple[Any, ...]]:
    for k in range(6):
        yield torch.randn(8, 16), torch.randn(8, 16) if k % 2 else None


def _steps() -> Iterator[tuple[Any, ...]]:
    for k in range(7):
        yield torch.randn(8, 16), k


def _one_first() -> Iterator[tuple[Any, ...]]:
    for n in (1, 2, 3, 1, 8, 5):
        yield (torch.randn(n, 16),)


def _transposed() -> Iterator[tuple[Any, ...]]:
    for k, n in enumerate((8, 12, 9, 20, 30)):
        yield (torch.randn(16, n).t() if k % 2 else torch.randn(n, 16),)


def _several_ints() -> Iterator[tuple[Any, ...]]:
    for k in range(2, 8):
        yield torch.randn(4 * k, 16), (k, 4), {"scale": k}


def _shape_argument() -> Iterator[tuple[Any, ...]]:
    for n in (8, 16, 24, 5):
        yield torch.randn(n, 16), torch.Size((16, n))


def _rescale(module: Any, k: int) -> None:
    module.scale = 0.5 + k / 3


def _flip(module: Any, k: int) -> None:
    module.train(k % 2 == 0)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(16, 32), nn.Linear(32, 4), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.drop(F.gelu(self.first(x))))


case("batch size", _batches)(Layers)
case("last batch is smaller", _last_batch)(Layers)
case("train and eval in turn", _modes, _flip)(Layers)


@case("sequence length", _sequences)
@case("batch, then length", _two_dimensions)
@case("batch and length at once", _both_at_once)
def attention() -> Callable[..., Any]:
    def run(x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        scores = (x @ x.transpose(1, 2) / x.shape[-1] ** 0.5).masked_fill(~mask, float("-inf"))
        return scores.softmax(-1) @ x

    return run


@case("square pictures", _squares)
def picture() -> Callable[..., Any]:
    weight = torch.randn(4, 3, 3, 3)
    return lambda x: F.adaptive_avg_pool2d(F.max_pool2d(F.conv2d(x, weight, padding=1).relu(), 2), 2)


@case("int argument", _int_argument)
def take() -> Callable[..., Any]:
    return lambda x, k: x[:, :k].sum(0) * k


@case("float argument", _float_argument)
def scale() -> Callable[..., Any]:
    return lambda x, s: x * s + (1 - s)


@case("length of a list", _list_lengths)
def total() -> Callable[..., Any]:
    return lambda tensors: sum(t.sin() for t in tensors)


@case("a step counter", _steps)
def counter() -> Callable[..., Any]:
    return lambda x, step: x * step + step


@case("batch of one first", _one_first)
@case("transposed in turn", _transposed)
def norm() -> Callable[..., Any]:
    return lambda x: F.layer_norm(x, (16,)).sum(0)


@case("ints in containers", _several_ints)
def reshaped() -> Callable[..., Any]:
    return lambda x, shape, options: x.view(*shape, 16).sum(1) * options["scale"]


@case("float attribute of a module", _modes, _rescale)
def scaled() -> Callable[..., Any]:
    class Scaled(nn.Module):
        scale = 1.0

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    return Scaled()


@case("dtype", _dtypes)
def normalise() -> Callable[..., Any]:
    return lambda x: (x - x.mean()) / (x.std() + 1)


@case("growing cache", _growing_cache)
def decode() -> Callable[..., Any]:
    return lambda q, cache: F.scaled_dot_product_attention(q, cache, cache)


@case("a branch on the size", _thresholds)
def branch() -> Callable[..., Any]:
    return lambda x: x.mean(0) if x.shape[0] > 10 else x.sum(0)


@case("transformer with a causal mask", _both_at_once)
def transformer() -> Callable[..., Any]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return lambda x: encoder(x, mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]))


@case("recurrent network", _both_at_once)
def recurrent() -> Callable[..., Any]:
    net = nn.GRU(16, 8, batch_first=True)
    return lambda x: net(x * 2)[0].relu()


@case("a torch.Size as argument", _shape_argument)
def given_shape() -> Callable[..., Any]:
    return lambda x, shape: x.reshape(shape) + torch.zeros(shape).sum(0) + shape.numel()


@case("scores of a beam search", _float_argument)
def beams() -> Callable[..., Any]:
    def run(x: Tensor, score: float) -> Tensor:
        ranked = sorted([(score, 1), (0.05, 2)], key=lambda beam: -beam[0])
        return (x / max(score, 0.01)).log_softmax(-1) + ranked[0][0]

    return run


@case("optional tensor", _optional)
def optional() -> Callable[..., Any]:
    return lambda x, bias: x.relu() if bias is None else x.relu() + bias


# -- compilers ---------------------------------------------------------------------------------------------------


def _counting(counted: list[int]) -> Callable[..., Any]:
    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        counted.append(1)
        return gm.forward

    return backend


def _graphlift(fn: Any, counted: list[int]) -> Any:
    import graphlift

    graphlift.reset()
    return graphlift.compile(fn, backend=_counting(counted))


def _torch(fn: Any, counted: list[int]) -> Any:
    torch._dynamo.reset()  # type: ignore[attr-defined]
    return torch.compile(fn, backend=_counting(counted))


COMPILERS: dict[str, Callable[[Any, list[int]], Any]] = {"graphlift": _graphlift, "torch.compile": _torch}


def count(one: Case, compiler: str) -> int:
    """The graphs that the calls of a case make. Raises: AssertionError where a result is not eager's."""
    torch.manual_seed(0)
    original = one.make()
    fresh = copy.deepcopy(original)
    counted: list[int] = []
    compiled = COMPILERS[compiler](fresh, counted)
    for k, given in enumerate(one.calls()):
        if one.between is not None:
            one.between(fresh, k)
            one.between(original, k)
        torch.testing.assert_close(compiled(*given), original(*given))
    return len(counted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alone", action="store_true", help="graphlift only")
    parser.add_argument("--case", help="only this case")
    asked = parser.parse_args()
    names = ["graphlift"] if asked.alone else list(COMPILERS)
    if not asked.alone:
        import torch._dynamo  # noqa: F401  # replaces functions of torch's: before anything is counted
    print(f"{'case':28}" + "".join(f"{name:>15}" for name in names))
    totals = [0] * len(names)
    for one in CASES:
        if asked.case in (None, one.name):
            found = [count(one, name) for name in names]
            totals = [a + b for a, b in zip(totals, found, strict=True)]
            print(f"{one.name:28}" + "".join(f"{n:15}" for n in found), flush=True)
    print(f"{'all':28}" + "".join(f"{n:15}" for n in totals))


if __name__ == "__main__":
    main()
