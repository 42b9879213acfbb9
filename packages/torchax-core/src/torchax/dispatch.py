"""Plans: how each PyTorch operator runs on ``jax`` tensors.

A plan is built once per ``OpOverload`` from its schema. It encodes a call into a hashable *key* (views, static values,
which arguments are arrays) and a flat list of arrays and numbers; finds the ``jax.jit``-compiled function for that key;
calls it once; and wraps the result. In-place and ``out=`` variants are derived from the functional operator.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
import torch

import torchax_ops
from torchax import devices, overlap, random, schema, tensor, transfer, view_ops
from torchax.dtypes import JAX_DTYPE_TO_TORCH, NARROWED, TORCH_DTYPE_TO_JAX, t2j_dtype
from torchax.errors import OperatorNotFound, escaped, made_at, reused
from torchax.schema import GENERATOR, NUMBERS, SKIPPED, STATIC, TENSOR, TENSORS, TRACED
from torchax.tensor import Tensor, plans, stored_dtype, view_of, view_on, wide_for, wrap
from torchax.views import ROOT, Chain
from torchax_ops import Op

Plan = Callable[[tuple[Any, ...], dict[str, Any]], Any]

handlers: dict[Any, Plan] = {}  # torchax.stateful's: operators that no function of arrays can be
overrides: dict[Any, Plan] = {}  # the user's
fallback: list[Callable[[Any], Plan | None]] = []  # torchax.debug's CPU fallback, asked last
watcher: list[Callable[[Any, Plan], Plan]] = []  # torchax.debug's, around each plan while a switch is on
used = False  # whether this process has run an operator on a ``jax`` tensor
narrow_storage = False  # performance mode: 64-bit values are stored in 32 bits


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on ``jax`` tensors, as if PyTorch had dispatched it here."""
    plan = plans.get(func) or build_plan(func)
    return plan(args, kwargs)


def build_plan(func: Any) -> Plan:
    """Build an operator's plan and keep it.

    Raises:
        RuntimeError: in a forked process, where JAX would hang.
    """
    devices.refuse_in_fork()
    plan = build(func)
    for watch in watcher:
        plan = watch(func, plan)
    plans[func] = plan
    return plan


tensor.build_plan = build_plan


def forget_plans() -> None:
    """Build plans anew when next needed: after a registration or a change of configuration."""
    plans.clear()


devices.after_fork.append(forget_plans)


def build(func: Any) -> Plan:
    """The plan of an operator: an override, a handler, a view, a writing variant, a registered function, PyTorch's own
    decomposition, the CPU fallback if the user opted in.

    Raises:
        OperatorNotFound: there is none of these.
    """
    global used
    used = True
    if func in overrides:
        return overrides[func]
    if func in handlers:
        return handlers[func]
    if view_ops.is_view_op(func):
        return functools.partial(_view, func)
    for find in (_registered, _writing, _decomposed, *fallback):
        plan = find(func)
        if plan is not None:
            return plan
    for layout in ("sparse", "quantize", "nested", "mkldnn"):
        if layout in func._schema.name:
            raise OperatorNotFound(
                f"{schema.schema_name(func)}: device 'jax' holds dense (strided) tensors, not {layout} ones. Convert on CPU "
                "first (.to_dense(), .dequantize(), torch.nested.to_padded_tensor) and move the result."
            )
    raise OperatorNotFound(
        f"{schema.schema_name(func)} has no JAX function yet.\n  schema: {func._schema}\n"
        f"Register one with  torchax.ops.jaten.op(torch.ops.{func})  on a function of jax.Arrays, or run such operators "
        "on CPU with  torchax.default_env().config.cpu_fallback = True."
    )


def _registered(func: Any) -> Plan | None:
    op = None if func._schema.is_mutable else torchax_ops.lookup(schema.schema_name(func))
    return None if op is None else Functional(func, op)


def _writing(func: Any) -> Plan | None:
    if not func._schema.is_mutable:
        return None
    source = schema.functional(func)
    if source is None:
        return None
    if schema.out_arguments(func):
        from torchax.out_variants import run_out

        return functools.partial(run_out, func, source)
    mine = overrides.get(source)
    op = mine.op if isinstance(mine, Functional) else torchax_ops.lookup(schema.schema_name(source))
    if op is not None and source not in handlers and not schema.reordered(func, source):
        return InPlace(func, op)
    return functools.partial(_run_in_place, func, source)


def _decomposed(func: Any) -> Plan | None:
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return lambda args, kwargs: func.decompose(*args, **kwargs)
    if func.namespace not in ("aten", "prims") and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeExplicitAutograd"
    ):  # a torch.library operator written in torch functions, for all devices
        key = torch._C.DispatchKey.CompositeExplicitAutograd
        return lambda args, kwargs: func._op_dk(key, *args, **kwargs)
    if func.namespace == "prims":  # what PyTorch's decompositions are written in
        on_tensors = getattr(func, "impl_aten", None)
        return on_tensors and (lambda args, kwargs: on_tensors(*args, **kwargs))
    from torch._decomp import decomposition_table

    table = decomposition_table.get(func)
    return None if table is None else lambda args, kwargs: table(*args, **kwargs)


