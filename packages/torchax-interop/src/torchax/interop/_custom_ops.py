"""JAX functions as PyTorch operators: with autograd, a shape rule and vmap."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Union, get_args, get_origin

import jax
import torch

from torchax import dispatch
from torchax.derivatives import vjp
from torchax.dtypes import JAX_DTYPE_TO_TORCH, NARROWED, TORCH_DTYPE_TO_JAX
from torchax.interop import _sizes
from torchax.interop._calls import _Call, _fill, _for_user, _take, call_jax
from torchax.interop._tree import is_array, is_tensor
from torchax.interop._x64 import user_x64
from torchax.tensor import Tensor
from torchax_ops import Op

_libraries: dict[str, torch.library.Library] = {}

F = TypeVar("F", bound=Callable[..., Any])


def jax_op(name: str, *, schema: str | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Make the decorated JAX function a PyTorch operator.

    The operator runs on ``jax`` tensors, compiled; has a gradient of any order (``jax.vjp``'s, so a ``jax.custom_vjp``'s
    own), a shape rule for fake tensors (``jax.eval_shape``'s, symbolic sizes included) and a ``vmap`` rule. So
    ``torch.compile``, ``torch.export``, ``make_fx`` and ``torch.func`` keep it as one node. The function may hold anything
    that JAX runs: a Pallas kernel, a ``jax.ffi.ffi_call``.

    Args:
        name: ``"namespace::name"``; the operator is also ``torch.ops.namespace.name``.
        schema: PyTorch's schema without the name, ``"(Tensor x, float eps=1e-6) -> Tensor"``. By default it follows from
            the annotations, where ``jax.Array`` and no annotation mean a tensor.

    Returns:
        A decorator that returns a function which calls the operator (under ``torch.func``'s transforms, `call_jax`). Tensors
        may be ``Tensor``, ``Tensor?`` or ``Tensor[]``; other arguments reach the JAX function as Python values, and another
        value compiles anew.

    Raises:
        ValueError: ``name`` has no namespace, or the function takes ``*args`` or ``**kwargs``.
    """
    if "::" not in name:
        raise ValueError(f"jax_op: the name {name!r} has no namespace; write 'mylib::{name}'")

    def decorate(fn: Callable[..., Any]) -> Any:
        parameters = inspect.signature(fn, eval_str=True).parameters.values()
        for p in parameters:
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                raise ValueError(f"jax_op: {name} cannot take {p}: a PyTorch operator has a fixed list of arguments")
        keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        n = len(parameters) - len(keywords)

        @functools.wraps(fn)
        def positional(*values: Any) -> Any:
            return fn(*values[:n], **dict(zip(keywords, values[n:])))

        operator = _Operator(name, positional, schema or _schema_of(fn))

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch._C._are_functorch_transforms_active():  # which torch.library's gradients do not support
                return call_jax(positional, *operator.values(args, kwargs))
            return operator.overload(*args, **kwargs)

        return call

    return decorate


def _as_torch(annotation: Any) -> Any:
    """A JAX function's annotation as PyTorch's schemas know it."""
    if annotation in (inspect.Parameter.empty, Any, jax.Array, jax.typing.ArrayLike):
        return torch.Tensor
    origin = get_origin(annotation)
    if origin is None:
        return annotation
    if origin is tuple and get_args(annotation)[1:] == (...,):
        origin, annotation = list, list[get_args(annotation)[0]]  # type: ignore[misc]
    inner = tuple(_as_torch(a) for a in get_args(annotation))
    return Union[inner] if origin in (Union, types.UnionType) else origin[inner]  # noqa: UP007


def _schema_of(fn: Callable[..., Any]) -> str:
    signature = inspect.signature(fn, eval_str=True)

    def prototype() -> None: ...

    prototype.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[
            p.replace(kind=p.POSITIONAL_OR_KEYWORD, annotation=_as_torch(p.annotation))
            for p in signature.parameters.values()
        ],
        return_annotation=_as_torch(signature.return_annotation),
    )
    return torch.library.infer_schema(prototype, mutates_args=())


def _frozen(x: Any) -> Any:
    return tuple(map(_frozen, x)) if isinstance(x, (list, tuple)) else x


def _tensors(values: Any) -> list[Any]:
    return _take(values, is_tensor)[0]


