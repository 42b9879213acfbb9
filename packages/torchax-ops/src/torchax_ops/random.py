"""Random numbers: factories and the samplers that fill a given array, with an explicit JAX ``key``.

Values follow PyTorch's distributions and ranges, not its streams. 16-bit floats are drawn in float32, and rounded so
that an open bound is never reached. What PyTorch writes ``from`` is ``from_`` here, because Python reserves the word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchax_ops._promotion import canonical, cast, category, default_float, is_complex, is_number, opmath
from torchax_ops._registry import exported, register
from torchax_ops._shapes import broadcast_shapes

Scalar = bool | int | float | complex | jax.Array
DType = Any
_BOOL, _INT, _FLOAT, _COMPLEX = range(4)
_INT64 = np.iinfo(np.int64)
# Integers up to this are exact in a floating type: 2 to the bits of its significand.
_EXACT = {"float64": 2**53, "float32": 2**24, "float16": 2**11, "bfloat16": 2**8}


def _key_data_bits(key: jax.Array) -> jax.Array:
    """A threefry key derived from any key: some of JAX's samplers take no other."""
    if jax.random.key_impl(key) == "threefry2x32":
        return key
    return jax.random.wrap_key_data(jax.random.bits(key, (2,), np.uint32), impl="threefry2x32")


def _require(op: str, dtype: DType, categories: Sequence[int]) -> np.dtype:
    dtype = np.dtype(dtype)
    if category(dtype) not in categories:
        raise NotImplementedError(f'"{op}" not implemented for {dtype.name}')
    return canonical(dtype)


def _require_size(op: str, size: Sequence[int]) -> tuple[int, ...]:
    if any(n < 0 for n in size):
        raise RuntimeError(f"{op}: Trying to create tensor with negative dimension {min(size)}: {list(size)}")
    return tuple(size)


def _part(dtype: np.dtype) -> np.dtype:
    """The dtype of a complex number's parts."""
    return np.dtype("float64" if dtype == np.complex128 else "float32")


def _below(x: jax.Array, bound: jax.Array) -> jax.Array:
    """``x`` kept under ``bound``, which rounding may have reached."""
    return jnp.where(x >= bound, jnp.nextafter(bound, jnp.zeros_like(bound) - jnp.inf), x)


def _unit(key: jax.Array, shape: Sequence[int], dtype: np.dtype) -> jax.Array:
    """Uniform in [0, 1): multiples of one half ulp of 1, so that no rounding reaches 1."""
    compute = opmath(dtype)
    u = jax.random.uniform(key, tuple(shape), compute)
    if compute != dtype:
        steps = _EXACT[dtype.name]
        u = jnp.floor(u * steps) * np.asarray(1 / steps, compute)
    return cast(u, dtype)


def _positive(key: jax.Array, shape: Sequence[int], dtype: np.dtype) -> jax.Array:
    """Uniform in (0, 1), in the computing dtype."""
    return jax.random.uniform(key, tuple(shape), dtype, minval=jnp.finfo(dtype).tiny)


def _standard_normal(key: jax.Array, shape: Sequence[int], dtype: np.dtype) -> jax.Array:
    """In the computing dtype; a complex number has variance 1 in all."""
    return jax.random.normal(key, tuple(shape), opmath(dtype))


# Factories


@register("rand", "rand.generator")
def rand(size: Sequence[int], *, dtype: DType = None, key: jax.Array) -> jax.Array:
    """Uniform in [0, 1), in the default float unless ``dtype`` is given; a complex number's parts are independent.

    Raises:
        NotImplementedError: ``dtype`` is an integer.
        RuntimeError: a size is negative.
    """
    dtype = _require("rand", dtype or default_float(), (_FLOAT, _COMPLEX))
    size = _require_size("rand", size)
    if category(dtype) == _COMPLEX:
        return lax.complex(*_unit(key, (2, *size), _part(dtype)))
    return _unit(key, size, dtype)


