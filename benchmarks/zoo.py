"""The models that tests and benchmarks share: one row each, all with random weights.

In: a row's name, a size ("tiny" for tests, "full" for measuring), a batch size and a seed.
Out: a module, its keyword arguments and a scalar loss. The same seed always gives the same weights and inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.lstm_lm import LSTMLanguageModel
from examples.mlp import MLP
from examples.resnet18 import ResNet18
from examples.unet import UNet

Inputs = dict[str, Any]
SIZES = ("tiny", "full")


@dataclass(frozen=True, slots=True)
class Model:
    """One model family.

    ``build(options)`` makes the module, ``inputs(options, batch, generator)`` the arguments of a forward pass,
    ``targets(options, batch, generator)`` what a training step needs besides, and ``loss(output, targets)`` a scalar.
    Where the model computes its own loss, ``targets`` are further arguments and ``loss`` reads it off the output.
    ``one_graph``: the model must be captured whole.
    """

    name: str
    build: Callable[[Mapping[str, Any]], nn.Module]
    inputs: Callable[[Mapping[str, Any], int, torch.Generator], Inputs]
    targets: Callable[[Mapping[str, Any], int, torch.Generator], Inputs]
    loss: Callable[[Any, Inputs], Tensor]
    own_loss: bool
    one_graph: bool
    sizes: Mapping[str, Mapping[str, Any]]

    def make(self, size: str, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return self.build(self.sizes[size])

    def batch(self, size: str, batch: int | None = None, seed: int = 0) -> tuple[Inputs, Inputs]:
        """(arguments of a forward pass, targets of a training step) for ``batch`` samples."""
        options = self.sizes[size]
        count = options["batch"] if batch is None else batch
        generator = torch.Generator().manual_seed(seed)
        return self.inputs(options, count, generator), self.targets(options, count, generator)

    def training_loss(self, module: Callable[..., Any], inputs: Inputs, targets: Inputs) -> Tensor:
        """Run ``module`` (the model, compiled or not) and its loss, as a training loop does."""
        output = module(**inputs, **targets) if self.own_loss else module(**inputs)
        return self.loss(output, targets)


def tokens(
    options: Mapping[str, Any], batch: int, generator: torch.Generator, length: str = "length"
) -> Tensor:
    return torch.randint(1, options["vocab_size"], (batch, options[length]), generator=generator)


def padded(batch: int, length: int) -> Tensor:
    """An attention mask where every second sample ends early, as in a batch of real sentences."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[1::2, length - length // 4 :] = 0
    return mask


def images(options: Mapping[str, Any], batch: int, generator: torch.Generator) -> Tensor:
    return torch.randn(batch, 3, options["image_size"], options["image_size"], generator=generator)


def own_loss(output: Any, targets: Inputs) -> Tensor:
    return output.loss


def class_loss(output: Tensor, targets: Inputs) -> Tensor:
    return F.cross_entropy(output, targets["labels"])


def class_targets(options: Mapping[str, Any], batch: int, generator: torch.Generator) -> Inputs:
    return {"labels": torch.randint(0, options["classes"], (batch,), generator=generator)}


# --- transformers' models: imported only when built, since the package is an optional dependency -------------------


def build_bert(options: Mapping[str, Any]) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(**options["config"], vocab_size=options["vocab_size"]))


def bert_inputs(options: Mapping[str, Any], batch: int, generator: torch.Generator) -> Inputs:
    return {
        "input_ids": tokens(options, batch, generator),
        "attention_mask": padded(batch, options["length"]),
    }


def token_labels(options: Mapping[str, Any], batch: int, generator: torch.Generator) -> Inputs:
    return {"labels": tokens(options, batch, generator)}


def build_gpt2(options: Mapping[str, Any]) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**options["config"], vocab_size=options["vocab_size"]))


def build_llama(options: Mapping[str, Any]) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**options["config"], vocab_size=options["vocab_size"]))


def token_inputs(options: Mapping[str, Any], batch: int, generator: torch.Generator) -> Inputs:
    return {"input_ids": tokens(options, batch, generator)}


def build_t5(options: Mapping[str, Any]) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(**options["config"], vocab_size=options["vocab_size"], decoder_start_token_id=0)
    )


def t5_inputs(options: Mapping[str, Any], batch: int, generator: torch.Generator) -> Inputs:
    return {
        "input_ids": tokens(options, batch, generator),
        "attention_mask": padded(batch, options["length"]),
        "decoder_input_ids": tokens(options, batch, generator, "decoder_length"),
    }


def t5_labels(options: Mapping[str, Any], batch: int, generator: torch.Generator) -> Inputs:
    return {"labels": tokens(options, batch, generator, "decoder_length")}


def build_vit(options: Mapping[str, Any]) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(**options["config"], image_size=options["image_size"], num_labels=options["classes"])
    )


def vit_inputs(options: Mapping[str, Any], batch: int, generator: torch.Generator) -> Inputs:
    return {"pixel_values": images(options, batch, generator)}


# --- our own, from examples/ ---------------------------------------------------------------------------------------


def build_resnet18(options: Mapping[str, Any]) -> nn.Module:
    return ResNet18(classes=options["classes"], width=options["width"])


