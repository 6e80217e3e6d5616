"""Tensors in captured code: indexing, Python values, factories, out=, metadata, exotic layouts."""

from __future__ import annotations

import copy
import math
import operator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.capture.torch_program import real, torch_program

G = real(3, 4, grad=True)
X = real(3, 4, seed=1)
W = real(4, 4, grad=True, seed=2)
B = real(2, 3, 4, 5)


def INDEX():
    return torch.tensor([2, 0, 1])


def M():
    return torch.tensor([[True, False, True, False]] * 3)


# indexing
@torch_program(B)
def test_index_basic(x):
    return (
        x[0],
        x[-1],
        x[0, 1],
        x[..., 0],
        x[:, None],
        x[1:, :2, ::2],
        x[None],
        x[...],
        x[:, ..., 1:3],
        x[0][1][2],
    )


@torch_program(B, INDEX)
def test_index_adv(x, i):
    return (
        x[:, i],
        x[:, i, i],
        x[0, i, :, i],
        x[[0, 1], [1, 2]],
        x[:, [True, False, True]],
        x[:, i[None]],
        x[torch.tensor(1)],
        x[:, [0, 2]],
    )


@torch_program(X, M, breaks="data-dependent-op")
def test_index_mask(x, m):
    return x[m]


@torch_program(X, breaks="data-dependent-op")
def test_index_mask_where(x):
    return x[x > 0].sum()


@torch_program(X, M)
def test_set_mask(x, m):
    x[m] = 0
    return x


@torch_program(X, M, breaks="data-dependent-op")
def test_set_mask_tensor(x, m):
    y = x.clone()
    y[m] = y[m] * 2
    return y


@torch_program(X)
def test_set_basic(x):
    x[0] = 1
    x[:, 1] = x[:, 2]
    x[..., -1] += 3
    x[1, 2] = torch.tensor(5.0)
    x[1:] *= 2
    return x


@torch_program(X, INDEX)
def test_set_adv(x, i):
    y = torch.zeros(5, 4)
    y[i] = x
    y[i, 0] = 1.0
    y[[3, 4]] += 1
    y[i, i] = x[:, 0]
    return y


@torch_program(G)
def test_set_grad(x):
    y = x * 2
    y[0] = 0
    y[1, 2] = x[0, 0]
    y[:, 3] = x[:, 0] * 2
    return y


@torch_program(X)
def test_set_none_idx(x):
    x[None] = 3
    x[:, None, 0] = 1
    x[True] = 2
    return x


@torch_program(X)
def test_index_bool_scalar(x):
    return x[True], x[False], x[None, True]


@torch_program(X, breaks="raises")
def test_index_error(x):
    return x[5]


@torch_program(X, breaks="raises")
def test_index_error2(x):
    return x[0, 0, 0]


@torch_program(X, breaks="exception-raised")
def test_index_err_caught(x):
    try:
        return x[5]
    except IndexError as e:
        return x * 2, str(e)


@torch_program(X, INDEX, breaks="tensor-item")
def test_index_list_tensor(x, i):
    return [10, 20, 30][int(x.shape[0]) - 1], x[[i, i]] if False else x[i.tolist()]


@torch_program(X)
def test_index_range(x):
    return x[range(2)], x[list(range(2))], x[(0, 1)], x[[0]]


@torch_program(X)
def test_slice_obj(x):
    s = slice(0, 2)
    idx = (slice(None), s)
    return x[s], x[idx], x[tuple([slice(None)] * 2)]


@torch_program(X, breaks="raises")
def test_del(x):
    del x[0]
    return x


@torch_program(X)
def test_iter(x):
    return [r * 2 for r in x], len(x), list(reversed(x))


@torch_program(X)
def test_unpack(x):
    a, b, c = x
    (d, *e) = x
    return a + b + c, d, e


@torch_program(X, breaks="data-dependent-branch")
def test_contains(x):
    return 3.0 in x


