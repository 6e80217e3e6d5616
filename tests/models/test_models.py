"""Every model family, small: inference and training under the compiler give what eager gives.

Each runs twice with different values and once with another batch size. Outputs, gradients, updated parameters and
buffers are compared, and `explain` must show one graph where the whole model can be captured.
"""

from __future__ import annotations

import copy

import pytest
import torch

from benchmarks.compilers import Compiler
from benchmarks.zoo import MODELS, Model
from tests.equality import assert_equal, assert_gradients_equal, assert_state_equal

pytest.importorskip("transformers", reason="the models of transformers need the extra 'demo'")

BACKENDS = ("eager", "aot_eager", "auto")


def runs(model: Model) -> list[tuple[int, int]]:
    """(batch size, seed) of the three runs."""
    batch = model.sizes["tiny"]["batch"]
    return [(batch, 1), (batch, 2), (batch + 1, 3)]


@pytest.fixture(params=sorted(MODELS))
def model(request: pytest.FixtureRequest) -> Model:
    return MODELS[request.param]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


def test_inference(compiler: Compiler, model: Model, backend: str) -> None:
    module = model.make("tiny").eval()
    compiled = compiler.compile(module, backend=backend)
    with torch.no_grad():
        for batch, seed in runs(model):
            inputs, _ = model.batch("tiny", batch, seed)
            assert_equal(compiled(**inputs), module(**inputs), strict=False, path=f"{model.name} output")


def test_training(compiler: Compiler, model: Model, backend: str) -> None:
    eager = model.make("tiny").train()
    module = copy.deepcopy(eager)
    compiled = compiler.compile(module, backend=backend)
    pairs = [(module, compiled), (eager, eager)]
    # The larger epsilon keeps a gradient that is only rounding noise from being blown up to a full step.
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-4, eps=1e-6) for m, _ in pairs]
    for step, (batch, seed) in enumerate(runs(model)):
        inputs, targets = model.batch("tiny", batch, seed)
        losses = []
        for (_, run), optimizer in zip(pairs, optimizers, strict=True):
            torch.manual_seed(seed)  # dropout draws the same numbers in both
            optimizer.zero_grad()
            loss = model.training_loss(run, inputs, targets)
            loss.backward()
            losses.append(loss)
        assert_equal(losses[0], losses[1], strict=False, path=f"{model.name} loss at step {step}")
        assert_gradients_equal(module, eager)
        for optimizer in optimizers:
            optimizer.step()
        assert_state_equal(module, eager)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_graphs(compiler: Compiler, model: Model, training: bool) -> None:
    module = model.make("tiny").train(training)
    inputs, targets = model.batch("tiny")
    if training and model.own_loss:
        inputs = inputs | targets
    with torch.set_grad_enabled(training):
        module(**inputs)  # what a model does once, such as a warning, would break the graph of its first call
        explained = compiler.explain(module, **inputs)
    assert explained.graph_count >= 1, "nothing was captured"
    if model.one_graph:
        assert (explained.graph_count, explained.graph_break_count) == (1, 0), explained.break_reasons
