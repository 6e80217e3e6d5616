"""The registry of reasons for which a captured graph runs in eager, as captured.

In: a registered code and the particulars of one graph. Out: the rows of `FALLBACKS`, told in logs and `explain`.
Always: one row per code; `docs/breaks.md` lists them. A row that a program reaches brings `example`, in which
`report.fallbacks` shows the code, and `fixed`, the same after the remedy where there is one: tests run both.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..capture.reasons import Reason, listing, reason_table

#: Every kind of graph left to eager, by code. Adding one is one row here and one test.
FALLBACKS: Mapping[str, Reason] = reason_table(
    (
        Reason(
            "inference-part",
            "a part of the graph runs in inference mode",
            "Tensors made in inference mode have no version and no history, while the rest of the graph needs both.",
            "Use `graphlift.compile`, which compiles such parts for themselves, or `torch.no_grad()`.",
        ),
        Reason(
            "data-assigned",
            "a tensor is given other memory by assigning to .data",
            "The tensor keeps its history while its storage is exchanged, which no functional graph can express.",
            "Copy the values: `with torch.no_grad(): x.copy_(y)`.",
            example="""\
def f(x, y):
    x.data = y * 2
    return x + 1

report = graphlift.explain(f)(torch.ones(3), torch.ones(3))
""",
            fixed="""\
def f(x, y):
    with torch.no_grad():
        x.copy_(y * 2)
    return x + 1

report = graphlift.explain(f)(torch.ones(3), torch.ones(3))
""",
        ),
        Reason(
            "global-setting",
            "a global setting of torch changes inside the graph",
            "The setting decides how operators run, when they run; a compiled graph runs them in another order.",
            "Change the setting outside the compiled function.",
            example="""\
def f(x):
    torch.use_deterministic_algorithms(True)
    y = x.cumsum(0)
    torch.use_deterministic_algorithms(False)
    return y

report = graphlift.explain(f)(torch.ones(3))
""",
            fixed="""\
def f(x):
    return x.cumsum(0)

torch.use_deterministic_algorithms(True)
report = graphlift.explain(f)(torch.ones(3))
torch.use_deterministic_algorithms(False)
""",
        ),
        Reason(
            "autocast-left",
            "autocast is changed and left changed",
            "Code behind the graph would run under the changed autocast, and weights cast so far belong to its cache.",
            "Enter autocast by `with torch.autocast(...)`.",
        ),
        Reason(
            "number-read",
            "the graph computes with a number read from a tensor",
            "A number of Python enters operators as an argument, with Python's precision, and differs from call to "
            "call; generated code takes tensors and sizes. Optimizers whose steps are counted in tensors do this.",
            "Use the optimizer with `fused=True`, where the number stays in its tensor.",
            example="""\
p = torch.nn.Parameter(torch.ones(3))
p.grad = torch.ones(3)
optimizer = torch.optim.Adam([p])
optimizer.step()
report = graphlift.explain(optimizer.step)()
""",
            fixed="""\
p = torch.nn.Parameter(torch.ones(3))
p.grad = torch.ones(3)
optimizer = torch.optim.Adam([p], fused=True)
report = graphlift.explain(optimizer.step)()
""",
        ),
        Reason(
            "new-leaf",
            "a tensor made in the graph becomes a leaf that requires grad, and what is returned depends on it",
            "Its gradient arrives in a backward outside, in a `.grad` of a tensor that only eager makes.",
            "Make leaves outside the compiled function, or differentiate inside it by `torch.autograd.grad`.",
            example="""\
def f(x):
    w = (x * 2).requires_grad_()
    return w * 3

report = graphlift.explain(f)(torch.ones(3))
""",
            fixed="""\
def f(w):
    return w * 3

report = graphlift.explain(f)((torch.ones(3) * 2).requires_grad_())
""",
        ),
        Reason(
            "requires-grad-changed",
            "the requires_grad flag of an input changes",
            "An input that is written too, has views that are returned, or no longer requires grad, is followed by "
            "autograd differently before and after.",
            "Call `requires_grad_` before the compiled function, or `detach` inside it.",
            example="""\
def f(x):
    x.mul_(2)
    x.requires_grad_()
    return x * 2

