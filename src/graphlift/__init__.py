"""graphlift: a graph-capture compiler for PyTorch."""
