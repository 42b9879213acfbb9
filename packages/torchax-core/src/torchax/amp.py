"""``autocast`` under google/torchax's name."""

from __future__ import annotations

from typing import Any

import torch


def autocast(device: str, dtype: torch.dtype = torch.bfloat16, env: Any = None) -> torch.autocast:
    """``torch.autocast(device, dtype=dtype)``; ``env`` is accepted and ignored."""
    return torch.autocast(str(device).split(":")[0], dtype=dtype)
