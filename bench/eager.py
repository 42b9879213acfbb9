"""Eager torchax beside CPU torch and eager jax.numpy, all in one run: ``nox -s bench -- eager [section ...]``.

Every figure is a ratio or a count taken here, with the contenders timed in turn; nothing is compared with a stored
number. Sections: ops, compilations, gpt, import, memory.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

import torchax  # noqa: F401  (brings the device "jax")

Thunk = Callable[[], Any]
CONSOLE = Console(width=110)
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
compilations = 0


def _count_compilation(event: str, duration: float, **_: Any) -> None:
    global compilations
    compilations += event == COMPILE_EVENT


@dataclass
class Line:
    """One goal of the issue and what was measured."""

    what: str
    goal: str
    measured: str
    reached: bool | None


# ---------------------------------------------------------------------------------------------------------- timing


def wait(x: Any) -> None:
    """Wait until ``x`` is computed; a torchax view is also read."""
    if isinstance(x, torch.Tensor) and x.device.type == "jax":
        x = x.detach().jax()
    jax.block_until_ready(x)


def seconds(fn: Thunk, calls: int) -> float:
    """The time of one call in a loop of ``calls``, with the last result waited for."""
    start = time.perf_counter()
    for _ in range(calls):
        out = fn()
    wait(out)
    return (time.perf_counter() - start) / calls


def in_turn(contenders: dict[str, Thunk], rounds: int = 7, batches: int = 5, batch_s: float = 4e-3) -> dict[str, float]:
    """Seconds a call of each: the contenders take turns, and the best round's median batch counts."""
    calls = {}
    for name, fn in contenders.items():
        for _ in range(3):
            wait(fn())
        calls[name] = max(1, min(1000, round(batch_s / min(seconds(fn, 3) for _ in range(3)))))
    best = dict.fromkeys(contenders, math.inf)
    for _ in range(rounds):
        for name, fn in contenders.items():
            median = statistics.median(seconds(fn, calls[name]) for _ in range(batches))
            best[name] = min(best[name], median)
    return best


# ------------------------------------------------------------------------------------------------------- operators


def operators() -> dict[str, tuple[Callable[[str], Thunk], Thunk]]:
    """For each operator the PyTorch call, made for a device, and the call a JAX user writes for it."""
    torch.manual_seed(0)
    key = jax.random.key(0)
    host = {
        "x": torch.randn(16, 16),
        "y": torch.randn(16, 16),
        "b": torch.randn(16),
        "mask": torch.randn(16, 16) > 0,
        "ids": torch.randint(0, 16, (16,), dtype=torch.int32),
        "image": torch.randn(1, 1, 16, 16),
        "kernel": torch.randn(1, 1, 3, 3),
        "q": torch.randn(1, 1, 16, 16),
    }
    on = {device: {k: v.to(device) for k, v in host.items()} for device in ("cpu", "jax")}
    x, y, b, mask, ids, image, kernel, q = (jnp.array(v.numpy()) for v in host.values())
    heads_last = q.transpose(0, 2, 1, 3)

    def layer_norm() -> jax.Array:
        return jax.nn.standardize(x, axis=-1, epsilon=1e-5) * b + b

    def conv2d() -> jax.Array:
        return jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME")

    def randn() -> jax.Array:
        nonlocal key
        key, sub = jax.random.split(key)
        return jax.random.normal(sub, (16, 16))

    def torch_call(fn: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[str], Thunk]:
        return lambda device: lambda t=on[device]: fn(t)

    return {
        "add": (torch_call(lambda t: t["x"] + t["y"]), lambda: x + y),
        "scalar mul": (torch_call(lambda t: t["x"] * 1.5), lambda: x * 1.5),
        "matmul": (torch_call(lambda t: t["x"] @ t["y"]), lambda: x @ y),
        "relu": (torch_call(lambda t: F.relu(t["x"])), lambda: jax.nn.relu(x)),
        "gelu": (torch_call(lambda t: F.gelu(t["x"])), lambda: jax.nn.gelu(x, approximate=False)),
        "softmax": (torch_call(lambda t: F.softmax(t["x"], -1)), lambda: jax.nn.softmax(x, -1)),
        "sum": (torch_call(lambda t: t["x"].sum()), lambda: x.sum()),
        "mean": (torch_call(lambda t: t["x"].mean(-1)), lambda: x.mean(-1)),
        "transpose": (torch_call(lambda t: t["x"].t()), lambda: x.T),
        "reshape": (torch_call(lambda t: t["x"].reshape(4, 64)), lambda: x.reshape(4, 64)),
        "cat": (torch_call(lambda t: torch.cat((t["x"], t["y"]))), lambda: jnp.concatenate((x, y))),
        "slice": (torch_call(lambda t: t["x"][2:10]), lambda: x[2:10]),
        "where": (torch_call(lambda t: torch.where(t["mask"], t["x"], t["y"])), lambda: jnp.where(mask, x, y)),
        "linear": (torch_call(lambda t: F.linear(t["x"], t["y"], t["b"])), lambda: x @ y.T + b),
        "layer_norm": (torch_call(lambda t: F.layer_norm(t["x"], (16,), t["b"], t["b"])), layer_norm),
        "embedding": (torch_call(lambda t: F.embedding(t["ids"], t["x"])), lambda: x[ids]),
        "conv2d": (torch_call(lambda t: F.conv2d(t["image"], t["kernel"], padding=1)), conv2d),
        "sdpa": (
            torch_call(lambda t: F.scaled_dot_product_attention(t["q"], t["q"], t["q"])),
            lambda: jax.nn.dot_product_attention(heads_last, heads_last, heads_last),
        ),
        "add_": (torch_call(lambda t: t["x"].add_(t["y"])), lambda: x + y),
        "randn": (lambda device: lambda: torch.randn(16, 16, device=device), randn),
    }


