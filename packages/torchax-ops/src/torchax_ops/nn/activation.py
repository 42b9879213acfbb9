"""Activations, softmax and dropout, with their backward operators.

Source: https://docs.pytorch.org/docs/stable/nn.functional.html#non-linear-activation-functions
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._elementwise import ArrayLike, elementwise, unary
from .._promotion import cast, category, default_float, dtype_of, is_complex, is_floating, opmath
from .._registry import exported, register
from .._shapes import canonical_dim

_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


def _number(x: Any, like: jax.Array) -> jax.Array:
    """A ``Scalar`` argument in the dtype of ``like``."""
    return cast(x, like.dtype)


def _require_floating(name: str, x: ArrayLike) -> jax.Array:
    if category(dtype_of(x)) < 2:
        raise NotImplementedError(f'"{name}" not implemented for {dtype_of(x).name}')
    return jnp.asarray(x)


# --- rectifiers --------------------------------------------------------------------------------------------------


def _clip(x: jax.Array, low: Any, high: Any) -> jax.Array:
    """``x`` in ``[low, high]``, NaN kept. The gradient at a bound is 0; `jnp.clip` would give one half."""
    x = jnp.where(x <= low, low, x)
    return jnp.where(x >= high, high, x)


relu = unary(lambda x: jnp.where(x <= 0, 0, x), "relu", accepts="if")
relu6 = unary(lambda x: _clip(x, 0, 6), "relu6", accepts="if")
hardsigmoid = unary(lambda x: _clip(x + 3, 0, 6) / 6, "hardsigmoid", accepts="f")
hardswish = unary(lambda x: x * _clip(x + 3, 0, 6) / 6, "hardswish", accepts="f")


@register("hardsigmoid_backward")
@elementwise("grad_output", "self", accepts="f")
def hardsigmoid_backward(grad_output: ArrayLike, self: ArrayLike) -> jax.Array:
    """``grad_output / 6`` where ``-3 < self < 3``, else 0."""
    return jnp.where((self > -3) & (self < 3), grad_output / 6, 0)


@register("hardswish_backward")
@elementwise("grad_output", "self", accepts="f")
def hardswish_backward(grad_output: ArrayLike, self: ArrayLike) -> jax.Array:
    """The gradient of `hardswish`: 0 up to -3, 1 from 3."""
    slope = jnp.where(self < 3, self / 3 + 0.5, 1)
    return jnp.where(self <= -3, 0, grad_output * slope)


@register("threshold")
@elementwise("self", accepts="if")
def threshold(self: ArrayLike, threshold: Any, value: Any) -> jax.Array:
    """``value`` where ``self <= threshold``, else ``self``."""
    return jnp.where(self <= _number(threshold, self), _number(value, self), self)


@register("threshold_backward")
@elementwise("grad_output", "self", accepts="if")
def threshold_backward(grad_output: ArrayLike, self: ArrayLike, threshold: Any) -> jax.Array:
    """0 where ``self <= threshold``, else ``grad_output``. The backward of `relu` too, with threshold 0."""
    return jnp.where(self <= _number(threshold, self), 0, grad_output)


@register("hardtanh")
@elementwise("self", accepts="if")
def hardtanh(self: ArrayLike, min_val: Any = -1, max_val: Any = 1) -> jax.Array:
    """``self`` clamped to ``[min_val, max_val]``, in its own dtype.

    Raises:
        RuntimeError: ``self`` is bool or unsigned.
    """
    if self.dtype.kind == "u":
        raise RuntimeError("Cannot do hardtanh on an unsigned type with negative limits")
    return _clip(self, _number(min_val, self), _number(max_val, self))


@register("hardtanh_backward")
@elementwise("grad_output", "self", accepts="f")
def hardtanh_backward(grad_output: ArrayLike, self: ArrayLike, min_val: Any, max_val: Any) -> jax.Array:
    """``grad_output`` where ``min_val < self < max_val``, else 0."""
    outside = (self <= _number(min_val, self)) | (self >= _number(max_val, self))
    return jnp.where(outside, 0, grad_output)


@register("leaky_relu")
@elementwise("self", accepts="f")
def leaky_relu(self: ArrayLike, negative_slope: Any = 0.01) -> jax.Array:
    """``self`` where it is positive, else ``negative_slope * self``."""
    return jnp.where(self > 0, self, self * _number(negative_slope, self))


@register("leaky_relu_backward")
@elementwise("grad_output", "self", accepts="f")
def leaky_relu_backward(
    grad_output: ArrayLike, self: ArrayLike, negative_slope: Any, self_is_result: bool
) -> jax.Array:
    """The gradient of `leaky_relu`; the sign of ``self`` is that of the result too."""
    return jnp.where(self > 0, grad_output, grad_output * _number(negative_slope, self))


@register("prelu")
def prelu(self: ArrayLike, weight: ArrayLike) -> jax.Array:
    """``self`` where it is positive, else ``weight * self``; ``weight`` has one element, or one per channel (dim 1).

    Raises:
        RuntimeError: the sizes or dtypes do not match.
    """
    channels = jnp.shape(self)[1] if jnp.ndim(self) > 1 else 1
    if jnp.size(weight) not in (1, channels):
        raise RuntimeError(
            "prelu: Mismatch of parameter numbers and input channel size. "
            f"Found parameter numbers = {jnp.size(weight)} and channel size = {channels}."
        )
    shape = [-1 if d == 1 else 1 for d in range(max(jnp.ndim(self), 1))] if jnp.ndim(self) > 1 else [1] * jnp.ndim(self)
    return _prelu_kernel(self, jnp.reshape(weight, shape))


@register("_prelu_kernel")
def _prelu_kernel(self: ArrayLike, weight: ArrayLike) -> jax.Array:
    _same_dtype("prelu", self, weight)
    return _prelu(self, weight)


@register("_prelu_kernel_backward")
def _prelu_kernel_backward(grad_output: ArrayLike, self: ArrayLike, weight: ArrayLike) -> tuple[jax.Array, jax.Array]:
    _same_dtype("prelu", self, weight)
    return _prelu_backward(grad_output, self, weight)


@elementwise("self", "weight", accepts="f")
def _prelu(self: ArrayLike, weight: ArrayLike) -> jax.Array:
    return jnp.where(self > 0, self, weight * self)


@elementwise("grad_output", "self", "weight", accepts="f")
def _prelu_backward(grad_output: ArrayLike, self: ArrayLike, weight: ArrayLike) -> tuple[jax.Array, jax.Array]:
    positive = self > 0
    return jnp.where(positive, grad_output, weight * grad_output), jnp.where(positive, 0, self * grad_output)


def _same_dtype(name: str, a: ArrayLike, b: ArrayLike) -> None:
    if dtype_of(a) != dtype_of(b):
        raise RuntimeError(f"{name}: Type promoting not supported. Got {dtype_of(a).name} and {dtype_of(b).name}")


# --- random leaky --------------------------------------------------------------------------------------------------


@register("rrelu_with_noise_functional")
def rrelu_with_noise_functional(
    self: ArrayLike,
    noise: ArrayLike,
    lower: Any = 0.125,
    upper: Any = 1 / 3,
    training: bool = False,
    *,
    key: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Leaky ReLU with a random slope for each negative element. Returns ``(output, noise)``.

    In training slopes are drawn from ``[lower, upper)`` and returned as ``noise`` (1 where ``self`` is positive);
    otherwise the slope is their mean and ``noise`` stays as it is.

    Raises:
        ValueError: ``training`` without a ``key``.
    """
    self = _require_floating("rrelu_with_noise", self)
    if not training:
        return leaky_relu(self, (lower + upper) / 2), jnp.asarray(noise)
    compute = opmath(self.dtype)
    unit = jax.random.uniform(_require_key("rrelu_with_noise", key), self.shape, compute)
    low, high = cast(lower, compute), cast(upper, compute)
    slope = cast(jnp.where(self > 0, jnp.ones((), compute), low + unit * (high - low)), self.dtype)
    return self * slope, slope


