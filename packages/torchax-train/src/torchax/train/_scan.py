"""Equal layers as one layer under ``lax.scan``: compile time and program size do not grow with depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import torch
import torch.utils._pytree as pytree
from torch import nn

from torchax import interop, random
from torchax.tensor import Tensor, wide_for


def _stacked_name(name: str) -> str:
    return name.replace(".", "___")


def _forms(layer: nn.Module) -> dict[str, Any]:
    tensors = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    modules = {name: type(module) for name, module in layer.named_modules()}
    return modules | {name: (x.shape, x.dtype, x.requires_grad) for name, x in tensors.items()}


class _Buffers(nn.Module):
    def __init__(self, buffers: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        for name, x in buffers.items():
            self.register_buffer(name, x)


class ScannedModule(nn.Module):
    """Layers of the same form, applied one after another by ``jax.lax.scan``.

    ``forward(h, *args, **kwargs)`` is ``for layer in layers: h = layer(h, *args, **kwargs)``, of which a tuple's first
    element goes on. Random numbers are those that the loop would draw, and buffers are updated as by the loop. Parameters
    are stacked along a new first dim: ``self_attn.q_proj.weight`` is ``params.self_attn___q_proj___weight``, buffers
    likewise under ``buffers_``. `scan_layers` keeps the original names in ``state_dict``.

    Args:
        module_list: layers with the same modules, shapes and dtypes. The first one's Python attributes (not its
            tensors) serve for all.
        checkpoint_policy: which intermediate results of a layer the backward pass keeps (``jax.checkpoint_policies``);
            all of them, by default.

    Raises:
        ValueError: there are no layers, or two differ; the message says where.
    """

    def __init__(
        self, module_list: nn.ModuleList | list[nn.Module], checkpoint_policy: Callable[..., bool] | None = None
    ) -> None:
        super().__init__()
        layers = list(module_list)
        if not layers:
            raise ValueError("ScannedModule: no layers")
        first = _forms(layers[0])
        for i, layer in enumerate(layers):
            other = _forms(layer)
            if differ := [n for n in {**first, **other} if first.get(n) != other.get(n)]:
                raise ValueError(
                    f"ScannedModule: layer {i} differs from layer 0 in {', '.join(n or 'its type' for n in differ[:4])}"
                )
        self.checkpoint_policy = checkpoint_policy
        self._count = len(layers)
        self._names = [n for n, _ in layers[0].named_parameters()]
        self._buffer_names = [n for n, _ in layers[0].named_buffers()]
        # Not a submodule: its own parameters are those of layer 0, and only its code is used.
        self.__dict__["_layer"] = layers[0]
        with torch.no_grad():
            stacked = {n: torch.stack([m.get_parameter(n).detach() for m in layers]) for n in self._names}
            buffers = {n: torch.stack([m.get_buffer(n) for m in layers]) for n in self._buffer_names}
        self.params = nn.ParameterDict(
            {
                _stacked_name(n): nn.Parameter(x, requires_grad=layers[0].get_parameter(n).requires_grad)
                for n, x in stacked.items()
            }
        )
        self.buffers_ = _Buffers({_stacked_name(n): x for n, x in buffers.items()})

    def forward(self, h: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        layer = self.__dict__["_layer"].train(self.training)
        params = [self.params[_stacked_name(n)] for n in self._names]
        buffers = [getattr(self.buffers_, _stacked_name(n)) for n in self._buffer_names]
        leaves, spec = pytree.tree_flatten((args, kwargs))
        at = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        drew = False

        def scan(h: jax.Array, state: jax.Array, params: Any, buffers: Any, rest: Any) -> Any:
            full = list(leaves)
            for i, array in zip(at, rest):
                full[i] = Tensor(array)
            args, kwargs = pytree.tree_unflatten(full, spec)

            def body(carry: Any, of_layer: Any) -> Any:
                nonlocal drew
                h, state = carry
                arrays = [*of_layer[0], *of_layer[1]]
                own: dict[str, Any] = dict(zip([*self._names, *self._buffer_names], map(Tensor, arrays)))
                with random.overridden(state[1:]), random.generator(0) as box:
                    box.array = state
                    out = torch.func.functional_call(layer, own, (Tensor(h), *args), kwargs)
                    drew |= box.array is not state
                    state = box.array
                out = out[0] if isinstance(out, tuple) else out
                return (interop.jax_view(out), state), [own[n].jax() for n in self._buffer_names]

            if self.checkpoint_policy is not None:
                body = jax.checkpoint(body, policy=self.checkpoint_policy, prevent_cse=False)
            (h, state), buffers = jax.lax.scan(body, (h, state), (params, buffers))
            return h, state, buffers

        with random.generator(0) as generator:
            with wide_for(interop.jax_view(h)):
                rest = [leaves[i] for i in at]
                h, state, updated = interop.call_jax(scan, h, Tensor(generator.array), params, buffers, rest)
            if drew:
                random.advance(generator, interop.jax_view(state))
        if self.training:
            for old, new in zip(buffers, updated):
                old.copy_(new)
        return h


class _Layers(ScannedModule):
    """A scanned module in a ``ModuleList``'s place: a list of one, with the original names in its ``state_dict``."""

    def __init__(self, module_list: nn.ModuleList, checkpoint_policy: Callable[..., bool] | None = None) -> None:
        super().__init__(module_list, checkpoint_policy)
        self.register_state_dict_post_hook(_to_original_names)
        self.register_load_state_dict_pre_hook(_from_original_names)

    def __iter__(self) -> Iterator[nn.Module]:
        yield self

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            if (start, stop, step) != (0, self._count, 1):
                raise IndexError(f"scanned layers run all {self._count} together, not {index}")
            return [self]
        raise IndexError(f"scanned layers run all {self._count} together; there is no layer {index} alone")

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "_layer" not in self.__dict__:
                raise
            return getattr(self.__dict__["_layer"], name)