@torch_program(X)
def test_enumerate_zip(x):
    return (
        [i * r for i, r in enumerate(x)],
        [a + b for a, b in zip(x, x.flip(0))],
        sum(x),
        max(x[0], x[1], key=lambda t: 1),
    )


# python values
@torch_program(X, breaks="tensor-item")
def test_item(x):
    return x.sum().item()


@torch_program(X, breaks="tensor-item")
def test_item_used(x):
    return x * x[0, 0].item()


@torch_program(X, breaks="tensor-item")
def test_item_int(x):
    n = int(x.abs().sum())
    return x * n


@torch_program(X, breaks="tensor-item")
def test_tolist(x):
    return x.tolist()


@torch_program(INDEX, breaks="tensor-item")
def test_tolist_loop(i):
    return [k * 2 for k in i.tolist()]


@torch_program(X, breaks="tensor-item")
def test_float_bool(x):
    return float(x[0, 0]), bool(x[0, 0] > 0), int(torch.tensor(3)), complex(x[0, 0])


@torch_program(X)
def test_tensor_const_item(x):
    return (
        x * torch.tensor(3).item(),
        torch.tensor([1, 2]).tolist(),
        int(torch.tensor(2.5)),
        bool(torch.tensor(True)),
    )


@torch_program(X, breaks="data-dependent-branch")
def test_if_tensor(x):
    if x.sum() > 0:
        return x * 2
    return x * 3


@torch_program(X)
def test_numel_shape(x):
    return (
        x.numel(),
        x.shape,
        x.size(),
        x.size(-1),
        x.dim(),
        x.ndim,
        x.nelement(),
        x.stride(),
        x.stride(0),
        x.storage_offset(),
        x.element_size(),
        x.itemsize,
        x.nbytes,
        x.is_contiguous(),
        x.shape.numel(),
        x.ndimension(),
    )


@torch_program(X)
def test_size_ops(x):
    s = x.shape
    b, *rest = s
    return (
        x.reshape(s[::-1]),
        s + (1,),
        (2,) + s,
        list(s),
        s[-1],
        len(s),
        s == (3, 4),
        s * 2,
        s.index(4),
        s.count(3),
        torch.Size([3]) + s[1:],
        tuple(s),
        hash(s) == hash((3, 4)),
        isinstance(s, tuple),
        max(s),
        math.prod(s),
        type(s[1:]),
        type(s + (1,)),
        str(s),
        3 in s,
    )


@torch_program(X, breaks="raises")
def test_type_queries(x):
    return (
        x.dtype,
        x.device,
        x.layout,
        x.type(),
        x.is_cuda,
        x.is_floating_point(),
        x.is_complex(),
        x.is_signed(),
        x.dtype.is_floating_point,
        x.dtype.itemsize,
        x.requires_grad,
        x.is_leaf,
        x.names,
        x.is_sparse,
        x.is_quantized,
        x.device.type,
        x.device.index,
        str(x.device),
        str(x.dtype),
        x.get_device(),
        x.is_pinned(),
        x.is_conj(),
        x.is_neg(),
        x.is_same_size(x),
        x.has_names(),
    )


@torch_program(X)
def test_dtype_to(x):
    return (
        x.to(torch.float64),
        x.to("cpu"),
        x.to(x),
        x.to(device="cpu", dtype=torch.int32),
        x.double(),
        x.half(),
        x.bfloat16(),
        x.long(),
        x.bool(),
        x.int(),
        x.type_as(torch.ones(1, dtype=torch.float64)),
        x.cpu(),
        x.float() is x,
        x.to(torch.float32) is x,
        x.to(torch.float32, copy=True),
        x.to(torch.device("cpu")),
        x.to("cpu", torch.float64),
        x.to("cpu", non_blocking=True),
        x.to(memory_format=torch.contiguous_format),
    )