@register("rand_like", "rand_like.generator")
def rand_like(self: jax.Array, *, dtype: DType = None, key: jax.Array) -> jax.Array:
    """`rand` in the shape and, unless ``dtype`` is given, the dtype of ``self``."""
    return rand(self.shape, dtype=dtype or self.dtype, key=key)


@register("randn", "randn.generator")
def randn(size: Sequence[int], *, dtype: DType = None, key: jax.Array) -> jax.Array:
    """Standard normal, in the default float unless ``dtype`` is given; errors as `rand`."""
    dtype = _require("randn", dtype or default_float(), (_FLOAT, _COMPLEX))
    return cast(_standard_normal(key, _require_size("randn", size), dtype), dtype)


@register("randn_like", "randn_like.generator")
def randn_like(self: jax.Array, *, dtype: DType = None, key: jax.Array) -> jax.Array:
    """`randn` in the shape and, unless ``dtype`` is given, the dtype of ``self``."""
    return randn(self.shape, dtype=dtype or self.dtype, key=key)


def _largest(dtype: np.dtype) -> int:
    """The last integer that ``random_`` gives a dtype by itself."""
    if dtype == np.bool_:
        return 1
    return int(jnp.iinfo(dtype).max) if category(dtype) == _INT else _EXACT[dtype.name]


def _require_bounds(low: int, high: int, dtype: np.dtype) -> None:
    """RuntimeError unless ``[low, high)`` is not empty and within ``dtype``."""
    if category(dtype) == _COMPLEX:
        raise RuntimeError("check_random_bounds handles only integral, floating-point and boolean types")
    if low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    if dtype == np.bool_:
        least, last = 0, 1
    elif category(dtype) == _INT:
        least, last = int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
    else:
        least, last = -int(float(jnp.finfo(dtype).max)), int(float(jnp.finfo(dtype).max))
    if low < least:
        raise RuntimeError(f"from is out of bounds for {dtype.name}")
    if high - 1 > last:
        raise RuntimeError(f"to - 1 is out of bounds for {dtype.name}")


def _integers(key: jax.Array, shape: Sequence[int], low: int, high: int, dtype: np.dtype) -> jax.Array:
    """Uniform integers in ``[low, high)``, of up to 64 bits."""
    shape = tuple(shape)
    if low >= -(2**31) and high < 2**31:
        return cast(jax.random.randint(key, shape, low, high, np.int32), dtype)
    wide = canonical("uint64")
    if wide.itemsize < 8:
        raise RuntimeError(f"random integers in [{low}, {high}) need 64 bits: switch JAX's x64 on")
    span, bits = high - low, jax.random.bits(key, shape, np.uint64)
    if span < 2**64:
        bits = bits % np.uint64(span)
    return cast(lax.bitcast_convert_type(bits + np.uint64(low % 2**64), np.int64), dtype)


@register("randint.low", "randint.low_generator")
def randint_low(low: int, high: int, size: Sequence[int], *, dtype: DType = np.int64, key: jax.Array) -> jax.Array:
    """Uniform integers in [low, high) as ``dtype``, which may be a floating one.

    Raises:
        RuntimeError: the range is empty or leaves ``dtype``, or a size is negative.
    """
    dtype = np.dtype(np.int64 if dtype is None else dtype)
    _require_bounds(low, high, dtype)
    return _integers(key, _require_size("randint", size), low, high, dtype)


@register("randint", "randint.generator")
def randint(high: int, size: Sequence[int], *, dtype: DType = np.int64, key: jax.Array) -> jax.Array:
    """Uniform integers in [0, high); errors as `randint_low`."""
    return randint_low(0, high, size, dtype=dtype, key=key)


@register("randint_like.low_dtype", "randint_like.low_generator_dtype")
def randint_like_low_dtype(self: jax.Array, low: int, high: int, *, dtype: DType = None, key: jax.Array) -> jax.Array:
    """`randint_low` in the shape and, unless ``dtype`` is given, the dtype of ``self``."""
    return randint_low(low, high, self.shape, dtype=dtype or self.dtype, key=key)


