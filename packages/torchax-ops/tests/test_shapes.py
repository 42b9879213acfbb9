"""Dimensions and shapes, with PyTorch's errors."""

import pytest

from torchax_ops._shapes import broadcast_shapes, canonical_dim, canonical_dims, infer_size


@pytest.mark.parametrize(
    ("dim", "ndim", "expected"), [(0, 3, 0), (-1, 3, 2), (2, 3, 2), (-3, 3, 0), (0, 0, 0), (-1, 0, 0)]
)
def test_canonical_dim(dim, ndim, expected):
    assert canonical_dim(dim, ndim) == expected


@pytest.mark.parametrize(("dim", "ndim", "low", "high"), [(3, 3, -3, 2), (-4, 3, -3, 2), (1, 0, -1, 0), (-2, 0, -1, 0)])
def test_canonical_dim_out_of_range(dim, ndim, low, high):
    text = rf"Dimension out of range \(expected to be in range of \[{low}, {high}\], but got {dim}\)"
    with pytest.raises(IndexError, match=text):
        canonical_dim(dim, ndim)


@pytest.mark.parametrize(
    ("dims", "ndim", "expected"),
    [
        (None, 3, (0, 1, 2)),
        ((), 3, (0, 1, 2)),
        (1, 3, (1,)),
        ((-1, 0), 3, (0, 2)),
        ([2, 1], 3, (1, 2)),
        (None, 0, ()),
        (0, 0, ()),
        ((-1,), 0, ()),
    ],
)
def test_canonical_dims(dims, ndim, expected):
    assert canonical_dims(dims, ndim) == expected


def test_canonical_dims_of_an_empty_list():
    assert canonical_dims((), 3, empty_is_all=False) == ()
    assert canonical_dims(None, 2, empty_is_all=False) == (0, 1)


def test_canonical_dims_refuses():
    with pytest.raises(RuntimeError, match="dim 1 appears multiple times in the list of dims"):
        canonical_dims((1, -1), 2)
    with pytest.raises(RuntimeError, match="dim 0 appears multiple times"):
        canonical_dims((0, -1), 0)
    with pytest.raises(IndexError, match="but got 2"):
        canonical_dims((0, 2), 2)


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(2, 3), (3,)], (2, 3)),
        ([(2, 1), (1, 3), ()], (2, 3)),
        ([(0,), (1,)], (0,)),
        ([(1, 0), (5, 1)], (5, 0)),
        ([], ()),
        ([(4,)], (4,)),
        ([(3,), (2, 1, 3)], (2, 1, 3)),
    ],
)
def test_broadcast_shapes(shapes, expected):
    assert broadcast_shapes(*shapes) == expected


@pytest.mark.parametrize(
    ("a", "b", "dim"), [((2, 3), (2, 4), 1), ((2,), (3, 3), 1), ((0,), (2,), 0), ((5, 2, 1), (3, 1), 1)]
)
def test_broadcast_shapes_refuses(a, b, dim):
    with pytest.raises(RuntimeError, match=rf"The size of tensor a .* at non-singleton dimension {dim}"):
        broadcast_shapes(a, b)


@pytest.mark.parametrize(
    ("shape", "numel", "expected"),
    [
        ((2, 3), 6, (2, 3)),
        ((-1,), 6, (6,)),
        ((2, -1), 6, (2, 3)),
        ((-1, 3), 0, (0, 3)),
        ((), 1, ()),
        ((0, 4), 0, (0, 4)),
        ((-1,), 1, (1,)),
    ],
)
def test_infer_size(shape, numel, expected):
    assert infer_size(shape, numel) == expected


@pytest.mark.parametrize(
    ("shape", "numel", "message"),
    [
        ((2, 4), 6, r"shape '\[2, 4\]' is invalid for input of size 6"),
        ((-1, 4), 6, r"shape '\[-1, 4\]' is invalid for input of size 6"),
        ((-1, -1), 6, "only one dimension can be inferred"),
        ((-2, 3), 6, "invalid shape dimension -2"),
        ((-1, 0), 0, "cannot reshape tensor of 0 elements into shape"),
        ((-1, 0), 3, r"shape '\[-1, 0\]' is invalid for input of size 3"),
        ((), 0, r"shape '\[\]' is invalid for input of size 0"),
    ],
)
def test_infer_size_refuses(shape, numel, message):
    with pytest.raises(RuntimeError, match=message):
        infer_size(shape, numel)