@torch_program(X)
def test_alias_flags(x):
    return (
        x.contiguous() is x,
        x.view(-1),
        x.reshape(4, 3),
        x.t(),
        x.expand_as(x),
        x.detach(),
        x.view_as(x),
        x.flatten(),
        x.ravel(),
        x.squeeze(),
        x.unsqueeze(0),
        x.narrow(0, 0, 2),
        x.real,
        x.T,
        x.mT,
        x.data,
        x.positive(),
        +x,
        x.alias if False else 0,
    )


@torch_program(B)
def test_movement(x):
    return (
        x.permute(3, 2, 1, 0),
        x.permute((0, 2, 1, 3)),
        x.transpose(0, 1),
        x.movedim(0, -1),
        x.swapaxes(0, 1),
        x.unflatten(3, (5, 1)),
        x.repeat(1, 2, 1, 1),
        x.tile(2),
        torch.broadcast_to(x[0, 0], (2, 4, 5)),
        x.expand(2, -1, -1, -1),
        x.roll(1, 0),
        x.rot90(),
        x.flip(0, 1),
        x.chunk(2, 1),
        x.split([1, 2], 1),
        x.split(2, 2),
        torch.tensor_split(x, 2, 1),
        x.unfold(2, 2, 1),
        x.repeat_interleave(2, 0),
        x.as_strided((2, 2), (1, 2)),
        torch.atleast_3d(x[0, 0]),
        x.diagonal(0, 2, 3),
        x.hsplit(3),
        x.unsafe_chunk(2, 1),
    )


@torch_program(X)
def test_strides(x):
    return (
        x.t().clone(),
        x.t() + 1,
        torch.empty_like(x.t()).stride(),
        x.t().contiguous(),
        torch.zeros_like(x.t(), memory_format=torch.contiguous_format),
        x.t().to(torch.float64).stride(),
    )


@torch_program(B)
def test_channels_last(x):
    return (
        x.to(memory_format=torch.channels_last),
        x.contiguous(memory_format=torch.channels_last) + 1,
        x.is_contiguous(memory_format=torch.channels_last),
    )


# out=
@torch_program(X, lambda: torch.empty(3, 4))
def test_out(x, o):
    r = torch.add(x, 1, out=o)
    return r, r is o, o


@torch_program(X)
def test_out_fresh(x):
    o = torch.empty(0)
    torch.mul(x, 2, out=o)
    return o


@torch_program(X)
def test_out_many(x):
    v, i = torch.empty(0), torch.empty(0, dtype=torch.long)
    r = torch.max(x, 1, out=(v, i))
    return v, i, r[0] is v


@torch_program(X, lambda: torch.empty(0))
def test_out_resize_input(x, o):
    return torch.cat([x, x], out=o)


@torch_program(X, lambda: torch.empty(2, 2))
def test_out_wrong(x, o):
    return torch.mul(x, 2, out=o)


@torch_program(X)
def test_out_misc(x):
    o = torch.zeros(3, 3)
    torch.matmul(x, x.t(), out=o)
    torch.sum(x, 0, out=torch.empty(0))
    torch.arange(3, out=torch.empty(0))
    torch.stack([x, x], out=torch.empty(0))
    return o, torch.sort(x, out=(torch.empty(0), torch.empty(0, dtype=torch.long)))