report = graphlift.explain(f)(torch.ones(3))
""",
            fixed="""\
def f(x):
    x.requires_grad_()
    return x * 2

report = graphlift.explain(f)(torch.ones(3))
""",
        ),
        Reason(
            "shared-inputs-written",
            "inputs that share memory are written in place",
            "Writing one changes the other, and autograd, or another dtype, has a rule of its own for each.",
            "Pass the common tensor and take the views inside, or clone one of them.",
            example="""\
def f(x, y):
    y.add_(1)
    return x + y

base = torch.ones(4, requires_grad=True) * 1
report = graphlift.explain(f)(base[:3], base[1:])
""",
            fixed="""\
def f(base):
    x, y = base[:3], base[1:]
    y.add_(1)
    return x + y

report = graphlift.explain(f)(torch.ones(4, requires_grad=True) * 1)
""",
        ),
        Reason(
            "metadata-changed",
            "shape or strides of a tensor change in place beside views of it",
            "A view made earlier keeps the old shape, and which of both autograd takes for the base depends on their "
            "order.",
            "Use the form that returns a view: `x.t()` instead of `x.t_()`.",
            example="""\
def f(x):
    row = x[0]
    x.t_()
    return row, x * 2

report = graphlift.explain(f)(torch.ones(2, 3))
""",
            fixed="""\
def f(x):
    row = x[0]
    return row, x.t() * 2

report = graphlift.explain(f)(torch.ones(2, 3))
""",
        ),
        Reason(
            "resized",
            "an input is resized under autograd, or through .data",
            "Its new memory can be put in place outside the graph only where nobody follows the tensor.",
            "Give `out=` a tensor of the right shape.",
            example="""\
def f(x, out):
    torch.mul(x.detach(), 2, out=out)
    out.add_(x)
    return x * 2

report = graphlift.explain(f)(torch.ones(3, requires_grad=True), torch.empty(0))
""",
            fixed="""\
def f(x, out):
    torch.mul(x.detach(), 2, out=out)
    out.add_(x)
    return x * 2

report = graphlift.explain(f)(torch.ones(3, requires_grad=True), torch.empty(3))
""",
        ),
        Reason(
            "alias-history",
            "an output shares memory with another tensor but has a history of its own",
            "It would be rebuilt as a view of that tensor, and have that tensor's history.",
            "Clone the tensor after `detach`, before it is written.",
            example="""\
def f(x):
    y = x * 1
    z = y.detach()
    z.mul_(x)
    return y, z

report = graphlift.explain(f)(torch.ones(3, requires_grad=True))
""",
            fixed="""\
def f(x):
    y = x * 1
    z = y.detach().clone()
    z.mul_(x)
    return y, z

report = graphlift.explain(f)(torch.ones(3, requires_grad=True))
""",
        ),
        Reason(
            "custom-function-view",
            "an output is a view made by a custom autograd function",
            "Its history is the custom function's, not that of a view, and writing to it has rules of its own.",
            "Return a copy from the custom function's `forward`.",
            example="""\