def _places(module: _Layers, prefix: str) -> Iterator[tuple[str, str]]:
    """``(stacked key, key within a layer)`` of what is saved."""
    saved = module._layer.state_dict(keep_vars=True)
    for folder, names in (("params", module._names), ("buffers_", module._buffer_names)):
        yield from ((f"{prefix}{folder}.{_stacked_name(n)}", n) for n in names if n in saved)


def _to_original_names(module: Any, state: Any, prefix: str, metadata: Any) -> None:
    found = {n: state.pop(key) for key, n in _places(module, prefix)}
    for key in [k for k in state if k.startswith((f"{prefix}params.", f"{prefix}buffers_."))]:
        del state[key]  # buffers that no layer saves
    for i in range(module._count):
        state.update({f"{prefix}{i}.{n}": x[i] for n, x in found.items()})


def _from_original_names(module: Any, state: Any, prefix: str, *others: Any) -> None:
    for key, n in _places(module, prefix):
        parts = [state.pop(f"{prefix}{i}.{n}", None) for i in range(module._count)]
        if all(x is not None for x in parts):
            state[key] = torch.stack(parts)
    unsaved = set(module._buffer_names) - set(module._layer.state_dict(keep_vars=True))
    for n in unsaved:
        name = _stacked_name(n)
        state[f"{prefix}buffers_.{name}"] = getattr(module.buffers_, name)


def scan_layers(model: nn.Module, checkpoint_policy: Callable[..., bool] | None = None) -> nn.Module:
    """Replace every ``ModuleList`` of two or more equal layers in ``model``, in place, by them scanned.

    The model's own loop over the list then runs once, for all of them. ``state_dict`` and ``load_state_dict`` keep the
    original names; ``named_parameters`` has the stacked ones. Layers that a sharding plan laid out stay laid out.

    Args:
        model: one whose layers run one after another, each on the result of the one before, with the same other
            arguments (as those of ``transformers`` do without a cache).
        checkpoint_policy: as for `ScannedModule`.

    Raises:
        ValueError: the model has no such list.
    """
    replaced = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.ModuleList) and len(child) > 1 and len({str(_forms(m)) for m in child}) == 1:
                setattr(module, name, _Layers(child, checkpoint_policy))
                replaced += 1
    if not replaced:
        raise ValueError(f"{type(model).__name__} has no ModuleList of equal layers")
    return model