# factories
@torch_program(X)
def test_factories(x):
    k = dict(dtype=torch.float64, device="cpu", requires_grad=False)
    return (
        torch.zeros(2, 3, **k),
        torch.ones((2,), dtype=torch.int64),
        torch.full((2, 2), 3),
        torch.full((2,), 2.5, **k),
        torch.arange(5),
        torch.arange(1, 5, 0.5),
        torch.linspace(0, 1, 5),
        torch.logspace(0, 1, 3),
        torch.eye(3),
        torch.eye(2, 3, **k),
        torch.empty(2, 0),
        torch.zeros_like(x, dtype=torch.int32),
        torch.ones_like(x),
        torch.full_like(x, 3),
        x.new_zeros(2),
        x.new_ones(2, 2, dtype=torch.int32),
        x.new_full((2,), 3),
        x.new_empty(0),
        x.new_tensor([1, 2]),
        torch.tril_indices(3, 3),
        torch.triu_indices(3, 3),
        torch.tensor(3.5),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor([True, False]),
        torch.tensor([]),
        torch.as_tensor([1.0, 2]),
        torch.scalar_tensor(3),
        torch.complex(x, x),
        torch.cartesian_prod(torch.arange(2), torch.arange(2)),
        torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij"),
        torch.hann_window(4),
        torch.hamming_window(4),
        torch.blackman_window(4),
        torch.bartlett_window(4),
        torch.kaiser_window(4),
        torch.zeros(()),
        torch.zeros([2, 3]),
        torch.zeros(torch.Size([2])),
        torch.zeros(size=(2, 2)),
        torch.range(0, 2),
        torch.vander(torch.arange(3)),
        torch.empty_strided((2, 2), (1, 2)).stride(),
        torch.ones(3, layout=torch.strided, pin_memory=False),
    )


@torch_program(G)
def test_factories_grad(x):
    a = torch.ones(4, requires_grad=True)
    b = torch.randn(4, requires_grad=True)
    c = torch.tensor([1.0, 2, 3, 4], requires_grad=True)
    return (x * a * b * c).sum(), a.is_leaf


@torch_program(G)
def test_factory_grad_returned(x):
    a = torch.zeros(4, requires_grad=True)
    return x * a, a


@torch_program(X)
def test_tensor_of_tensor(x):
    return (
        torch.tensor(x),
        torch.as_tensor(x) is x,
        torch.asarray(x),
        torch.asarray([1, 2]),
        torch.as_tensor(x, dtype=torch.float64),
        torch.tensor(x.shape),
        torch.tensor(list(x.shape), dtype=torch.float32),
    )


@torch_program(X)
def test_tensor_ctor(x):
    ints = np.array([1, 2, 3])
    return (
        torch.Tensor(2, 3).shape,
        torch.Tensor([1, 2]),
        torch.FloatTensor([1]),
        torch.LongTensor([[1, 2]]),
        torch.Tensor(x.shape).shape,
        torch.BoolTensor([True]),
        torch.ByteTensor([1, 2]),
        torch.HalfTensor([1.0]),
        torch.LongTensor([ints[0], 2.7, ints[2]]),
        torch.CharTensor([np.float64(-1.5)]),
        torch.Tensor().shape,
    )


@torch_program(X, breaks="unsupported-call")
def test_tensor_ctor_tensor(x):
    return torch.Tensor(x)


@torch_program(X, breaks="unsupported-call")
def test_new(x):
    return x.new([1, 2]), x.new(2, 2).shape, x.new_zeros(x.size())


@torch_program(X)
def test_where(x):
    return (
        torch.where(x > 0, x, 0.0),
        torch.where(x > 0, 1, 0),
        x.where(x > 0, -x),
        torch.where(x > 0, torch.tensor(1, dtype=torch.int64), x),
    )


@torch_program(X, breaks="data-dependent-op")
def test_where1(x):
    return torch.where(x > 0)


@torch_program(X, breaks="data-dependent-op")
def test_nonzero(x):
    return torch.nonzero(x > 0), (x > 0).nonzero(as_tuple=True)


@torch_program(X, breaks="data-dependent-op")
def test_unique(x):
    return torch.unique((x > 0).int(), return_counts=True)


@torch_program(X, breaks="data-dependent-op")
def test_masked(x):
    return (
        x.masked_fill(x > 0, 0),
        x.masked_select(x > 0),
        torch.masked_select(x, x > 0),
        x.masked_scatter(x > 0, torch.ones(12)),
    )