VIEWS = ("transpose", "reshape", "slice")  # torchax computes nothing until a view is read; jax.numpy does


def ops() -> list[Line]:
    table = Table(title="20 operators on 16x16 float32, microseconds a call")
    for column in ("operator", "torch CPU", "jax.numpy", "torchax", "torchax / jax.numpy"):
        table.add_column(column, justify="left" if column == "operator" else "right")
    ratios, read = {}, {}
    for name, (torch_call, jax_call) in operators().items():
        call = torch_call("jax")
        contenders = {"cpu": torch_call("cpu"), "jnp": jax_call, "jax": call}
        if name in VIEWS:
            contenders["read"] = lambda call=call: call().jax()
        us = in_turn(contenders)
        ratios[name], read[name] = us["jax"] / us["jnp"], us.get("read", us["jax"]) / us["jnp"]
        also = f" ({us['read'] * 1e6:.1f} and read)" if name in VIEWS else ""
        table.add_row(name, *(f"{us[k] * 1e6:.1f}" for k in ("cpu", "jnp", "jax")), f"{ratios[name]:.2f}{also}")
    CONSOLE.print(table)
    mean, worst = statistics.geometric_mean(ratios.values()), max(ratios, key=ratios.__getitem__)
    strict = statistics.geometric_mean(read.values())
    return [
        Line("20 operators, geometric mean of torchax / jax.numpy", "<= 0.5", f"{mean:.2f}", mean <= 0.5),
        Line("the same, each view (transpose, reshape, slice) also read", "none", f"{strict:.2f}", None),
        Line("the slowest of them against jax.numpy", "<= 3", f"{ratios[worst]:.2f} ({worst})", ratios[worst] <= 3),
    ]


# ---------------------------------------------------------------------------------------------------- compilations


def adamw_steps() -> list[Line]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to("jax")
    opt = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(8, 16).to("jax"), torch.randn(8, 4).to("jax")
    compiled, alive = [], []
    for i in range(100):
        before = compilations
        for group in opt.param_groups:
            group["lr"] = 1e-3 * (1 - i / 100)
        opt.zero_grad()
        F.mse_loss(model(x), y).backward()
        opt.step()
        compiled.append(compilations - before)
        alive.append(len(jax.live_arrays()))
    late, (low, high) = sum(compiled[3:]), (min(alive[9:]), max(alive[9:]))
    return [
        Line("100 AdamW steps, a new lr each: compilations after step 3", "0", str(late), late == 0),
        Line("live jax.Arrays, steps 10 to 100", "constant", f"{low} to {high}", low == high),
    ]


def loop(what: str, x: torch.Tensor, read: Callable[[torch.Tensor, int], torch.Tensor]) -> Line:
    before = compilations
    for i in range(100):
        wait(read(x, i))
    count = compilations - before
    return Line(what, "1 compilation", str(count), count <= 1)


