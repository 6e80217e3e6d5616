"""The dispatch mode that computes operators on fake tensors.

In: operators as dispatch sends them, below autograd. Out: fakes whose metadata equal what eager would give.
Always: no data is read or computed; metadata are computed once per (operator, argument metadata) and then remembered.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..shapes.expr import Expr, contiguous_strides
from ..shapes.table import SymbolTable
from . import symbolic, unknown
from .checks import as_eager, check_arguments, check_overlap
from .corrections import correct
from .errors import DataDependent, Unsupported
from .known import carry, computed, know, rewritten
from .ops import MIXED_DEVICES, Kind, OpInfo, Tag, aten, functional_form, op_info, quietly
from .outs import require_apart, require_casts, require_dtypes, require_regular_out
from .spec import META, FakeStorage, Spec, make_spec, meta_tensor, spec_of
from .tensor import FakeTensor, count_writes, fakes_in, in_mode_of, new_fake, set_metadata, value_of
from .view_rules import require_equal

CPU = torch.device("cpu")
_SIMPLE = frozenset(
    (int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
)
# Result recipes by metadata key; dropped whole when large. Values are pure functions of the key.
_CACHE: dict[tuple, Any] = {}
_CACHE_LIMIT = 200_000


class _NotHashable(Exception):
    """An argument that cannot be part of a key (a real tensor to convert, an opaque object)."""


class _Literal:
    """A non-tensor result."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def cloned(leaf: Any, _like: Any) -> Any:
    return torch.clone(leaf)


def refuses_history(t: Tensor) -> bool:
    """Whether autograd raises at all questions about `t`: a view made without grad, whose base was written since."""
    try:
        _ = t.requires_grad and t.is_leaf
    except RuntimeError:
        return True
    return False


def is_view_of_leaf(t: Tensor) -> bool:
    """Whether autograd refuses changes of `t` in place: it is a view of a leaf that requires a gradient."""
    return t._is_view() and t._base is not None and t._base.is_leaf and t._base.requires_grad


