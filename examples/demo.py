"""The demo: a real transformer captured, explained, compiled, run and trained beside eager, answers compared.

In: nothing to download; BERT from `transformers` with random weights. Out: a few tables on standard output.
Ends with an error if any answer differs from eager's.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here needs a network

import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM

import graphlift

Batch = dict[str, Tensor]


def heading(text: str) -> None:
    print(f"\n{text}\n{'=' * len(text)}", flush=True)


def make_batch(config: BertConfig, sentences: int, length: int, seed: int) -> Batch:
    """Random sentences, every second one padded, and the words to be guessed."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(1, config.vocab_size, (2, sentences, length), generator=generator)
    mask = torch.ones(sentences, length, dtype=torch.long)
    mask[1::2, length * 3 // 4 :] = 0
    return {"input_ids": words[0], "attention_mask": mask, "labels": words[1].masked_fill(mask == 0, -100)}


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def check(what: str, found: Tensor, wanted: Tensor, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Print how far compiled and eager are apart; stop if it is more than rounding."""
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol)
    print(f"  {what}: equal, largest difference {(found - wanted).abs().max().item():.1e}")


def show_times(rows: list[tuple[str, float, list[float], list[float]]]) -> None:
    print(f"\n  {'':12}{'first call':>12}{'eager':>12}{'compiled':>12}{'speed-up':>10}")
    for name, first, eager, compiled in rows:
        a, b = statistics.median(eager), statistics.median(compiled)
        print(f"  {name:12}{first:10.2f} s{a * 1e3:9.1f} ms{b * 1e3:9.1f} ms{a / b:9.2f}×")


def infer(
    model: BertForMaskedLM, batches: list[Batch], rounds: int
) -> tuple[float, list[float], list[float]]:
    """Run the model beside its compiled self on every batch; compare, and time them in turns."""
    model.eval()
    compiled = graphlift.compile(model)  # <- the one line
    eager_s, compiled_s = [], []
    with torch.no_grad():
        first_s, _ = timed(lambda: compiled(**batches[0]))
        for number, batch in enumerate(batches):
            check(f"logits of batch {number}", compiled(**batch).logits, model(**batch).logits)
        for _ in range(rounds):
            for batch in batches:
                eager_s.append(timed(lambda batch=batch: model(**batch))[0])
                compiled_s.append(timed(lambda batch=batch: compiled(**batch))[0])
    return first_s, eager_s, compiled_s


def train(model: BertForMaskedLM, batches: list[Batch], steps: int) -> tuple[float, list[float], list[float]]:
    """Train two copies of the model, one compiled, from the same start with the same dropout; compare at the end."""
    eager = model.train()
    twin = copy.deepcopy(model)
    compiled = graphlift.compile(twin)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-4, eps=1e-6) for m in (eager, twin)]

    def step(run: Callable[..., Any], optimizer: torch.optim.Optimizer, number: int) -> float:
        torch.manual_seed(number)  # dropout draws the same numbers in both
        optimizer.zero_grad()
        loss = run(**batches[number % len(batches)]).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    eager_s, compiled_s = [], []
    print(f"  {'step':>6}{'eager loss':>14}{'compiled loss':>16}")
    for number in range(steps):
        a_s, a = timed(lambda number=number: step(eager, optimizers[0], number))
        b_s, b = timed(lambda number=number: step(compiled, optimizers[1], number))
        eager_s.append(a_s)
        compiled_s.append(b_s)
        print(f"  {number:6}{a:14.5f}{b:16.5f}", flush=True)
        if abs(a - b) > 1e-3 * abs(a):
            raise SystemExit("the losses differ by more than rounding: please report this")
    weights = [torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (twin, eager)]
    check("all weights after training", *weights, rtol=1e-4, atol=1e-5 * steps)
    return compiled_s[0], eager_s[1:], compiled_s[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768, help="width of the model, a multiple of 64")
    parser.add_argument("--length", type=int, default=64, help="tokens per sentence")
    parser.add_argument("--sentences", type=int, default=2, help="sentences per batch")
    parser.add_argument("--steps", type=int, default=6, help="training steps")
    options = parser.parse_args()

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 64,
        intermediate_size=4 * options.hidden,
    )
    model = BertForMaskedLM(config)
    batches = [make_batch(config, options.sentences, options.length, seed) for seed in range(2)]
    count = sum(p.numel() for p in model.parameters())
    print(f"BERT with {options.layers} layers and {count / 1e6:.0f} million random weights,", end=" ")
    print(f"{options.sentences} sentences of {options.length} tokens, {torch.get_num_threads()} threads")

    heading("What graphlift sees: graphlift.explain(model)(**batch)")
    with torch.no_grad():
        print(graphlift.explain(model.eval())(**batches[0]))

    heading("Inference: graphlift.compile(model)")
    inference = infer(model, batches, rounds=5)

    heading("Training: loss, backward and AdamW, dropout on")
    training = train(model, batches, options.steps)

    heading("Times (medians; eager and compiled take turns)")
    show_times([("inference", *inference), ("training", *training)])
    print("\nEvery answer was compared with eager's. For careful measurements, and torch.compile: make bench")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"\nAn answer differs from eager's; please report this:\n{error}")
