"""Reported programs about in-place operations, views and aliasing."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.cases.case import Compile, case


@case("pt#198095")
def test_base_mutated_view_read(compile: Compile):
    t = torch.arange(24.0).view(4, 6)
    ta = t[1:]

    @compile
    def region(t: Tensor, ta: Tensor) -> Tensor:
        t.add_(100)
        return ta[0]

    out = region(t, ta)
    assert out.tolist() == [106, 107, 108, 109, 110, 111]
    return out, t, ta


@case("pt#198095")
def test_view_mutated_base_read(compile: Compile):
    t = torch.arange(24.0).view(4, 6)
    ta = t[1:]

    @compile
    def region(t: Tensor, ta: Tensor) -> Tensor:
        ta.mul_(2)
        return t.sum(1)

    out = region(t, ta)
    assert out.tolist() == [15, 102, 174, 246]
    return out, t, ta


@case("pt#198095")
def test_overlapping_views_mutated_in_turn(compile: Compile):
    t = torch.arange(6.0)
    left, right = t[:4], t[2:]

    @compile
    def region(left: Tensor, right: Tensor) -> Tensor:
        left.add_(10)
        right.mul_(2)
        left.sub_(1)
        return left + right

    out = region(left, right)
    assert t.tolist() == [9, 10, 23, 25, 8, 10]
    return out, t, left, right


@case("pt#198095")
def test_views_of_one_base_only_sometimes_overlapping(compile: Compile):
    """The same region sees disjoint views first and overlapping ones next."""

    @compile
    def region(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return b * 2

    results = []
    for start in (3, 0, 1, 3):
        t = torch.arange(6.0)
        results.append((region(t[:3], t[start : start + 3]), t))
    return results


@case("pt#90507")
def test_unsqueeze_of_an_intermediate(compile: Compile):
    x = torch.ones(3, requires_grad=True)

    @compile
    def region(x: Tensor) -> Tensor:
        o = x * 2
        o.unsqueeze_(0)
        return o

    o = region(x)
    assert not o._is_view()
    o.mul_(2)
    assert o.tolist() == [[4, 4, 4]]
    o.sum().backward()
    return o, x.grad


@case("pt#90507")
def test_metadata_changed_in_place(compile: Compile):
    x = torch.ones(1, 2, 3, requires_grad=True)

    @compile
    def region(x: Tensor) -> list[Tensor]:
        transposed, squeezed, swapped = x * 2, x * 3, x * 4
        transposed.transpose_(1, 2)
        squeezed.squeeze_(0)
        swapped.swapaxes_(0, 2)
        return [transposed, squeezed, swapped]

    outs = region(x)
    for out in outs:
        assert not out._is_view()
        out.add_(1)
    sum(out.sum() for out in outs).backward()
    return outs, x.grad


@case("pt#90507")
def test_metadata_of_an_input_changed_in_place(compile: Compile):
    x = torch.arange(6.0).view(2, 3)

    @compile
    def region(x: Tensor) -> Tensor:
        x.t_()
        return x + 1

    return region(x), x


@case("pt#94773")
def test_data_replaced_after_view(compile: Compile):
    x = torch.zeros(2, 3)

    @compile
    def region(x: Tensor) -> Tensor:
        v = x[:]
        x.data = torch.ones(3, 4)
        return v

    v = region(x)
    assert v.shape == (2, 3) and not v.any()
    return v, x


@case("pt#94773")
def test_data_written(compile: Compile):
    x = torch.ones(3, requires_grad=True)

    @compile
    def region(x: Tensor) -> Tensor:
        x.data.add_(1)
        x.data = x.data * 3
        return x * 2

    out = region(x)
    out.sum().backward()
    assert out.tolist() == [12, 12, 12]
    return out, x, x.grad


@case("pt#93363")
def test_strided_slice_of_a_nonleaf_argument(compile: Compile):
    x = torch.arange(6.0, requires_grad=True)
    a = x * 2

    @compile
    def region(a: Tensor) -> None:
        a[0::2].mul_(5)

    region(a)
    assert a.grad_fn is not None and a.tolist() == [0, 2, 20, 6, 40, 10]
    a.sum().backward()
    return a, x.grad


@case("pt#93363")
def test_strided_slice_of_an_intermediate(compile: Compile):
    x = torch.arange(6.0, requires_grad=True)

    @compile
    def region(x: Tensor) -> Tensor:
        a = x * 2
        a[0::2].add_(1)
        a[1::2] = x[:3] * x[:3]
        return a

    a = region(x)
    a.sum().backward()
    return a, x.grad


@case("pt#136064")
def test_view_as_another_dtype_written(compile: Compile):
    x, y = torch.zeros(4, dtype=torch.int32), torch.tensor([1.0, 2.0, -1.0, 0.5])

    @compile
    def region(x: Tensor, y: Tensor) -> Tensor:
        x.view(torch.float32).copy_(y)
        return x + 0

    out = region(x, y)
    assert x.tolist() == y.view(torch.int32).tolist() == out.tolist()
    return out, x


@case("pt#111133")
def test_index_add_through_a_permuted_view(compile: Compile):
    base, index, source = torch.zeros(3, 5), torch.tensor([0, 2, 0]), torch.ones(3, 3)

    @compile
    def region(base: Tensor, index: Tensor, source: Tensor) -> Tensor:
        v = base.permute(1, 0)
        v.index_add_(0, index, source)
        return v

    v = region(base, index, source)
    assert v.stride() == (1, 5) and v[0].tolist() == [2, 2, 2]
    return v, base


@case("pt#111133")
def test_scatter_kinds_through_a_permuted_view(compile: Compile):
    @compile
    def region(base: Tensor, index: Tensor) -> Tensor:
        v = base.t()
        v.scatter_add_(0, index, torch.ones(2, 3))
        v.index_fill_(0, index[:, 0], 7.0)
        v[1:].clamp_(max=5)
        return v

    base = torch.zeros(3, 5)
    return region(base, torch.tensor([[0, 1, 2], [4, 3, 2]])), base


@torch.library.custom_op("graphlift_cases::add_then_double", mutates_args=("a", "b"))
def add_then_double(a: Tensor, b: Tensor) -> None:
    a.add_(1)
    b.mul_(2)


@case("pt#153389")
def test_custom_operator_mutates_two_views(compile: Compile):
    x = torch.arange(4.0)

    @compile
    def region(x: Tensor) -> Tensor:
        y = x * 1
        add_then_double(y[:3], y[1:])
        add_then_double(x[:3], x[1:])
        return y

    y = region(x)
    assert y.tolist() == [1, 4, 6, 6] == x.tolist()
    return y, x


@case("pt#122457")
def test_complex_view_chain(compile: Compile):
    x = torch.arange(8.0).view(4, 2)

    @compile
    def region(x: Tensor) -> Tensor:
        c = torch.view_as_complex(x)
        c.mul_(2j)
        r = torch.view_as_real(c)
        r[0].add_(1)
        return r

    r = region(x)
    assert x.tolist() == [[-1, 1], [-6, 4], [-10, 8], [-14, 12]]
    return r, x


@case("pt#128035")
def test_input_multiplied_in_place_then_backward(compile: Compile):
    x = torch.tensor([0.3, 1.2], requires_grad=True)

    @compile
    def region(y: Tensor) -> Tensor:
        y.mul_(2)
        return y.sin()

    y = x * 1
    out = region(y)
    out.sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.cos(2 * x.detach()))
    return out, y, x.grad


@case("pt#90844")
def test_leaf_changed_under_no_grad(compile: Compile):
    p = torch.nn.Parameter(torch.ones(3))

    @compile
    def region(p: Tensor) -> Tensor:
        with torch.no_grad():
            p.add_(1)
        return p * p

    out = region(p)
    out.sum().backward()
    assert out.tolist() == [4, 4, 4] and p.grad.tolist() == [4, 4, 4]
    return out, p, p.grad


@case("pt#90844")
def test_leaf_changed_with_gradients_on(compile: Compile):
    """Eager refuses; so must the compiled program, and with the same words."""
    from tests.cases.case import outcome

    p = torch.ones(3, requires_grad=True)
    return outcome(compile(lambda p: p.add_(1) * 2), p), p


@case("pt#100348")
def test_loss_and_its_detached_self(compile: Compile):
    x = torch.ones(3, requires_grad=True)

    @compile
    def region(x: Tensor) -> tuple[Tensor, Tensor]:
        loss = (x * x).sum()
        return loss, loss.detach()

    loss, logged = region(x)
    assert loss is not logged and loss.requires_grad and not logged.requires_grad
    assert loss.data_ptr() == logged.data_ptr()
    loss.backward()
    return loss, logged, x.grad


@case("pt#100348")
def test_outputs_that_alias(compile: Compile):
    """The input itself, a view of it, and an intermediate with two views of its own."""
    x = torch.arange(6.0)

    @compile
    def region(x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        return x, x.view(2, 3), y, y[1:], y.view(3, 2), y

    outs = region(x)
    assert outs[0] is x and outs[2] is outs[5]
    outs[3].zero_()
    return outs


@case("pt#183604")
def test_the_same_tensor_twice(compile: Compile):
    region = compile(lambda a, b: a * b)
    x, y = torch.tensor([1.0, 3.0], requires_grad=True), torch.tensor([2.0, 2.0], requires_grad=True)
    results = []
    for a, b in ((x, x), (x, y), (x, x)):
        x.grad = y.grad = None
        region(a, b).sum().backward()
        results.append((x.grad, y.grad))
    assert results[0][0].tolist() == [2, 6]
    return results


@case("pt#183604")
def test_the_same_tensor_twice_and_mutated(compile: Compile):
    @compile
    def region(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return b * 2

    x, y = torch.zeros(2), torch.zeros(2)
    results = [region(x, y), region(x, x), region(y, x)]
    assert [r.tolist() for r in results] == [[0, 0], [4, 4], [4, 4]]
    return results, x, y
