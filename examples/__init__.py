"""Models in plain torch, and the demo: each file reads and runs alone."""