@register("rrelu")
def rrelu(
    self: ArrayLike, lower: Any = 0.125, upper: Any = 1 / 3, training: bool = False, *, key: jax.Array | None = None
) -> jax.Array:
    """The output of `rrelu_with_noise_functional`."""
    return rrelu_with_noise_functional(self, jnp.zeros_like(self), lower, upper, training, key=key)[0]


@register("rrelu_with_noise_backward")
def rrelu_with_noise_backward(
    grad_output: ArrayLike,
    self: ArrayLike,
    noise: ArrayLike,
    lower: Any,
    upper: Any,
    training: bool,
    self_is_result: bool,
) -> jax.Array:
    """The gradient of `rrelu_with_noise_functional`; of a range narrower than 1e-6 that of `leaky_relu`."""
    leaky = leaky_relu_backward(grad_output, self, (lower + upper) / 2, self_is_result)
    return jnp.where(upper - lower > 1e-6, cast(noise * grad_output, leaky.dtype), leaky) if training else leaky


def _require_key(name: str, key: jax.Array | None) -> jax.Array:
    if key is None:
        raise ValueError(f"{name} needs key=, a PRNG key made by jax.random.key")
    return key


# --- exponential ones ----------------------------------------------------------------------------------------------


@register("elu")
@elementwise("self", accepts="f")
def elu(self: ArrayLike, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> jax.Array:
    """``scale * self`` where it is positive, else ``scale * alpha * expm1(input_scale * self)``."""
    alpha, scale, input_scale = (_number(s, self) for s in (alpha, scale, input_scale))
    negative = jnp.where(self > 0, 0, self)
    return jnp.where(self > 0, self * scale, jnp.expm1(negative * input_scale) * (alpha * scale))


@register("elu_backward")
@elementwise("grad_output", "self_or_result", accepts="f")
def elu_backward(
    grad_output: ArrayLike, alpha: Any, scale: Any, input_scale: Any, is_result: bool, self_or_result: ArrayLike
) -> jax.Array:
    """The gradient of `elu` from its argument or, where ``is_result``, from its result."""
    x = self_or_result
    alpha, scale, input_scale = (_number(s, x) for s in (alpha, scale, input_scale))
    negative = x + alpha * scale if is_result else jnp.exp(jnp.minimum(x, 0) * input_scale) * (alpha * scale)
    return grad_output * jnp.where(x <= 0, negative * input_scale, scale)


@register("selu")
def selu(self: ArrayLike) -> jax.Array:
    """`elu` with the constants that normalize activations. Source: https://arxiv.org/abs/1706.02515"""
    return elu(self, _SELU_ALPHA, _SELU_SCALE)


def _check_celu(self: ArrayLike, alpha: Any = 1.0) -> None:
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")


@register("celu", check=_check_celu)
def celu(self: ArrayLike, alpha: Any = 1.0) -> jax.Array:
    """``max(0, self) + min(0, alpha * expm1(self / alpha))``.

    Raises:
        RuntimeError: ``alpha`` is 0 (eager calls).
    """
    return elu(self, alpha, 1, 1 / cast(alpha, opmath(dtype_of(self)) if is_floating(self) else "float32"))


_log_sigmoid = elementwise("x", accepts="f")(
    lambda x: jnp.where(x > 0, 0, x) - jnp.log1p(jnp.exp(jnp.where(x > 0, -x, x)))
)
_exp_minus_abs = elementwise("x", accepts="f")(lambda x: jnp.exp(-jnp.abs(x)))


@register("log_sigmoid")
def log_sigmoid(self: ArrayLike) -> jax.Array:
    """``log(sigmoid(self))``, computed without overflow."""
    return _log_sigmoid(self)


@register("log_sigmoid_forward")
def log_sigmoid_forward(self: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """``(log(sigmoid(self)), exp(-abs(self)))``; the second is what CPU keeps for the backward."""
    return _log_sigmoid(self), _exp_minus_abs(self)


@register("log_sigmoid_backward")
@elementwise("grad_output", "self", accepts="f")
def log_sigmoid_backward(grad_output: ArrayLike, self: ArrayLike, buffer: ArrayLike) -> jax.Array:
    """``grad_output * sigmoid(-self)``; ``buffer`` is not needed."""
    return grad_output * jax.nn.sigmoid(-self)


@register("softplus")
@elementwise("self", accepts="f")
def softplus(self: ArrayLike, beta: Any = 1, threshold: Any = 20) -> jax.Array:
    """``log1p(exp(beta * self)) / beta``, and ``self`` where ``beta * self > threshold``."""
    beta, threshold = _number(beta, self), _number(threshold, self)
    scaled = self * beta
    linear = scaled > threshold
    return jnp.where(linear, self, jnp.log1p(jnp.exp(jnp.where(linear, 0, scaled))) / beta)


@register("softplus_backward")
@elementwise("grad_output", "self", accepts="f")
def softplus_backward(grad_output: ArrayLike, self: ArrayLike, beta: Any, threshold: Any) -> jax.Array:
    """The gradient of `softplus`."""
    scaled = self * _number(beta, self)
    return jnp.where(scaled > _number(threshold, self), grad_output, grad_output * jax.nn.sigmoid(scaled))


def _sigmoid(x: jax.Array) -> jax.Array:
    return 1 / (1 + jnp.exp(-x)) if is_complex(x) else lax.logistic(x)


def _silu_slope(x: jax.Array) -> jax.Array:
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))


