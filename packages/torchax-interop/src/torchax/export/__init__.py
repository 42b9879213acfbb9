"""``torch.export`` programs as JAX functions, StableHLO, and artifacts that run without PyTorch."""

from torchax._coexistence import check as _check

_check()

from torchax.export._program import (
    Results,
    exported_program_to_jax,
    exported_program_to_stablehlo,
    exported_program_to_stateful_jax,
    extract_avals,
)

__all__ = [
    "Results",
    "exported_program_to_jax",
    "exported_program_to_stablehlo",
    "exported_program_to_stateful_jax",
    "extract_avals",
]