@register("randint_like", "randint_like.generator")
def randint_like(self: jax.Array, high: int, *, dtype: DType = None, key: jax.Array) -> jax.Array:
    """`randint` in the shape and, unless ``dtype`` is given, the dtype of ``self``."""
    return randint_low(0, high, self.shape, dtype=dtype or self.dtype, key=key)


def _check_randint_like_tensor(self: jax.Array, high: jax.Array, *, dtype: DType = None) -> None:
    _require_bounds(0, int(np.asarray(high)), np.dtype(dtype or self.dtype))


@register("randint_like.Tensor", "randint_like.Tensor_generator", check=_check_randint_like_tensor)
def randint_like_tensor(self: jax.Array, high: jax.Array, *, dtype: DType = None, key: jax.Array) -> jax.Array:
    """`randint_like` with ``high`` in an array of one element."""
    wide = canonical("int64")
    x = jax.random.randint(key, self.shape, jnp.zeros((), wide), cast(high.reshape(()), wide), wide)
    return cast(x, dtype or self.dtype)


@register("randperm", "randperm.generator")
def randperm(n: int, *, dtype: DType = np.int64, key: jax.Array) -> jax.Array:
    """A random permutation of 0 … n - 1 as ``dtype``.

    Raises:
        RuntimeError: ``n`` is negative or more than ``dtype`` holds.
        NotImplementedError: ``dtype`` is bool or complex.
    """
    dtype = _require("randperm", np.int64 if dtype is None else dtype, (_INT, _FLOAT))
    (n,) = _require_size("randperm", (n,))
    if n - 1 > _largest(dtype):
        raise RuntimeError(f"randperm: n cannot be greater than {_largest(dtype) + 1} for {dtype.name}")
    return cast(jax.random.permutation(key, jnp.arange(n, dtype=np.int32)), dtype)


@register("normal.float_float", check=lambda mean, std, size, **_: _require_std(std))
def normal_float_float(
    mean: Scalar, std: Scalar, size: Sequence[int], *, dtype: DType = None, key: jax.Array
) -> jax.Array:
    """Normal with the given mean and standard deviation, in the default float unless ``dtype`` is given.

    Raises:
        RuntimeError: ``std`` is a negative number, or a size is negative.
        NotImplementedError: ``dtype`` is an integer.
    """
    dtype = _require("normal", dtype or default_float(), (_FLOAT, _COMPLEX))
    return _normal(_require_size("normal", size), mean, std, dtype, key)


# Samplers that fill


def _require_std(std: Scalar) -> None:
    if isinstance(std, (int, float)) and not std >= 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")


def _normal(shape: Sequence[int], mean: Any, std: Any, dtype: np.dtype, key: jax.Array) -> jax.Array:
    _require_std(std)
    compute = opmath(dtype)
    return cast(cast(mean, compute) + cast(std, compute) * _standard_normal(key, shape, dtype), dtype)


@register("normal_functional", check=lambda self, mean=0.0, std=1.0: _require_std(std))
def normal_functional(self: jax.Array, mean: Scalar = 0.0, std: Scalar = 1.0, *, key: jax.Array) -> jax.Array:
    """Normal with the given mean and standard deviation, in the shape and dtype of ``self``; errors as `randn`."""
    dtype = _require("normal", self.dtype, (_FLOAT, _COMPLEX))
    return _normal(self.shape, mean, std, dtype, key)


def _check_std(mean: Any, std: Any) -> None:
    if is_number(std):
        _require_std(std)
    elif not (np.asarray(std) >= 0).all():
        raise RuntimeError("normal expects all elements of std >= 0.0")


@register("normal.Tensor_Tensor", "normal.Tensor_float", check=_check_std)
def normal(mean: jax.Array, std: Scalar = 1.0, *, key: jax.Array) -> jax.Array:
    """Normal, elementwise around ``mean``, in its dtype; ``std`` (a number, or real) broadcasts with it.

    Raises:
        NotImplementedError: ``mean`` is of integers.
        RuntimeError: ``std`` is complex, or shapes do not broadcast.
    """
    dtype = _require("normal", mean.dtype, (_FLOAT, _COMPLEX))
    if is_complex(std):
        raise RuntimeError("normal expects standard deviation to be non-complex")
    return _normal(broadcast_shapes(np.shape(mean), np.shape(std)), mean, std, dtype, key)