@torch_program(X, breaks="data-dependent-op")
def test_equal(x):
    return torch.equal(x, x), torch.allclose(x, x), x.equal(x + 1), x.is_nonzero if 0 else 1


@torch_program(X)
def test_topk(x):
    v, i = x.topk(2)
    r = torch.topk(x, 2)
    return (
        v,
        i,
        r.values,
        r.indices,
        r,
        type(r).__name__,
        x.max(1)[0],
        x.max(1).indices,
        x.min(),
        x.max(),
        x.sort(1, descending=True),
        x.kthvalue(2),
        x.median(1),
        x.mode(1),
        x.aminmax(),
        x.cummax(1),
    )


@torch_program(X)
def test_dunder(x):
    return (
        -x,
        abs(x),
        ~(x > 0),
        x**2,
        2**x,
        x // 2,
        2 // x,
        x % 2,
        2 - x,
        2 / x,
        x @ x.t(),
        (x > 0) & (x < 1),
        (x > 0) | (x < -1),
        (x > 0) ^ (x < 1),
        x == x,
        x != x,
        x < 1,
        1 < x,
        x.int() << 1,
        x.int() >> 1,
        divmod(x, 2) if 0 else 0,
        5 % x,
        round(x) if 0 else 0,
        x.__add__(1),
        x.__radd__(1),
        x.__rsub__(1),
        x.__rtruediv__(2),
        x.__eq__(x),
        operator.matmul(x, x.t()),
        True & (x > 0),
        x.float() == None,  # noqa: E711
        x is None,
    )


@torch_program(X)
def test_eq_other(x):
    return x == "a", x != "a", x == None, x is not None, x == [1]  # noqa: E711


@torch_program(X)
def test_inplace_ops(x):
    x += 1
    x -= 2
    x *= 3
    x /= 2
    x **= 2
    x //= 1
    x %= 5
    y = x
    y += 1
    return x, y is x


@torch_program(X)
def test_inplace_methods(x):
    return (
        x.add_(1) is x,
        x.mul_(2),
        x.clamp_(0),
        x.relu_(),
        x.copy_(torch.ones(4)),
        x.fill_(3),
        x.zero_(),
        x.t_(),
        x.unsqueeze_(0),
        x.squeeze_(),
        x.masked_fill_(x > 1, 1),
        x.index_fill_(0, torch.tensor([0]), 2),
        x.sigmoid_(),
        x.transpose_(0, 1),
        x.swapaxes_(0, 1),
        x.lerp_(torch.ones(1), 0.5),
        torch.relu_(x),
        F.relu(x, inplace=True),
        x.exponential_ if 0 else 0,
    )


@torch_program(X)
def test_resize_without_contents(x):
    made = x.data.new()
    same = made.resize_(2, 3).fill_(2)
    return (
        made,
        same is made,
        x.new().resize_as_(x).copy_(x) * 2,
        x.new().long().resize_((x.size(1),)).zero_(),
    )


@torch_program(X, breaks="unsupported-call")
def test_resize_of_an_empty_view(x):
    y = x * 2
    return y, y[3:3].resize_(2, 2).fill_(1.0)


@torch_program(X, breaks="unsupported-call")
def test_resize(x):
    return x.resize_(2, 6), x


@torch_program(X, breaks="unsupported-call")
def test_set_(x):
    y = torch.ones(2)
    x.set_(y)
    return x


@torch_program(X)
def test_scatter(x):
    i = torch.tensor([[0, 1, 2, 0]])
    return (
        x.scatter(0, i, 9.0),
        x.scatter_add(0, i, torch.ones(1, 4)),
        x.gather(0, i),
        x.index_select(0, torch.tensor([0, 2])),
        x.index_add(0, torch.tensor([0]), torch.ones(1, 4)),
        x.index_copy(0, torch.tensor([0]), torch.ones(1, 4)),
        x.take(torch.tensor([0, 5])),
        x.scatter_reduce(0, i, torch.ones(1, 4), reduce="amax"),
        torch.take_along_dim(x, i, 0),
        x.put(torch.tensor([0]), torch.tensor([9.0])),
        x.index_put((torch.tensor([0]),), torch.tensor(1.0)),
        x.clone().index_put_((torch.tensor([0]),), torch.tensor(1.0), accumulate=True),
    )


