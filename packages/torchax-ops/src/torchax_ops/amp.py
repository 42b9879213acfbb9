"""``_amp_*``: what ``torch.amp.GradScaler`` runs, in functional form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torchax_ops._promotion import cast, category, opmath
from torchax_ops._registry import exported, register


def _check_one(name: str, x: jax.Array, dtype: str, called: str) -> None:
    if x.size != 1:
        raise RuntimeError(f"{name} must be a 1-element tensor.")
    if x.dtype != dtype:
        raise RuntimeError(f"{name} must be {called} tensor.")


@register("_amp_foreach_non_finite_check_and_unscale")
def _amp_foreach_non_finite_check_and_unscale(
    self: Sequence[jax.Array], found_inf: jax.Array, inv_scale: jax.Array
) -> tuple[list[jax.Array], jax.Array]:
    """``self`` times ``inv_scale``, and ``found_inf``, set to 1 where ``self`` holds an inf or nan (else as it was).

    ``found_inf`` and ``inv_scale`` are one-element float32 arrays of any rank; gradients keep their dtypes.

    Raises:
        RuntimeError: ``found_inf`` or ``inv_scale`` is of another size or dtype.
        NotImplementedError: a gradient is not of floating dtype.
    """
    _check_one("inv_scale", inv_scale, "float32", "a float")
    _check_one("found_inf", found_inf, "float32", "a float")
    scale, bad, out = inv_scale.reshape(()), jnp.bool_(False), []
    for grad in self:
        if category(grad.dtype) != 2:
            raise NotImplementedError(
                f'"_amp_foreach_non_finite_check_and_unscale" not implemented for {grad.dtype.name}'
            )
        bad = bad | ~jnp.all(jnp.isfinite(grad))
        compute = opmath(grad.dtype)
        out.append(cast(cast(grad, compute) * cast(scale, compute), grad.dtype))
    return out, jnp.where(bad, jnp.ones_like(found_inf), found_inf)


@register("_amp_update_scale", traced=("growth_interval",))
def _amp_update_scale(
    self: jax.Array,
    growth_tracker: jax.Array,
    found_inf: jax.Array,
    scale_growth_factor: Any,
    scale_backoff_factor: Any,
    growth_interval: Any,
) -> tuple[jax.Array, jax.Array]:
    """The next loss scale and growth tracker.

    With ``found_inf`` the scale shrinks by ``scale_backoff_factor`` and the tracker restarts; after ``growth_interval``
    steps without one it grows by ``scale_growth_factor``, unless that overflows. ``self`` and ``found_inf`` are
    one-element float32 arrays, ``growth_tracker`` a one-element int32 array.

    Raises:
        RuntimeError: an argument is of another size or dtype.
    """
    _check_one("growth_tracker", growth_tracker, "int32", "an int")
    _check_one("current_scale", self, "float32", "a float")
    _check_one("found_inf", found_inf, "float32", "a float")
    bad = found_inf.reshape(()) != 0
    steps = growth_tracker + cast(1, "int32")
    full = steps == cast(growth_interval, "int32")
    grown = cast(cast(self, "float64") * scale_growth_factor, "float32")
    shrunk = cast(cast(self, "float64") * scale_backoff_factor, "float32")
    kept = jnp.where(full.reshape(self.shape) & jnp.isfinite(grown), grown, self)
    return jnp.where(bad, shrunk, kept), jnp.where(bad | full, jnp.zeros_like(steps), steps)


__all__ = exported(__name__)