@register("normal.float_Tensor", check=_check_std)
def normal_float_tensor(mean: Scalar, std: jax.Array, *, key: jax.Array) -> jax.Array:
    """Normal around the number ``mean``, in the shape and dtype of ``std``; errors as `normal`."""
    if is_complex(std):
        raise RuntimeError("normal expects standard deviation to be non-complex")
    return _normal(std.shape, mean, std, _require("normal", std.dtype, (_FLOAT,)), key)


def _check_uniform(self: jax.Array, from_: float = 0.0, to: float = 1.0) -> None:
    dtype = np.dtype(self.dtype)
    if category(dtype) < _FLOAT:
        return
    largest = float(jnp.finfo(dtype).max)
    for name, bound in (("from", from_), ("to", to)):
        if not -largest <= bound <= largest:
            raise RuntimeError(f"{name} is out of bounds for {dtype.name}")
    if from_ > to:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={from_} > to={to}")
    if to - from_ > largest:
        raise RuntimeError(
            f"uniform_ expects to-from <= {largest} for {dtype.name}, but found to={to} and from={from_}"
        )


@register("uniform", check=_check_uniform)
def uniform(self: jax.Array, from_: Scalar = 0.0, to: Scalar = 1.0, *, key: jax.Array) -> jax.Array:
    """Uniform in [from, to), in the shape and dtype of ``self``; ``from`` itself where the two are equal.

    The parts of a complex number are independent.

    Raises:
        NotImplementedError: ``self`` is of integers.
        RuntimeError: ``from`` is above ``to``, or a bound or their distance is beyond the dtype.
    """
    dtype = _require("uniform", self.dtype, (_FLOAT, _COMPLEX))
    if category(dtype) == _COMPLEX:
        parts = jnp.zeros((2, *self.shape), _part(dtype))
        return lax.complex(*uniform(parts, from_, to, key=key))
    compute = opmath(dtype)
    low, high = cast(from_, compute), cast(to, compute)
    x = cast(_unit(key, self.shape, dtype), compute) * (high - low) + low
    low, high = cast(low, dtype), cast(high, dtype)
    return jnp.where(low < high, _below(cast(x, dtype), high), low)


@register("random")
def random(self: jax.Array, *, key: jax.Array) -> jax.Array:
    """Uniform integers from 0 to the last that ``self``'s dtype holds, or counts exactly where it is a floating one.

    Raises:
        NotImplementedError: ``self`` is complex.
    """
    dtype = _require("random", self.dtype, (_BOOL, _INT, _FLOAT))
    return _integers(key, self.shape, 0, _largest(dtype) + 1, dtype)


@register("random.from")
def random_from(self: jax.Array, from_: int, to: int | None, *, key: jax.Array) -> jax.Array:
    """Uniform integers in [from, to), in the shape and dtype of ``self``; without ``to`` up to its last integer.

    Raises:
        RuntimeError: the range is empty or leaves the dtype.
    """
    dtype = np.dtype(self.dtype)
    end = _largest(dtype) + 1 if to is None else to
    _require_bounds(from_, end, dtype)
    return _integers(key, self.shape, from_, end, dtype)


@register("random.to")
def random_to(self: jax.Array, to: int, *, key: jax.Array) -> jax.Array:
    """Uniform integers in [0, to), in the shape and dtype of ``self``; errors as `random_from`."""
    return random_from(self, 0, to, key=key)


def _check_probabilities(p: Any) -> None:
    p = np.asarray(p)
    if not ((p >= 0) & (p <= 1)).all():
        raise RuntimeError("bernoulli: Expected p_in >= 0 && p_in <= 1 to be true, but got false.")


def _check_bernoulli_p(self: jax.Array, p: float) -> None:
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")


def _check_bernoulli_tensor(self: jax.Array, p: jax.Array) -> None:
    _check_probabilities(p)


