"""Models of ``transformers``, compiled: forward, training step, decoding with a static cache."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, StaticCache

import torchax
from torchax import interop

MODELS = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=0,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, loss_type="ForCausalLM",
        )
    ),
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=2, hidden_size=32, num_attention_heads=2, num_key_value_heads=2, intermediate_size=64,
            vocab_size=64, max_position_embeddings=32,
        )
    ),
}  # fmt: skip


@pytest.fixture(params=MODELS)
def models(request):
    torch.manual_seed(0)
    host = MODELS[request.param]().eval()
    return host, copy.deepcopy(host).to("jax"), torch.randint(1, 64, (2, 8))


def test_forward_returns_the_models_own_output(models):
    host, device, ids = models
    compiled = interop.JittableModule(device)
    with torch.no_grad():
        want = host(ids)
        for _ in range(2):
            got = compiled(ids.to("jax"))
            assert type(got) is type(want)
            torch.testing.assert_close(got.logits.cpu(), want.logits, rtol=1e-4, atol=1e-4)
        assert type(got.past_key_values) is type(want.past_key_values)
        torch.testing.assert_close(
            got.past_key_values.layers[0].keys.cpu(), want.past_key_values.layers[0].keys, rtol=1e-4, atol=1e-4
        )


def test_a_training_step_is_one_program(models):
    host, device, ids = models
    optimizers = torch.optim.AdamW(host.parameters(), lr=1e-3), torch.optim.AdamW(device.parameters(), lr=1e-3)

    def make(model, opt):
        def step(ids):
            opt.zero_grad()
            loss = model(ids, labels=ids).loss
            loss.backward()
            opt.step()
            return loss.detach()

        return step

    eager, compiled = make(host, optimizers[0]), torchax.compile(make(device, optimizers[1]))
    for _ in range(3):
        torch.testing.assert_close(compiled(ids.to("jax")).cpu(), eager(ids), rtol=1e-4, atol=1e-4)
    assert compiled.count == 1


def test_decoding_compiles_once_for_the_prompt_and_once_for_all_tokens():
    torch.manual_seed(0)
    host = MODELS["llama"]().eval()
    device = copy.deepcopy(host).to("jax")
    cache = StaticCache(config=host.config, max_cache_len=16)

    @interop.jax_jit
    def decode(tokens, position):
        out = device(tokens, past_key_values=cache, cache_position=position, position_ids=position[None])
        return out.logits[:, -1].argmax(-1)

    ids = torch.randint(0, 64, (1, 4))
    with torch.no_grad():
        token = decode(ids.to("jax"), torch.arange(4, device="jax"))
        got = [token.item()]
        for i in range(4, 9):
            token = decode(token[:, None], torch.tensor([i], device="jax"))
            got.append(token.item())
        want = host.generate(ids, max_new_tokens=6, do_sample=False)[0, 4:].tolist()
    assert got == want
    assert decode.count == 2