silu = unary(lambda x: x * _sigmoid(x), "silu", accepts="fc")
mish = unary(lambda x: x * jnp.tanh(jax.nn.softplus(x)), "mish", accepts="f")


@register("silu_backward")
@elementwise("grad_output", "self", accepts="fc")
def silu_backward(grad_output: ArrayLike, self: ArrayLike) -> jax.Array:
    """The gradient of `silu`."""
    return grad_output * jnp.conj(_silu_slope(self))


@register("mish_backward")
@elementwise("grad_output", "self", accepts="f")
def mish_backward(grad_output: ArrayLike, self: ArrayLike) -> jax.Array:
    """The gradient of `mish`."""
    t = jnp.tanh(jax.nn.softplus(self))
    return grad_output * (t + self * jax.nn.sigmoid(self) * (1 - t * t))


@register("sigmoid_backward")
@elementwise("grad_output", "output", accepts="fc")
def sigmoid_backward(grad_output: ArrayLike, output: ArrayLike) -> jax.Array:
    """The gradient of `sigmoid` from its result."""
    return grad_output * jnp.conj((1 - output) * output)


@register("tanh_backward")
@elementwise("grad_output", "output", accepts="fc")
def tanh_backward(grad_output: ArrayLike, output: ArrayLike) -> jax.Array:
    """The gradient of `tanh` from its result."""
    return grad_output * jnp.conj(1 - output * output)


