"""``_fused_*``: a whole optimizer step over lists of parameters.

Each returns new values of every list that its schema mutates. Arithmetic is in ``opmath`` of the parameter's dtype;
what depends on the step or on hyperparameters only is computed once per parameter, as a 0-d float64 (float32 where x64
is off). What all share: gradients are divided by ``grad_scale`` and stored so, ``maximize`` turns their
sign for the update only, and a ``found_inf`` of 1 leaves every list as it was.

Source: https://github.com/pytorch/pytorch/tree/main/aten/src/ATen/native/cpu (FusedAdamKernel.cpp, FusedSGDKernel.cpp,
FusedAdagradKernel.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torchax_ops._promotion import cast, category, opmath
from torchax_ops._registry import exported, register

Arrays = Sequence[jax.Array]
Lists = list[list[jax.Array]]
Scalar = Any


def _number(x: Any) -> jax.Array:
    """A hyperparameter, a step or a one-element array as a 0-d float64."""
    return cast(x, "float64").reshape(())


def _check(op: str, self: Arrays, *lists: Arrays, steps: Arrays | None = None) -> None:
    for other in (*lists, *([] if steps is None else [steps])):
        if len(other) != len(self):
            raise RuntimeError(f"{op}: expected lists of {len(self)} tensors, got one of {len(other)}")
    for i, param in enumerate(self):
        if category(param.dtype) != 2:
            raise NotImplementedError(f'"{op}" not implemented for {param.dtype.name}')
        for other in lists:
            if other[i].dtype != param.dtype:
                raise RuntimeError(f"{op}: expected scalar type {param.dtype.name} but found {other[i].dtype.name}")
            if other[i].shape != param.shape:
                raise RuntimeError(f"{op}: expected shape {param.shape} but found {other[i].shape}")


def _step(
    update: Callable[..., tuple[jax.Array, ...]],
    per_param: Sequence[tuple[jax.Array, ...]],
    maximize: bool,
    grad_scale: jax.Array | None,
    found_inf: jax.Array | None,
    self: Arrays,
    grads: Arrays,
    *states: Arrays,
) -> Lists:
    """New ``[self, grads, *states]`` from ``update(param, grad, *states, *numbers) -> (param, *states)``."""
    out: Lists = [[] for _ in range(2 + len(states))]
    for param, grad, *state, numbers in zip(self, grads, *states, per_param, strict=True):
        compute = opmath(param.dtype)
        scaled = cast(grad, compute)
        if grad_scale is not None:
            scaled = scaled / cast(_number(grad_scale), compute)
        new_param, *new_state = update(
            cast(param, compute),
            -scaled if maximize else scaled,
            *(cast(s, compute) for s in state),
            *(cast(n, compute) for n in numbers),
        )
        for column, old, new in zip(out, (param, grad, *state), (new_param, scaled, *new_state), strict=True):
            new = cast(new, param.dtype)
            column.append(new if found_inf is None else jnp.where(_number(found_inf) == 1, old, new))
    return out


def _adam(name: str, *, decoupled: bool, doc: str) -> Callable[..., Any]:
    @register(name, f"{name}.tensor_lr")
    def fused(
        self: Arrays,
        grads: Arrays,
        exp_avgs: Arrays,
        exp_avg_sqs: Arrays,
        max_exp_avg_sqs: Arrays,
        state_steps: Arrays,
        *,
        lr: Any,
        beta1: Scalar,
        beta2: Scalar,
        weight_decay: Scalar,
        eps: Scalar,
        amsgrad: bool,
        maximize: bool,
        grad_scale: jax.Array | None = None,
        found_inf: jax.Array | None = None,
    ) -> tuple[list[jax.Array], ...]:
        states = [exp_avgs, exp_avg_sqs, *([max_exp_avg_sqs] if amsgrad else [])]
        _check(name, self, grads, *states, steps=state_steps)
        lr, beta1, beta2, weight_decay, eps = map(_number, (lr, beta1, beta2, weight_decay, eps))

        def numbers(step: jax.Array) -> tuple[jax.Array, ...]:
            correction1, correction2 = 1 - beta1 ** _number(step), 1 - beta2 ** _number(step)
            decay = lr * weight_decay if decoupled else weight_decay
            return 1 - beta1, beta2, 1 - beta2, lr / correction1, jnp.sqrt(correction2), decay, eps

        def update(param: jax.Array, grad: jax.Array, average: jax.Array, square: jax.Array, *rest: jax.Array) -> Any:
            *largest, fresh1, keep2, fresh2, rate, correction, decay, tiny = rest
            if decoupled:
                param = jnp.where(decay != 0, param - decay * param, param)
            else:
                grad = jnp.where(decay != 0, grad + decay * param, grad)
            average = average + fresh1 * (grad - average)
            square = keep2 * square + fresh2 * grad * grad
            largest = [jnp.maximum(m, square) for m in largest]
            denominator = jnp.sqrt(largest[0] if largest else square) / correction + tiny
            return param - rate * average / denominator, average, square, *largest

        lists = _step(
            update, [numbers(step) for step in state_steps], maximize, grad_scale, found_inf, self, grads, *states
        )
        return tuple(lists) if amsgrad else (*lists, list(max_exp_avg_sqs))

    fused.__name__ = fused.__qualname__ = name
    fused.__doc__ = doc
    return fused


_fused_adam = _adam(
    "_fused_adam",
    decoupled=False,
    doc="""Adam, where ``weight_decay`` adds to the gradient; ``state_steps`` are counted by the caller, from 1.

    Returns ``(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs)``.

    Raises:
        RuntimeError: lists of different lengths, shapes or dtypes.
        NotImplementedError: a parameter is not of floating dtype.
    """,
)
_fused_adamw = _adam(
    "_fused_adamw",
    decoupled=True,
    doc="`_fused_adam` with decoupled weight decay: it shrinks the parameter by ``lr * weight_decay`` of itself.",
)


@register("_fused_sgd", "_fused_sgd.tensor_lr")
def _fused_sgd(
    self: Arrays,
    grads: Arrays,
    momentum_buffer_list: Arrays,
    *,
    weight_decay: Scalar,
    momentum: Scalar,
    lr: Any,
    dampening: Scalar,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: jax.Array | None = None,
    found_inf: jax.Array | None = None,
) -> tuple[list[jax.Array], ...]:
    """SGD; momentum is used where ``momentum_buffer_list`` is not empty.

    Returns ``(self, grads, momentum_buffer_list)``.

    Raises:
        RuntimeError: lists of different lengths, shapes or dtypes.
        NotImplementedError: a parameter is not of floating dtype.
    """
    states = [momentum_buffer_list] if len(momentum_buffer_list) else []
    _check("_fused_sgd", self, grads, *states)
    numbers = tuple(map(_number, (lr, weight_decay, momentum, 1 - _number(dampening))))

    def update(param: jax.Array, grad: jax.Array, *rest: jax.Array) -> Any:
        *buffers, rate, decay, keep, fresh = rest
        grad = jnp.where(decay != 0, grad + decay * param, grad)
        buffers = [grad if is_first_step else keep * b + fresh * grad for b in buffers]
        for b in buffers:
            grad = grad + keep * b if nesterov else b
        return param - rate * grad, *buffers

    lists = _step(update, [numbers] * len(self), maximize, grad_scale, found_inf, self, grads, *states)
    return tuple(lists) if states else (*lists, [])


@register("_fused_adagrad")
def _fused_adagrad(
    self: Arrays,
    grads: Arrays,
    state_sums: Arrays,
    state_steps: Arrays,
    *,
    lr: Any,
    lr_decay: Scalar,
    weight_decay: Scalar,
    eps: Scalar,
    maximize: bool,
    grad_scale: jax.Array | None = None,
    found_inf: jax.Array | None = None,
) -> tuple[list[jax.Array], ...]:
    """Adagrad; ``state_steps`` are counted by the caller, from 1, and come back as they were.

    Returns ``(self, grads, state_sums, state_steps)``.

    Raises:
        RuntimeError: lists of different lengths, shapes or dtypes.
        NotImplementedError: a parameter is not of floating dtype.
    """
    _check("_fused_adagrad", self, grads, state_sums, steps=state_steps)
    lr, lr_decay, weight_decay, eps = map(_number, (lr, lr_decay, weight_decay, eps))

    def update(param: jax.Array, grad: jax.Array, total: jax.Array, *numbers: jax.Array) -> Any:
        rate, decay, tiny = numbers
        grad = jnp.where(decay != 0, grad + decay * param, grad)
        total = total + grad * grad
        return param - rate * grad / (jnp.sqrt(total) + tiny), total

    per_param = [(lr / (1 + (_number(step) - 1) * lr_decay), weight_decay, eps) for step in state_steps]
    lists = _step(update, per_param, maximize, grad_scale, found_inf, self, grads, state_sums)
    return (*lists, list(state_steps))


@register("_fused_adagrad.tensor_lr")
def _fused_adagrad_tensor_lr(
    self: Arrays,
    grads: Arrays,
    state_sums: Arrays,
    state_steps: Arrays,
    *,
    lr: jax.Array,
    lr_decay: Scalar,
    weight_decay: Scalar,
    eps: Scalar,
    maximize: bool,
    grad_scale: jax.Array | None = None,
    found_inf: jax.Array | None = None,
) -> tuple[list[jax.Array], ...]:
    """`_fused_adagrad`, whose schema with a tensor ``lr`` returns no ``state_steps``."""
    return _fused_adagrad(
        self, grads, state_sums, state_steps, lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps,
        maximize=maximize, grad_scale=grad_scale, found_inf=found_inf,
    )[:3]  # fmt: skip


__all__ = exported(__name__)
