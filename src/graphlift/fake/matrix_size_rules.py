"""Shapes of the results of operators on matrices whose sizes are symbolic: products, factors, solutions, distances.

In, out and always: as in `size_rules.py`, whose table these rows belong to.
"""

from __future__ import annotations

from typing import Any

from ..shapes.expr import smin
from ..shapes.table import SymbolTable
from .size_rules import SizeRule, broadcast, row, shaped_as
from .view_rules import Shape, argument, require_equal

# -- products of matrices ----------------------------------------------------------------------------------------


def _mm(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    a, b = args[0].spec.shape, args[1].spec.shape
    require_equal(table, a[1], b[0])
    return (a[0], b[1])


def _bmm(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    a, b = args[0].spec.shape, args[1].spec.shape
    require_equal(table, a[0], b[0])
    require_equal(table, a[2], b[1])
    return (b[0] if isinstance(b[0], int) else a[0], a[1], b[2])


def _with_bias(product: SizeRule) -> SizeRule:
    def rule(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
        shape = product(table, args[1:], kwargs)
        return broadcast(table, [shape, args[0].spec.shape])

    return rule


def _mv(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    require_equal(table, args[0].spec.shape[1], args[1].spec.shape[0])
    return (args[0].spec.shape[0],)


@row("dot vdot")
def _dot(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    require_equal(table, args[0].spec.shape[0], args[1].spec.shape[0])
    return ()


row("mm")(_mm)
row("bmm")(_bmm)
row("mv")(_mv)
row("addmm")(_with_bias(_mm))
row("baddbmm")(_with_bias(_bmm))
row("addmv")(_with_bias(_mv))
row("addr")(_with_bias(lambda table, args, kwargs: (args[0].spec.shape[0], args[1].spec.shape[0])))
row("addbmm")(_with_bias(lambda table, args, kwargs: _bmm(table, args, kwargs)[1:]))


@row("_trilinear")
def _trilinear(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    """A sum over products of three tensors, each with dimensions of size 1 put in at some places."""
    shapes = []
    for tensor, places in zip(args[:3], args[3:6], strict=True):
        shape = list(tensor.spec.shape)
        for place in places:
            shape.insert(place, 1)
        shapes.append(shape)
    whole = broadcast(table, shapes)
    return tuple(n for d, n in enumerate(whole) if d not in args[6])


@row("block_diag")
def _block_diagonal(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    blocks = [(1,) * (2 - len(t.spec.shape)) + t.spec.shape for t in args[0]]
    rows, columns = (sum((block[d] for block in blocks), 0) for d in range(2))
    return rows, columns


# -- matrices in batches --------------------------------------------------------------------------------------------


row("linalg_inv_ex linalg_cholesky_ex")(
    lambda table, args, kwargs: (args[0].spec.shape, args[0].spec.shape[:-2])
)
row("linalg_lu_solve ormqr linalg_ldl_solve")(shaped_as(2))
row("cholesky cholesky_inverse cholesky_solve linalg_householder_product")(shaped_as(0))
row("triangular_solve")(shaped_as(0, 1))
row("trace")(lambda table, args, kwargs: ())
row("linalg_ldl_factor_ex")(
    lambda table, args, kwargs: (*_factored(args[0].spec.shape), args[0].spec.shape[:-2])
)


def _in_triangles(shape: Shape) -> tuple[Shape, Shape]:
    """Of matrices: the two factors in one, and the pivots (or reflectors)."""
    return shape, (*shape[:-2], smin(*shape[-2:]))


row("geqrf")(lambda table, args, kwargs: _in_triangles(args[0].spec.shape))
row("linalg_lu_factor_ex")(
    lambda table, args, kwargs: (*_in_triangles(args[0].spec.shape), args[0].spec.shape[:-2])
)


@row("linalg_lu lu_unpack")
def _permuted(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    *batch, m, n = args[0].spec.shape
    return (*batch, m, m), (*batch, m, smin(m, n)), (*batch, smin(m, n), n)


row("_linalg_check_errors")(lambda table, args, kwargs: ())
row("_linalg_det")(lambda table, args, kwargs: (args[0].spec.shape[:-2], *_factored(args[0].spec.shape)))
row("_linalg_slogdet")(
    lambda table, args, kwargs: (*[args[0].spec.shape[:-2]] * 2, *_factored(args[0].spec.shape))
)


def _factored(shape: Shape) -> tuple[Shape, Shape]:
    """Of square matrices: the factors and the pivots."""
    return shape, shape[:-1]


@row("_linalg_solve_ex")
def _solved(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    a, b = args[0].spec.shape, args[1].spec.shape
    left = b if len(a) == len(b) else b[: len(a) - 1]
    for n, m in zip(a[:-2], left, strict=False):
        require_equal(table, n, m)
    return b, *_factored(a), a[:-2]


@row("_linalg_eigh")
def _eigenvectors(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    shape = args[0].spec.shape
    return shape[:-1], shape if argument(args, kwargs, 2, "compute_v", True) else (0,)


row("linalg_eig")(lambda table, args, kwargs: (args[0].spec.shape[:-1], args[0].spec.shape))
row("_linalg_eigvals")(lambda table, args, kwargs: args[0].spec.shape[:-1])


@row("linalg_pinv.atol_rtol_tensor")
def _pseudo_inverse(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    *batch, m, n = args[0].spec.shape
    return (*batch, n, m)


@row("linalg_qr")
def _orthogonal(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    *batch, m, n = args[0].spec.shape
    mode = argument(args, kwargs, 1, "mode", "reduced")
    if mode == "r":
        return None
    k = m if mode == "complete" else smin(m, n)
    return (*batch, m, k), (*batch, k, n)


@row("_linalg_svd")
def _singular(table: SymbolTable, args: tuple, kwargs: dict) -> Any:
    *batch, m, n = args[0].spec.shape
    k = smin(m, n)
    if not argument(args, kwargs, 2, "compute_uv", True):
        return (0,), (*batch, k), (0,)
    full = argument(args, kwargs, 1, "full_matrices", False)
    return (*batch, m, m if full else k), (*batch, k), (*batch, n if full else k, n)


# -- distances -------------------------------------------------------------------------------------------------------


row("_cdist_backward")(shaped_as(1))


@row("_cdist_forward _euclidean_dist")
def _cdist(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    a, b = args[0].spec.shape, args[1].spec.shape
    require_equal(table, a[-1], b[-1])
    return (*broadcast(table, [a[:-2], b[:-2]]), a[-2], b[-2])


@row("_pdist_forward")
def _pairwise(table: SymbolTable, args: tuple, kwargs: dict) -> Shape:
    count = args[0].spec.shape[0]
    return (count * (count - 1) // 2,)


row("_pdist_backward")(shaped_as(1))
