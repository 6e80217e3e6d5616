"""Advice names what varied, how often it cost a recompile, and the remedy; padding makes up for its mask."""

from __future__ import annotations

import pytest
import torch

import graphlift
from graphlift import padding
from graphlift.errors import InvalidOption, NotCallable
from graphlift.guards.sources import describe_object


def test_nothing_varied() -> None:
    compiled = graphlift.compile(lambda x: x + 1, backend="eager")
    compiled(torch.ones(3))
    advice = graphlift.advise(compiled)
    assert advice.varied == () and advice.recompiles == 0


def test_each_value_that_varied_is_named_with_its_range_and_remedy() -> None:
    def f(x: torch.Tensor, mode: str) -> torch.Tensor:
        return x * 2 if mode == "double" else x + len(mode)

    compiled = graphlift.compile(f, backend="eager", dynamic=False)
    for size in (3, 5, 9):
        compiled(torch.ones(2, size), "double")
    compiled(torch.ones(2, 9), "single")
    advice = graphlift.advise(compiled)
    found = {v.subject: v for v in advice.varied}
    assert advice.recompiles == 3
    sizes, mode = found["x.shape[1]"], found["mode"]
    assert sizes.values == (3, 5, 9) and sizes.recompiles == 2 and "mark_dynamic" in sizes.remedy
    assert sizes.range_text() == "3 .. 9 (3 values)"
    assert mode.values == ("'double'", "'single'") and mode.recompiles == 1 and "hoist" in mode.remedy
    assert "x.shape[1]" in str(advice) and "Recompiles: 3" in str(advice)


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by = 2.0

    def forward(self, x):
        return x * self.by


def test_what_modules_hold_and_modes_are_named_as_the_user_does() -> None:
    layers = torch.nn.Sequential(Scaled(), Scaled())
    compiled = graphlift.compile(layers, backend="eager")
    compiled(torch.ones(3))
    layers[1].by = 3.0
    compiled(torch.ones(3))
    with torch.no_grad():
        compiled(torch.ones(3))
    found = {v.subject: v.values for v in graphlift.advise(compiled).varied}
    assert found == {"self[1].by": (2.0, 3.0), "grad mode": ("True", "False")}


def test_sizes_and_slices_are_shown() -> None:
    assert describe_object(torch.Size([2, 3])) == "torch.Size([2, 3])"
    assert describe_object(slice(None, 5)) == "slice(None, 5, None)"
    assert describe_object((1, object())) == "a tuple of 2"


@pytest.mark.parametrize(
    ("first", "second", "subject", "remedy"),
    [
        (torch.ones(3), torch.ones(3).double(), "x.dtype", "dtype"),
        (torch.ones(3), torch.ones(3, requires_grad=True), "x.requires_grad", "normal"),
        (torch.ones(3, 2), torch.ones(2, 3).t(), "x.stride()", "contiguous"),
        (torch.ones(3), torch.ones(3, 1), "x.dim()", "rank"),
        ([torch.ones(3)], [torch.ones(3)] * 2, "x", "structure"),
    ],
    ids=["dtype", "requires_grad", "stride", "rank", "length"],
)
def test_remedies_fit_what_changed(first, second, subject: str, remedy: str) -> None:
    def f(x):
        return [t + 1 for t in x] if isinstance(x, list) else x + 1

    compiled = graphlift.compile(f, backend="eager", dynamic=False)
    compiled(first)
    compiled(second)
    (varied,) = graphlift.advise(compiled).varied
    assert varied.subject == subject and remedy in varied.remedy


def test_modules_and_methods_have_advice_and_the_limit_is_told(recwarn) -> None:
    model = torch.nn.Linear(3, 3)
    compiled = graphlift.compile(model, backend="eager", dynamic=False)
    with graphlift.config.patch(cache_size_limit=2):
        for n in range(2, 7):
            compiled(torch.ones(n, 3))
    advice = graphlift.advise(compiled)
    assert advice.at_limit and "run eagerly" in str(advice)
    assert any("Remedy" in str(w.message) for w in recwarn)
    with pytest.raises(NotCallable, match="compiled"):
        graphlift.advise(model)


def test_recompiles_are_logged_with_their_remedy(capfd) -> None:
    with graphlift.config.patch(logs="recompiles"):
        compiled = graphlift.compile(lambda x: x + 1, backend="eager", dynamic=False)
        compiled(torch.ones(3))
        compiled(torch.ones(4))
    text = capfd.readouterr().err
    assert "[3]" in text and "[4]" in text and "mark_dynamic" in text


# -- padding -----------------------------------------------------------------------------------------------


def test_tensors_are_padded_to_the_next_bucket_with_a_mask() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    padded, mask = graphlift.pad_to_buckets(x, buckets=(4, 8), value=-1)
    assert padded.tolist() == [[0, 1, 2, -1], [3, 4, 5, -1]]
    assert mask.dtype == torch.bool and mask.tolist() == [[True, True, True, False]] * 2
    padded, mask = graphlift.pad_to_buckets(x, dim=0, buckets=(2,))
    assert torch.equal(padded, x) and mask.tolist() == [True, True]


def test_mappings_pad_what_has_the_length_and_keep_the_rest() -> None:
    batch = {
        "input_ids": torch.ones(2, 5, dtype=torch.long),
        "labels": torch.ones(2, 5),
        "class": torch.ones(2),
        "n": 3,
    }
    padded = graphlift.pad_to_buckets(batch, values={"labels": -100})
    assert padded["input_ids"].shape == (2, 16) and padded["labels"][0, 5:].eq(-100).all()
    assert padded["class"] is batch["class"] and padded["n"] == 3
    assert padded["attention_mask"].sum() == 10 and padded["attention_mask"].dtype == torch.int64
    again = graphlift.pad_to_buckets(padded | {"attention_mask": torch.ones(2, 16)}, buckets=(20,))
    assert again["attention_mask"].sum() == 32


def test_the_cost_of_padding_is_in_the_advice() -> None:
    before = padding.cost()
    graphlift.pad_to_buckets(torch.ones(2, 12), buckets=(16,))
    after = padding.cost()
    assert (after.total - before.total, after.added - before.added) == (16, 4)
    compiled = graphlift.compile(lambda x: x, backend="eager")
    assert "padding" in str(graphlift.advise(compiled))


def test_sizes_beyond_the_buckets_and_missing_dimensions_are_told() -> None:
    with pytest.raises(InvalidOption, match="at most 8"):
        graphlift.pad_to_buckets(torch.ones(2, 9), buckets=(4, 8))
    with pytest.raises(InvalidOption, match="dimension 1"):
        graphlift.pad_to_buckets(torch.ones(2))
    with pytest.raises(InvalidOption, match="nothing to pad"):
        graphlift.pad_to_buckets({"x": torch.ones(2)})
