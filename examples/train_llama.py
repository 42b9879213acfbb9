"""A byte-level Llama learns to write Python: on eight CPU devices (FSDP × tensor parallel), checkpointed, killed and resumed.

``python examples/train_llama.py`` trains in a process of its own, kills it with SIGKILL half way, starts it again, which
goes on from its last checkpoint, and then lets the model write. The text is the standard library's source, which every
Python has. The run leaves ``train_llama/`` with the metrics, the loss curve and the checkpoints.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
import optax
import torch
import torch.nn.functional as F
import transformers
from rich.console import Console
from torch.utils.data import DataLoader, Dataset

from torchax.train import Trainer
from torchax.train.sharding import Plan, make_mesh, parallelize, sharding_table

LENGTH, BATCH = 128, 32
TARGET = 2.2  # nats per byte
console = Console()


class Source(Dataset):
    """Windows of ``LENGTH + 1`` bytes from the standard library's modules, one after another."""

    def __init__(self) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        text = b"\0".join(path.read_bytes() for path in files)
        count = len(text) // (LENGTH + 1)
        self.windows = np.frombuffer(text, np.uint8)[: count * (LENGTH + 1)].reshape(count, LENGTH + 1)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.from_numpy(self.windows[i].astype(np.int64))


def build() -> torch.nn.Module:
    """The model on ``meta``: it is initialized on the mesh."""
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config)


def loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def train(folder: Path, steps: int) -> None:
    mesh, plan = make_mesh({"fsdp": 4, "tensor": 2}), Plan(fsdp="fsdp", tensor="tensor")
    model = parallelize(build(), mesh, plan)
    console.print(sharding_table(model))
    trainer = Trainer(
        model,
        optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 3e-3, 20, steps, 3e-4), weight_decay=0.01),
        loss,
        mesh=mesh,
        plan=plan,
        clip=1.0,
        folder=folder,
        save_every=20,
    )
    data = DataLoader(Source(), batch_size=BATCH, shuffle=True, drop_last=True)
    history = trainer.fit(data, steps)
    last = np.mean([m["loss"] for m in history[-10:]])
    console.print(f"loss of the last ten steps: [bold]{last:.3f}[/] nats per byte (target {TARGET})")
    console.print(write(model, b"def "))
    if last >= TARGET:
        sys.exit(f"the loss did not fall below {TARGET}")


def write(model: torch.nn.Module, start: bytes, length: int = 96, temperature: float = 0.6) -> str:
    """Let the model go on from ``start``, byte by byte, in one compiled program for every length (causal: what follows
    the last byte so far does not count)."""
    import jax

    model.eval()
    params = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    next_logits = jax.jit(
        lambda params, tokens, at: torch.func.functional_call(model, params, (tokens,)).logits[0, at] / temperature
    )
    generator = torch.Generator().manual_seed(0)
    tokens = torch.zeros(1, LENGTH, dtype=torch.int64)
    tokens[0, : len(start)] = torch.tensor(list(start))
    with torch.no_grad():
        for at in range(len(start) - 1, len(start) - 1 + length):
            logits = next_logits(params, tokens.to("jax"), torch.tensor(at, device="jax"))
            tokens[0, at + 1] = torch.multinomial(logits.cpu().softmax(-1), 1, generator=generator)[0]
    return bytes(tokens[0, : len(start) + length].tolist()).decode(errors="replace")


def kill_and_resume(folder: Path, steps: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, __file__, "--train", str(folder), "--steps", str(steps)]
    console.rule(f"training, to be killed at step {steps // 2}")
    process = subprocess.Popen(command)
    metrics = folder / "metrics.jsonl"
    while process.poll() is None and (not metrics.exists() or metrics.read_text().count("\n") < steps // 2):
        time.sleep(0.2)
    if process.poll() is not None:
        sys.exit(f"training ended with {process.returncode} before it was killed")
    process.send_signal(signal.SIGKILL)
    process.wait()
    console.rule("killed; started again")
    subprocess.run(command, check=True)
    console.print(f"metrics, loss curve and checkpoints: {folder}/")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument("--folder", type=Path, default=Path("train_llama"))
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args.train, args.steps)
    else:
        kill_and_resume(args.folder, args.steps)
