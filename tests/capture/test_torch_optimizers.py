"""Optimizers in captured code: steps of each kind, twice; whole training steps."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import graphlift
from graphlift.api import Settings
from tests.capture.torch_program import real, seeded, torch_program
from tests.equality import assert_equal

X = real(3, 4, seed=1)


# optimizers
def opt(cls, **kw):
    def make():
        m = seeded(lambda: nn.Linear(4, 4))()
        o = cls(m.parameters(), **kw)
        for p in m.parameters():
            p.grad = torch.ones_like(p) * 0.1
        return [m, o]

    return make


def step(mo):
    m, o = mo
    o.step()
    return [p.detach().clone() for p in m.parameters()]


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, dict(lr=0.1), None),
    "sgd_momentum": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1), None),
    "sgd_foreach": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, foreach=True), None),
    "adam": (torch.optim.Adam, dict(lr=0.1), None),
    "adamw_amsgrad": (torch.optim.AdamW, dict(lr=0.1, amsgrad=True), None),
    "adamw_foreach": (torch.optim.AdamW, dict(lr=0.1, foreach=True), None),
    "adam_fused": (torch.optim.Adam, dict(lr=0.1, fused=True), None),
    "adamw_fused_amsgrad": (torch.optim.AdamW, dict(lr=0.1, fused=True, amsgrad=True), None),
    "sgd_fused": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, fused=True), None),
    "adagrad_fused": (torch.optim.Adagrad, dict(lr=0.1, fused=True), None),
    "adagrad": (torch.optim.Adagrad, dict(lr=0.1), None),
    "rmsprop": (torch.optim.RMSprop, dict(lr=0.1, momentum=0.9, centered=True), None),
    "adadelta": (torch.optim.Adadelta, {}, None),
    "adamax": (torch.optim.Adamax, {}, None),
    "nadam": (torch.optim.NAdam, {}, None),
    "rprop": (torch.optim.Rprop, {}, None),
    "radam": (torch.optim.RAdam, {}, None),
    "radam_foreach": (torch.optim.RAdam, dict(foreach=True), None),
    "asgd": (torch.optim.ASGD, dict(weight_decay=0.1), None),
    "asgd_foreach": (torch.optim.ASGD, dict(foreach=True, maximize=True), None),
    "adafactor": (torch.optim.Adafactor, dict(weight_decay=0.1), None),
    "adafactor_foreach": (torch.optim.Adafactor, dict(foreach=True), None),
    "sgd_tensor_lr": (torch.optim.SGD, dict(lr=torch.tensor(0.1), momentum=0.9), None),
    "adam_tensor_lr": (torch.optim.Adam, dict(lr=torch.tensor(0.1)), None),
    "nadam_tensor_lr": (torch.optim.NAdam, dict(lr=torch.tensor(0.1)), None),
}


def two_steps(mo):
    return step(mo), step(mo)


for _name, (_cls, _options, _breaks) in OPTIMIZERS.items():
    globals()[f"test_{_name}"] = torch_program(opt(_cls, **_options), breaks=_breaks)(two_steps)


@torch_program(opt(torch.optim.SGD, lr=0.1))
def test_opt_zero_grad(mo):
    mo[1].zero_grad()
    return 1


@torch_program(opt(torch.optim.SGD, lr=0.1), X, breaks="backward-call")
def test_train_step(mo, x):
    m, o = mo
    o.zero_grad()
    loss = F.mse_loss(m(x), x)
    loss.backward()
    o.step()
    return loss.detach()


@torch_program(opt(torch.optim.AdamW, lr=0.1), X, breaks="backward-call")
def test_train_step_adam(mo, x):
    m, o = mo
    for _ in range(2):
        o.zero_grad(set_to_none=False)
        loss = F.mse_loss(m(x), x)
        loss.backward()
        o.step()
    return loss.detach()


@torch_program(opt(torch.optim.SGD, lr=0.1), X)
def test_scheduler(mo, x):
    m, o = mo
    s = torch.optim.lr_scheduler.StepLR(o, 1)
    o.step()
    s.step()
    return o.param_groups[0]["lr"]


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs(search):
    """Its loop over numbers is Python's; the closure that it calls is compiled, once."""

    def train(compile_):
        m = seeded(lambda: nn.Linear(4, 1))()
        o = torch.optim.LBFGS(m.parameters(), lr=0.5, max_iter=5, line_search_fn=search)

        def closure():
            o.zero_grad()
            loss = F.mse_loss(m(x), x[:, :1])
            loss.backward()
            return loss

        fit = compile_(lambda: o.step(closure))
        losses = [fit() for _ in range(4)]
        return losses, list(m.parameters())

    (x,) = [X()]
    regions = []
    settings = Settings(backend=lambda gm, inputs: gm.forward)
    got = train(lambda fn: settings.callable(fn, on_region=(regions.append,)))
    assert_equal(got, train(lambda fn: fn))
    assert len([r for r in regions if r.op_count and r.filename == __file__]) <= 3