class Flat(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(-1)

    @staticmethod
    def backward(ctx, grad):
        return grad.view(2, 3)

def f(x):
    return Flat.apply(x)

report = graphlift.explain(f)(torch.ones(2, 3, requires_grad=True))
""",
            fixed="""\
class Flat(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(-1).clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.view(2, 3)

def f(x):
    return Flat.apply(x)

report = graphlift.explain(f)(torch.ones(2, 3, requires_grad=True))
""",
        ),
        Reason(
            "history-read",
            "the program reads the grad_fn of a tensor made in the graph",
            "A compiled graph has one node in autograd's graph, with the gradients of all its outputs; hooks on it "
            "would see those. `Module.register_backward_hook` reads it too.",
            "Use `Tensor.register_hook` or `Module.register_full_backward_hook`.",
            example="""\
def f(x):
    y = x * 2
    y.grad_fn.register_hook(lambda inputs, outputs: None)
    return y

report = graphlift.explain(f)(torch.ones(3, requires_grad=True))
""",
            fixed="""\
def f(x):
    y = x * 2
    y.register_hook(lambda grad: grad * 2)
    return y

report = graphlift.explain(f)(torch.ones(3, requires_grad=True))
""",
        ),
        Reason(
            "view-history",
            "the history of a view cannot be made again",
            "Autograd refuses the view, or its gradient, in a way that depends on what happened to its base.",
            "Clone the view before its base is written.",
            example="""\
def f(x):
    y = x * 2
    with torch.no_grad():
        flat = y.view(-1)
    y.mul_(2)
    return y, flat

report = graphlift.explain(f)(torch.ones(2, 3, requires_grad=True))
""",
            fixed="""\
def f(x):
    y = x * 2
    with torch.no_grad():
        flat = y.view(-1).clone()
    y.mul_(2)
    return y, flat

report = graphlift.explain(f)(torch.ones(2, 3, requires_grad=True))
""",
        ),
        Reason(
            "outside-tensor",
            "an output is a tensor that the graph did not make",
            "It is a constant of the graph, shares memory with one, or sits in a container; the next call would get "
            "the same object.",
            "Clone the tensor, or return it outside the compiled function.",
        ),
        Reason(
            "out-replaced",
            "an out= tensor is replaced rather than written",
            "The kernel exchanges the caller's tensor for another, which copying values cannot express.",
            "Use the form without `out=`.",
            example="""\
def f(x, out):
    return torch.linalg.matrix_rank(x, out=out)

report = graphlift.explain(f)(torch.eye(3), torch.empty(0, dtype=torch.int64))
""",
            fixed="""\
def f(x):
    return torch.linalg.matrix_rank(x)

report = graphlift.explain(f)(torch.eye(3))
""",
        ),
        Reason(
            "phase-check",
            "a backward checks, by its values, that the loss does not depend on a phase",
            "The check raises in eager while gradients are computed, for values that tracing does not have.",
            "Compute the decomposition outside the compiled function.",
            example="""\
def f(x):
    return torch.linalg.eig(x).eigenvalues

report = graphlift.explain(f)(torch.eye(3, requires_grad=True))
""",
        ),
        Reason(
            "operator-limit",
            "an operator cannot be traced",
            "What it returns depends on numbers, it changes memory as no functional operator does, or its rule is "
            "missing.",
            "Call the operator outside the compiled function.",
            example="""\
def f(x):
    x[1:].add_(1)
    return torch.as_strided(x, (5,), (1,), 0)

report = graphlift.explain(f)(torch.ones(10)[:3])
""",
            fixed="""\
def f(x):
    x[1:3].add_(1)
    return x[:5]

report = graphlift.explain(f)(torch.ones(10))
""",
        ),
        Reason(
            "graph-raises",
            "the graph raises",
            "Eager runs it, so that it raises what eager raises, after the effects that come before.",
            "Mend the program.",
        ),
        Reason(
            "backward-raises",
            "the backward raises",
            "Eager runs the graph, so that its backward raises what eager raises, if it is ever called.",
            "Mend the program: often a tensor that the backward needs is written in place.",
            example="""\
def f(x):
    y = x.exp()
    z = y * 2
    y.mul_(3)
    return z + y

report = graphlift.explain(f)(torch.ones(3, requires_grad=True))
""",
            fixed="""\
def f(x):
    y = x.exp()
    z = y * 2
    return z + y * 3

report = graphlift.explain(f)(torch.ones(3, requires_grad=True))
""",
        ),
        Reason(
            "graph-form",
            "the graph has a form that capture does not make",
            "It was made by other means than `graphlift.compile`: it calls submodules, has no output, takes tensors "
            "after sizes, or has a reentrant checkpoint in its midst.",
            "Give a graph of functions and methods with the tensors first; use `use_reentrant=False`.",
        ),
    )
)


def fallbacks_markdown() -> str:
    """The section of `docs/breaks.md` on graphs left to eager."""
    parts = [
        "",
        "# Graphs that run as captured",
        "",
        "Generated from `graphlift.aot.reasons`. Such a graph is captured, and its operators run in eager, one after",
        "another. `graphlift.explain(fn)(...).fallbacks` gives the code and the particulars; a warning tells them too.",
        "",
        *listing(FALLBACKS.values(), "Runs as captured:", "Is compiled:"),
    ]
    return "\n".join(parts) + "\n"