def _bernoulli(shape: Sequence[int], p: jax.Array, dtype: np.dtype, key: jax.Array) -> jax.Array:
    compute = opmath(p.dtype)
    return cast(jax.random.uniform(key, tuple(shape), compute) < cast(p, compute), dtype)


@register("bernoulli", check=_check_probabilities)
def bernoulli(self: jax.Array, *, key: jax.Array) -> jax.Array:
    """1 with the probability in ``self``, else 0, in its shape and dtype.

    Raises:
        NotImplementedError: ``self`` is not of real floats.
        RuntimeError: a probability is not in [0, 1].
    """
    return _bernoulli(self.shape, self, _require("bernoulli", self.dtype, (_FLOAT,)), key)


@register("bernoulli.p", check=_check_bernoulli_p)
def bernoulli_p(self: jax.Array, p: Scalar, *, key: jax.Array) -> jax.Array:
    """1 with probability ``p``, else 0, in the shape and dtype (not complex) of ``self``.

    Raises:
        RuntimeError: ``p`` is not in [0, 1].
    """
    dtype = _require("bernoulli", self.dtype, (_BOOL, _INT, _FLOAT))
    return _bernoulli(self.shape, cast(p, np.float32), dtype, key)


@register("bernoulli.Tensor", check=_check_bernoulli_tensor)
def bernoulli_tensor(self: jax.Array, p: jax.Array, *, key: jax.Array) -> jax.Array:
    """1 with the probabilities ``p``, which broadcast to ``self``, else 0, in the shape and dtype of ``self``."""
    dtype = _require("bernoulli", self.dtype, (_BOOL, _INT, _FLOAT))
    _require("bernoulli", p.dtype, (_FLOAT,))
    if broadcast_shapes(self.shape, p.shape) != self.shape:
        raise RuntimeError(f"bernoulli: p of shape {list(p.shape)} does not expand to self of {list(self.shape)}")
    return _bernoulli(self.shape, p, dtype, key)


def _require_continuous(name: str, self: jax.Array) -> np.dtype:
    dtype = np.dtype(self.dtype)
    if category(dtype) != _FLOAT:
        raise RuntimeError(
            f"{name} distribution is a continuous probability distribution. "
            f"dtype must be a floating point but you specified {dtype.name}"
        )
    return dtype


def _check_exponential(self: jax.Array, lambd: float = 1.0) -> None:
    if not lambd > 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")


@register("exponential", check=_check_exponential)
def exponential(self: jax.Array, lambd: Scalar = 1.0, *, key: jax.Array) -> jax.Array:
    """Exponential of rate ``lambd``, never 0, in the shape and dtype of ``self``.

    Raises:
        RuntimeError: ``self`` is not of real floats, or ``lambd`` is not positive.
    """
    dtype = _require_continuous("Exponential", self)
    compute = opmath(dtype)
    return cast(-jnp.log(_positive(key, self.shape, compute)) / cast(lambd, compute), dtype)


def _check_cauchy(self: jax.Array, median: float = 0.0, sigma: float = 1.0) -> None:
    if not sigma > 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")


@register("cauchy", check=_check_cauchy)
def cauchy(self: jax.Array, median: Scalar = 0.0, sigma: Scalar = 1.0, *, key: jax.Array) -> jax.Array:
    """Cauchy around ``median`` with scale ``sigma``, in the shape and dtype of ``self``.

    Raises:
        RuntimeError: ``self`` is not of real floats, or ``sigma`` is not positive.
    """
    dtype = _require_continuous("Cauchy", self)
    compute = opmath(dtype)
    x = jnp.tan(np.asarray(math.pi, compute) * (_positive(key, self.shape, compute) - np.asarray(0.5, compute)))
    return cast(cast(median, compute) + cast(sigma, compute) * x, dtype)


def _check_log_normal(self: jax.Array, mean: float = 1.0, std: float = 2.0) -> None:
    if not std > 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")


