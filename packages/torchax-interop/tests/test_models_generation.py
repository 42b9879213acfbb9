"""``transformers`` generation on the device: eager as on CPU, and compiled once for prefill and once for decode."""

from __future__ import annotations

import copy
import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jax
import pytest
import torch
import transformers as hf

from torchax import interop

pytestmark = [
    pytest.mark.filterwarnings("default::DeprecationWarning"),
    pytest.mark.filterwarnings("default::FutureWarning"),
]
DECODER = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


def gpt2() -> Any:
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=61, n_positions=64, n_embd=32, n_layer=2, n_head=4))


def llama() -> Any:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER))


MODELS = [gpt2, llama]


def both(make: Any) -> tuple[Any, Any, torch.Tensor]:
    """A model on CPU and on the device, and a prompt."""
    torch.manual_seed(0)
    model = make().eval()
    return model, copy.deepcopy(model).to("jax"), torch.randint(3, 61, (2, 6))


def generate(model: Any, ids: torch.Tensor, **settings: Any) -> torch.Tensor:
    mask = torch.ones_like(ids).to(model.device)
    settings = {"pad_token_id": 0, "max_new_tokens": 4, **settings}
    return model.generate(ids.to(model.device), attention_mask=mask, **settings)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("settings", [
    {"do_sample": False},
    {"do_sample": False, "num_beams": 3},
    {"do_sample": False, "cache_implementation": "static"},
    {"do_sample": True, "top_k": 1},
], ids=["greedy", "beam", "static cache", "top 1"])  # fmt: skip
def test_eager_tokens_are_those_of_cpu(make, settings):
    cpu, device, ids = both(make)
    got = generate(device, ids, **settings)
    assert got.device.type == "jax"
    assert got.tolist() == generate(cpu, ids, **settings).tolist()


def test_sampling_follows_the_devices_generator():
    _, device, ids = both(llama)
    settings = {"do_sample": True, "top_k": 20, "top_p": 0.95, "temperature": 0.9}
    torch.manual_seed(1)
    a, b = generate(device, ids, **settings), generate(device, ids, **settings)
    torch.manual_seed(1)
    assert torch.equal(generate(device, ids, **settings), a)
    assert not torch.equal(a, b)


def test_sampled_tokens_have_the_models_distribution():
    cpu, device, ids = both(llama)
    prompt = ids[:1].repeat(2000, 1)
    torch.manual_seed(0)
    new = generate(device, prompt, do_sample=True, top_k=0, max_new_tokens=1)[:, 6].cpu()
    with torch.no_grad():
        want = cpu(ids[:1]).logits[0, -1].softmax(-1)
    seen = torch.bincount(new, minlength=61) / 2000
    assert float((seen - want).abs().sum()) / 2 < 0.1  # total variation; 61 outcomes and 2000 draws leave about 0.07


@pytest.mark.parametrize("make", MODELS)
def test_one_program_for_prefill_and_one_for_decode(make):
    cpu, device, ids = both(make)
    config = device.config
    cache = hf.StaticCache(config=config, max_cache_len=32)
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    cache.early_initialization(
        2, heads, config.hidden_size // config.num_attention_heads, torch.float32, torch.device("jax")
    )

    @interop.jax_jit
    def step(tokens: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            logits = device(input_ids=tokens, past_key_values=cache, use_cache=True).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    prompt = ids.to("jax")
    compilations: list[str] = []

    def listen(name: str, *_: Any, **__: Any) -> None:
        if "backend_compile" in name:
            compilations.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        tokens = [step(prompt)]
        assert len(compilations) == 1
        for _ in range(12):
            tokens.append(step(tokens[-1]))
        assert len(compilations) == 2
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    want = cpu.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, max_new_tokens=13, do_sample=False)
    assert torch.cat(tokens, 1).tolist() == want[:, 6:].tolist()
    assert cache.get_seq_length().item() == 6 + 12

    cache.reset()
    assert torch.equal(step(prompt), tokens[0])
    assert torch.equal(step(tokens[0]), tokens[1])
    assert len(compilations) == 2
