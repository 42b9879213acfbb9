"""Level 2: what the device draws has the distribution that PyTorch documents, by scipy.

distribution  Kolmogorov–Smirnov (continuous) or chi-square (discrete) for several seeds
repeats       the same numbers after the same `torch.manual_seed`, others at the next call and for another seed
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats

CHECKS = ("distribution", "repeats")
DTYPES = ("float32", "float64", "bfloat16", "float16")
SEEDS = (0, 1, 2)
COUNT = 20_000
# Of a hundred draws with the right distribution, seeds and all fixed, the least likely is about this likely.
LEAST = 1e-4


@dataclass(frozen=True)
class Draw:
    """A way to draw ``n`` numbers, and scipy's distribution of them."""

    make: Callable[[int, torch.dtype], torch.Tensor]
    law: Any
    dtypes: tuple[str, ...] = DTYPES
    discrete: bool = False


def _ones(n: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(n, dtype=dtype, device="jax")


def _full(value: float) -> Callable[[int, torch.dtype], torch.Tensor]:
    return lambda n, dtype: torch.full((n,), value, dtype=dtype, device="jax")


def _discrete(make: Callable[[int, torch.dtype], torch.Tensor], law: Any, dtypes: Any = ("float32", "float64")) -> Draw:
    return Draw(make, law, dtypes, discrete=True)


F = torch.nn.functional
WIDE = ("float32", "float64")
WEIGHTS = [1.0, 2.0, 3.0, 4.0]


def _weights(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(WEIGHTS, dtype=dtype, device="jax")


_CATEGORIES = stats.rv_discrete(values=(range(4), [w / sum(WEIGHTS) for w in WEIGHTS]))
_HALF = stats.rv_discrete(values=([0, 2], [0.5, 0.5]))  # what dropout with p = 0.5 makes of ones

DRAWS: dict[str, Draw] = {
    "rand": Draw(lambda n, t: torch.rand(n, dtype=t, device="jax"), stats.uniform()),
    "rand_like": Draw(lambda n, t: torch.rand_like(_ones(n, t)), stats.uniform()),
    "randn": Draw(lambda n, t: torch.randn(n, dtype=t, device="jax"), stats.norm()),
    "randn_like": Draw(lambda n, t: torch.randn_like(_ones(n, t)), stats.norm()),
    "uniform_": Draw(lambda n, t: _ones(n, t).uniform_(-2, 3), stats.uniform(-2, 5)),
    "normal_": Draw(lambda n, t: _ones(n, t).normal_(1, 3), stats.norm(1, 3)),
    "normal.Tensor_Tensor": Draw(lambda n, t: torch.normal(_ones(n, t), _full(2.0)(n, t)), stats.norm(1, 2)),
    "normal.Tensor_float": Draw(lambda n, t: torch.normal(_ones(n, t), 2.0), stats.norm(1, 2)),
    "normal.float_Tensor": Draw(lambda n, t: torch.normal(3.0, _full(2.0)(n, t)), stats.norm(3, 2)),
    "exponential_": Draw(lambda n, t: _ones(n, t).exponential_(2.0), stats.expon(scale=0.5)),
    "cauchy_": Draw(lambda n, t: _ones(n, t).cauchy_(1.0, 2.0), stats.cauchy(1, 2)),
    "log_normal_": Draw(lambda n, t: _ones(n, t).log_normal_(0.5, 0.25), stats.lognorm(0.25, scale=np.exp(0.5))),
    "rrelu": Draw(lambda n, t: F.rrelu(-_ones(n, t), 0.1, 0.4, training=True), stats.uniform(-0.4, 0.3)),
    "_standard_gamma": Draw(lambda n, t: torch._standard_gamma(_full(2.5)(n, t)), stats.gamma(2.5), WIDE),
    "_standard_gamma.small": Draw(lambda n, t: torch._standard_gamma(_full(0.3)(n, t)), stats.gamma(0.3), WIDE),
    "_sample_dirichlet": Draw(
        lambda n, t: torch._sample_dirichlet(_weights(t).expand(n, 4).contiguous())[:, 1], stats.beta(2, 8), WIDE
    ),
    "trunc_normal_": Draw(
        lambda n, t: torch.nn.init.trunc_normal_(_ones(n, t), 0.0, 1.0, -1.0, 2.0), stats.truncnorm(-1, 2), WIDE
    ),
    "bernoulli": _discrete(lambda n, t: torch.bernoulli(_full(0.3)(n, t)), stats.bernoulli(0.3)),
    "bernoulli_.float": _discrete(lambda n, t: _ones(n, t).bernoulli_(0.3), stats.bernoulli(0.3), DTYPES),
    "bernoulli_.Tensor": _discrete(lambda n, t: _ones(n, t).bernoulli_(_full(0.7)(n, t)), stats.bernoulli(0.7), DTYPES),
    "dropout": _discrete(lambda n, t: F.dropout(_ones(n, t), 0.5, True), _HALF, DTYPES),
    "native_dropout": _discrete(lambda n, t: torch.native_dropout(_ones(n, t), 0.5, True)[0], _HALF, DTYPES),
    "dropout1d": _discrete(lambda n, t: F.dropout1d(_ones(n, t).reshape(-1, 10, 1), 0.5, True).flatten(), _HALF),
    "poisson": _discrete(lambda n, t: torch.poisson(_full(3.5)(n, t)), stats.poisson(3.5)),
    "poisson.large": _discrete(lambda n, t: torch.poisson(_full(40.0)(n, t)), stats.poisson(40)),
    "binomial": _discrete(lambda n, t: torch.binomial(_full(9.0)(n, t), _full(0.3)(n, t)), stats.binom(9, 0.3)),
    "binomial.large": _discrete(lambda n, t: torch.binomial(_full(60.0)(n, t), _full(0.6)(n, t)), stats.binom(60, 0.6)),
    "geometric_": _discrete(lambda n, t: _ones(n, t).geometric_(0.3), stats.geom(0.3)),
    "multinomial": _discrete(lambda n, t: torch.multinomial(_weights(t), n, replacement=True), _CATEGORIES),
    "multinomial.without_replacement": _discrete(
        lambda n, t: torch.multinomial(_weights(t).expand(n, 4), 2)[:, 0], _CATEGORIES
    ),
    "randint": _discrete(
        lambda n, t: torch.randint(-3, 9, (n,), dtype=t, device="jax"), stats.randint(-3, 9), ("int64", "int32")
    ),
    "randint_like": _discrete(lambda n, t: torch.randint_like(_ones(n, t), 7), stats.randint(0, 7), ("int64", "float32")),
    "random_": _discrete(lambda n, t: _ones(n, t).random_(2, 9), stats.randint(2, 9), ("int64", "uint8", "float32")),
    "random_.bool": _discrete(lambda n, t: _ones(n, t).random_(), stats.randint(0, 2), ("bool",)),
    "randperm": _discrete(
        lambda n, t: torch.stack([torch.randperm(10, dtype=t, device="jax")[3] for _ in range(max(n // 20, 10))]),
        stats.randint(0, 10),
        ("int64",),
    ),
}  # fmt: skip


def check_distribution(draw: Draw, dtype: torch.dtype) -> None:
    """Raise an AssertionError where some seed gives numbers that the distribution hardly would."""
    for seed in SEEDS:
        torch.manual_seed(seed)
        values = draw.make(COUNT, dtype).cpu().to(torch.float64).numpy()
        chance = _chi_square(values, draw.law) if draw.discrete else stats.kstest(values, draw.law.cdf).pvalue
        assert chance > LEAST, f"seed {seed}: p = {chance:.2g}, mean {values.mean():.4g}, std {values.std():.4g}"


def _chi_square(values: np.ndarray, law: Any) -> float:
    """The p-value of counts against expected ones; values expected less than ten times count together."""
    found, counts = np.unique(values, return_counts=True)
    support = np.union1d(found, np.arange(law.ppf(1e-12), law.ppf(1 - 1e-12) + 1))
    observed = np.zeros(len(support))
    observed[np.searchsorted(support, found)] = counts
    expected = law.pmf(support) * len(values)
    often = expected >= 10
    assert not observed[expected == 0].any(), f"impossible values {support[(expected == 0) & (observed > 0)]}"
    observed = np.append(observed[often], observed[~often].sum())
    expected = np.append(expected[often], max(len(values) - expected[often].sum(), 0))
    kept = expected > 1e-6
    return stats.chisquare(observed[kept], expected[kept] * observed[kept].sum() / expected[kept].sum()).pvalue


def check_repeats(draw: Draw, dtype: torch.dtype) -> None:
    """Raise an AssertionError where draws do not follow the seed, or do not differ."""
    torch.manual_seed(5)
    first, second = draw.make(200, dtype).cpu(), draw.make(200, dtype).cpu()
    torch.manual_seed(5)
    again = draw.make(200, dtype).cpu()
    torch.manual_seed(6)
    other = draw.make(200, dtype).cpu()
    assert torch.equal(first, again), "differs after the same torch.manual_seed"
    assert not torch.equal(first, second), "two calls draw the same numbers"
    assert not torch.equal(first, other), "two seeds draw the same numbers"