@register("log_normal", check=_check_log_normal)
def log_normal(self: jax.Array, mean: Scalar = 1.0, std: Scalar = 2.0, *, key: jax.Array) -> jax.Array:
    """The exponential of a normal variable, in the shape and dtype of ``self``.

    Raises:
        NotImplementedError: ``self`` is not of real floats.
        RuntimeError: ``std`` is not positive.
    """
    dtype = _require("log_normal", self.dtype, (_FLOAT,))
    compute = opmath(dtype)
    return cast(jnp.exp(cast(mean, compute) + cast(std, compute) * _standard_normal(key, self.shape, dtype)), dtype)


def _check_geometric(self: jax.Array, p: float) -> None:
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")


@register("geometric", check=_check_geometric)
def geometric(self: jax.Array, p: Scalar, *, key: jax.Array) -> jax.Array:
    """The number of trials of probability ``p`` up to the first success, in the shape and dtype of ``self``.

    Raises:
        NotImplementedError: ``self`` is bool or complex.
        RuntimeError: ``p`` is not in (0, 1).
    """
    dtype = _require("geometric", self.dtype, (_INT, _FLOAT))
    compute = opmath(dtype) if category(dtype) == _FLOAT else np.dtype("float32")
    x = jnp.ceil(jnp.log(_positive(key, self.shape, compute)) / jnp.log1p(-cast(p, compute)))
    return cast(jnp.maximum(x, 1), dtype)


# Samplers with a parameter for each element


def _check_multinomial(self: jax.Array, num_samples: int, replacement: bool = False) -> None:
    p = np.asarray(self).astype(np.float32)
    if not (np.isfinite(p) & (p >= 0)).all():
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    if p.size and not (p.sum(-1) > 0).all():
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")


@register("multinomial", check=_check_multinomial)
def multinomial(self: jax.Array, num_samples: int, replacement: bool = False, *, key: jax.Array) -> jax.Array:
    """``num_samples`` categories (int64) for each row of weights, which need not sum to 1.

    Args:
        self: weights, (categories,) or (rows, categories).
        num_samples: how many to draw from each row.
        replacement: whether a category may be drawn again.

    Raises:
        RuntimeError: ``self`` is not of real floats or not 1-d or 2-d; there are no samples, or without replacement
            more than categories; a weight is negative or not finite, or a row's sum is zero.
    """
    if self.ndim not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if category(self.dtype) != _FLOAT:
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {self.dtype}")
    if num_samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and num_samples > self.shape[-1]:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    p = cast(self, opmath(self.dtype))
    if not replacement:
        # The exponential race: the first arrivals of Poisson processes whose rates are the weights.
        race = jnp.log(p) - jnp.log(-jnp.log(_positive(key, p.shape, p.dtype)))
        return cast(lax.top_k(race, num_samples)[1], "int64")
    ends = jnp.cumsum(p, axis=-1)
    total = ends[..., -1:]
    at = _below(jax.random.uniform(key, (*p.shape[:-1], num_samples), p.dtype) * total, total)
    find = lambda row, x: jnp.searchsorted(row, x, side="right")  # noqa: E731
    return cast(find(ends, at) if p.ndim == 1 else jax.vmap(find)(ends, at), "int64")


def _check_poisson(self: jax.Array) -> None:
    if not (np.asarray(self) >= 0).all():
        raise RuntimeError("invalid Poisson rate, expected rate to be non-negative")


@register("poisson", check=_check_poisson)
def poisson(self: jax.Array, *, key: jax.Array) -> jax.Array:
    """Poisson of the rates in ``self``, in its shape and dtype.

    Raises:
        NotImplementedError: ``self`` is not of real floats.
        RuntimeError: a rate is negative.
    """
    dtype = _require("poisson", self.dtype, (_FLOAT,))
    return cast(jax.random.poisson(_key_data_bits(key), cast(self, opmath(dtype)), dtype=canonical("int64")), dtype)


