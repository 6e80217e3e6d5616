"""Lowering: a functional ATen graph to kernels over the loop IR, extern calls and views.

`lower_graph` is the stage; `decompositions` is the table given to tracing; `interpret` runs a plan by definition.
"""

from graphlift.lower.decompositions import decompositions
from graphlift.lower.lowering import lower_graph

__all__ = ["decompositions", "lower_graph"]
