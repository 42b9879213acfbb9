"""Errors of torchax's own, and what they say of tensors."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.source_info_util


class OperatorNotFound(NotImplementedError):
    """An operator has neither a JAX function nor a decomposition onto operators that do.

    The message names the operator, its schema and how to register one.
    """


class NoValues(jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
    """The values of a tensor were asked for while it was traced, where it has none.

    Args:
        what: the operation that asked.
        array: the tensor's tracer.
    """

    def __init__(self, what: str, array: Any) -> None:
        TypeError.__init__(
            self,
            f"{what} needs the values of a tensor that is traced, {describe_array(array)}, and a compiled function has none. "
            "Use torch.where or torch.cond in place of a branch, keep a number as a 0-d tensor, and do what needs values "
            "outside the compiled function. (One kept from a trace that is finished has none either: return it instead.)",
        )


def describe_array(array: Any) -> str:
    """An array or tracer as messages name it: dtype, shape, and the line that made a tracer."""
    return f"{array.dtype}{list(array.shape)}{made_at(array)}"


def made_at(array: Any) -> str:
    """Where a tracer was made, as far as JAX knows: `` made at file:line``, or nothing."""
    info = getattr(array, "_line_info", None) if isinstance(array, jax.core.Tracer) else None
    where = jax.extend.source_info_util.summarize(info) if info is not None else "unknown"
    return f" made at {where}" if where not in ("", "unknown") else ""


def reused(what: Any, given: str) -> RuntimeError:
    """The error for a tensor whose array was donated and is used again."""
    return RuntimeError(
        f"{what}: the memory of a tensor among {given} has been deleted: it was donated to a compiled function "
        "(donate_argnums, or an array of state that torchax.compile wrote, taken out with .jax()). Use what that function "
        "returned, donate a clone(), or do not donate it."
    )


def escaped(what: Any, arrays: list[Any], e: Exception) -> RuntimeError:
    """The error for a tensor of a finished trace; not JAX's, a TypeError, which after ``a + b`` reads "unsupported operand"."""
    made = [describe_array(a) for a in arrays if isinstance(a, jax.core.Tracer)]
    return RuntimeError(
        f"{what}: a tensor of a trace that is finished was used: {' or '.join(made)}. Return it from the traced function, or "
        f"write it into a tensor that was there before (buffer.copy_(value)). {e}"
    )