@register("binomial")
def binomial(count: jax.Array, prob: jax.Array, *, key: jax.Array) -> jax.Array:
    """Binomial of ``count`` trials of probability ``prob`` (clamped to [0, 1]); both broadcast, in their one dtype.

    Raises:
        ValueError: an argument is not of real floats.
        RuntimeError: dtypes differ.
    """
    for name, x in (("count", count), ("prob", prob)):
        if category(x.dtype) != _FLOAT:
            raise ValueError(f"binomial only supports floating-point dtypes for {name}, got: {x.dtype}")
    if count.dtype != prob.dtype:
        raise RuntimeError(f"binomial: Found dtype {prob.dtype} but expected {count.dtype}")
    compute, shape = opmath(count.dtype), broadcast_shapes(count.shape, prob.shape)
    n, p = jnp.maximum(cast(count, compute), 0), jnp.clip(cast(prob, compute), 0, 1)
    # Near 0 and 1 the sampler is left out: there it may not terminate.
    inside = (p > 0) & (p < 1)
    x = jax.random.binomial(_key_data_bits(key), n, jnp.where(inside, p, 0.5), shape, dtype=compute)
    return cast(jnp.where(inside, x, jnp.where(p >= 1, n, 0)), count.dtype)


@register("_standard_gamma")
def _standard_gamma(self: jax.Array, *, key: jax.Array) -> jax.Array:
    dtype = _require("_standard_gamma", self.dtype, (_FLOAT,))
    x = jax.random.gamma(_key_data_bits(key), cast(self, opmath(dtype)))
    return jnp.maximum(cast(x, dtype), jnp.finfo(dtype).tiny)


@register("_standard_gamma_grad")
def _standard_gamma_grad(self: jax.Array, output: jax.Array) -> jax.Array:
    compute = opmath(self.dtype)
    shape = broadcast_shapes(self.shape, output.shape)
    a, x = (jnp.broadcast_to(cast(v, compute), shape) for v in (self, output))
    return cast(lax.random_gamma_grad(a, x), self.dtype)


@register("_sample_dirichlet")
def _sample_dirichlet(self: jax.Array, *, key: jax.Array) -> jax.Array:
    dtype = _require("_sample_dirichlet", self.dtype, (_FLOAT,))
    x = jax.random.dirichlet(_key_data_bits(key), cast(self, opmath(dtype)))
    return jnp.maximum(cast(x, dtype), jnp.finfo(dtype).tiny)


def _exp_sinh_nodes() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the exp-sinh quadrature of (0, inf): https://en.wikipedia.org/wiki/Tanh-sinh_quadrature."""
    t, step = np.linspace(-3.5, 3.5, 99, retstep=True)
    nodes = np.exp(math.pi / 2 * np.sinh(t))
    return nodes, nodes * np.cosh(t) * (math.pi / 2 * step)


@register("_dirichlet_grad")
def _dirichlet_grad(x: jax.Array, alpha: jax.Array, total: jax.Array) -> jax.Array:
    """``-(d cdf / d alpha) / pdf / (1 - x)`` of Beta(alpha, total - alpha) at ``x``, which is what PyTorch returns.

    With ``d = digamma(alpha) - digamma(total)`` the quotient is an integral of ``d - log t`` over the beta density from
    0 to ``x``, or minus the one from ``x`` to 1. The side away from the mean is taken, where nothing cancels.
    """
    shape, wide = broadcast_shapes(x.shape, alpha.shape, total.shape), canonical("float64")
    at, a, s = (jnp.broadcast_to(cast(v, wide), shape)[..., None] for v in (x, alpha, total))
    left = at * s <= a
    near, power, other = jnp.where(left, at, 1 - at), jnp.where(left, a, s - a), jnp.where(left, s - a, a)
    u, weight = (np.asarray(v, wide) for v in _exp_sinh_nodes())
    ratio = jnp.log1p(near / (1 - near) * -np.expm1(-u))  # log of (1 - near e^-u) / (1 - near)
    log_t = jnp.log(at) + jnp.where(left, -u, ratio)
    mean = jax.scipy.special.digamma(a) - jax.scipy.special.digamma(s)
    density = jnp.exp((other - 1) * ratio - power * u) * near
    integral = jnp.sum(weight * (mean - log_t) * density, axis=-1)
    return cast(jnp.where(left[..., 0], integral, -integral) / (1 - at[..., 0]), x.dtype)


__all__ = exported(__name__)