# --- encoding a call ------------------------------------------------------------------------------------------------


class _Marker:
    """A token in a key, compared by identity."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


_NUMBER = _Marker("NUMBER")
_LIST = _Marker("LIST")
_DEFAULT_DTYPE = _Marker("DEFAULT_DTYPE")
_FLOAT32 = torch.float32
_get_default_dtype = torch.get_default_dtype
_Tracer = jax.core.Tracer
# The class of concrete arrays, once one was seen: testing it is cheaper than isinstance.
_array_type: type | None = None

# Python floats that come again are kept as device scalars, which a compiled function takes sooner. A float is kept when
# seen twice, so that a learning rate that never repeats leaves nothing behind.
_known_floats: dict[float, Any] = {}
_seen_floats: set[float] = set()


def _float(a: float) -> Any:
    if a not in _seen_floats:
        if len(_seen_floats) > 4096:
            _seen_floats.clear()
            _known_floats.clear()
        _seen_floats.add(a)
        return a
    if a != a or a == 0:  # NaN is no key, and the two zeros are one
        return a
    with jax.enable_x64(True):
        scalar = _known_floats[a] = jax.numpy.asarray(a)
    return scalar


class Call:
    """One encoded call: the key, the arrays and numbers it stands for, and what was seen on the way."""

    __slots__ = ("arrays", "device", "generator", "key", "noncontiguous", "traced")

    def __init__(self) -> None:
        self.key: list[Any] = []
        self.arrays: list[Any] = []
        self.device: torch.device | None = None
        self.noncontiguous = False
        self.traced = False
        self.generator: torch.Generator | None = None


class Encoder:
    """Turns the arguments of one operator into a `Call`, as its schema and registration say."""

    def __init__(self, func: Any, op: Op) -> None:
        arguments = func._schema.arguments
        kinds = {a.name: schema.kind_of(a, op.static, op.traced) for a in arguments}
        self.func = func
        self.positional = [kinds[a.name] for a in arguments if not a.kwarg_only]
        self.kinds = kinds
        # Like cuda, indexing takes index tensors from the CPU; other operators take only one-element ones from there.
        self.cpu_indices = func.overloadpacket.__name__ in _CPU_INDEX_OPS

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        call = Call()
        key, arrays = call.key, call.arrays
        if devices.several():
            call.device = _one_device(self.func, args, kwargs)
        for kind, a in zip(self.positional, args, strict=False):
            if type(a) is Tensor:
                box = a._box
                array = box.array
                arrays.append(array)
                key.append(a._chain)
                if a._chain is not ROOT:
                    arrays.extend(a._operands)
                if a._noncontiguous:
                    call.noncontiguous = True
                if isinstance(array, _Tracer):
                    call.traced = True
                if call.device is None:
                    call.device = a.device
            elif kind == STATIC:
                key.append(_static(a))
            else:
                self.slow(call, kind, a)
        if kwargs:
            for name, a in kwargs.items():
                kind = self.kinds[name]
                if kind == SKIPPED:
                    if name == "device" and a is not None and call.device is None:
                        call.device = devices.torch_device(torch.device(a).index or 0)
                else:
                    key.append(name)
                    self.slow(call, kind, a)
        if _get_default_dtype() is not _FLOAT32:
            key.append(_DEFAULT_DTYPE)
            key.append(t2j_dtype(_get_default_dtype()))
        return call

    def prepared(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments as all that follows sees them: a mask on CPU as the indices it stands for."""
        if not self.cpu_indices:
            return args
        return tuple([x for i in a for x in _index_from_cpu(i)] if isinstance(a, (list, tuple)) else a for a in args)

    def slow(self, call: Call, kind: int, a: Any) -> None:
        """Encode one argument of any kind."""
        key = call.key
        if isinstance(a, torch.Tensor):
            self.tensor(call, a)
        elif a is None or isinstance(a, bool):
            key.append(a)
        elif kind == GENERATOR:
            call.generator = a
            key.append(None)
        elif kind == SKIPPED:
            key.append(None)
        elif isinstance(a, (list, tuple)) and kind in (TENSORS, NUMBERS):
            inner = TENSOR if kind == TENSORS else TRACED
            key.append(_LIST)
            key.append(len(a))
            for x in a:
                if self.cpu_indices and isinstance(x, torch.Tensor) and x.device.type == "cpu":
                    call.arrays.append(transfer.to_array(x, narrow=narrow_storage))
                    key.append(ROOT)
                else:
                    self.slow(call, inner, x)
        elif kind in (TENSOR, TRACED) and isinstance(a, (int, float, complex)):
            if isinstance(a, int) and not -(2**63) <= a < 2**63:
                key.append((int, a))
            else:
                key.append(_NUMBER)
                call.arrays.append(a)
        else:
            key.append(_static(a))

    def tensor(self, call: Call, a: torch.Tensor) -> None:
        """Encode a tensor that may be of another class or on another device."""
        if isinstance(a, Tensor):
            array = a._box.array
            call.arrays.append(array)
            call.key.append(a._chain)
            call.arrays.extend(a._operands)
            call.noncontiguous |= a._noncontiguous
            call.traced |= isinstance(array, _Tracer)
            if call.device is None:
                call.device = a.device
            return
        mixes = a.numel() == 1 if mix_one_element else a.ndim == 0
        if a.device.type != "cpu" or not mixes:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{call.device or 'jax:0'} and {a.device}! (when checking a tensor of shape {list(a.shape)} in {self.func})"
            )
        call.arrays.append(transfer.to_array(a, narrow=narrow_storage))
        call.key.append(ROOT)


