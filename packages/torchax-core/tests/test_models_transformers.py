"""Models of Hugging Face's ``transformers`` with random weights, shrunk: outputs and every gradient against CPU."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
import transformers as hf
from torch.utils._pytree import tree_map

import torchax  # noqa: F401

DEVICE = "jax"
pytestmark = [
    pytest.mark.filterwarnings("default::DeprecationWarning"),
    pytest.mark.filterwarnings("default::FutureWarning"),
]

VOCABULARY = 61
DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def ids(length: int = 9) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (2, length))


def text() -> dict[str, torch.Tensor]:
    tokens = ids()
    mask = torch.ones_like(tokens)
    mask[1, -3:] = 0
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def gpt2() -> Any:
    config = hf.GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    return hf.GPT2LMHeadModel(config), text()


def llama() -> Any:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER)), text()


def qwen3() -> Any:
    return hf.Qwen3ForCausalLM(hf.Qwen3Config(**DECODER, head_dim=8)), text()


def mixtral() -> Any:
    config = hf.MixtralConfig(**DECODER, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True)
    return hf.MixtralForCausalLM(config), text()


def bert() -> Any:
    config = hf.BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    return hf.BertForMaskedLM(config), text()


def t5() -> Any:
    config = hf.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0,
        decoder_start_token_id=0,
    )  # fmt: skip
    return hf.T5ForConditionalGeneration(config), text()


def vit() -> Any:
    config = hf.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=16, patch_size=4,
        hidden_dropout_prob=0, attention_probs_dropout_prob=0, num_labels=5,
    )  # fmt: skip
    return hf.ViTForImageClassification(config), {
        "pixel_values": torch.randn(2, 3, 16, 16),
        "labels": torch.tensor([1, 4]),
    }


def resnet() -> Any:
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5)
    return hf.ResNetForImageClassification(config), {
        "pixel_values": torch.randn(2, 3, 32, 32),
        "labels": torch.tensor([1, 4]),
    }


def whisper() -> Any:
    config = hf.WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=8, d_model=32, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_source_positions=12,
        max_target_positions=16, dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return hf.WhisperForConditionalGeneration(config), {"input_features": torch.randn(2, 8, 24), "labels": ids(5)}


def mamba() -> Any:
    config = hf.MambaConfig(vocab_size=VOCABULARY, hidden_size=16, state_size=4, num_hidden_layers=2, time_step_rank=4)
    tokens = ids(6)
    return hf.MambaForCausalLM(config), {"input_ids": tokens, "labels": tokens}


MODELS: dict[str, Callable[[], Any]] = {
    f.__name__: f for f in (gpt2, llama, qwen3, mixtral, bert, t5, vit, resnet, whisper, mamba)
}
CAUSAL = [gpt2, llama]


def build(make: Callable[[], Any]) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    return make()


def to(tree: Any, device: str) -> Any:
    return tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, tree)


def step(model: torch.nn.Module, inputs: dict[str, torch.Tensor], device: str) -> dict[str, torch.Tensor]:
    model = copy.deepcopy(model).train().to(device)
    out = model(**to(inputs, device))
    out.loss.backward()
    found = {"loss": out.loss, "logits": out.logits}
    found |= {f"{n}.grad": p.grad for n, p in model.named_parameters() if p.grad is not None}
    # Not Adam, whose first step is the gradient's sign: of one that is rounding noise, noise as large as the step.
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).step()
    return found | dict(model.named_parameters()) | dict(model.named_buffers())


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_forward_every_gradient_and_a_step(make):
    model, inputs = build(make)
    got, want = step(model, inputs, DEVICE), step(model, inputs, "cpu")
    assert got.keys() == want.keys()
    assert sum(name.endswith(".grad") for name in want) > 10
    for name, value in want.items():
        assert got[name].device.type == DEVICE, name
        torch.testing.assert_close(got[name].detach().cpu(), value.detach(), msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_inference(make):
    model, inputs = build(make)
    model.eval()
    with torch.no_grad():
        want = model(**inputs).logits
        got = model.to(DEVICE)(**to(inputs, DEVICE)).logits
    assert got.device.type == DEVICE
    torch.testing.assert_close(got.cpu(), want)


@pytest.mark.parametrize("make", CAUSAL)
def test_greedy_generation(make):
    model, inputs = build(make)
    model.eval()
    given = {"input_ids": inputs["input_ids"], "attention_mask": torch.ones_like(inputs["input_ids"])}
    settings = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    want = model.generate(**given, **settings)
    got = model.to(DEVICE).generate(**to(given, DEVICE), **settings)
    assert got.device.type == DEVICE
    assert got.tolist() == want.tolist()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_implementations(attention):
    model, inputs = build(llama)
    model.set_attn_implementation(attention)
    with torch.no_grad():
        want = model(**inputs).logits
        got = model.to(DEVICE)(**to(inputs, DEVICE)).logits
    torch.testing.assert_close(got.cpu(), want)


def test_tied_weights_stay_tied():
    model, _ = build(gpt2)
    model.to(DEVICE)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert model.lm_head.weight.device.type == DEVICE


def test_training_with_adamw():
    def losses(device: str) -> list[float]:
        model, inputs = build(llama)
        model, inputs = model.to(device), to(inputs, device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        seen = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(**inputs).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            seen.append(loss.item())
        return seen

    assert losses(DEVICE) == pytest.approx(losses("cpu"), rel=1e-4)


def test_gradient_checkpointing():
    model, inputs = build(llama)
    plain = step(model, inputs, "cpu")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for name, value in step(model, inputs, DEVICE).items():
        torch.testing.assert_close(value.detach().cpu(), plain[name].detach())


def test_bfloat16():
    model, inputs = build(llama)
    model = model.to(torch.bfloat16)
    with torch.no_grad():
        want = model(**inputs).logits
        got = model.to(DEVICE)(**to(inputs, DEVICE)).logits
    assert got.dtype == torch.bfloat16
    # Each side is up to 1.8e-3 off the float64 result (of at most 0.41), and they are up to 2.0e-3 apart.
    torch.testing.assert_close(got.cpu(), want, rtol=1.6e-2, atol=2e-3)