class _Operator:
    """A JAX function of positional values as an operator; its gradient and its batched form are such operators too."""

    def __init__(self, name: str, fn: Callable[..., Any], schema: str) -> None:
        self.name, self.fn = name, fn
        namespace, _, short = name.partition("::")
        if namespace not in _libraries:
            _libraries[namespace] = torch.library.Library(namespace, "FRAGMENT")
        library = _libraries[namespace]
        library.define(short + schema, tags=(torch.Tag.pt2_compliant_tag,))
        self.overload = getattr(getattr(torch.ops, namespace), short).default
        self.arguments = self.overload._schema.arguments
        torch.library.register_fake(name, self.fake, lib=library)
        torch.library.register_autograd(name, self.pullback, setup_context=self.remember, lib=library)
        torch.library.register_vmap(name, self.vmapped, lib=library)
        dispatch.overrides[self.overload] = _Plan(self)
        dispatch.forget_plans()

    def values(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The operator's arguments, all of them, in the schema's order."""
        rest = (kwargs.get(a.name, a.default_value) for a in self.arguments[len(args) :])
        return _frozen((*args, *rest))

    # --- running ------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def compiled(self) -> Callable[..., Any]:
        def run(slots: Any, *arrays: jax.Array) -> Any:
            return self.fn(*_fill(slots, arrays))

        run.__name__ = self.name.replace("::", "_")
        return jax.jit(run, static_argnums=0)

    def on_arrays(self, *values: Any) -> Any:
        """The function as it stands in a program of torchax's: under the user's x64 setting."""
        arrays, slots = _take(values, is_array)
        with jax.enable_x64(user_x64()):
            narrow = {} if user_x64() else NARROWED
            held = [jax.lax.convert_element_type(x, narrow.get(x.dtype, x.dtype)) for x in arrays]
            return self.fn(*_fill(slots, held))

    def fake(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes, dtypes and device of the results."""
        tensors, slots = _take(self.values(args, kwargs), is_tensor)
        narrow = {} if user_x64() else NARROWED
        with jax.enable_x64(user_x64()), _sizes.symbolic(tensors) as (shapes, as_torch):
            dtypes = [TORCH_DTYPE_TO_JAX[t.dtype] for t in tensors]
            avals = [jax.ShapeDtypeStruct(s, narrow.get(d, d)) for s, d in zip(shapes, dtypes)]
            out = jax.eval_shape(functools.partial(self.compiled, slots), *avals)

            def empty(x: Any) -> torch.Tensor:
                shape = [as_torch(n) for n in x.shape]
                return torch.empty(shape, dtype=JAX_DTYPE_TO_TORCH[x.dtype], device=tensors[0].device)

            return jax.tree.map(empty, out)

    # --- autograd -----------------------------------------------------------------------------------------------------

    def remember(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors, ctx.slots = _take(self.values(inputs, {}), is_tensor)
        ctx.save_for_backward(*tensors)

    def pullback(self, ctx: Any, *grads: Any) -> Any:
        values = _fill(ctx.slots, ctx.saved_tensors)
        found = iter(self.gradient.overload(_tensors_or_none(grads), *values))

        def of(value: Any) -> Any:
            if isinstance(value, tuple):
                return [of(v) for v in value] if _tensors(value) else None
            inexact = is_tensor(value) and (value.is_floating_point() or value.is_complex())
            return next(found) if inexact else None

        # PyTorch left out the arguments that are their defaults, and wants no gradient for them.
        return tuple(map(of, values))[: len(ctx.needs_input_grad)]

    @functools.cached_property
    def gradient(self) -> _Operator:
        """``(gradients of the results, *arguments) -> gradients of the arguments that have one``.

        It computes the function again rather than keep what it computed: one operator then serves any graph.
        """

        def fn(grads: Any, *values: Any) -> list[jax.Array]:
            arrays, slots = _take((values, {}), is_array)
            _, pull = vjp(_Call(self.fn, slots, True), arrays)
            return [g for g in pull(grads) if g is not None]

        return self.derived("backward", fn, f"(Tensor?[] grads, {self.inputs}) -> Tensor[]")

    # --- vmap ---------------------------------------------------------------------------------------------------------

    def vmapped(self, info: Any, in_dims: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
        values = self.values(args, kwargs)
        dims = [*in_dims, *(None for _ in values[len(in_dims) :])]
        flat = [-1 if d is None else d for v, d in zip(values, dims) for d in _dims_of(v, d)]
        out = self.batched.overload(flat, info.batch_size, *values)
        return out, torch.utils._pytree.tree_map(lambda _: 0, out)

    @functools.cached_property
    def batched(self) -> _Operator:
        """``(batch dimension of each tensor or -1, batch size, *arguments)``; results are batched in dimension 0."""

        def fn(in_dims: Any, batch_size: int, *values: Any) -> Any:
            arrays, slots = _take(values, is_array)
            axes = tuple(None if d < 0 else d for d in in_dims)

            def over(*xs: jax.Array) -> Any:
                return self.fn(*_fill(slots, xs))

            return jax.vmap(over, in_axes=axes, axis_size=batch_size)(*arrays)

        results = str(self.overload._schema).rpartition(" -> ")[2]
        return self.derived("batched", fn, f"(int[] in_dims, int batch_size, {self.inputs}) -> {results}")

    @property
    def inputs(self) -> str:
        text = str(self.overload._schema)
        return text[text.index("(") + 1 : text.rindex(") ->")]

    def derived(self, what: str, fn: Callable[..., Any], schema: str) -> _Operator:
        fn.__name__ = f"{self.name}_{what}"
        return _Operator(f"{self.name}_{what}", fn, schema)


def _tensors_or_none(grads: Any) -> list[Any]:
    return [g for part in grads for g in (part if isinstance(part, (list, tuple)) else [part])]


def _dims_of(value: Any, dim: Any) -> list[Any]:
    """The batch dimension of each tensor in an argument."""
    if isinstance(value, tuple):
        dims = dim if isinstance(dim, (list, tuple)) else [dim] * len(value)
        return [d for v, d in zip(value, dims) if is_tensor(v)]
    return [dim] if is_tensor(value) else []


class _Plan:
    """How an `_Operator` runs on ``jax`` tensors; ``op`` is its function for programs that run on arrays (`torchax.export`)."""

    def __init__(self, operator: _Operator) -> None:
        self.operator = operator
        static = frozenset(a.name for a in operator.arguments)
        self.op = Op(operator.name, operator.on_arrays, static, frozenset(), None, False, None)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors, slots = _take(self.operator.values(args, kwargs), is_tensor)
        with jax.enable_x64(user_x64()):
            out = self.operator.compiled(slots, *map(_for_user, tensors))
        return jax.tree.map(Tensor, out)