@torch_program(X)
def test_foreach(x):
    a = [x.clone(), x + 1]
    torch._foreach_add_(a, 1)
    return a, torch._foreach_mul(a, 2), torch._foreach_norm(a)


@torch_program(X)
def test_einsum(x):
    return (
        torch.einsum("ij,kj->ik", x, x),
        torch.einsum("ij->j", [x]),
        torch.tensordot(x, x, dims=([1], [1])),
        torch.linalg.norm(x),
        torch.linalg.svd(x)[1],
        torch.linalg.inv(x @ x.t()),
        torch.linalg.det(x @ x.t()),
        torch.fft.rfft(x),
        torch.special.expit(x),
        torch.fft.fft(x).abs(),
        torch.linalg.qr(x)[1].abs(),
        torch.linalg.solve(x @ x.t(), x),
        torch.norm(x, p=2, dim=1),
        x.norm(),
        torch.cdist(x, x),
        torch.linalg.multi_dot([x, x.t(), x]),
        torch.chain_matmul(x, x.t()),
        torch.linalg.vector_norm(x, 2),
        torch.kron(x, x),
        torch.cross(x[:, :3], x[:, 1:], dim=1),
    )


@torch_program(X)
def test_reduce(x):
    return (
        x.sum(),
        x.sum(0, keepdim=True),
        x.mean((0, 1)),
        x.std(),
        x.var(0, unbiased=False),
        x.var(0, correction=1),
        torch.var_mean(x),
        torch.std_mean(x, dim=1),
        x.prod(),
        x.logsumexp(0),
        x.all(),
        x.any(),
        x.amax(0),
        x.argmax(),
        x.argmin(1, keepdim=True),
        x.cumsum(0),
        x.cumprod(1),
        x.nansum(),
        x.quantile(0.5),
        x.nanmean(),
        torch.count_nonzero(x),
        x.sum(dtype=torch.float64),
        x.sum(axis=0),
        x.max(dim=0, keepdim=True),
    )


# complex etc
def C():
    return torch.complex(real(3, 4)(), real(3, 4, seed=1)())


@torch_program(C)
def test_complex(c):
    return (
        c * 2,
        c.real,
        c.imag,
        c.conj(),
        c.abs(),
        c.angle(),
        torch.view_as_real(c),
        c.H,
        c @ c.t(),
        c.conj() * c,
        torch.polar(c.abs(), c.angle()),
        c.is_complex(),
        torch.fft.fft(c),
        c + 1j,
        c.mul(2 + 1j),
    )


@torch_program(lambda: torch.complex(real(3, 4)(), real(3, 4, seed=1)()).requires_grad_())
def test_complex_grad(c):
    return (c * c.conj()).real.sum(), c.abs().sum()


@torch_program(lambda: torch.eye(3).to_sparse(), breaks="unsupported-tensor-subclass")
def test_sparse_arg(s):
    return s @ torch.ones(3, 2)


@torch_program(X, breaks="unsupported-fake-op")
def test_sparse_made(x):
    return (x.to_sparse() * 2).to_dense()


@torch_program(X, breaks="unsupported-fake-op")
def test_sparse_coo(x):
    return (
        torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 2]]), torch.tensor([1.0, 2.0]), (3, 3)).to_dense()
        @ x
    )


@torch_program(X, breaks="unsupported-fake-op")
def test_sparse_mm(x):
    return torch.sparse.mm(torch.eye(3).to_sparse(), x)