def _gelu(x: jax.Array, approximate: str) -> jax.Array:
    if approximate == "none":
        return x * 0.5 * (1 + lax.erf(x * math.sqrt(0.5)))
    if approximate == "tanh":
        return 0.5 * x * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    raise RuntimeError("approximate argument must be either none or tanh.")


@register("gelu")
@elementwise("self", accepts="f")
def gelu(self: ArrayLike, *, approximate: str = "none") -> jax.Array:
    """``self`` times the normal distribution function of it, or (``"tanh"``) an approximation.

    Source: https://arxiv.org/abs/1606.08415

    Raises:
        RuntimeError: ``approximate`` is neither ``"none"`` nor ``"tanh"``.
    """
    return _gelu(self, approximate)


@register("gelu_backward")
@elementwise("grad_output", "self", accepts="f")
def gelu_backward(grad_output: ArrayLike, self: ArrayLike, *, approximate: str = "none") -> jax.Array:
    """The gradient of `gelu`."""
    grad_output, self = jnp.broadcast_arrays(grad_output, self)
    return jax.vjp(functools.partial(_gelu, approximate=approximate), self)[1](grad_output)[0]


# --- shrinking -----------------------------------------------------------------------------------------------------


def _check_softshrink(self: ArrayLike, lambd: Any = 0.5) -> None:
    if not lambd >= 0:
        raise RuntimeError(f"softshrink: lambda must be greater or equal to 0, but found {lambd}")


@register("softshrink", check=_check_softshrink)
@elementwise("self", accepts="f")
def softshrink(self: ArrayLike, lambd: Any = 0.5) -> jax.Array:
    """``self`` moved by ``lambd`` towards 0, and 0 where it is nearer than that. NaN stays NaN.

    Raises:
        RuntimeError: ``lambd`` is negative (eager calls).
    """
    lambd = _number(lambd, self)
    return jnp.where(self > lambd, self - lambd, jnp.where(self < -lambd, self + lambd, self * 0))


@register("hardshrink")
@elementwise("self", accepts="f")
def hardshrink(self: ArrayLike, lambd: Any = 0.5) -> jax.Array:
    """``self``, and 0 where ``-lambd <= self <= lambd``."""
    lambd = _number(lambd, self)
    return jnp.where((self >= -lambd) & (self <= lambd), 0, self)


