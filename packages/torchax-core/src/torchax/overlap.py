"""Operands that share memory: writes that PyTorch refuses, since what they give would depend on the order of elements.

Here every operator reads all before it writes. The refusals are kept, so that a program means the same on each device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torchax.tensor import Tensor, view_of

_PARTLY, _AT_ALL = 1, 2

# Beside the elementwise operators, those that ask PyTorch's ``assert_no_overlap``: they may not even read what they write.
_MAY_NOT_READ = {
    "cat", "cummax", "cummin", "gather", "index_add", "index_copy", "index_put", "_index_put_impl", "index_reduce",
    "index_select", "put", "scatter", "scatter_add", "scatter_reduce", "take",
}  # fmt: skip
_COPIES = {"copy", "cumprod", "cumsum", "masked_fill", "max", "min", "_foreach_copy", "sort"}


def rule_of(func: Any) -> int:
    """Which overlaps of an operator's written tensors with others PyTorch refuses: 0 none, 1 partial ones, 2 any."""
    name = func.overloadpacket.__name__.removesuffix("_")
    if name in _MAY_NOT_READ:
        return _AT_ALL
    elementwise = torch.Tag.pointwise in func.tags or name.startswith("_foreach_")
    return _PARTLY if elementwise or name in _COPIES else 0


def check_written(t: Tensor, func: Any) -> None:
    """Whether each element of a tensor has a place of its own.

    Raises:
        RuntimeError: several share one (an expanded tensor).
    """
    if t._noncontiguous and any(s == 0 and n > 1 for n, s in zip(t.shape, t.stride(), strict=True)):
        raise RuntimeError(
            f"unsupported operation: more than one element of the written-to tensor refers to a single memory "
            f"location. Please clone() the tensor before performing the operation. ({func} on shape {list(t.shape)}, "
            f"strides {list(t.stride())})"
        )


def check_read(func: Any, rule: int, targets: Sequence[Tensor], args: Iterable[Any]) -> None:
    """Whether an operator may write ``targets`` while it reads the tensors among ``args``; of lists, each its own target.

    Raises:
        RuntimeError: by ``rule``, it may not.
    """
    if not rule:
        return
    for a in args:
        if type(a) is Tensor:
            for t in targets:
                if a is not t and a._box is t._box:
                    _check_pair(func, rule, t, a)
        elif type(a) is list and len(a) == len(targets):
            for t, x in zip(targets, a, strict=True):
                if x is not t and type(x) is Tensor and x._box is t._box:
                    _check_pair(func, rule, t, x)


def _check_pair(func: Any, rule: int, t: Tensor, a: Tensor) -> None:
    (at, t_first, *_), (of, a_first, *_) = view_of(t), view_of(a)
    if not (t.numel() and a.numel() and is_dense(at.shape, at.strides) and is_dense(of.shape, of.strides)):
        return  # PyTorch does not look further either
    size, other = t.element_size(), a.element_size()
    begin, end = t_first * size, (t_first + t.numel()) * size
    first, last = a_first * other, (a_first + a.numel()) * other
    same = (begin, end, at.strides) == (first, last, of.strides)
    if first < end and begin < last and (rule == _AT_ALL or not same):
        raise RuntimeError(
            "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory "
            f"location. Please clone() the tensor before performing the operation. ({func} writes {list(t.shape)} at "
            f"offset {t_first} and reads {list(a.shape)} at offset {a_first} of one storage)"
        )


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements of these strides fill a run of memory, each its own place."""
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True
