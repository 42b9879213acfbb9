"""``autocast`` under google/torchax's name.

A package, not a module, so that it is found before google/torchax's ``amp.py`` where that was installed over ours.
"""

from __future__ import annotations

from typing import Any

import torch

from torchax._coexistence import check

check()


def autocast(device: str, dtype: torch.dtype = torch.bfloat16, env: Any = None) -> torch.autocast:
    """``torch.autocast(device, dtype=dtype)``; ``env`` is accepted and ignored."""
    return torch.autocast(str(device).split(":")[0], dtype=dtype)
