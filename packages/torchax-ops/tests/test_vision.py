"""torchvision's operators against loops over boxes, bins and taps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torchax_ops import vision as V
from torchax_ops._registry import lookup

R = np.random.default_rng(0)


def array(*shape):
    return R.standard_normal(shape).astype(np.float32)


def jit(f, *args):
    """One compilation for all of ``f``."""
    return jax.jit(f)(*args)


def overlap(a, b):
    shared = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0).prod()
    return shared / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - shared)


@pytest.mark.parametrize("threshold", [0.2, 0.6])
def test_nms(threshold):
    corner = R.random((30, 2)).astype(np.float32) * 8
    boxes = np.concatenate([corner, corner + 1 + 4 * R.random((30, 2)).astype(np.float32)], 1)
    scores = np.round(R.random(30).astype(np.float32) * 10)
    kept = []
    for i in np.argsort(-scores, kind="stable"):
        if all(overlap(boxes[i], boxes[j]) <= threshold for j in kept):
            kept.append(i)
    np.testing.assert_array_equal(V.nms(jnp.asarray(boxes), jnp.asarray(scores), threshold), kept)
    traced = jit(lambda b, s: V.nms(b, s, threshold, size=30), boxes, scores)
    np.testing.assert_array_equal(traced, kept + [-1] * (30 - len(kept)))
    assert V.nms(jnp.zeros((0, 4)), jnp.zeros(0), threshold).shape == (0,)


X = array(2, 8, 6, 7)
ROIS = np.float32([[0, 1, 1, 5, 4], [1, 0, 0, 6, 5], [0, -2, 1, 9, 12], [1, 3.2, 2.3, 3.4, 2.5]])


def bilinear(image, y, x):
    height, width = image.shape[-2:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return np.zeros(image.shape[:-2])
    y, x = (min(max(a, 0), n - 1) for a, n in ((y, height), (x, width)))
    low = int(y), int(x)
    high = min(low[0] + 1, height - 1), min(low[1] + 1, width - 1)
    dy, dx = y - low[0], x - low[1]
    top = image[..., low[0], low[1]] * (1 - dx) + image[..., low[0], high[1]] * dx
    return top * (1 - dy) + (image[..., high[0], low[1]] * (1 - dx) + image[..., high[0], high[1]] * dx) * dy


def align_by_samples(scale, bins, ratio, aligned):
    out = np.zeros((len(ROIS), 8, *bins))
    for k, (n, *box) in enumerate(ROIS):
        x1, y1, x2, y2 = np.array(box) * scale - (0.5 if aligned else 0)
        h, w = (y2 - y1, x2 - x1) if aligned else (max(y2 - y1, 1), max(x2 - x1, 1))
        count = [ratio or int(np.ceil(a / b)) for a, b in zip((h, w), bins)]
        for i, j in np.ndindex(*bins):
            samples = [
                bilinear(X[int(n)], y1 + (i + (a + 0.5) / count[0]) * h / bins[0], x1 + (j + (b + 0.5) / count[1]) * w / bins[1])
                for a, b in np.ndindex(*count)
            ]  # fmt: skip
            out[k, :, i, j] = np.mean(samples, 0)
    return out


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("ratio", [2, 0])
def test_roi_align(ratio, aligned):
    align = lambda x: V.roi_align(x, ROIS, 0.75, 2, 3, ratio, aligned)  # noqa: E731
    out = jit(align, X)
    np.testing.assert_allclose(out, align_by_samples(0.75, (2, 3), ratio, aligned), rtol=1e-4, atol=1e-5)
    grad = array(*out.shape)
    back = jit(lambda g: V._roi_align_backward(g, ROIS, 0.75, 2, 3, 2, 8, 6, 7, ratio, aligned), grad)
    np.testing.assert_allclose((back * X).sum(), (grad * out).sum(), rtol=1e-3)


def test_ps_roi_align():
    out, mapping = jit(lambda x: V.ps_roi_align(x, ROIS, 1.0, 2, 2, 2), X)
    want = align_by_samples(1.0, (2, 2), 2, True).reshape(4, 2, 2, 2, 2, 2)
    np.testing.assert_allclose(out, np.einsum("kcijij->kcij", want), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(mapping[0], np.arange(8).reshape(2, 2, 2))
    back = jit(lambda g: V._ps_roi_align_backward(g, ROIS, mapping, 1.0, 2, 2, 2, 2, 8, 6, 7), np.ones_like(out))
    np.testing.assert_allclose((back * X).sum(), out.sum(), rtol=1e-3)


def bins_of(box, bins, inclusive, clip):
    x1, y1, x2, y2 = (int(np.floor(abs(v) + 0.5) * np.sign(v)) for v in box)
    for i, j in np.ndindex(*bins):
        edges = []
        for at, start, end, count, size in ((i, y1, y2, bins[0], clip[0]), (j, x1, x2, bins[1], clip[1])):
            step = max(end - start + inclusive, 1) / count
            low, high = int(np.floor(at * step)) + start, int(np.ceil((at + 1) * step)) + start
            edges.append((min(max(low, 0), size), min(max(high, 0), size)))
        yield i, j, edges


def test_roi_pool():
    out, index = jit(lambda x: V.roi_pool(x, ROIS, 1.0, 2, 3), X)
    for k, (n, *box) in enumerate(ROIS):
        for i, j, ((a, b), (c, d)) in bins_of(box, (2, 3), 1, (6, 7)):
            part = X[int(n), :, a:b, c:d].reshape(8, -1)
            np.testing.assert_array_equal(out[k, :, i, j], part.max(1) if part.size else 0)
            if not part.size:
                assert (index[k, :, i, j] == -1).all()
    grad = array(*out.shape)
    back = jit(lambda g: V._roi_pool_backward(g, ROIS, index, 1.0, 2, 3, 2, 8, 6, 7), grad)
    np.testing.assert_allclose((back * X).sum(), (grad * out).sum(), rtol=1e-3)


def test_ps_roi_pool():
    out, mapping = jit(lambda x: V.ps_roi_pool(x, ROIS, 1.0, 2, 2), X)
    for k, (n, *box) in enumerate(ROIS):
        for i, j, ((a, b), (c, d)) in bins_of(box, (2, 2), 0, (5, 6)):
            part = X[int(n)].reshape(2, 2, 2, 6, 7)[:, i, j, a:b, c:d].reshape(2, -1)
            np.testing.assert_allclose(out[k, :, i, j], part.mean(1) if part.size else 0, rtol=1e-4, atol=1e-6)
    back = jit(lambda g: V._ps_roi_pool_backward(g, ROIS, mapping, 1.0, 2, 2, 2, 8, 6, 7), np.ones_like(out))
    assert back.shape == X.shape


@pytest.mark.parametrize(("groups", "offset_groups", "use_mask"), [(1, 1, True), (2, 2, False)])
def test_deform_conv2d(groups, offset_groups, use_mask):
    x, w, bias = X[:, :4], array(6, 4 // groups, 3, 2), array(6)
    outs = (3, 8)  # stride 2 and 1, padding 1, dilation 1
    offset = 2 * array(2, offset_groups * 12, *outs)
    mask = R.random((2, offset_groups * 6, *outs)).astype(np.float32)
    rest = (2, 1, 1, 1, 1, 1, groups, offset_groups, use_mask)
    out = jit(lambda *a: V.deform_conv2d(*a, *rest), x, w, offset, mask, bias)
    want = np.zeros((2, 6, *outs)) + bias[:, None, None]
    moves = offset.reshape(2, offset_groups, 6, 2, *outs)
    for n, c, i, j in np.ndindex(2, 4, *outs):
        group = c // (4 // offset_groups)
        padded = np.pad(x[n, c], 2)
        for t, (a, b) in enumerate(np.ndindex(3, 2)):
            y, z = i * 2 - 1 + a + moves[n, group, t, 0, i, j], j - 1 + b + moves[n, group, t, 1, i, j]
            if not (-1 < y < 6 and -1 < z < 7):
                continue
            value = bilinear(padded, y + 2, z + 2)
            value = value * (mask[n, group * 6 + t, i, j] if use_mask else 1)
            first = c // (4 // groups) * (6 // groups)
            want[n, first : first + 6 // groups, i, j] += (
                w[first : first + 6 // groups, c % (4 // groups), a, b] * value
            )
    np.testing.assert_allclose(out, want, rtol=1e-3, atol=1e-4)
    grads = jit(lambda g, *a: V._deform_conv2d_backward(g, *a, *rest), array(*out.shape), x, w, offset, mask, bias)
    assert [g.shape for g in grads] == [a.shape for a in (x, w, offset, mask, bias)]
    assert bool(np.asarray(grads[3]).any()) == use_mask


def test_no_regions_and_dtypes():
    none = np.zeros((0, 5), np.float32)
    assert V.roi_align(X, none, 1.0, 2, 3, 0, True).shape == (0, 8, 2, 3)
    out, index = V.roi_pool(X, none, 1.0, 2, 3)
    assert (out.shape, index.dtype) == ((0, 8, 2, 3), np.int32)
    half = jax.eval_shape(
        lambda x, r: V.roi_align(x, r, 1.0, 2, 3, 2, True), X.astype("float16"), ROIS.astype("float16")
    )
    assert half.dtype == np.float16
    with jax.enable_x64(True):
        assert jax.eval_shape(lambda x, r: V.roi_align(x, r, 1.0, 2, 3, 0, True), X, ROIS).dtype == np.float32
        assert V.nms(jnp.asarray(ROIS[:, 1:]), jnp.zeros(4), 0.5).dtype == np.int64
    assert lookup("torchvision::nms").eager


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: V.nms(ROIS, ROIS[:, 0], 0.5), "4 elements in dimension 1"),
        (lambda: V.nms(ROIS[:, 1:], ROIS[:2, 0], 0.5), "as many elements as there are boxes"),
        (lambda: jax.jit(lambda b: V.nms(b, b[:, 0], 0.5))(ROIS[:, 1:]), "give size="),
        (lambda: V.roi_align(X, ROIS[:, 1:], 1.0, 2, 2, 2, True), "Tensor\\[K, 5\\]"),
        (lambda: V.roi_pool(X, ROIS.astype("float16"), 1.0, 2, 2), "same dtype"),
        (lambda: V.ps_roi_pool(X, ROIS, 1.0, 3, 2), "must be a multiple"),
    ],
)
def test_errors(call, message):
    with pytest.raises(RuntimeError, match=message):
        call()