@torch_program(X, breaks="unsupported-fake-op")
def test_csr(x):
    return x.to_sparse_csr().to_dense()


@torch_program(
    lambda: torch.quantize_per_tensor(real(3, 4)(), 0.1, 0, torch.qint8), breaks="unsupported-tensor-subclass"
)
def test_quant_arg(q):
    return q.dequantize() * 2


@torch_program(X, breaks="unsupported-call")
def test_data_ptr(x):
    return x.data_ptr() == x.data_ptr(), x * 2


@torch_program(X, breaks="unsupported-call")
def test_storage(x):
    return x.untyped_storage().nbytes(), x * 2


@torch_program(X, breaks="unsupported-call")
def test_deepcopy(x):
    return copy.deepcopy(x), copy.copy(x) + 1


@torch_program(X)
def test_fstr(x):
    return f"{x.shape} {x.dtype}", x * 2


@torch_program(X)
def test_fmt_item(x):
    return f"{x.sum():.2f}"


@torch_program(X, breaks="unsupported-builtin")
def test_hash(x):
    return {x: 1}[x], x in {x: 2}, hash(x) == hash(x), id(x) == id(x)


@torch_program(X)
def test_tensor_in_list(x):
    return x in [x], [x].index(x), x.sum() * 2


@torch_program(X)
def test_attr_set(x):
    x.foo = 3
    return x * x.foo


@torch_program(X)
def test_attr_set_fresh(x):
    y = x * 2
    y.foo = 3
    return y, y.foo


@torch_program(X)
def test_getattr_dyn(x):
    return (
        x.sum(),
        torch.relu(x),
        hasattr(x, "shape"),
        hasattr(x, "nope"),
        getattr(x, "nope", 3),
    )


@torch_program(X)
def test_isinstance(x):
    return (
        isinstance(x, torch.Tensor),
        type(x) is torch.Tensor,
        isinstance(x, nn.Parameter),
        isinstance(x, torch.FloatTensor),
        isinstance(x.dtype, torch.dtype),
        issubclass(type(x), Tensor),
        torch.is_tensor(x),
        type(x).__name__,
        isinstance(x, (int, Tensor)),
        isinstance(x, torch.autograd.Variable),
    )


@torch_program(X)
def test_methods_as_values(x):
    return (
        list(map(torch.relu, [x, -x])),
        (lambda f: f(x))(Tensor.relu),
        Tensor.add(x, 1),
        torch.Tensor.view(x, -1),
        [f(x) for f in (torch.sin, F.relu, torch.Tensor.cos)],
        x.apply_ if 0 else 0,
    )


@torch_program(X, breaks="unsupported-call")
def test_apply_(x):
    return x.apply_(lambda v: v + 1)


@torch_program(X)
def test_stack_cat(x):
    return (
        torch.stack([x, x]),
        torch.cat((x, x), dim=-1),
        torch.vstack([x, x]),
        torch.hstack((x, x)),
        torch.block_diag(x, x),
        torch.stack(x.unbind()),
        torch.cat([x, x.new_zeros(0)] if 0 else [x]),
        torch.concat([x]),
        torch.dstack([x]),
        torch.column_stack([x, x]),
    )


@torch_program(X, breaks="raises")
def test_error_shape(x):
    return x @ x


@torch_program(X, breaks="raises")
def test_error_type(x):
    return x + "a"


@torch_program(X, breaks="raises")
def test_error_kw(x):
    return torch.sum(x, foo=3)


@torch_program(X, breaks="raises")
def test_error_method(x):
    return x.no_such


@torch_program(X, breaks="exception-raised")
def test_error_caught(x):
    try:
        return x.view(5)
    except RuntimeError as e:
        return x * 2


@torch_program(X)
def test_named_tuple_out(x):
    r = x.max(dim=1)
    v, i = r
    return r._fields if hasattr(r, "_fields") else r.values, r[0], r.indices, len(r), isinstance(r, tuple)


