"""Models of Hugging Face's ``transformers``, exported: StableHLO against CPU, with batch and length symbolic."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jax
import numpy as np
import pytest
import torch
import transformers as hf
from torch.export import Dim

from torchax import export

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")


class Logits(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, use_cache=False).logits


def gpt2() -> torch.nn.Module:
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=61, n_positions=64, n_embd=32, n_layer=2, n_head=4))


def llama() -> torch.nn.Module:
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=61,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("symbolic", [False, True])
def test_language_model(make: Any, symbolic: bool) -> None:
    torch.manual_seed(0)
    model = Logits(make()).eval()
    ids = torch.randint(0, 61, (2, 9))
    shapes = {"ids": {0: Dim("batch", max=8), 1: Dim("length", min=2, max=32)}} if symbolic else None
    with torch.no_grad():
        ep = torch.export.export(model, (ids,), dynamic_shapes=shapes)
    weights, artifact = export.exported_program_to_stablehlo(ep)
    for given in (ids, torch.randint(0, 61, (3, 12))) if symbolic else (ids,):
        with torch.no_grad(), jax.enable_x64(True):
            [got] = artifact.call(weights, (given.numpy(),))
            torch.testing.assert_close(torch.from_numpy(np.array(got)), model(given))
