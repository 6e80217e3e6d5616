"""Measurements of graphlift beside eager PyTorch and torch.compile, and the models they are made on."""