def build_unet(options: Mapping[str, Any]) -> nn.Module:
    return UNet(classes=options["classes"], width=options["width"], depth=options["depth"])


def image_inputs(options: Mapping[str, Any], batch: int, generator: torch.Generator) -> Inputs:
    return {"images": images(options, batch, generator)}


def pixel_targets(options: Mapping[str, Any], batch: int, generator: torch.Generator) -> Inputs:
    shape = (batch, options["image_size"], options["image_size"])
    return {"labels": torch.randint(0, options["classes"], shape, generator=generator)}


def build_lstm(options: Mapping[str, Any]) -> nn.Module:
    return LSTMLanguageModel(options["vocab_size"], options["width"], options["layers"])


def lstm_inputs(options: Mapping[str, Any], batch: int, generator: torch.Generator) -> Inputs:
    return {"tokens": tokens(options, batch, generator)}


def lstm_loss(output: Any, targets: Inputs) -> Tensor:
    return F.cross_entropy(output[0].flatten(0, 1), targets["labels"].flatten())


def build_mlp(options: Mapping[str, Any]) -> nn.Module:
    return MLP(options["features"], options["hidden"], options["classes"], options["layers"])


def mlp_inputs(options: Mapping[str, Any], batch: int, generator: torch.Generator) -> Inputs:
    return {"x": torch.randn(batch, options["features"], generator=generator)}


# --- the table -----------------------------------------------------------------------------------------------------

MODELS: dict[str, Model] = {
    row.name: row
    for row in (
        Model(
            "bert", build_bert, bert_inputs, token_labels, own_loss, own_loss=True, one_graph=True,
            sizes={
                "tiny": {
                    "config": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                               "intermediate_size": 64, "max_position_embeddings": 32},
                    "vocab_size": 128, "length": 16, "batch": 2,
                },
                "full": {"config": {}, "vocab_size": 30522, "length": 128, "batch": 2},
            },
        ),
        Model(
            "gpt2", build_gpt2, token_inputs, token_labels, own_loss, own_loss=True, one_graph=True,
            sizes={
                "tiny": {
                    "config": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32,
                               "bos_token_id": 0, "eos_token_id": 0},
                    "vocab_size": 128, "length": 16, "batch": 2,
                },
                "full": {"config": {}, "vocab_size": 50257, "length": 128, "batch": 1},
            },
        ),
        Model(
            "llama", build_llama, token_inputs, token_labels, own_loss, own_loss=True, one_graph=True,
            sizes={
                "tiny": {
                    "config": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                               "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64},
                    "vocab_size": 128, "length": 16, "batch": 2,
                },
                "full": {
                    "config": {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16,
                               "num_key_value_heads": 4, "intermediate_size": 2816},
                    "vocab_size": 32000, "length": 128, "batch": 1,
                },
            },
        ),
        Model(
            "t5", build_t5, t5_inputs, t5_labels, own_loss, own_loss=True, one_graph=False,
            sizes={
                "tiny": {
                    "config": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
                    "vocab_size": 128, "length": 16, "decoder_length": 8, "batch": 2,
                },
                "full": {
                    "config": {}, "vocab_size": 32128, "length": 128, "decoder_length": 32, "batch": 1,
                },
            },
        ),
        Model(
            "vit", build_vit, vit_inputs, class_targets, own_loss, own_loss=True, one_graph=True,
            sizes={
                "tiny": {
                    "config": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                               "intermediate_size": 64, "patch_size": 8},
                    "image_size": 32, "classes": 10, "batch": 2,
                },
                "full": {"config": {}, "image_size": 224, "classes": 1000, "batch": 1},
            },
        ),
        Model(
            "resnet18", build_resnet18, image_inputs, class_targets, class_loss, own_loss=False, one_graph=True,
            sizes={
                "tiny": {"width": 8, "image_size": 64, "classes": 10, "batch": 4},
                "full": {"width": 64, "image_size": 224, "classes": 1000, "batch": 2},
            },
        ),
        Model(
            "unet", build_unet, image_inputs, pixel_targets, class_loss, own_loss=False, one_graph=True,
            sizes={
                "tiny": {"width": 4, "depth": 2, "image_size": 22, "classes": 3, "batch": 2},
                "full": {"width": 32, "depth": 4, "image_size": 128, "classes": 2, "batch": 1},
            },
        ),
        Model(
            "lstm", build_lstm, lstm_inputs, token_labels, lstm_loss, own_loss=False, one_graph=False,
            sizes={
                "tiny": {"width": 16, "layers": 2, "vocab_size": 64, "length": 8, "batch": 2},
                "full": {"width": 256, "layers": 2, "vocab_size": 10000, "length": 32, "batch": 4},
            },
        ),
        Model(
            "mlp", build_mlp, mlp_inputs, class_targets, class_loss, own_loss=False, one_graph=True,
            sizes={
                "tiny": {"features": 16, "hidden": 32, "classes": 10, "layers": 3, "batch": 4},
                "full": {"features": 256, "hidden": 1024, "classes": 10, "layers": 3, "batch": 64},
            },
        ),
    )
}  # fmt: skip