def compiling() -> list[Line]:
    x = torch.randn(117, 5).to("jax")
    wait(x)
    return [
        *adamw_steps(),
        loop("x[i] for 100 integers i", x, lambda x, i: x[i]),
        loop("x[i:i+8] for 100 starts i", x, lambda x, i: x[i : i + 8]),
    ]


# ------------------------------------------------------------------------------------------------------------- GPT


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, c))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A decoder-only transformer: 6 layers, 128 wide."""

    def __init__(self, vocabulary: int = 256, width: int = 128, layers: int = 6, heads: int = 4, length: int = 64):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


def gpt() -> list[Line]:
    torch.manual_seed(0)
    model, ids = GPT(), torch.randint(0, 256, (4, 65))

    def forward(device: str) -> Thunk:
        net, x = copy.deepcopy(model).to(device), ids[:, :-1].contiguous().to(device)

        def run() -> torch.Tensor:
            with torch.no_grad():
                return net(x)

        return run

    def step(device: str) -> Thunk:
        net = copy.deepcopy(model).to(device)
        x, y = ids[:, :-1].contiguous().to(device), ids[:, 1:].contiguous().to(device)
        opt = torch.optim.AdamW(net.parameters(), lr=1e-4)

        def run() -> torch.Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
            loss.backward()
            opt.step()
            wait(net.head.weight)
            return loss.detach()

        return run

    lines = []
    for what, make, goal in (("forward", forward, 2.0), ("training step", step, 2.5)):
        s = in_turn({d: make(d) for d in ("cpu", "jax")}, rounds=5, batches=3, batch_s=0.1)
        ratio = s["jax"] / s["cpu"]
        measured = f"{ratio:.2f} ({s['jax'] * 1e3:.1f} ms / {s['cpu'] * 1e3:.1f} ms)"
        lines.append(
            Line(f"GPT 6 x 128, batch 4 x 64, {what}: torchax / torch CPU", f"<= {goal}", measured, ratio <= goal)
        )
    return lines


# ------------------------------------------------------------------------------------------------ import and memory

IMPORT = """
import time, torch, jax
start = time.perf_counter()
import torchax
print(time.perf_counter() - start)
"""

MEMORY = """
import pathlib, re, torch, torchax

def status(field):
    return int(re.search(field + r":\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) * 1024

torch.ones(1, device="jax").cpu()
model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(12_500_000)) for _ in range(10)])
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
before = status("VmRSS")
model.to("jax")
for p in model:
    p.detach().jax().block_until_ready()
print((status("VmHWM") - before) / 500e6)
"""


def in_subprocess(code: str, times: int) -> float:
    """The median of what ``code`` prints."""
    run = [sys.executable, "-c", code]
    return statistics.median(float(subprocess.check_output(run, text=True)) for _ in range(times))


def importing() -> list[Line]:
    s = in_subprocess(IMPORT, 5)
    return [Line("import torchax, after torch and jax", "<= 0.3 s", f"{s:.2f} s", s <= 0.3)]


def memory() -> list[Line]:
    if sys.platform != "linux":
        return []
    ratio = in_subprocess(MEMORY, 1)
    return [Line('model.to("jax"), 500 MB of float32: peak / weights', "<= 1.1", f"{ratio:.2f}", ratio <= 1.1)]


SECTIONS = {"ops": ops, "compilations": compiling, "gpt": gpt, "import": importing, "memory": memory}


def main(sections: dict[str, Callable[[], list[Line]]], description: str) -> None:
    """Run the sections that the command line names, or all, and print one table."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("sections", nargs="*", default=[], metavar="section", help=f"of {', '.join(sections)}")
    chosen = parser.parse_args().sections or list(sections)
    if unknown := set(chosen) - set(sections):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(sections)}")
    jax.monitoring.register_event_duration_secs_listener(_count_compilation)
    lines = [line for name in chosen for line in sections[name]()]
    table = Table(title=f"torch {torch.__version__}, jax {jax.__version__}, {torch.get_num_threads()} threads")
    for column in ("figure", "goal", "measured", ""):
        table.add_column(column)
    for line in lines:
        verdict = {True: "[green]reached", False: "[red]MISSED", None: ""}[line.reached]
        table.add_row(escape(line.what), line.goal, line.measured, verdict)
    CONSOLE.print(table)


if __name__ == "__main__":
    main(SECTIONS, __doc__)