def _shrink_backward(name: str) -> Callable[..., jax.Array]:
    @elementwise("grad", "self", accepts="f")
    def op(grad: jax.Array, self: jax.Array, lambd: Any) -> jax.Array:
        lambd = _number(lambd, self)
        return jnp.where((self >= -lambd) & (self <= lambd), 0, grad)

    return op


_shrunk_grad = _shrink_backward("shrink_backward")


@register("hardshrink_backward")
def hardshrink_backward(grad_out: ArrayLike, self: ArrayLike, lambd: Any) -> jax.Array:
    """``grad_out``, and 0 where ``-lambd <= self <= lambd``."""
    return _shrunk_grad(grad_out, self, lambd)


@register("softshrink_backward")
def softshrink_backward(grad_output: ArrayLike, self: ArrayLike, lambd: Any) -> jax.Array:
    """``grad_output``, and 0 where ``-lambd <= self <= lambd``."""
    return _shrunk_grad(grad_output, self, lambd)


# --- gated linear unit ---------------------------------------------------------------------------------------------


def _glu(x: jax.Array, dim: int) -> jax.Array:
    a, b = jnp.split(x, 2, axis=dim)
    return a * jax.nn.sigmoid(b)


def _glu_dim(self: jax.Array, dim: int) -> int:
    if self.ndim == 0:
        raise RuntimeError("glu does not support 0-dimensional tensors")
    dim = canonical_dim(dim, self.ndim)
    if self.shape[dim] % 2:
        raise RuntimeError(f"Halving dimension must be even, but dimension {dim} is size {self.shape[dim]}")
    return dim


@register("glu")
@elementwise("self", accepts="f")
def glu(self: ArrayLike, dim: int = -1) -> jax.Array:
    """The first half of ``self`` along ``dim``, times the sigmoid of the second half.

    Raises:
        RuntimeError: ``self`` is 0-d, or its size along ``dim`` is odd.
        IndexError: ``dim`` is out of range.
    """
    return _glu(self, _glu_dim(self, dim))


def _glu_backward(grad: jax.Array, x: jax.Array, dim: int) -> jax.Array:
    return jax.vjp(lambda x: _glu(x, dim), x)[1](grad)[0]


@register("glu_backward")
def glu_backward(grad_output: ArrayLike, self: ArrayLike, dim: int) -> jax.Array:
    """The gradient of `glu`."""
    self = _require_floating("glu_backward", self)
    compute = opmath(self.dtype)
    return cast(_glu_backward(cast(grad_output, compute), cast(self, compute), _glu_dim(self, dim)), self.dtype)


@register("glu_jvp")
def glu_jvp(glu: ArrayLike, x: ArrayLike, dx: ArrayLike, dim: int) -> jax.Array:
    """The derivative of `glu` at ``x`` along ``dx``; ``glu``, its result, is not needed."""
    x = _require_floating("glu_jvp", x)
    compute = opmath(x.dtype)
    forward = functools.partial(_glu, dim=_glu_dim(x, dim))
    return cast(jax.jvp(forward, (cast(x, compute),), (cast(dx, compute),))[1], x.dtype)


@register("glu_backward_jvp")
def glu_backward_jvp(
    grad_x: ArrayLike, grad_glu: ArrayLike, x: ArrayLike, dgrad_glu: ArrayLike, dx: ArrayLike, dim: int
) -> jax.Array:
    """The derivative of `glu_backward` at ``(grad_glu, x)`` along ``(dgrad_glu, dx)``."""
    x = _require_floating("glu_backward_jvp", x)
    compute = opmath(x.dtype)
    backward = functools.partial(_glu_backward, dim=_glu_dim(x, dim))
    at = (cast(grad_glu, compute), cast(x, compute))
    return cast(jax.jvp(backward, at, (cast(dgrad_glu, compute), cast(dx, compute)))[1], x.dtype)


# --- softmax -------------------------------------------------------------------------------------------------------


def _softmax_in(x: jax.Array, dim: int) -> jax.Array:
    if x.size == 0:
        return x
    e = jnp.exp(x - lax.stop_gradient(jnp.max(x, axis=dim, keepdims=True)))
    return e / jnp.sum(e, axis=dim, keepdims=True)


def _log_softmax_in(x: jax.Array, dim: int) -> jax.Array:
    if x.size == 0:
        return x
    shifted = x - lax.stop_gradient(jnp.max(x, axis=dim, keepdims=True))
    return shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=dim, keepdims=True))


