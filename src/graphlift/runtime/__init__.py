"""Running a plan: kernels compiled, memory planned, steps launched.

In: a `lower.ir.Plan`. Out: `load(plan)`, a callable of a list of tensors that returns the list of outputs.
Always: outputs are fresh tensors (or views of inputs where the plan says so); calls may nest and overlap.
"""

from graphlift.runtime.load import Loaded, load

__all__ = ["Loaded", "load"]