def _one_device(func: Any, args: Any, kwargs: Any) -> torch.device | None:
    """The device of a call's tensors. JAX would let uncommitted arrays, those of ``jax:0``, mix with another device's.

    Raises:
        RuntimeError: the tensors are on more than one.
    """
    found = {t.device.index or 0 for t in _flat([*args, *kwargs.values()]) if isinstance(t, Tensor)}
    if len(found) > 1:
        a, b = sorted(found)[:2]
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, jax:{a} and jax:{b}! "
            f"({func} was given {describe_call(args, kwargs)})"
        )
    return devices.torch_device(found.pop()) if found else None


def _device_among(args: Any, kwargs: Any) -> torch.device:
    """The device of the first ``jax`` tensor among a call's arguments."""
    return next(t.device for t in _flat([*args, *kwargs.values()]) if isinstance(t, Tensor))


def _index_from_cpu(index: Any) -> Any:
    """An index; a mask on CPU as the indices of its true elements, which are known also under a trace."""
    if isinstance(index, torch.Tensor) and index.device.type == "cpu" and index.dtype in (torch.bool, torch.uint8):
        return index.nonzero(as_tuple=True) if index.ndim else [index.to("jax")]
    return [index]


_CPU_INDEX_OPS = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
mix_one_element = True  # config.allow_mixed_math_with_scalar_tensor


def _static(a: Any) -> Any:
    t = type(a)
    if t is list or t is tuple:
        return tuple(_static(x) for x in a)
    if t is torch.dtype:
        return t2j_dtype(a)
    if t is float or t is complex:
        return (t, a)  # 1.0 and 1 are equal as keys
    if isinstance(a, torch.SymInt):
        return int(a)
    return a


# --- decoding, inside the compiled function ---------------------------------------------------------------------------


class Decoder:
    """Gives a function its arguments back from a key and traced arrays. ``raw`` says what each tensor was read from."""

    def __init__(self, key: tuple[Any, ...], positional: int, arrays: Any) -> None:
        self.parts = iter(key)
        self.arrays = iter(arrays)
        self.default_dtype: Any = None
        self.raw: dict[int, tuple[Chain, Any, tuple[Any, ...]]] = {}  # id(value) -> chain, base array, operands
        self.args = [self.next() for _ in range(positional)]
        self.kwargs: dict[str, Any] = {}
        for part in self.parts:
            if part is _DEFAULT_DTYPE:
                self.default_dtype = next(self.parts)
            else:
                self.kwargs[part] = self.next()

    def next(self) -> Any:
        return self.value(next(self.parts))

    def value(self, part: Any) -> Any:
        if isinstance(part, Chain):
            base = next(self.arrays)
            operands = tuple(next(self.arrays) for _ in range(part.positions))
            value = base if part is ROOT else part.read(base, operands)
            self.raw[id(value)] = (part, base, operands)
            return value
        if part is _NUMBER:
            return next(self.arrays)
        if part is _LIST:
            return [self.next() for _ in range(next(self.parts))]
        if isinstance(part, tuple):
            return _plain(part)
        return part


def _plain(part: tuple[Any, ...]) -> Any:
    if len(part) == 2 and isinstance(part[0], type):
        return part[1]
    return [_plain(p) if isinstance(p, tuple) else p for p in part]


def _strong(x: Any) -> Any:
    """A result without JAX's weak type, which PyTorch's tensors do not have."""
    if isinstance(x, jax.Array):
        return jax.lax.convert_element_type(x, x.dtype) if x.aval.weak_type else x  # type: ignore[attr-defined]
    if isinstance(x, (list, tuple)):
        return type(x)(map(_strong, x)) if type(x) in (list, tuple) else tuple(map(_strong, x))
    return x


def _call(op: Op, decoder: Decoder, key: Any) -> Any:
    kwargs = decoder.kwargs
    if op.key:
        kwargs = {k: v for k, v in kwargs.items() if k != "generator"} | {op.key: key}
    if decoder.default_dtype is None:
        return op.fn(*decoder.args, **kwargs)
    with torchax_ops.default_float_dtype(decoder.default_dtype):
        return op.fn(*decoder.args, **kwargs)


# --- plans ----------------------------------------------------------------------------------------------------------