def _over_dim(
    name: str, fn: Callable[[jax.Array, int], jax.Array], x: ArrayLike, dim: int, half_to_float: bool
) -> jax.Array:
    """``fn(x, dim)`` in opmath, on at least one dimension."""
    x = jnp.asarray(x)
    if not is_floating(x):
        raise NotImplementedError(f'"{name}" not implemented for {x.dtype.name}')
    dim = canonical_dim(dim, x.ndim)
    if half_to_float and x.dtype != np.float16 and x.dtype.name != "bfloat16":
        raise RuntimeError(f"{name}: conversion is supported for 16-bit floats only, but got {x.dtype.name}")
    compute = opmath(x.dtype)
    out = fn(cast(jnp.atleast_1d(x), compute), dim).reshape(x.shape)
    return out if half_to_float else cast(out, x.dtype)


@register("_softmax")
def _softmax(self: ArrayLike, dim: int, half_to_float: bool) -> jax.Array:
    return _over_dim("softmax", _softmax_in, self, dim, half_to_float)


@register("_log_softmax")
def _log_softmax(self: ArrayLike, dim: int, half_to_float: bool) -> jax.Array:
    return _over_dim("log_softmax", _log_softmax_in, self, dim, half_to_float)


@register("softmax.int", "special_softmax")
def softmax(self: ArrayLike, dim: int, dtype: Any = None) -> jax.Array:
    """The exponentials of ``self``, scaled so that they sum to 1 along ``dim``; ``self`` first converted to ``dtype``.

    Raises:
        NotImplementedError: there are no floats.
        IndexError: ``dim`` is out of range.
    """
    return _softmax(self if dtype is None else cast(self, dtype), dim, False)


@register("log_softmax.int")
def log_softmax(self: ArrayLike, dim: int, dtype: Any = None) -> jax.Array:
    """The logarithm of `softmax`, computed without overflow."""
    return _log_softmax(self if dtype is None else cast(self, dtype), dim, False)


@register("_safe_softmax")
def _safe_softmax(self: ArrayLike, dim: int, dtype: Any = None) -> jax.Array:
    """Softmax, with 0 where a whole row is ``-inf``."""
    self = jnp.asarray(self) if dtype is None else cast(self, dtype)

    def safe(x: jax.Array, dim: int) -> jax.Array:
        hidden = jnp.all(x == -jnp.inf, axis=dim, keepdims=True)
        return jnp.where(hidden, 0, _softmax_in(jnp.where(hidden, 0, x), dim))

    return _over_dim("safe_softmax", safe, self, dim, False)


def _softmax_grad(grad: jax.Array, output: jax.Array, dim: int) -> jax.Array:
    scaled = grad * output
    return scaled - output * jnp.sum(scaled, axis=dim, keepdims=True)


def _log_softmax_grad(grad: jax.Array, output: jax.Array, dim: int) -> jax.Array:
    return grad - jnp.exp(output) * jnp.sum(grad, axis=dim, keepdims=True)


def _softmax_family_backward(
    fn: Callable[..., jax.Array], grad_output: ArrayLike, output: ArrayLike, dim: int, dtype: Any
) -> jax.Array:
    output = jnp.asarray(output)
    dim, compute = canonical_dim(dim, output.ndim), opmath(output.dtype)
    grad, out = (cast(jnp.atleast_1d(x), compute) for x in (grad_output, output))
    return cast(fn(grad, out, dim).reshape(output.shape), dtype)


@register("_softmax_backward_data")
def _softmax_backward_data(grad_output: ArrayLike, output: ArrayLike, dim: int, input_dtype: Any) -> jax.Array:
    return _softmax_family_backward(_softmax_grad, grad_output, output, dim, input_dtype)


@register("_log_softmax_backward_data")
def _log_softmax_backward_data(grad_output: ArrayLike, output: ArrayLike, dim: int, input_dtype: Any) -> jax.Array:
    return _softmax_family_backward(_log_softmax_grad, grad_output, output, dim, input_dtype)


def _spread_mask(mask: ArrayLike, shape: tuple[int, ...], mask_type: int | None) -> jax.Array:
    """The mask of a 4-d ``[B, H, L, L]`` score: 0 is ``[L, L]``, 1 is ``[B, L]``, 2 has the score's shape."""
    mask = jnp.asarray(mask)
    if mask_type == 1 and len(shape) == 4 and mask.shape != shape:
        return jnp.broadcast_to(mask.reshape(shape[0], 1, 1, shape[3]), shape)
    return jnp.broadcast_to(mask, shape)


