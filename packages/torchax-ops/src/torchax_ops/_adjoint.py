"""The backward of a linear operator, from the operator itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

from torchax_ops._promotion import cast, opmath


def adjoint(fn: Callable[[jax.Array], jax.Array], sizes: Sequence[int], grad: jax.Array) -> jax.Array:
    """What backward gives for an input of shape ``sizes``, where ``grad`` arrives at the output of a linear ``fn``.

    Sums run in float32 for 16-bit floats; the result has the dtype of ``grad``.
    """
    compute = opmath(grad.dtype)
    (out,) = jax.linear_transpose(fn, jax.ShapeDtypeStruct(tuple(sizes), compute))(cast(grad, compute))
    return cast(out, grad.dtype)
