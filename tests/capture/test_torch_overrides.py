"""`__torch_function__` in captured code: subclasses of Tensor, other classes that define it, modes, default devices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import (
    BaseTorchFunctionMode,
    TorchFunctionMode,
    handle_torch_function,
    has_torch_function,
    is_tensor_like,
)

import graphlift
from tests.capture.torch_program import BACKENDS, real, seeded, torch_program

X = real(3, 4, seed=1)
Y = real(3, 4, seed=5)
G = real(3, 4, grad=True)
W = real(4, 4, grad=True, seed=2)


class Plain(Tensor):
    extra = 3

    def twice(self):
        return self * 2

    @property
    def area(self):
        return self[:, 0] * self[:, 1]


class Logged(Tensor):
    calls: list[str] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class Doubling(Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func in (torch.add, Tensor.add) else result


class OtherLinear(Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            return args[0] + 1
        return super().__torch_function__(func, types, args, kwargs)


class Named(Tensor):
    @staticmethod
    def __new__(cls, data, label):
        return super().__new__(cls, data)

    def __init__(self, data, label):
        self.label = label

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, cls) and not hasattr(result, "label"):
            result.label = "+".join(a.label for a in args if isinstance(a, cls) and hasattr(a, "label"))
        return result


class SelfMade(Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not isinstance(result, SelfMade):
            result = result.as_subclass(SelfMade)
        return result


class NoHandler(Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class LibraryParameter(nn.Parameter):
    pass


class Quantized(nn.Parameter):
    def __new__(cls, data, requires_grad=True, bits=4):
        made = Tensor._make_subclass(cls, data, requires_grad)
        made.bits = bits
        return made


class Measured:
    def __init__(self, value, unit):
        self.value, self.unit = value, unit

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        unit = next(a.unit for a in args if isinstance(a, Measured))
        plain = [a.value if isinstance(a, Measured) else a for a in args]
        return Measured(func(*plain, **(kwargs or {})), unit)


HANDLED = {}


class Tabled:
    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in HANDLED:
            return NotImplemented
        return HANDLED[func](*args, **(kwargs or {}))


HANDLED[torch.mean] = lambda a: a.value.mean() * 2
HANDLED[torch.add] = lambda a, b: Tabled(a.value + b.value)


def of(cls, make=X):
    return lambda: make().as_subclass(cls)


def leaf(cls):
    return lambda: X().as_subclass(cls).requires_grad_()


# --- subclasses of Tensor ---------------------------------------------------------------------------------------


@torch_program(of(Plain))
def test_results_are_of_the_class(x):
    return x * 2 + 1, x.twice(), x.extra, x.area, type(x) is Plain, isinstance(x, Plain)


@torch_program(of(Plain), X)
def test_class_beside_plain_tensors(x, y):
    return x + y, y + x, torch.cat([x, y]), x @ y.t(), sum([x, y])


@torch_program(leaf(Plain), W)
def test_gradients_of_a_subclass(x, w):
    return torch.relu(x @ w).sum()


@torch_program(leaf(Plain))
def test_subclass_without_gradients(x):
    with torch.no_grad():
        y = x * 2
    return y, x.requires_grad, x * 3


@torch_program(of(Plain))
def test_several_results(x):
    return torch.split(x, 1), x.unbind(0), x.max(0), x.shape, x.size(0), [row * 2 for row in x]


@torch_program(of(Plain))
def test_views(x):
    return x.view(-1), x.view(-1)[:2], x.detach(), x.T, x.data


@torch_program(of(Plain))
def test_changed_in_place(x):
    y = x.add_(1)
    x[0] = 5
    return x, y is x


@torch_program(of(Plain), breaks="unsupported-tensor-subclass")
def test_metadata_changed_in_place(x):
    x.t_()
    return x + 1


@torch_program(of(Plain), breaks="unsupported-tensor-subclass")
def test_made_to_require_gradients(x):
    x.requires_grad_()
    return (x * 2).sum()


@torch_program(of(Plain), X)
def test_plain_out(x, y):
    out = torch.empty(3, 4)
    torch.add(x, y, out=out)
    return out


@torch_program(of(Plain))
def test_attribute_set(x):
    x.tag = 3
    return x.tag, x * 2


@torch_program(X)
def test_made_inside(x):
    made = x.as_subclass(Plain) * 2
    return made, Tensor._make_subclass(Plain, x) + 1, Plain(x) + 1, made.as_subclass(Tensor)


@torch_program(of(Plain), breaks="print-or-io")
def test_break_inside(x):
    y = x * 2
    print("", end="")
    return y + 1


@torch_program(of(Plain), breaks="data-dependent-branch")
def test_branch_on_a_subclass(x):
    return x * 2 if x.sum() > 0 else x - 1


@torch_program(of(Logged))
def test_handler_with_effects(x):
    Logged.calls.clear()
    y = torch.relu(x + 1) * 2
    return y, list(Logged.calls)


@torch_program(of(Doubling), X)
def test_handler_that_changes_results(x, y):
    return torch.add(x, y), x + y, x.add(y), torch.mul(x, y), y + x, torch.add(y, x), y.add(x)


@torch_program(of(Plain), of(Doubling), breaks="raises")
def test_classes_that_refuse_each_other(x, y):
    return torch.mul(x, y)


@torch_program(seeded(lambda: nn.Linear(4, 4)), of(OtherLinear))
def test_function_replaced(m, x):
    return m(x)


@torch_program(leaf(Doubling), X)
def test_functional(x, y):
    return F.linear(x, y), F.relu(x), F.layer_norm(x, (4,)), x.softmax(-1)


@torch_program(lambda: Named(X(), "a"), lambda: Named(Y(), "b"))
def test_attributes_carried_on(a, b):
    result = a + b
    return result, result.label


@torch_program(of(SelfMade), X)
def test_handlers_switched_off_inside(x, y):
    return x * y, y * x, x.shape, torch.softmax(x, 0)


@torch_program(of(NoHandler))
def test_class_without_a_handler(x):
    return x + 1, type(x + 1).__name__, x.reshape(-1)


# --- parameters of other classes --------------------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = LibraryParameter(torch.randn(4, 4))
        self.b = Quantized(torch.randn(4))
        self.register_buffer("scale", torch.arange(4.0).as_subclass(Plain))

    def forward(self, x):
        return F.linear(x, self.w, self.b) * self.b.bits * self.scale.as_subclass(Tensor)


@torch_program(seeded(Layer), G)
def test_parameters_of_a_library(m, x):
    return m(x), isinstance(m.w, nn.Parameter), type(m.b) is Quantized


@torch_program(lambda: LibraryParameter(X()))
def test_operators_on_such_a_parameter(p):
    return p.data, p.detach(), p.clone(), p[0], p.view(-1), p.requires_grad


@torch_program(lambda: nn.Parameter(of(Plain)()), lambda: nn.Buffer(X()))
def test_marked_as_parameter_or_buffer(p, b):
    return (
        isinstance(p, nn.Parameter),
        isinstance(p * 1, nn.Parameter),
        isinstance(b, nn.Buffer),
        b + p.detach(),
    )


# --- classes that are no tensors --------------------------------------------------------------------------------


@torch_program(lambda: Measured(X(), "m"), X)
def test_wrapper(m, x):
    result = F.softmax(torch.relu(torch.mul(m, 2)), 0)
    other = torch.add(x, m)
    return result.value, result.unit, other.value, other.unit


@torch_program(lambda: Tabled(X()))
def test_table_of_handlers(t):
    return torch.mean(torch.add(t, t))


@torch_program(lambda: Tabled(X()), breaks="unsupported-tensor-subclass")
def test_nobody_answers(t):
    try:
        return torch.relu(t)
    except TypeError as error:
        return str(error)


def overridable(a, b):
    if has_torch_function((a, b)):
        return handle_torch_function(overridable, (a, b), a, b)
    return a + b


@torch_program(of(Doubling), lambda: Measured(X(), "m"), X)
def test_helpers(d, m, x):
    told = has_torch_function((x,)), has_torch_function((x, m)), is_tensor_like(m), is_tensor_like(3)
    return overridable(x, x), overridable(d, x), told


# --- modes ------------------------------------------------------------------------------------------------------


class Swap(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.add, Tensor.add):
            func = torch.sub
        return func(*args, **(kwargs or {}))


class Scale(TorchFunctionMode):
    def __init__(self, factor, of=torch.relu):
        super().__init__()
        self.factor, self.of = factor, of

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * self.factor if func is self.of else result


class Count(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Refuse(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.relu:
            raise ValueError("no relu")
        return func(*args, **(kwargs or {}))


GLOBAL_MODE = Scale(5.0)


@torch_program(X, Y)
def test_mode(x, y):
    with Swap():
        inside = torch.add(x, y), x + y
    return inside, torch.add(x, y)


@torch_program(X)
def test_modes_within_modes(x):
    with Scale(3.0), Scale(2.0), BaseTorchFunctionMode():
        y = torch.relu(x)
    with GLOBAL_MODE:
        z = torch.relu(x)
    mode = Scale(7.0)
    mode.__enter__()
    w = torch.relu(x)
    mode.__exit__(None, None, None)
    return y, z, w, torch.relu(x)


@torch_program(X, breaks="print-or-io")
def test_break_inside_a_mode(x):
    with Scale(3.0):
        y = torch.relu(x)
        print("", end="")
        z = torch.relu(y + 1)
    return y, z, torch.relu(x)


@torch_program(X)
def test_mode_switched_off(x):
    with Scale(3.0):
        with torch._C.DisableTorchFunction():
            y = torch.relu(x)
        with torch._C.DisableTorchFunctionSubclass():
            z = torch.relu(x)
    return y, z


@torch_program(X)
def test_raised_under_a_mode(x):
    with Refuse():
        try:
            return torch.relu(x)
        except ValueError as error:
            told = str(error)
    return told, torch.relu(x), torch.overrides._len_torch_function_stack()


@torch_program(X)
def test_what_a_mode_sees(x):
    with Count() as seen:
        y = torch.where(x > 0, x, 0), x.view(-1)[2:], x.new_zeros(3), torch.arange(3), torch.ones_like(x), x.T
        z = x.shape, torch.cat([x, x]), torch.einsum("ij->j", x), x.norm(), F.dropout(x, 0.0), x.max(0)
        x.mul(2).add_(1)
    return y, z, seen.names


@torch_program(seeded(lambda: nn.LSTM(4, 4)), seeded(lambda: nn.MultiheadAttention(4, 2)), real(5, 2, 4))
def test_what_a_mode_sees_of_modules(lstm, attention, x):
    with Count() as seen:
        result = lstm(x), attention(x, x, x)
    return result, seen.names


@torch_program(X, breaks="unsupported-tensor-subclass")
def test_what_a_mode_sees_of_protocols(x):
    with Count() as seen:
        n = len(x)
        rows = [row for row in x]
    return n, rows, seen.names


@torch_program(X, breaks="unsupported-call")
def test_transform_under_a_mode_with_effects(x):
    with Count() as seen:
        y = torch.func.vmap(lambda row: row * 2)(x)
    return y, seen.names


@torch_program(X)
def test_transform_under_a_mode(x):
    with Scale(2.0):
        y = torch.vmap(torch.vmap(lambda a: torch.relu(a) + 1))(x)
    return y, torch.vmap(torch.relu)(x)


@torch_program(X, breaks="unsupported-tensor-subclass")
def test_transform_under_a_mode_that_changes_its_questions(x):
    with Scale(3.0, of=torch.Tensor.dim):
        return torch.vmap(lambda row: row * 2)(x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_modes_entered_outside(backend):
    """The region belongs to the modes that it was captured under."""
    compiled = graphlift.compile(lambda x: torch.relu(x) + 1, backend=backend)
    x = X()
    plain, wanted = torch.relu(x) + 1, torch.relu(x) * 2 + 1
    for _ in range(2):
        torch.testing.assert_close(compiled(x), plain)
        with Scale(2.0):
            torch.testing.assert_close(compiled(x), wanted)
        with Count() as seen:
            compiled(x)
        assert seen.names == ["relu", "add"]


def test_modes_made_anew_for_each_call_share_a_region():
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    compiled = graphlift.compile(lambda x: torch.relu(x) + 1, backend=backend)
    x = X()
    for _ in range(4):
        with Count() as seen:
            found = compiled(x)
        assert torch.equal(found, torch.relu(x) + 1) and seen.names == ["relu", "add"] and len(graphs) == 1
    for factor, count in ((2.0, 2), (2.0, 2), (3.0, 3), (2.0, 3)):
        with Scale(factor):
            found = compiled(x)
        assert torch.equal(found, torch.relu(x) * factor + 1) and len(graphs) == count
    for outer, inner, names in (
        (Scale(2.0), Count(), ["relu", "add"]),
        (Count(), Scale(2.0), ["relu", "mul", "add"]),
    ):
        with outer, inner:
            found = compiled(x)
        assert torch.equal(found, torch.relu(x) * 2 + 1)
        assert (inner if type(inner) is Count else outer).names == names


class TallAccessors(Tensor):
    table = {Tensor.ndim.__get__: 10, Tensor.T.__get__: 20}

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func == Tensor.shape.__get__:
            return 30
        return cls.table.get(func) or super().__torch_function__(func, types, args, kwargs or {})


@torch_program(X)
def test_accessors_are_compared_and_looked_up(x):
    y = x.as_subclass(TallAccessors)
    get = Tensor.ndim.__get__
    called = get(y), Tensor.shape.__get__(y), get(x), Tensor.T.__get__(x)
    return (
        y.ndim,
        y.T,
        y.shape,
        called,
        get == Tensor.ndim.__get__,
        get != Tensor.T.__get__,
        {get: 1}.get(get),
    )


@torch_program(X, breaks="context-manager")
def test_break_where_handlers_are_off(x):
    y = x.as_subclass(Doubling)
    with torch._C.DisableTorchFunctionSubclass():
        first = torch._C._is_torch_function_enabled(), torch.add(y, 1)
        print("", end="")
        second = torch._C._is_torch_function_enabled(), torch.add(y, 1)
    return first, second, torch._C._is_torch_function_enabled(), torch.add(y, 1)


# --- default devices --------------------------------------------------------------------------------------------


@torch_program(X)
def test_default_device(x):
    with torch.device("meta"):
        made = torch.ones(2).device, torch.tensor([1.0]).device, torch.as_tensor([1.0]).device
        kept = torch.ones_like(x), x.new_zeros(3), torch.ones(4, device="cpu"), torch.get_default_device()
        with torch.device("cpu"):
            inner = torch.arange(4.0)
    return made, kept, x + inner + torch.ones(4)


@torch_program(X)
def test_default_device_and_an_exception(x):
    try:
        with torch.device("meta"):
            made = torch.ones(2).device
            raise ValueError
    except ValueError:
        return x + torch.ones(4), made


@torch_program(X, breaks="print-or-io")
def test_break_under_a_default_device(x):
    with torch.device("meta"):
        y = torch.ones(3).device
        print("", end="")
        z = torch.ones(3).device
    return x + torch.ones(4), y, z
