"""Compiled torchax beside hand-written JAX of the same maths, in one run: ``nox -s bench -- jit [section ...]``.

The model is the 6-layer GPT of ``bench/eager.py``. Every figure is a ratio or a count taken here, with the contenders timed in
turn. Sections: forward, step, trace, overhead, torch.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import eager
import jax
import jax.numpy as jnp
import optax
import torch
import torch.nn.functional as F
from eager import GPT, Line, in_turn, wait
from torch import nn

import torchax
from torchax import interop

Params = dict[str, jax.Array]
LR, DECAY = 1e-4, 1e-2  # torch.optim.AdamW's decay by default


# ------------------------------------------------------------------------------------------------- hand-written JAX


def layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * weight + bias


def block(x: jax.Array, p: Params, name: str, heads: int) -> jax.Array:
    n, t, c = x.shape
    h = layer_norm(x, p[f"{name}.norm1.weight"], p[f"{name}.norm1.bias"])
    qkv = h @ p[f"{name}.qkv.weight"].T + p[f"{name}.qkv.bias"]
    q, k, v = qkv.reshape(n, t, 3, heads, c // heads).transpose(2, 0, 3, 1, 4)
    scores = q @ k.swapaxes(-1, -2) * (c // heads) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -jnp.inf)
    y = (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(n, t, c)
    x = x + y @ p[f"{name}.out.weight"].T + p[f"{name}.out.bias"]
    h = layer_norm(x, p[f"{name}.norm2.weight"], p[f"{name}.norm2.bias"])
    h = jax.nn.gelu(h @ p[f"{name}.mlp.0.weight"].T + p[f"{name}.mlp.0.bias"], approximate=False)
    return x + h @ p[f"{name}.mlp.2.weight"].T + p[f"{name}.mlp.2.bias"]


def jax_gpt(p: Params, ids: jax.Array, layers: int = 6, heads: int = 4) -> jax.Array:
    x = p["token.weight"][ids] + p["position.weight"][jnp.arange(ids.shape[1])]
    for i in range(layers):
        x = block(x, p, f"blocks.{i}", heads)
    return layer_norm(x, p["norm.weight"], p["norm.bias"]) @ p["head.weight"].T


def jax_loss(p: Params, ids: jax.Array, labels: jax.Array) -> jax.Array:
    logits = jax_gpt(p, ids)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def optax_step(loss: Callable[..., jax.Array], opt: optax.GradientTransformation) -> Callable[..., Any]:
    """A training step as a JAX user compiles it: the old parameters and state are donated."""

    def step(p: Params, state: Any, ids: Any, labels: Any) -> tuple[Params, Any, jax.Array]:
        value, grads = jax.value_and_grad(loss)(p, ids, labels)
        updates, state = opt.update(grads, state, p)
        return optax.apply_updates(p, updates), state, value

    return jax.jit(step, donate_argnums=(0, 1))


# ------------------------------------------------------------------------------------------------------- contenders


def model(layers: int = 6) -> tuple[GPT, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    ids = torch.randint(0, 256, (8, 65))
    return GPT(layers=layers), ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def arrays(net: nn.Module) -> Params:
    return {name: jnp.asarray(p.detach().numpy()) for name, p in net.named_parameters()}


def forward() -> list[Line]:
    net, ids, _ = model()
    params, jax_ids, there = arrays(net), jnp.asarray(ids.numpy()), ids.to("jax")
    compiled, jitted = torchax.compile(copy.deepcopy(net).to("jax")), jax.jit(jax_gpt)
    with torch.no_grad():
        torch.testing.assert_close(compiled(there).cpu(), net(ids), rtol=1e-4, atol=1e-4)
        s = in_turn({"jax": lambda: jitted(params, jax_ids), "torchax": lambda: compiled(there)}, batch_s=0.1)
    return [ratio("GPT 6 x 128, batch 8 x 64, compiled forward / JAX", 1.02, s["torchax"], s["jax"])]


def chained(step: Callable[..., Any], *state: Any, batch: tuple[Any, ...]) -> Callable[[], Any]:
    """Step after step, each from the last one's parameters and state."""
    kept = list(state)

    def run() -> Any:
        kept[0], kept[1], _ = step(kept[0], kept[1], *batch)
        return kept[0]

    return run


