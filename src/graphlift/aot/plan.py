"""What surrounds the functional graph at run time: how outputs, mutations and modes are put back.

In: the fakes that came out of tracing. Out: frozen descriptions the runtime turns into code.
Always: index `slot` counts the forward graph's outputs, `input` the region's inputs (constants excluded).
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ..data import dataclass
from ..fake import Spec
from ..shapes.expr import Symbol
from .reasons import FALLBACKS
from .views import Path


class FallBack(Exception):
    """The region has effects this stage cannot reproduce exactly; it runs in eager. `FALLBACKS` has the codes."""

    def __init__(self, code: str, detail: str = "") -> None:
        text = FALLBACKS[code].text
        super().__init__(f"{code}: {text} ({detail})" if detail else f"{code}: {text}")


@dataclass(frozen=True, slots=True)
class Literal:
    """An output that is no tensor."""

    value: Any


@dataclass(frozen=True, slots=True)
class FromInput:
    """An input itself (empty path), or a view of it rebuilt outside."""

    input: int
    path: Path = ()


@dataclass(frozen=True, slots=True)
class Geometry:
    """A view by strides of an owner, or of the last of the detached aliases that these steps made, or that alias."""

    owner: Spec
    aliases: Path
    spec: Spec
    is_view: bool
    grad_mode: bool


@dataclass(frozen=True, slots=True)
class FromSlot:
    """An output of the graph itself (empty path), or a view of it rebuilt outside.

    `geometry` replaces the path where the owner's own metadata were changed in place.
    """

    slot: int
    path: Path = ()
    geometry: Geometry | None = None


@dataclass(frozen=True, slots=True)
class SameAs:
    """The same tensor object as an earlier output."""

    output: int


OutputPlan = Literal | FromInput | FromSlot | SameAs


View = tuple[Any, tuple, dict]


@dataclass(frozen=True, slots=True)
class Mutation:
    """Input `input` takes the value of graph output `slot`; how autograd and the version counter see it.

    `part`: the views (function, arguments, keywords) that lead to what is written, where that is not all of the input.
    """

    input: int
    slot: int
    differentiable: bool
    hidden: bool  # done through `.data` or in a way that leaves the version counter alone
    resized: Spec | None = None  # its new shape and strides, where it had no elements before
    part: tuple[View, ...] = ()


@dataclass(frozen=True, slots=True)
class MetadataMutation:
    """Steps such as `t_` that change the input's own metadata."""

    input: int
    path: Path


@dataclass(frozen=True, slots=True)
class SyntheticBase:
    """Inputs that share storage, some written: the graph works on one flat tensor over the storage."""

    members: tuple[int, ...]
    dtype: Any
    numel: int
    slot: int | None = None


@dataclass(slots=True)
class Surroundings:
    """Everything the wrapper does around the compiled graph."""

    outputs: list[OutputPlan] = field(default_factory=list)
    mutations: list[Mutation] = field(default_factory=list)
    metadata: list[MetadataMutation] = field(default_factory=list)
    # Writes counted: of inputs, beyond those done here; of slots; of outputs whose making here counts otherwise.
    touched: dict[int, int] = field(default_factory=dict)
    written_slots: dict[int, int] = field(default_factory=dict)
    written_outputs: dict[int, int] = field(default_factory=dict)
    bases: list[SyntheticBase] = field(default_factory=list)
    differentiable: list[bool] = field(default_factory=list)  # per slot
    grad_mode: bool = True
    grad_mode_after: bool = True
    autocast: bool = False
    tensors: int = 0  # inputs that are tensors
    symbols: tuple[Symbol, ...] = ()  # of the inputs that are sizes, which come after them
    offsets: dict[int, int] = field(default_factory=dict)  # inputs whose storage offset the graph depends on
    between: tuple[int, ...] = ()  # outputs that are views, of which others are views