class FakeMode(TorchDispatchMode):
    """Context in which operators on fakes, and factory functions, give fakes."""

    # The tables at the end of this file; a mode that records has its own.
    rules_by_operator: ClassVar[dict[Any, Callable[..., Any]]]
    rules_by_kind: ClassVar[dict[Kind, Callable[..., Any]]]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the default wraps dispatch in torch._dynamo, which must not be imported

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    def __init__(self, sizes: SymbolTable | None = None) -> None:
        super().__init__()
        self.sizes = sizes  # None: every size is a number
        self.unknown_sizes: SymbolTable | None = (
            None  # where what only the running graph knows may be a symbol
        )
        self._fakes: dict[int, tuple[weakref.ref, FakeTensor]] = {}
        self._homes: dict[int, tuple[list[weakref.ref], FakeStorage]] = {}
        self.reading_data = False  # whether the detach now dispatched is an access to `.data`
        self._minting: tuple[Spec, FakeStorage] | None = None

    # -- entry ---------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.dispatch(func, args, kwargs or {})

    def dispatch(self, func: Any, args: tuple, kwargs: dict) -> Any:
        if self.sizes is not None:
            args, kwargs = symbolic.plain_sizes(args), symbolic.plain_sizes(kwargs)
        rule = self.rules_by_operator.get(func)
        if rule is not None:
            result = rule(self, func, args, kwargs)
            if result is not NotImplemented:
                return result
        info = op_info(func)
        try:
            key = metadata_key(func, args, kwargs)
        except _NotHashable:
            args, kwargs = self.convert(args), self.convert(kwargs)
            try:
                key = metadata_key(func, args, kwargs)
            except _NotHashable:
                key = None
        return self.rules_by_kind[kind_of(info, args)](self, info, key, args, kwargs)

    # -- real tensors --------------------------------------------------------------------------------------

    def from_real(self, t: Tensor, spec: Spec | None = None) -> FakeTensor:
        """The fake of a real tensor: the same fake each time, aliasing the fakes of its aliases.

        `spec` gives its metadata where they are not those of now (symbolic sizes).
        Raises: Unsupported for tensors without strides or storage (sparse, nested, quantized, subclasses).
        """
        if type(t) is FakeTensor:
            return t
        known = self._fakes.get(id(t))
        if known is not None and known[0]() is t:
            return known[1]
        require_plain(t)
        spec = spec_of(t, t.device) if spec is None else spec
        fake = in_mode_of(t, lambda: self._fake_like(t, spec, self._home_of(t, spec)))
        self._fakes[id(t)] = (weakref.ref(t), fake)
        return fake

    def _home_of(self, t: Tensor, spec: Spec) -> FakeStorage:
        storage = t.untyped_storage()
        known = self._homes.get(storage._cdata)
        if known is not None and any(r() is not None for r in known[0]):
            known[0].append(weakref.ref(t))
            return known[1]
        home = FakeStorage(spec.nbytes if spec.symbolic else storage.nbytes())
        self._homes[storage._cdata] = ([weakref.ref(t)], home)
        return home

    def _fake_like(self, t: Tensor, spec: Spec, home: FakeStorage) -> FakeTensor:
        if not t.requires_grad or t.is_leaf:
            fake = new_fake(self, spec, home, t.requires_grad)
        else:
            leaf = new_fake(self, spec, home, True)
            # A view of a leaf refuses changes in place, as it does in eager.
            fake = self.non_leaf(leaf, torch.Tensor.view_as if is_view_of_leaf(t) else cloned)
        if isinstance(t, torch.nn.Parameter):
            fake._is_param = True
        return fake

    def non_leaf(self, leaf: FakeTensor, make: Callable[[Any, Any], Any] = cloned) -> FakeTensor:
        """A differentiable copy of `leaf`, of the same metadata and storage; a view of it only if `make` makes one."""
        self._minting = (leaf.spec, leaf.home)
        try:
            with torch.enable_grad():
                return make(leaf, leaf)
        finally:
            self._minting = None

    def convert(self, value: Any) -> Any:
        """Replace the real tensors inside `value` by fakes."""
        if type(value) is FakeTensor:
            return value
        if isinstance(value, Tensor):
            return self.convert_constant(value)
        if isinstance(value, (list, tuple)):
            return type(value)([self.convert(v) for v in value])
        if isinstance(value, dict):
            return {k: self.convert(v) for k, v in value.items()}
        return value

    def convert_constant(self, t: Tensor) -> FakeTensor:
        return self.from_real(t)

    def lift(self, t: Tensor) -> FakeTensor:
        """A fresh fake of a literal (`torch.tensor(...)`); small ones remember their value."""
        if type(t) is FakeTensor:
            return t
        spec = make_spec(tuple(t.shape), tuple(t.stride()), 0, t.dtype, t.device)
        home = FakeStorage(spec.nbytes)
        fake = new_fake(self, spec, home)
        know(fake, t)
        return fake

    def make(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device | str,
        *,
        stride: tuple[int, ...] | None = None,
        requires_grad: bool = False,
    ) -> FakeTensor:
        """A fake out of nothing, on any device, also one this machine does not have."""
        device = torch.device(device)
        if device.index is None and device.type not in ("cpu", "meta"):
            device = torch.device(device.type, 0)
        spec = make_spec(tuple(shape), stride or contiguous_strides(shape), 0, dtype, device)
        return new_fake(self, spec, FakeStorage(spec.nbytes), requires_grad)

    # -- results -------------------------------------------------------------------------------------------

    def involves_symbols(self, args: tuple, kwargs: dict) -> bool:
        return self.sizes is not None and symbolic.is_symbolic(args, kwargs)

    def pure_recipe(self, info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
        if self.involves_symbols(args, kwargs):
            return symbolic.recipe(self, info, key, args, kwargs, _pure_concrete)
        return pure_recipe(info, key, args, kwargs)

    def view_recipe(self, info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
        if self.involves_symbols(args, kwargs):
            if info.func is aten.as_strided.default:
                key = None
            return symbolic.recipe(self, info, key, args, kwargs, _view_concrete)
        return view_recipe(info, key, args, kwargs)

    def fresh(self, spec: Spec) -> FakeTensor:
        return new_fake(self, spec, FakeStorage(spec.nbytes))

    def made(self, info: OpInfo, args: tuple, kwargs: dict, recipe: Any) -> Any:
        """What an operator makes whose result is ``recipe``."""
        return self.wrap(recipe)

    def wrap(self, recipe: Any) -> Any:
        if type(recipe) is Spec:
            return new_fake(self, recipe, FakeStorage(recipe.nbytes))
        if type(recipe) is tuple:
            return tuple([self.wrap(r) for r in recipe])
        if type(recipe) is list:
            return [self.wrap(r) for r in recipe]
        return recipe.value


def require_plain(t: Tensor) -> None:
    """Raises: Unsupported for tensors that strides, a storage and a history do not describe."""
    if (
        (type(t) is not Tensor and not _is_plain(t))
        or t.layout is not torch.strided
        or t.is_quantized
        or t.is_nested
        or t._is_zerotensor()  # it has no memory
    ):
        raise Unsupported(type(t).__name__, f"a tensor of layout {t.layout} has no fake here")
    if torch._C._functorch.is_functorch_wrapped_tensor(t):
        raise Unsupported(type(t).__name__, "a tensor wrapped by a torch.func transform has no fake here")
    if refuses_history(t):
        raise Unsupported(type(t).__name__, "a view whose history autograd refuses to give")


def _is_plain(t: Tensor) -> bool:
    cls: Any = type(t)
    disabled = torch._C._disabled_torch_function_impl, torch._C._disabled_torch_dispatch_impl
    return (cls.__torch_function__, cls.__torch_dispatch__) == disabled


# -- keys --------------------------------------------------------------------------------------------------


def metadata_key(func: Any, args: tuple, kwargs: dict) -> tuple:
    """All that output metadata can depend on: operator, argument metadata, other arguments, default dtype."""
    parts: list[Any] = [func, torch.get_default_dtype()]
    append = parts.append
    for a in args:
        cls = type(a)
        if cls is FakeTensor:
            append(a.spec)
        elif cls is list or cls is tuple:
            append(_list_key(a))
        elif cls in _SIMPLE:
            append(cls)
            append(a)
        else:
            append(_other_key(a))
    if kwargs:
        for k, a in kwargs.items():
            append(k)
            cls = type(a)
            if cls is FakeTensor:
                append(a.spec)
            elif cls is list or cls is tuple:
                append(_list_key(a))
            elif cls in _SIMPLE:
                append(cls)
                append(a)
            else:
                append(_other_key(a))
    return tuple(parts)


def _list_key(values: list | tuple) -> tuple:
    parts: list[Any] = []
    for a in values:
        cls = type(a)
        if cls is FakeTensor:
            parts.append(a.spec)
        elif cls is int:
            parts.append(a)
        elif cls in _SIMPLE:
            parts.append(cls)
            parts.append(a)
        elif cls is list or cls is tuple:
            parts.append(_list_key(a))
        else:
            parts.append(_other_key(a))
    return tuple(parts)


def _other_key(a: Any) -> Any:
    if isinstance(a, torch.Generator):
        return torch.Generator
    if isinstance(a, Expr):
        return a
    if isinstance(a, (int, float)) and not isinstance(a, Tensor):  # numpy scalars, IntEnum
        return (type(a), a)
    raise _NotHashable


# -- computing metadata ------------------------------------------------------------------------------------


def common_device(name: str, args: tuple, kwargs: dict) -> torch.device | None:
    """The device the result lives on. Raises: RuntimeError, as eager, where the arguments' devices clash."""
    device: torch.device | None = None
    scalar: torch.device | None = None
    for f in fakes_in((*args, *kwargs.values()), []):
        d = f.spec.device
        if not f.spec.shape and d.type == "cpu":
            scalar = d
        elif device is None:
            device = d
        elif d != device and name not in MIXED_DEVICES:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {device} and {d}!"
            )
    return device if device is not None else scalar


def result_device(info: OpInfo, args: tuple, kwargs: dict) -> torch.device:
    wanted = kwargs.get("device")
    if wanted is not None:
        wanted = torch.device(wanted)
        if wanted.index is None and wanted.type not in ("cpu", "meta"):
            wanted = torch.device(wanted.type, 0)
        return wanted
    found = common_device(info.name, args, kwargs)
    return found if found is not None else CPU


def call_on_meta(info: OpInfo, args: tuple, kwargs: dict) -> tuple[Any, dict[int, Tensor]]:
    """Run the operator's meta kernel on stand-ins; gives its result and the stand-in of each fake (by id)."""
    check_arguments(info.func, args, kwargs)
    standins: dict[int, Tensor] = {}

    def lower(a: Any) -> Any:
        if type(a) is FakeTensor:
            t = standins.get(id(a))
            if t is None:
                t = standins[id(a)] = meta_tensor(a.spec, a.home)
            return t
        if type(a) is list or type(a) is tuple:
            return type(a)([lower(v) for v in a])
        if isinstance(a, torch.Generator):
            return None
        return a

    meta_args = lower(args)
    meta_kwargs = {k: lower(v) for k, v in kwargs.items()}
    if "device" in meta_kwargs or not standins:
        if any(a.name == "device" for a in info.func._schema.arguments):
            meta_kwargs["device"] = META
    if meta_kwargs.get("pin_memory"):
        meta_kwargs["pin_memory"] = False
    try:
        return quietly(info.func, meta_args, meta_kwargs), standins
    except NotImplementedError as e:
        if "meta" not in str(e).lower():
            raise
        if info.name in ON_ZEROS and all(
            t.spec.device.type == "cpu" for t in fakes_in([*args, *kwargs.values()], [])
        ):
            return _on_zeros(info, args, kwargs), standins
        if only_writes(info):
            return None, standins
        raise Unsupported(info.name) from None
    except (AssertionError, RuntimeError) as e:
        raise as_eager(info.func, args, e) from None


#: Operators without a meta kernel whose CPU kernel gives the same metadata for all values.
ON_ZEROS = frozenset(
    (
        "aten::_histogramdd_bin_edges",
        "aten::_histogramdd_from_bin_cts",
        "aten::_histogramdd_from_bin_tensors",
        "aten::histogram.bin_ct",
        "aten::histogram.bins_tensor",
    )
)


def _on_zeros(info: OpInfo, args: tuple, kwargs: dict) -> Any:
    def lower(a: Any) -> Any:
        if type(a) is FakeTensor:
            return torch.empty_strided(a.spec.shape, a.spec.stride, dtype=a.spec.dtype).zero_()
        return type(a)(map(lower, a)) if type(a) in (list, tuple) else a

    try:
        return quietly(info.func, lower(args), {k: lower(v) for k, v in kwargs.items()})
    except RuntimeError as error:
        raise Unsupported(info.name, f"raises, perhaps for zeros alone: {error}") from None


def recipe_of(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return spec_of(value, device) if value.device.type == "meta" else spec_of(value, value.device)
    if isinstance(value, (tuple, list)):
        return type(value)([recipe_of(v, device) for v in value])
    return _Literal(value)


def remember(key: tuple | None, recipe: Any) -> None:
    if key is not None:
        if len(_CACHE) >= _CACHE_LIMIT:
            _CACHE.clear()
        _CACHE[key] = recipe


def pure_recipe(info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
    recipe = _CACHE.get(key) if key is not None else None
    if recipe is None:
        device = result_device(info, args, kwargs)
        result, _ = call_on_meta(info, args, kwargs)
        recipe = correct(info.func, recipe_of(result, device), args, kwargs, device)
        remember(key, recipe)
    return recipe


# -- rules by kind -----------------------------------------------------------------------------------------


def _pure(mode: FakeMode, info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
    return carry(info, args, kwargs, mode.wrap(mode.pure_recipe(info, key, args, kwargs)))


def _pure_concrete(info: OpInfo, args: tuple, kwargs: dict) -> Any:
    return pure_recipe(info, metadata_key(info.func, args, kwargs), args, kwargs)


def _view_concrete(info: OpInfo, args: tuple, kwargs: dict) -> Any:
    return view_recipe(info, metadata_key(info.func, args, kwargs), args, kwargs)


def view_recipe(info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
    recipe = _CACHE.get(key) if key is not None else None
    if recipe is None:
        # Bounds depend on the storage's size, which the key leaves out: as_strided is never remembered.
        recipe = recipe_of(call_on_meta(info, args, kwargs)[0], args[0].spec.device)
        if info.func is not aten.as_strided.default:
            remember(key, recipe)
    return recipe


def view_of_number(mode: FakeMode, info: OpInfo, args: tuple) -> Any:
    """A backward conjugates the number that a tensor was multiplied by, which is a tensor of no dimensions to it."""
    return mode.dispatch(info.func, (mode.lift(torch.tensor(args[0], dtype=torch.complex128)), *args[1:]), {})


def _view(mode: FakeMode, info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
    if type(args[0]) is complex:
        return view_of_number(mode, info, args)
    recipe = mode.view_recipe(info, key, args, kwargs)
    of, home = args[0], args[0].home
    if type(recipe) is Spec:
        return in_mode_of(of, lambda: new_fake(mode, recipe, home))
    return in_mode_of(of, lambda: type(recipe)([new_fake(mode, r, home) for r in recipe]))


def _inplace(mode: FakeMode, info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
    args[0].home.constant = write_in_place(mode, info, key, args, kwargs)
    return args[0]


def write_in_place(
    mode: FakeMode, info: OpInfo, key: tuple | None, args: tuple, kwargs: dict
) -> Tensor | None:
    """What the storage that an operator writes in place then holds, if that is known. Raises: eager's errors."""
    if mode.involves_symbols(args, kwargs):
        symbolic.check_in_place(mode, info, key, args, kwargs, _in_place_concrete)
        return None
    check_overlap(info.func, args)
    if key is None or key not in _CACHE:
        common_device(info.name, args, kwargs)
        call_on_meta(info, args, kwargs)
        remember(key, True)
    return rewritten(info, args, kwargs)


def _in_place_concrete(info: OpInfo, args: tuple, kwargs: dict) -> None:
    check_overlap(info.func, args)
    common_device(info.name, args, kwargs)
    call_on_meta(info, args, kwargs)


def written(info: OpInfo, args: tuple, kwargs: dict) -> dict[tuple[int, str], Any]:
    """The value of each written argument (a fake, a list of fakes or None), by position and name."""
    found = {}
    for where in info.writes:
        position, name = where
        found[where] = args[position] if 0 <= position < len(args) else kwargs.get(name)
    return found


def require_results(info: OpInfo, targets: dict[Any, Any], args: tuple, kwargs: dict) -> None:
    """Errors about dtypes, of which meta kernels may not tell: the written arguments take what would be computed.

    Raises: RuntimeError as eager does, Unsupported.
    """
    form = None if info.random and Tag.out not in info.func.tags else functional_form(info.func)
    if form is None:
        return
    names = {name for _, name in info.writes if Tag.out in info.func.tags}
    recipe = pure_recipe(op_info(form), None, args, {k: v for k, v in kwargs.items() if k not in names})
    if names:
        require_dtypes(info, targets, recipe)
    elif len(targets) == 1:
        require_casts(next(iter(targets.values())), recipe)


def only_writes(info: OpInfo) -> bool:
    """Whether writing into arguments is all that an operator of another library does."""
    writes = bool(info.writes) and not info.func._schema.returns and Tag.out not in info.func.tags
    return writes and info.func.namespace not in ("aten", "prims")


def _wrote(targets: dict[Any, Any]) -> None:
    for f in fakes_in(tuple(targets.values()), []):
        f.home.constant = None
    for listed in targets.values():
        if isinstance(listed, (list, tuple)):
            count_writes(listed)


def _writes(mode: FakeMode, info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
    if mode.involves_symbols(args, kwargs):
        if only_writes(info):
            return _wrote(written(info, args, kwargs))
        if info.silent is None:
            assert mode.sizes is not None  # there are symbols
            symbolic.fix(mode.sizes, info, args, kwargs, "writes several tensors")
        return mode.wrap(mode.pure_recipe(info, key, args, kwargs))
    targets = written(info, args, kwargs)
    require_regular_out(info, targets, args, kwargs)
    recipe = _CACHE.get(key) if key is not None else None
    if recipe is None:
        require_results(info, targets, args, kwargs)
        device = result_device(info, args, kwargs)
        result, standins = call_on_meta(info, args, kwargs)
        results = result if isinstance(result, (tuple, list)) and len(info.returns) != 1 else (result,)
        made = correct(info.func, tuple([recipe_of(v, device) for v in results]), args, kwargs, device)
        fresh = tuple([None if r is not None else v for r, v in zip(info.returns, made, strict=False)])
        resized = {
            id(f): spec
            for f in fakes_in(tuple(targets.values()), [])
            if id(f) in standins and (spec := spec_of(standins[id(f)], f.spec.device)) is not f.spec
        }
        recipe = fresh
        require_apart(
            info, [f for f in fakes_in(tuple(targets.values()), []) if id(f) in resized], args, kwargs
        )
        if resized:  # out= of the wrong size: not remembered, since it names this call's tensors
            for f in fakes_in(tuple(targets.values()), []):
                if id(f) in resized:
                    f.home.nbytes = max(f.home.nbytes, resized[id(f)].nbytes)
                    set_metadata(f, resized[id(f)], f.home)
        else:
            remember(key, recipe)
    _wrote(targets)
    outs = [targets[r] if r is not None else mode.wrap(v) for r, v in zip(info.returns, recipe, strict=True)]
    return outs[0] if len(outs) == 1 else tuple(outs) if outs else None


def _metadata(mode: FakeMode, info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
    target = args[0]
    set_metadata(target, *metadata_after(mode, info, args, kwargs))
    return target


#: What gives as a view what these make of their argument.
AS_VIEW = {
    aten.t_.default: aten.t.default,
    aten.transpose_.default: aten.transpose.int,
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.unsqueeze_.default: aten.unsqueeze.default,
    aten.as_strided_.default: aten.as_strided.default,
}


def metadata_after(mode: FakeMode, info: OpInfo, args: tuple, kwargs: dict) -> tuple[Spec, FakeStorage]:
    """Metadata and storage of the first argument after `t_`, `resize_`, `set_` and their kin."""
    target = args[0]
    if mode.involves_symbols(args, kwargs) and info.func is not aten.detach_.default:
        assert mode.sizes is not None  # there are symbols
        form = AS_VIEW.get(info.func)
        spec = mode.view_recipe(op_info(form), None, args, kwargs) if form is not None else None
        if spec is not None and require_equal(mode.sizes, spec.numel(), target.spec.numel()):
            return spec, target.home
        symbolic.fix(mode.sizes, info, args, kwargs, "changes a tensor's metadata")
    if info.func in _SET_STORAGE or info.func is aten.detach_.default:
        if info.func is aten.set_.source_Tensor:
            source = args[1]
            if source.spec.dtype != target.spec.dtype:
                types = (source.spec.dtype, target.spec.dtype)
                raise RuntimeError("Could not set tensor of type {} to a tensor of type {}".format(*types))
            return source.spec, source.home
        if info.func is aten.detach_.default:
            return target.spec, target.home
        raise Unsupported(info.name, "replaces the storage by one that has no fake")
    _, standins = call_on_meta(info, args, kwargs)
    spec = spec_of(standins[id(target)], target.spec.device)
    target.home.nbytes = max(target.home.nbytes, spec.nbytes)
    return spec, target.home


_SET_STORAGE = frozenset(
    (
        aten.set_.default,
        aten.set_.source_Tensor,
        aten.set_.source_Storage,
        aten.set_.source_Storage_storage_offset,
        aten.set_.source_Tensor_storage_offset,
    )
)


def kind_of(info: OpInfo, args: tuple) -> Kind:
    """The operator's kind for these arguments: indexing needs values only where an index is a mask."""
    if info.kind is Kind.VALUES and info.name.startswith("aten::index."):
        masked = any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        return Kind.VALUES if masked else Kind.PURE
    return info.kind


def _composite(mode: FakeMode, info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
    if mode.sizes is not None:
        args, kwargs = symbolic.torch_sizes(args, mode.sizes), symbolic.torch_sizes(kwargs, mode.sizes)
    with mode, _counting_writes():
        return info.func.decompose(*args, **kwargs)


def _counting_writes() -> AbstractContextManager[None]:
    """Version counters move inside: in inference mode autograd does not take operators apart, so dispatch does."""
    if not torch.is_inference_mode_enabled():
        return nullcontext()
    tls = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return torch._C._ForceDispatchKeyGuard(tls[0], tls[1].remove(torch._C.DispatchKey.ADInplaceOrView))


def _values(mode: FakeMode, info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
    made = computed(info, args, kwargs)
    if made is not None:
        return carry(info, args, kwargs, mode.made(info, args, kwargs, recipe_of(made, CPU)))
    try:
        made = unknown.result(mode, info.func, args, kwargs)
    except DataDependent:
        made = None  # by an operator that this one stands for
    if made is None:
        raise DataDependent(info.name)
    return made


def _higher_order(mode: FakeMode, info: OpInfo, key: tuple | None, args: tuple, kwargs: dict) -> Any:
    raise Unsupported(info.name, "is a higher-order operator")


_RULES: dict[Kind, Callable[..., Any]] = {
    Kind.PURE: _pure,
    Kind.VIEW: _view,
    Kind.INPLACE: _inplace,
    Kind.WRITES: _writes,
    Kind.METADATA: _metadata,
    Kind.COMPOSITE: _composite,
    Kind.VALUES: _values,
    Kind.HIGHER_ORDER: _higher_order,
}


# -- rules by operator -------------------------------------------------------------------------------------


def _item(mode: FakeMode, func: Any, args: tuple, kwargs: dict) -> Any:
    t = args[0]
    if type(t) is not FakeTensor:
        return NotImplemented if not isinstance(t, Tensor) else t.item()
    known = value_of(t)
    if known is None:
        number = unknown.number(mode, t)
        if number is None:
            raise DataDependent(func)
        return number
    return known.item()


def _lift(mode: FakeMode, func: Any, args: tuple, kwargs: dict) -> Any:
    return mode.lift(args[0])


def _clone(mode: FakeMode, func: Any, args: tuple, kwargs: dict) -> Any:
    if mode._minting is None:
        return NotImplemented
    spec, home = mode._minting
    return new_fake(mode, spec, home)


def sdp_choice(mode: FakeMode, func: Any, args: tuple, kwargs: dict) -> Any:
    """Which attention kernel eager would pick: the real kernel decides, by metadata alone."""
    if args[0].spec.device.type == "cpu":
        if mode.involves_symbols(args, kwargs):
            args, kwargs = symbolic.at_hints(mode, args, kwargs)
        with torch._C._DisableTorchDispatch():
            return func(*args, **kwargs)
    return NotImplemented


def _not_pinned(mode: FakeMode, func: Any, args: tuple, kwargs: dict) -> Any:
    return False


def _numbers_of(read: Callable[[Spec], Any]) -> Callable[..., Any]:
    """What C++ code that knows only numbers asks of a tensor with symbolic sizes: they become numbers."""

    def rule(mode: FakeMode, func: Any, args: tuple, kwargs: dict) -> Any:
        if type(args[0]) is not FakeTensor or mode.sizes is None:
            return NotImplemented
        found, why = read(args[0].spec), "read by an operator that takes numbers only"
        if isinstance(found, tuple):
            return [mode.sizes.specialize(n, why) for n in found]
        return mode.sizes.specialize(found, why)

    return rule


NUMBERS: dict[Any, Callable[..., Any]] = {
    aten.size.default: _numbers_of(lambda spec: spec.shape),
    aten.stride.default: _numbers_of(lambda spec: spec.stride),
    aten.storage_offset.default: _numbers_of(lambda spec: spec.offset),
    aten.numel.default: _numbers_of(Spec.numel),
}


def _fused_step(mode: FakeMode, func: Any, args: tuple, kwargs: dict) -> Any:
    """A step of an optimizer as one kernel, which has no metadata kernel: it writes its lists and gives nothing."""
    schema = func._schema.arguments
    written = [(s.name, a) for a, s in zip(args, schema, strict=False) if s.alias_info is not None and a]
    state = [tensors for name, tensors in written if name != "state_steps"]
    alike = all(
        type(t) is FakeTensor and t.spec == first.spec
        for first, *rest in zip(*state, strict=False)
        for t in (first, *rest)
    )
    if len({len(tensors) for tensors in state}) != 1 or not alike or mode.involves_symbols(args, kwargs):
        return NotImplemented
    for fake in fakes_in(tuple(tensors for _, tensors in written), []):
        fake.home.constant = None
    return None


_SPECIAL: dict[Any, Callable[..., Any]] = {
    **NUMBERS,
    aten._local_scalar_dense.default: _item,
    aten.lift_fresh.default: _lift,
    aten.lift.default: _lift,
    aten.clone.default: _clone,
    aten._fused_sdp_choice.default: sdp_choice,
    aten.is_pinned.default: _not_pinned,
    **dict.fromkeys((aten._fused_sgd_.default, aten._fused_adagrad_.default), _fused_step),
}

FakeMode.rules_by_operator = _SPECIAL
FakeMode.rules_by_kind = _RULES