def plain_step(net: nn.Module, opt: torch.optim.Optimizer) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def step(ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(net(ids).flatten(0, 1), labels.flatten())
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def training() -> list[Line]:
    net, ids, labels = model()
    opt = optax.adamw(LR, weight_decay=DECAY)
    batch = jnp.asarray(ids.numpy()), jnp.asarray(labels.numpy())
    params = arrays(net)
    by_jax = chained(optax_step(jax_loss, opt), params, opt.init(params), batch=batch)

    there = copy.deepcopy(net).to("jax")
    weights, fn = torchax.extract_jax(there)

    def loss(p: Params, ids: jax.Array, labels: jax.Array) -> jax.Array:
        logits = fn(p, (ids,))
        return interop.call_torch(lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten().long()), logits, labels)

    weights = jax.tree.map(jnp.copy, weights)
    by_optax = chained(optax_step(loss, opt), weights, opt.init(weights), batch=batch)

    plain = torchax.compile(plain_step(there, torch.optim.AdamW(there.parameters(), lr=LR)))
    moved = ids.to("jax"), labels.to("jax")

    def by_compile() -> Any:
        plain(*moved)
        return there.head.weight

    s = in_turn({"jax": by_jax, "optax": by_optax, "compile": by_compile}, rounds=5, batch_s=0.2)
    return [
        ratio("the same, compiled train step with optax / JAX", 1.05, s["optax"], s["jax"]),
        ratio("the same, torchax.compile of a plain step with torch.optim.AdamW / JAX", 1.15, s["compile"], s["jax"]),
        Line("programs that the plain step needed", "1", str(plain.count), plain.count == 1),
    ]


def traced() -> list[Line]:
    lines = []
    for layers, goal in ((6, 1.0), (24, 0.6)):
        net, ids, _ = model(layers)
        params, jax_ids = arrays(net), jnp.asarray(ids.numpy())
        state, fn = torchax.extract_jax(net.to("jax"))

        def by_jax(layers: int = layers, params: Params = params, ids: jax.Array = jax_ids) -> None:
            jax.jit(lambda p, x: jax_gpt(p, x, layers)).trace(params, ids)

        def by_torchax(fn: Any = fn, state: Params = state, ids: jax.Array = jax_ids) -> None:
            jax.jit(lambda p, x: fn(p, (x,))).trace(state, ids)

        s = {name: cold(f) for name, f in (("jax", by_jax), ("torchax", by_torchax))}
        lines.append(ratio(f"trace of the forward, {layers} layers / JAX", goal, s["torchax"], s["jax"]))
    return lines


def cold(trace: Callable[[], None], times: int = 5) -> float:
    """The time of a trace that finds nothing in JAX's caches; the best of a few."""
    best = float("inf")
    for _ in range(times):
        jax.clear_caches()
        start = time.perf_counter()
        trace()
        best = min(best, time.perf_counter() - start)
    return best


def overhead() -> list[Line]:
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(100)))
    params, x = arrays(net), jnp.ones((1, 2))

    def plain(p: Params, x: jax.Array) -> jax.Array:
        for i in range(100):
            x = x @ p[f"{i}.weight"].T + p[f"{i}.bias"]
        return x

    jitted, compiled, there = jax.jit(plain), interop.JittableModule(net.to("jax")), torch.ones(1, 2).to("jax")
    with torch.no_grad():
        wait(compiled(there))
        before = eager.compilations
        s = in_turn({"jax": lambda: jitted(params, x), "torchax": lambda: compiled(there)})
        repeated = eager.compilations - before - 1  # JAX's own is the first
    return [
        ratio("call of a compiled module with 200 parameters / JAX", 1.3, s["torchax"], s["jax"], unit=1e6),
        Line("compilations in its 2nd, 3rd ... call", "0", str(repeated), repeated == 0),
    ]


def by_torch() -> list[Line]:
    net, ids, labels = model()
    times = {}
    for name, wrap in (("eager", lambda f: f), ("inductor", torch.compile)):
        twin = copy.deepcopy(net)
        step = wrap(plain_step(twin, torch.optim.AdamW(twin.parameters(), lr=LR)))
        for _ in range(2):
            step(ids, labels)
        laps = []
        for _ in range(7):
            start = time.perf_counter()
            step(ids, labels)
            laps.append(time.perf_counter() - start)
        times[name] = statistics.median(laps)
    return [Line(f"torch CPU {name}, the same step", "none", f"{t * 1e3:.1f} ms", None) for name, t in times.items()]


def ratio(what: str, goal: float, ours: float, theirs: float, unit: float = 1e3) -> Line:
    name = {1e3: "ms", 1e6: "us"}[unit]
    measured = f"{ours / theirs:.2f} ({ours * unit:.1f} {name} / {theirs * unit:.1f} {name})"
    return Line(what, f"<= {goal}", measured, ours / theirs <= goal)


SECTIONS = {"forward": forward, "step": training, "trace": traced, "overhead": overhead, "torch": by_torch}


if __name__ == "__main__":
    eager.main(SECTIONS, __doc__)