@torch_program(X, breaks="unsupported-call")
def test_dlpack(x):
    return torch.from_dlpack(x) + 1


@torch_program(X)
def test_type_promotion(x):
    return (
        x + 1,
        x.int() + 1.5,
        x.half() + x,
        torch.result_type(x, 1),
        torch.promote_types(torch.int32, torch.float16),
        torch.can_cast(torch.float32, torch.int32),
        x.bool() + True,
    )


@torch_program(X)
def test_view_dtype(x):
    return x.view(torch.int32), x.view(dtype=torch.uint8).shape


@torch_program(X, breaks="data-dependent-branch")
def test_scalar_ops(x):
    s = x.sum()
    return s + 1, torch.add(s, x), s.expand(3), max(s, s), s.reshape(1), [s][0]


@torch_program(X)
def test_chunk_inplace(x):
    a, b = x.chunk(2, 1)
    a.add_(1)
    b.mul_(2)
    return x, a


@torch_program(X)
def test_aliased_out(x):
    y = x * 2
    return y, y, y.view(-1), y[0]


@torch_program(X)
def test_input_returned(x):
    return x, x.view(-1), [x, x]


@torch_program(lambda: torch.ones(3))
def test_swap(x):
    a, b = x, x + 1
    a, b = b, a
    return a, b


def aliased():
    a = torch.arange(6.0)
    return [a, a[:3], a.view(2, 3)]


@torch_program(aliased)
def test_aliased_inputs(views):
    a, b, c = views
    b.add_(1)
    return a * 2, c + 1


@torch_program(real(3, 4, grad=True), real(3, 4, seed=1))
def test_loss_that_checks_its_values(x, y):
    return F.gaussian_nll_loss(x, y, torch.full((3, 1), 0.5)), F.gaussian_nll_loss(
        x, y, y.abs() + 1, full=True
    )


@torch_program(real(3, 4), breaks="raises")
def test_loss_that_refuses_its_values(x):
    return F.gaussian_nll_loss(x, x, -torch.ones(3, 1))


@torch_program(real(3, 4, grad=True))
def test_covariance(x):
    weights = torch.tensor([1, 2, 3, 1])
    return torch.cov(x * 2), torch.corrcoef(x) * 2, torch.cov(x, fweights=weights, aweights=weights / 2)


@torch_program(real(3, 4), INDEX)
def test_tensors_of_tensors(x, i):
    a, b, n = x.sum(), x[0, 0].double(), i[0]
    pairs = torch.tensor([[a, b], [n, 2]]), torch.tensor((a, 1)), torch.as_tensor([n, True])
    typed = torch.tensor([n, i.sum()], dtype=torch.float16), torch.tensor([n > 0, x.sum() > 0])
    return (
        pairs,
        typed,
        torch.tensor([a.half(), 1.5]),
        torch.tensor([i.sum() * 2**60 + 1, 1], dtype=torch.float32),
    )


@torch_program(real(3, grad=True), breaks="exception-raised")
def test_tensor_of_tensors_that_require_grad(x):
    return torch.tensor([x[0], x[1]]) * 2


@torch_program(real(3), breaks="raises")
def test_tensor_of_floats_as_integers(x):
    return torch.tensor([x[0], x[1]], dtype=torch.int64)


@torch_program(X)
def test_classes_that_stand_for_a_dtype(x):
    made = torch.zeros(2, dtype=int), torch.full((2,), 1, dtype=float), torch.tensor([1], dtype=complex)
    listed = torch.tensor([x[0, 0], 1], dtype=float)
    return x.to(bool).to(float), x.sum(dtype=float), x.new_ones(2, dtype=bool), made, listed


@torch_program(X)
def test_a_class_that_is_no_dtype_to_torch(x):
    try:
        return x.type(float)
    except ValueError as error:
        return str(error)
