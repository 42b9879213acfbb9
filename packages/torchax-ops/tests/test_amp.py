"""The two operators of a gradient scaler."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops import amp


def f32(x):
    return jnp.asarray(x, "float32")


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, None])
@pytest.mark.parametrize("before", [0.0, 1.0])
def test_unscale(bad, before):
    grads = [jnp.ones((2, 2), "bfloat16"), f32([4.0, 2.0 if bad is None else bad]), f32(np.zeros(0))]
    out, found = jax.jit(amp._amp_foreach_non_finite_check_and_unscale)(grads, f32([before]), f32(0.5))
    assert [x.dtype.name for x in out] == ["bfloat16", "float32", "float32"]
    np.testing.assert_array_equal(np.asarray(out[0], "float32"), np.full((2, 2), 0.5))
    np.testing.assert_array_equal(out[1], [2, 1 if bad is None else bad])
    assert found.shape == (1,)
    assert found[0] == (before if bad is None else 1)


@pytest.mark.parametrize(
    ("scale", "tracker", "found", "want"),
    [
        (4.0, 0, 0.0, (4.0, 1)),
        (4.0, 1, 0.0, (8.0, 0)),
        (4.0, 1, 1.0, (2.0, 0)),
        (3e38, 1, 0.0, (3e38, 0)),
    ],
)
@pytest.mark.parametrize("shape", [(), (1,)])
def test_update_scale(scale, tracker, found, want, shape):
    args = (f32(scale).reshape(shape), jnp.asarray(tracker, "int32").reshape(shape), f32([found]))
    for fn in (amp._amp_update_scale, jax.jit(amp._amp_update_scale)):
        new, count = fn(*args, 2.0, 0.5, 2)
        assert (new.dtype.name, count.dtype.name) == ("float32", "int32")
        assert new.shape == count.shape == shape
        assert (new, count) == (np.float32(want[0]), want[1])


def test_no_gradients():
    assert amp._amp_foreach_non_finite_check_and_unscale([], f32([1.0]), f32(0.5))[0] == []


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (RuntimeError, lambda: amp._amp_foreach_non_finite_check_and_unscale([], f32([1.0, 2.0]), f32(0.5))),
        (RuntimeError, lambda: amp._amp_foreach_non_finite_check_and_unscale([], f32(1.0), jnp.float16(0.5))),
        (NotImplementedError, lambda: amp._amp_foreach_non_finite_check_and_unscale([jnp.arange(2)], f32(1), f32(1))),
        (RuntimeError, lambda: amp._amp_update_scale(f32(1.0), f32(1.0), f32(0.0), 2.0, 0.5, 2)),
        (RuntimeError, lambda: amp._amp_update_scale(f32([1, 2]), jnp.int32(1), f32(0.0), 2.0, 0.5, 2)),
    ],
)
def test_errors(error, call):
    with pytest.raises(error):
        call()