@pytest.mark.parametrize(
    "averaging", [dict(), dict(multi_avg_fn=get_ema_multi_avg_fn(0.9)), dict(use_buffers=True)]
)
def test_averages_of_a_model_are_two_graphs(averaging):
    """One copies the parameters, the others average them: the buffer that counts is asked in each call."""
    graphlift.reset()
    models = [seeded(lambda: nn.Linear(4, 4))() for _ in range(2)]
    averages = [AveragedModel(model, **averaging) for model in models]
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    update = graphlift.compile(averages[1].update_parameters, backend=backend, fullgraph=True)
    for step in range(4):
        for model, take in zip(models, (averages[0].update_parameters, update), strict=True):
            with torch.no_grad():
                model.weight.mul_(step)
            take(model)
    assert len(graphs) == 2
    assert_equal(averages[1].state_dict(), averages[0].state_dict())


@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_scaled_steps_are_left_out_where_gradients_are_not_finite(backend):
    """Whether they are is written by an operator that is not named after what it writes."""
    graphlift.reset()

    def make():
        model = seeded(lambda: nn.Linear(4, 4))()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        scaler.scale(torch.ones(()))
        return model, torch.optim.SGD(model.parameters(), lr=0.1), scaler

    def step(optimizer, scaler):
        scaler.step(optimizer)
        scaler.update()

    compiled = graphlift.compile(step, backend=backend)
    states = [make(), make()]
    for scale in (1.0, 1.0, float("inf"), 1.0, float("nan"), 1.0):
        for (model, *rest), take in zip(states, (step, compiled), strict=True):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter) * scale
            take(*rest)
        found, wanted = [(model.state_dict(), scaler.get_scale()) for model, _, scaler in reversed(states)]
        assert_equal(found, wanted)


STEPS = [
    (torch.optim.Adam, 2),
    (torch.optim.AdamW, 2),
    (torch.optim.RMSprop, 2),
    (torch.optim.ASGD, 2),
    (torch.optim.Adafactor, 2),
    (torch.optim.RAdam, 3),
]


@pytest.mark.parametrize("cls, count", STEPS)
def test_compiled_step_is_captured_once_or_twice_more(cls, count):
    """Once without state and once with it; the number of the step is no constant of the graph.

    RAdam does something else after its fifth step.
    """
    graphlift.reset()
    models = [seeded(lambda: nn.Linear(4, 4))() for _ in range(2)]
    optimizers = [cls(model.parameters(), lr=0.1) for model in models]
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    step = graphlift.compile(optimizers[1].step, backend=backend)
    for seed in range(8):
        for model, optimizer, take in zip(models, optimizers, (optimizers[0].step, step), strict=True):
            optimizer.zero_grad()
            model(real(3, 4, seed=seed)()).pow(2).sum().backward()
            take()
    assert len(graphs) == count
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))


AFTER_TORCH_COMPILE = """
import torch, graphlift
from torch import nn
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))  # which marks methods of optimizers as disabled
for cls, options in [(torch.optim.SGD, {}), (torch.optim.Adam, {"fused": True}), (torch.optim.NAdam, {})]:
    found = []
    for compiled in (False, True):
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 6))
        weight.grad = weight.detach() * 2
        optimizer = cls([weight], lr=0.1, **options)
        def step():
            optimizer.step()
            return weight.detach().clone()
        if compiled:
            explanation = graphlift.explain(step)()
            assert not explanation.break_reasons, explanation
        else:
            step()
        found.append(weight.detach())
    torch.testing.assert_close(*found)
net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))  # its modules are noted in weak dictionaries
def run(x, layers):
    return sum([layer(x) for layer in layers if layer is not None])
explanation = graphlift.explain(run)(torch.ones(2, 3), (net, *net))
assert explanation.graph_count == 1 and not explanation.break_reasons, explanation
"""


def test_one_graph_after_torch_compile_was_used() -> None:
    subprocess.run([sys.executable, "-c", AFTER_TORCH_COMPILE], check=True)


@pytest.mark.parametrize("backend", ["eager", "auto"])
@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.NAdam])
def test_learning_rates_change_without_new_graphs(cls, backend):
    """Once without state, once with it, and once for rates that vary."""
    graphlift.reset()

    def make():
        model = seeded(lambda: nn.Linear(4, 4))()
        optimizer = cls(model.parameters(), lr=0.1)
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    regions = []
    (model, optimizer, schedule), (wanted, eager, plan) = make(), make()
    step = Settings(backend=backend).callable(lambda: optimizer.step(), on_region=(regions.append,))
    for _ in range(6):
        for one in (*model.parameters(), *wanted.parameters()):
            one.grad = torch.ones_like(one)
        step()
        eager.step()
        schedule.step()
        plan.step()
        assert_equal(model.state_dict(), wanted.state_dict())
    assert len(regions) <= 3 and not any(region.break_reason for region in regions)