@register("_masked_softmax")
def _masked_softmax(
    self: ArrayLike, mask: ArrayLike, dim: int | None = None, mask_type: int | None = None
) -> jax.Array:
    """Softmax over ``dim`` (the last) of what ``mask`` does not hide; a wholly hidden row is NaN."""
    self = _require_floating("masked_softmax", self)
    if dtype_of(mask) != np.bool_:
        raise RuntimeError("Mask should be a boolean tensor")
    hidden = _spread_mask(mask, self.shape, mask_type)
    return _over_dim(
        "masked_softmax", _softmax_in, jnp.where(hidden, -jnp.inf, self), -1 if dim is None else dim, False
    )


@register("_masked_softmax_backward")
def _masked_softmax_backward(
    grad_output: ArrayLike, output: ArrayLike, mask: ArrayLike, dim: int | None = None
) -> jax.Array:
    hidden, output = jnp.asarray(mask), jnp.asarray(output)
    grad, out = (jnp.where(hidden, 0, x) for x in (grad_output, output))
    grad = _softmax_family_backward(_softmax_grad, grad, out, -1 if dim is None else dim, output.dtype)
    return jnp.where(hidden, 0, grad)


# --- dropout -------------------------------------------------------------------------------------------------------


def _keep(key: jax.Array, keep: Any, shape: tuple[int, ...]) -> jax.Array:
    """True with probability ``keep``, a number or a tracer."""
    return jax.random.uniform(key, shape, "float32") < cast(keep, "float32")


def _check_dropout(input: ArrayLike, p: Any, train: bool | None, *, key: jax.Array | None = None) -> None:
    if not 0 <= p <= 1:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {p}")


@register("native_dropout", check=_check_dropout)
def native_dropout(
    input: ArrayLike, p: Any, train: bool | None, *, key: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Zero each element with probability ``p`` and scale the rest by ``1 / (1 - p)``.

    Returns ``(output, mask)``, the mask (bool) true where an element stays. Without ``train`` nothing is dropped.

    Raises:
        RuntimeError: ``p`` is not a probability (eager calls), or ``input`` is integral.
        ValueError: ``train`` without a ``key``.
    """
    input = jnp.asarray(input)
    if train is False:
        return input, jnp.ones(input.shape, "bool")
    if category(input.dtype) < 2:
        raise RuntimeError(f"result type Float can't be cast to the desired output type {input.dtype.name}")
    p = cast(p, "float32")
    mask = _keep(_require_key("native_dropout", key), 1 - p, input.shape)
    return native_dropout_backward(input, mask, jnp.where(p == 1, 0, 1 / (1 - p))), mask


@register("native_dropout_backward")
def native_dropout_backward(grad_output: ArrayLike, mask: ArrayLike, scale: Any) -> jax.Array:
    """``grad_output * mask * scale`` in the dtype of ``grad_output``, in the default float where that is of integers."""
    grad_output = jnp.asarray(grad_output)
    dtype = grad_output.dtype if category(grad_output.dtype) >= 2 else default_float()
    return _masked_scale(cast(grad_output, dtype), mask, scale)


@register("_masked_scale")
def _masked_scale(self: ArrayLike, mask: ArrayLike, scale: Any) -> jax.Array:
    self = jnp.asarray(self)
    compute = opmath(self.dtype)
    return cast(cast(self, compute) * cast(mask, compute) * cast(scale, compute), self.dtype)


@register("dropout")
def dropout(input: ArrayLike, p: Any, train: bool, *, key: jax.Array | None = None) -> jax.Array:
    """The output of `native_dropout`."""
    return native_dropout(input, p, train, key=key)[0]


@register("_fused_dropout")
def _fused_dropout(self: ArrayLike, p: Any, *, key: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """`native_dropout` as CUDA has it: ``p`` is the probability to *keep* an element, the mask is uint8."""
    self = _require_floating("_fused_dropout", self)
    keep = cast(p, "float32")
    mask = cast(_keep(_require_key("_fused_dropout", key), keep, self.shape), "uint8")
    return _masked_scale(self, mask, 1 / keep), mask


__all__ = exported(__name__)