class Functional:
    """The plan of an operator that returns new tensors."""

    def __init__(self, func: Any, op: Op) -> None:
        self.func = func
        self.op = op
        self.encode = Encoder(func, op)
        self.compiled: dict[tuple[Any, ...], Any] = {}
        self.widths: dict[Any, Any] = {}  # results of `wide_dtypes`
        self.name = schema.schema_name(func).replace("::", "_").replace(".", "_")
        self.positional, self.kinds = self.encode.positional, self.encode.kinds
        self.simple = not (op.key or op.eager or op.check)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The usual call, written flat for speed: concrete arrays, static values, one tensor out. Others go to `general`."""
        if not self.simple or narrow_storage or _get_default_dtype() is not _FLOAT32 or devices.several():
            return self.general(args, kwargs)
        arrays: list[Any] = []
        key: list[Any] = [len(args)]
        device = None
        for kind, a in zip(self.positional, args, strict=False):
            t = type(a)
            if t is Tensor:
                array = a._box.array
                chain = a._chain
                if type(array) is not _array_type or a._noncontiguous:
                    return self.general(args, kwargs)
                arrays.append(array)
                key.append(chain)
                if chain is not ROOT:
                    arrays.extend(a._operands)
                if device is None:
                    device = a.device
            elif kind == STATIC:
                key.append(a if t is int or t is bool else _static(a))
            elif t is float and kind != SKIPPED:
                key.append(_NUMBER)
                scalar = _known_floats.get(a)
                arrays.append(_float(a) if scalar is None else scalar)
            elif t is int and kind != SKIPPED and -(2**31) <= a < 2**31:
                key.append(_NUMBER)
                arrays.append(a)
            elif a is None:
                key.append(None)
            else:
                return self.general(args, kwargs)
        for name, a in kwargs.items():
            if self.kinds[name] != STATIC:
                return self.general(args, kwargs)
            key.append(name)
            key.append(_static(a))
        fn = self.compiled.get(tuple(key))
        if fn is None or device is None:
            return self.general(args, kwargs)
        try:
            with jax.enable_x64(True):
                out = fn(*arrays)
        except Exception as e:
            _explain(e, self.func, args, kwargs)
            raise
        if type(out) is _array_type:
            return wrap(out, device)
        results = [wrap(o, device) if o is not None else None for o in out]
        return results if type(out) is list else tuple(results)

    def general(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Any call."""
        args = self.encode.prepared(args)
        call = self.encode(args, kwargs)
        outs, dtypes = self.invoke(call, args, kwargs)
        device = call.device or devices.torch_device(0)
        if device.index and not call.traced:  # what read no tensor was made on the default device
            outs = jax.device_put(outs, devices.jax_device(device))
        if type(outs) is not tuple and type(outs) is not list:
            result = wrap(outs, device, dtypes)
            return self.strided(result, args, kwargs) if call.noncontiguous else result
        results = [
            wrap(o, device, None if dtypes is None else dtypes[i]) if isinstance(o, jax.Array) else o
            for i, o in enumerate(outs)
        ]
        if type(outs) is list:
            return results
        return tuple(self.strided(results, args, kwargs) if call.noncontiguous else results)

    def invoke(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Run the compiled function; the second result is PyTorch's dtypes where the arrays' are narrower."""
        global _array_type
        if _array_type is None and not call.traced and call.arrays and isinstance(call.arrays[0], jax.Array):
            _array_type = type(call.arrays[0])
        try:
            if self.op.check is not None and not call.traced:
                self.check(call, args, kwargs)
            eager = bool(self.op.eager) and self.runs_eagerly(args, kwargs)
            if call.traced or narrow_storage or eager:
                return self.invoke_specially(call, len(args), args, kwargs, eager)
            key = (len(args), *call.key)
            with jax.enable_x64(True):
                return self.draw(call, key) if self.op.key else self.function(key)(*call.arrays), None
        except Exception as e:
            _explain(e, self.func, args, kwargs)
            raise

    def function(self, key: tuple[Any, ...]) -> Any:
        """The compiled function of a key."""
        fn = self.compiled.get(key)
        if fn is None:
            fn = self.compiled[key] = self.compile(key)
        return fn

    def invoke_specially(self, call: Call, n: int, args: Any, kwargs: Any, eager: bool) -> tuple[Any, Any]:
        """Under a trace, in performance mode, and for results whose shape depends on values."""
        narrow = narrow_storage or not (jax.config.jax_enable_x64 or not call.traced)  # type: ignore[attr-defined]
        key = (n, *call.key)
        if eager:
            with jax.enable_x64(not narrow):
                return _strong(_call(self.op, Decoder(tuple(call.key), n, call.arrays), None)), None
        dtypes = None
        if narrow:
            dtypes = self.wide_dtypes(key, call, args, kwargs)
            call.arrays = [transfer.narrowed(a, self.func) for a in call.arrays]
            if not narrow_storage:
                _refuse_cut(self.func, dtypes)
        with jax.enable_x64(not narrow):
            return self.draw(call, key) if self.op.key else self.function(key)(*call.arrays), dtypes

    def draw(self, call: Call, key: tuple[Any, ...]) -> Any:
        """Run an operator that draws random numbers: the generator's state goes in, and comes back advanced."""
        fn = self.function(key)
        index = (call.device.index or 0) if call.device is not None else 0
        if call.generator is not None:
            seeded = random.state_of(call.generator, devices.jax_device(index))
            outs, advanced = fn(*call.arrays, seeded)
            random.check_given(seeded, advanced, "an explicit generator")
            return outs
        with random.generator(index) as state:
            outs, advanced = fn(*call.arrays, state.array)
            random.advance(state, advanced)
            return outs

    def compile(self, key: tuple[Any, ...]) -> Any:
        n, parts, op = key[0], key[1:], self.op

        def fn(*arrays: Any) -> Any:
            if op.key:
                prng, state = random.draw(arrays[-1])
                return _strong(_call(op, Decoder(parts, n, arrays[:-1]), prng)), state
            return _strong(_call(op, Decoder(parts, n, arrays), None))

        fn.__name__ = fn.__qualname__ = self.name
        return jax.jit(fn, inline=False)

    def runs_eagerly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether this call's result has a shape that depends on values."""
        if not callable(self.op.eager):
            return self.op.eager
        return self.op.eager(*map(_concrete, self.padded(args, kwargs)), **self.concrete(kwargs))

    def check(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look at the values. What is wrong with shapes and dtypes is said first, as PyTorch does."""
        assert self.op.check is not None
        with jax.enable_x64(not narrow_storage):
            try:
                self.op.check(*map(_concrete, self.padded(args, kwargs)), **self.concrete(kwargs))
            except Exception:
                if not self.op.eager:
                    self.shapes((len(args), *call.key), call.arrays)
                raise

    def padded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The positional arguments, with the defaults that PyTorch left out."""
        rest = [a for a in self.func._schema.arguments if not a.kwarg_only][len(args) :]
        given = (a for a in rest if a.name not in kwargs and self.kinds[a.name] not in (SKIPPED, GENERATOR))
        return [*args, *(a.default_value for a in given)]

    def concrete(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments that a function on arrays has."""
        return {k: _concrete(v) for k, v in kwargs.items() if self.kinds[k] not in (SKIPPED, GENERATOR)}

    def wide_dtypes(self, key: tuple[Any, ...], call: Call, args: Any, kwargs: Any) -> Any:
        """PyTorch's dtypes of results that will be stored narrow: those of the same operator on wide inputs."""
        wide = iter(_wide_inputs(args, kwargs, self.encode))
        avals: list[Any] = []
        for a in call.arrays:
            if isinstance(a, (bool, int, float, complex)):
                avals.append(a)
            else:
                avals.append(jax.ShapeDtypeStruct(a.shape, next(wide, a.dtype)))  # type: ignore[arg-type]
        kinds = tuple(type(a) if isinstance(a, (bool, int, float, complex)) else (a.shape, a.dtype) for a in avals)
        found = self.widths.get((key, kinds))
        if found is None:
            with jax.enable_x64(True):
                shaped = self.shapes(key, avals)
            found = jax.tree.map(lambda s: JAX_DTYPE_TO_TORCH.get(np.dtype(s.dtype)), shaped)
            self.widths[key, kinds] = found
        return found

    def shapes(self, key: tuple[Any, ...], arrays: Any) -> Any:
        """The shapes and dtypes of the results; raises what is wrong with those of ``arrays``."""
        n, parts = key[0], key[1:]

        def fn(*arrays: Any) -> Any:
            prng = jax.random.key(0) if self.op.key else None
            return _strong(_call(self.op, Decoder(parts, n, arrays), prng))

        return jax.eval_shape(fn, *arrays)

    def strided(self, results: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Give results the strides that PyTorch gives them for these non-contiguous inputs."""
        strides = _meta_strides(self.func, args, kwargs)
        if strides is None:
            return results
        if isinstance(results, Tensor):
            return _restride(results, strides[0])
        return [_restride(r, s) if isinstance(r, Tensor) else r for r, s in zip(results, strides, strict=False)]


class InPlace(Functional):
    """The plan of an operator that writes some of its arguments, derived from the functional one.

    The views that are written go back into their storages' arrays inside the same compiled call. Nothing is written
    before all is computed, so that an operator that fails leaves every tensor as it was.
    """

    def __init__(self, func: Any, op: Op) -> None:
        super().__init__(func, op)
        self.written = schema.written(func)
        self.fresh = schema.fresh_returns(func)
        self.overlaps = overlap.rule_of(func)
        self.lists = all(self.kinds[name] == TENSORS for name in self.written)
        names = [a.name for a in func._schema.arguments]
        self.index = {name: names.index(name) for name in self.written}
        # Defaults that PyTorch leaves out of a call, and that the functional operator does not have (bernoulli_'s p).
        source = schema.functional(func)
        needed = {a.name for a in source._schema.arguments if not a.has_default_value()} if source else set()
        self.defaults = [
            (i, a.name, a.default_value)
            for i, a in enumerate(func._schema.arguments)
            if a.has_default_value() and not a.kwarg_only and a.name in needed
        ]
        arguments = [a for a in func._schema.arguments if a.alias_info]
        self.returned = [
            next(
                (a.name for a in arguments if r.alias_info and a.alias_info.before_set & r.alias_info.before_set), None
            )
            for r in func._schema.returns
        ]

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.defaults:
            args = (*args, *(value for i, name, value in self.defaults if i >= len(args) and name not in kwargs))
        args = self.encode.prepared(args)
        targets = self.targets(args, kwargs)
        if self.func.overloadpacket.__name__ not in _WRITE_ONE_VALUE:
            for t in targets:
                overlap.check_written(t, self.func)
        overlap.check_read(self.func, self.overlaps, targets, (*args, *kwargs.values()) if kwargs else args)
        boxes = {id(t._box) for t in targets}
        if len(boxes) != len(targets) and self.lists:
            return self.one_by_one(args, kwargs)
        if len(boxes) != len(targets) or (self.op.eager and self.runs_eagerly(args, kwargs)):
            # Compute all, then write each where the last one left the storage.
            return _run_in_place(self.func, schema.functional(self.func), args, kwargs)
        call = self.encode(args, kwargs)
        outs, _ = self.invoke(call, args, kwargs)
        fresh, arrays = outs
        spread = devices.several()
        for t, array in zip(targets, arrays, strict=True):
            t._box.array = t._box.settled(array) if spread else array
        return self.results([wrap(f, call.device or devices.torch_device(0)) for f in fresh], args, kwargs)

    def one_by_one(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Lists in which a storage comes twice: as in PyTorch, each element sees what the ones before it wrote."""
        first = self.index[self.written[0]]
        n = len(args[first] if first < len(args) else kwargs[self.written[0]])

        def element(kind: int, a: Any, i: int) -> Any:
            return [a[i]] if kind in (TENSORS, NUMBERS) and isinstance(a, (list, tuple)) and len(a) == n else a

        before = [(t._box, t._box.array) for t in self.targets(args, kwargs)]
        try:
            for i in range(n):
                self.of_one()(
                    tuple(element(k, a, i) for k, a in zip(self.positional, args, strict=False)),
                    {name: element(self.kinds[name], a, i) for name, a in kwargs.items()},
                )
        except Exception:
            for box, array in before:
                box.array = array
            raise

    def of_one(self) -> InPlace:
        """The same plan for lists of one element, among whose several arguments a storage may still come twice."""
        one = copy.copy(self)
        one.lists = False
        return one

    def written_arguments(self, args: Any, kwargs: dict[str, Any]) -> list[Any]:
        """What is written, lists flattened, ``None`` left out."""
        values = (args[i] if i < len(args) else kwargs.get(name) for name, i in self.index.items())
        return _flat(v for v in values if v is not None)

    def targets(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        found = self.written_arguments(args, kwargs)
        for t in found:
            if not isinstance(t, Tensor):
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two devices, "
                    f"{_device_among(args, kwargs)} and {t.device}! ({self.func} cannot write a tensor on {t.device})"
                )
        return found

    def results(self, fresh: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.returned:
            return None
        fresh_ones = iter(fresh)
        out = []
        for name in self.returned:
            if name is None:
                out.append(next(fresh_ones))
            else:
                i = self.index[name]
                out.append(args[i] if i < len(args) else kwargs[name])
        return out[0] if len(out) == 1 else tuple(out)

    def compile(self, key: tuple[Any, ...]) -> Any:
        n, parts, op = key[0], key[1:], self.op

        def fn(*arrays: Any) -> Any:
            prng, state = random.draw(arrays[-1]) if op.key else (None, None)
            decoder = Decoder(parts, n, arrays[:-1] if op.key else arrays)
            outs = _call(op, decoder, prng)
            fresh, values = _fresh_and_written(outs, self.fresh, self.written)
            targets = self.written_arguments(decoder.args, decoder.kwargs)
            written = [_put(decoder.raw[id(t)], _fit(v, t, self.func)) for t, v in zip(targets, values, strict=True)]
            result = (_strong(list(fresh)), written)
            return (result, state) if op.key else result

        fn.__name__ = fn.__qualname__ = self.name
        # What is only overwritten is kept too: it says on which devices to compute.
        scope = jax.named_scope(self.name)  # in HLO and profiles, where a function that is inlined leaves no name
        return jax.jit(scope(fn), inline=True, keep_unused=True)

    def wide_dtypes(self, key: tuple[Any, ...], call: Call, args: Any, kwargs: Any) -> Any:
        return None  # what is written keeps its dtype


def _fresh_and_written(outs: Any, fresh: int, written: list[str]) -> tuple[list[Any], list[Any]]:
    """A functional operator's results: the new tensors, and the new values of what is written, lists flattened."""
    if fresh == 0 and len(written) == 1:
        return [], list(outs) if isinstance(outs, (list, tuple)) else [outs]
    return list(outs[:fresh]), [v for v in _flat(outs[fresh:]) if v is not None]


def _put(raw: tuple[Chain, Any, tuple[Any, ...]], value: Any) -> Any:
    chain, base, operands = raw
    return value if chain is ROOT else chain.write(base, operands, value)


def _fit(value: Any, target: Any, func: Any) -> Any:
    """A computed value as the written tensor takes it.

    Raises:
        RuntimeError: the shapes differ, or PyTorch does not convert one dtype to the other.
    """
    value = jax.numpy.asarray(value)
    if value.shape != target.shape:
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape {list(value.shape)} ({func})"
        )
    if value.dtype == target.dtype:
        return _strong(value)
    check_can_cast(value.dtype, target.dtype, func)
    if target.dtype == np.bool_:
        return value != 0
    return jax.lax.convert_element_type(value, target.dtype)


def check_can_cast(source: Any, target: Any, func: Any) -> None:
    """Whether PyTorch writes a result of one dtype to a tensor of another.

    Raises:
        RuntimeError: it does not: complex to real, floating to integer, anything else to bool.
    """
    from torchax_ops._promotion import category

    a, b = category(source), category(target)
    if (a == 3 and b < 3) or (a == 2 and b < 2) or (a > 0 and b == 0):
        raise RuntimeError(
            f"result type {_type_name(source)} can't be cast to the desired output type {_type_name(target)} ({func})"
        )


def _type_name(dtype: Any) -> str:
    names = {
        "bool": "Bool", "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long",
        "float16": "Half", "bfloat16": "BFloat16", "float32": "Float", "float64": "Double",
        "complex64": "ComplexFloat", "complex128": "ComplexDouble",
    }  # fmt: skip
    name = np.dtype(dtype).name
    return names.get(name, name)


_WRITE_ONE_VALUE = {"fill_", "zero_"}  # which PyTorch lets write where elements share a place


# --- writing variants of what is not one function ---------------------------------------------------------------------


def _run_in_place(func: Any, source: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An in-place operator by its functional twin, whatever plan that has, and writes after it."""
    names = [a.name for a in func._schema.arguments]
    written = schema.written(func)

    def argument(name: str) -> Any:
        i = names.index(name)
        return args[i] if i < len(args) else kwargs.get(name)

    if schema.reordered(func, source):
        outs = run(source, tuple(argument(a.name) for a in source._schema.arguments), {})
    else:
        outs = run(source, args, kwargs)
    fresh_results, values = _fresh_and_written(outs, schema.fresh_returns(func), written)
    targets = _flat(argument(name) for name in written if argument(name) is not None)
    for t in targets:
        overlap.check_written(t, func)
    overlap.check_read(func, overlap.rule_of(func), targets, (*args, *kwargs.values()))
    fitted = []
    for t, v in zip(targets, values, strict=False):
        with wide_for(v._box.array):
            fitted.append(_fit(v._value(), _shaped(t), func))
    for t, v in zip(targets, fitted, strict=True):
        t._write(v)
    if not func._schema.returns:
        return None
    results = [*fresh_results, *(argument(name) for name in written)][: len(func._schema.returns)]
    return results[0] if len(results) == 1 else tuple(results)


def _shaped(t: Tensor) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(t.shape), stored_dtype(t))


def _flat(xs: Iterable[Any]) -> list[Any]:
    flat: list[Any] = []
    for x in xs:
        flat.extend(x) if isinstance(x, (list, tuple)) else flat.append(x)
    return flat


# --- views ------------------------------------------------------------------------------------------------------------


def _view(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    base = args[0]
    if not isinstance(base, Tensor):
        return func(*args, **kwargs)
    found = view_ops.derive(func, view_of(base), args[1:], kwargs)
    # A view of a tensor made outside inference mode is an ordinary tensor too: PyTorch refuses it a version otherwise.
    if torch.is_inference_mode_enabled() and not base.is_inference():
        with torch.inference_mode(False):
            made = [view_on(base._box, v, base.device) for v in found]
    else:
        made = [view_on(base._box, v, base.device) for v in found]
    returns = func._schema.returns
    return made if str(returns[0].type) == "List[Tensor]" else made[0]


# --- helpers ----------------------------------------------------------------------------------------------------------


def _concrete(a: Any) -> Any:
    """An argument as a check sees it: arrays for tensors, JAX dtypes for PyTorch's."""
    if isinstance(a, Tensor):
        return a._value()
    if isinstance(a, torch.Tensor):
        return transfer.numpy_view(a)
    if isinstance(a, (list, tuple)):
        return [_concrete(x) for x in a]
    return t2j_dtype(a) if isinstance(a, torch.dtype) else a


def _wide_inputs(args: tuple[Any, ...], kwargs: dict[str, Any], encode: Encoder) -> Iterable[np.dtype]:
    """The dtypes, as PyTorch sees them, of a call's arrays before its views are read, in the order they are encoded."""
    kinds = zip(
        [*encode.positional[: len(args)], *(encode.kinds[k] for k in kwargs)], [*args, *kwargs.values()], strict=False
    )
    for kind, a in kinds:
        if kind == SKIPPED:
            continue
        for t in a if isinstance(a, (list, tuple)) else [a]:
            if isinstance(t, Tensor):
                stored = np.dtype(t._box.array.dtype)
                logical = TORCH_DTYPE_TO_JAX[t.dtype]
                yield logical if NARROWED.get(logical) == stored else stored
            elif isinstance(t, torch.Tensor):
                yield TORCH_DTYPE_TO_JAX[t.dtype]


def _refuse_cut(func: Any, dtypes: Any) -> None:
    for dtype in _flat([dtypes] if not isinstance(dtypes, (list, tuple)) else dtypes):
        if dtype in (torch.float64, torch.complex128):
            raise RuntimeError(  # a TypeError would read "unsupported operand" after a + b
                f"{func} gives {dtype} here, which would be cut to 32 bits: this jax.jit (grad, vmap ...) runs with JAX's x64 "
                "flag off. Use torchax.interop.jax_jit, or switch x64 on around it (jax.enable_x64(True)), or convert to "
                "float32."
            )


@functools.lru_cache(maxsize=4096)
def _strides_on_meta(func: Any, frozen: Any) -> Any:
    def thaw(x: Any) -> Any:
        if isinstance(x, view_ops.Metadata):
            return torch.empty_strided(x.shape, x.strides, dtype=x.dtype, device="meta")
        return [thaw(y) for y in x[1]] if isinstance(x, tuple) and x and x[0] is _LIST else x

    args, kwargs = frozen
    try:
        out = func(*map(thaw, args), **{k: thaw(v) for k, v in kwargs})
    except Exception:  # no meta kernel, or one that refuses: then the result is contiguous
        return None
    return [
        (tuple(o.shape), o.stride()) if isinstance(o, torch.Tensor) else None
        for o in (out if isinstance(out, (list, tuple)) else [out])
    ]


def _meta_strides(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def freeze(x: Any) -> Any:
        if isinstance(x, Tensor):
            return view_of(x)[0]
        if isinstance(x, torch.Tensor):
            return view_ops.metadata_of(x)
        if isinstance(x, (list, tuple)):
            return (_LIST, tuple(freeze(y) for y in x))
        return x

    named = tuple((k, freeze(v)) for k, v in kwargs.items() if k not in ("device", "generator", "pin_memory"))
    try:
        return _strides_on_meta(func, (tuple(map(freeze, args)), named))
    except TypeError:  # an argument that cannot be hashed
        return None


def _restride(t: Tensor, found: tuple[tuple[int, ...], tuple[int, ...]] | None) -> Tensor:
    """The same new tensor with other (dense) strides, where the shape is the expected one."""
    if found is None or found[0] != tuple(t.shape) or found[1] == t.stride():
        return t
    shape, strides = found
    if not overlap.is_dense(shape, strides):
        return t
    t._box.strides = strides
    return view_on(t._box, (view_ops.metadata(shape, strides, t.dtype), 0, ROOT, ()), t.device)


_JAX_ERRORS = (
    jax.errors.JAXTypeError,
    jax.errors.JAXIndexError,
    jax.errors.UnexpectedTracerError,
    jax.errors.JaxRuntimeError,
)


def _explain(e: Exception, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what PyTorch raises for a call that failed, naming the operator and what it was given.

    PyTorch's meta kernels say which error that is. What JAX says of traces and devices stays as it is.
    """
    if isinstance(e, jax.errors.UnexpectedTracerError):
        given_arrays = [t._box.array for t in _flat([*args, *kwargs.values()]) if isinstance(t, Tensor)]
        raise escaped(func, given_arrays, e) from e
    if "has been deleted" in str(e) or "deleted or donated" in str(e):
        raise reused(func, describe_call(args, kwargs)) from e
    if isinstance(e, (*_JAX_ERRORS, OperatorNotFound)):
        return
    given = describe_call(args, kwargs)
    if isinstance(e, ValueError) and "incompatible devices" in str(e):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices! {func} was given {given}"
        ) from e
    if func.name() in str(e) or str(func) in str(e):
        return
    known = e
    if type(e) in (TypeError, ValueError, ZeroDivisionError, OverflowError, AssertionError):
        try:
            func(*map(_to_meta, args), **{k: _to_meta(v) for k, v in kwargs.items()})
        except NotImplementedError:
            pass
        except Exception as from_meta:
            known = from_meta
    kind = type(known) if type(known) in _PLAIN_ERRORS else RuntimeError
    if isinstance(e, np.linalg.LinAlgError):
        kind = torch.linalg.LinAlgError
    raise kind(f"{func}: {known} (given {given})") from e


_PLAIN_ERRORS = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, torch.linalg.LinAlgError)


def _to_meta(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return torch.empty_strided(tuple(x.shape), x.stride(), dtype=x.dtype, device="meta")
    if isinstance(x, (list, tuple)):
        return [_to_meta(y) for y in x]
    return torch.device("meta") if isinstance(x, torch.device) else x


def describe(x: Any, values: bool = False) -> str:
    """An argument or result as messages name it: tensors by dtype and shape, with their ``values`` if asked."""
    if isinstance(x, torch.Tensor):
        text = f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        if isinstance(x, Tensor) and isinstance(x._box.array, _Tracer):
            return text + made_at(x._box.array)
        known = values and isinstance(x, Tensor)
        return f"{text}={x._value()}" if known else text  # type: ignore[attr-defined]
    if isinstance(x, (list, tuple)):
        return f"[{', '.join(describe(y, values) for y in x)}]"
    return repr(x)


def describe_call(args: tuple[Any, ...], kwargs: dict[str, Any], values: bool = False) -> str:
    """The arguments of a call."""
    return ", ".join([*(describe(a, values) for a in args), *(f"{k}={describe(v, values)}" for k, v in kwargs.items())])
