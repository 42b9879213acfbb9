"""Two processes with four devices each, on 127.0.0.1, against one process with eight."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

import pytest

PROGRAM = """
import json, os, sys
index, count, port, folder, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={8 // count}"
import jax
from torchax.train import distributed
if count > 1:
    distributed.initialize(f"127.0.0.1:{port}", count, index, timeout=20)
import optax, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchax.train import Trainer
from torchax.train.sharding import Plan, make_mesh

class Data(Dataset):
    read = []
    def __len__(self):
        return 64
    def __getitem__(self, i):
        self.read.append(i)
        g = torch.Generator().manual_seed(i)
        return torch.randn(8, generator=g), i % 4

def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])

def say(trainer, metrics):
    print(json.dumps([metrics["step"], metrics["loss"].hex()]), flush=True)
    if how == "die" and index == 1 and metrics["step"] == 5:
        os._exit(7)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 4))
mesh = make_mesh({"fsdp": -1})
trainer = Trainer(model, optax.adam(0.01), loss, mesh=mesh, plan=Plan(fsdp="fsdp"), folder=folder, save_every=2,
                  callbacks=[say], progress=False)
data = Data()
steps = int(sys.argv[6])
trainer.fit(DataLoader(data, batch_size=16, shuffle=True), steps)
print(json.dumps(["read", len(data.read)]), flush=True)
"""


def _port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _start(count, folder, how="run", steps=8):
    port = str(_port())
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    return [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(i), str(count), port, str(folder), how, str(steps)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for i in range(count)
    ]


def _finish(processes):
    """Each one's ``(steps and what it read, errors)``; all must end well."""
    found = [p.communicate(timeout=280) for p in processes]
    for p, (_, errors) in zip(processes, found):
        assert p.returncode == 0, errors[-3000:]
    return [
        dict(json.loads(line) for line in out.splitlines() if line.startswith("[") and "Gloo" not in line)
        for out, _ in found
    ]


def test_two_processes_train_as_one(tmp_path):
    """The same losses on both; each reads its half; a checkpoint of two is restored by one, which ends as if alone."""
    [alone] = _finish(_start(1, tmp_path / "one"))
    first, second = _finish(_start(2, tmp_path / "two", steps=6))
    assert first == second
    ahead = {k: float.fromhex(v) for k, v in first.items() if k != "read"}
    assert ahead == pytest.approx({k: float.fromhex(alone[k]) for k in ahead}, rel=1e-5)
    assert alone["read"] == 2 * 80  # 8 steps of 16, and two batches ahead
    assert first["read"] == 8 * 8
    [rest] = _finish(_start(1, tmp_path / "two"))
    assert {k: float.fromhex(rest[k]) for k in (7, 8)} == pytest.approx(
        {k: float.fromhex(alone[k]) for k in (7, 8)}, rel=1e-5
    )


def test_a_process_that_dies_ends_the_others_and_the_run_resumes(tmp_path):
    processes = _start(2, tmp_path, "die")
    assert processes[1].wait(timeout=280) == 7
    died = time.monotonic()
    _, errors = processes[0].communicate(timeout=120)
    processes[1].communicate()
    assert time.monotonic() - died < 60
    assert processes[0].returncode not in (0, None)
    assert "process 1" in errors or "task 1" in errors or "task:1" in errors or "another" in errors, errors[-3000:]
    assert "2" in os.listdir(tmp_path / "checkpoints")
    first, second = _finish(_start(2, tmp_path))
    assert first == second
    assert 8 in first
    assert 2 not in first
