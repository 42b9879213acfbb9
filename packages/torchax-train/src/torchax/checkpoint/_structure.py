"""A training state taken apart into named leaves, and the JSON that puts it together again.

A leaf's name is its path: ``model:layers.0.weight`` is ``state["model"]["layers.0.weight"]``. Dictionaries, lists,
tuples and optax's named tuples are rebuilt from the JSON alone. Nothing else is ever imported or called on a file's
word; a state with containers of other kinds is restored into one like it.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import jax
import optax
import torch

from torchax.checkpoint._errors import CheckpointError

_KINDS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", list: "list", tuple: "tuple"}
_BUILD: dict[str, Callable[[list[Any], list[Any]], Any]] = {
    "dict": lambda keys, children: dict(zip(keys, children)),
    "ordered": lambda keys, children: OrderedDict(zip(keys, children)),
    "list": lambda keys, children: list(children),
    "tuple": lambda keys, children: tuple(children),
    "none": lambda keys, children: None,
}


@dataclass(frozen=True)
class Node:
    """A container: ``build(keys, children)`` makes it."""

    kind: str
    keys: list[Any]
    children: list[Any]
    build: Callable[[list[Any], list[Any]], Any]


@dataclass(frozen=True)
class Leaf:
    """A leaf and its name."""

    name: str
    value: Any


def _is_namedtuple(x: Any) -> bool:
    return isinstance(x, tuple) and hasattr(type(x), "_fields")


def take_apart(tree: Any, path: tuple[str, ...] = ()) -> Node | Leaf:
    """The containers of ``tree`` with named leaves."""
    cls = type(tree)
    if tree is None:
        return Node("none", [], [], _BUILD["none"])
    if isinstance(tree, torch.Tensor):
        return Leaf(":".join(path) or "value", tree)
    if cls in _KINDS:
        kind = _KINDS[cls]
        keys = list(tree) if isinstance(tree, Mapping) else list(range(len(tree)))
        children = list(tree.values()) if isinstance(tree, Mapping) else list(tree)
        build = _BUILD[kind]
    elif _is_namedtuple(tree):
        kind, keys, children = f"{cls.__module__}:{cls.__qualname__}", list(cls._fields), list(tree)
        build = lambda keys, children: cls(*children)  # noqa: E731
    else:
        found, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
        if jax.tree_util.treedef_is_leaf(treedef):
            return Leaf(":".join(path) or "value", tree)
        keys = [jax.tree_util.keystr(key, simple=True) for key, _ in found]
        kind, children = f"{cls.__module__}:{cls.__qualname__}", [child for _, child in found]
        build = lambda keys, children: jax.tree.unflatten(treedef, children)  # noqa: E731
    for key in keys:
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise CheckpointError(f"a key of {':'.join(path) or 'the state'} is {key!r}: keys must be strings or ints")
    parts = [(*path, quote(str(key), safe=" ")) for key in keys]
    if len(set(parts)) < len(parts):
        raise CheckpointError(f"{':'.join(path) or 'the state'} has keys of the same spelling: {keys}")
    return Node(kind, keys, [take_apart(child, part) for child, part in zip(children, parts)], build)


def leaves(node: Node | Leaf) -> Iterator[Leaf]:
    """The leaves, in order."""
    if isinstance(node, Leaf):
        yield node
    else:
        for child in node.children:
            yield from leaves(child)


def put_together(node: Node | Leaf, values: Mapping[str, Any]) -> Any:
    """The tree with ``values[name]`` in each leaf's place."""
    if isinstance(node, Leaf):
        return values[node.name]
    return node.build(node.keys, [put_together(child, values) for child in node.children])


def to_json(node: Node | Leaf, describe: Callable[[Leaf], Any]) -> Any:
    """``describe(leaf)`` says what to write for a leaf, beside its name."""
    if isinstance(node, Leaf):
        return {"leaf": node.name, **describe(node)}
    return {"kind": node.kind, "keys": node.keys, "children": [to_json(child, describe) for child in node.children]}


def from_json(data: Any, where: str) -> Node | Leaf:
    """The structure that `to_json` wrote; a leaf's value is what ``describe`` said.

    Raises:
        CheckpointError: the data is not of that form.
    """
    try:
        if "leaf" in data:
            return Leaf(str(data["leaf"]), data)
        children = [from_json(child, where) for child in data["children"]]
        if len(data["keys"]) != len(children):
            raise ValueError(f"{len(data['keys'])} keys for {len(children)} children")
        return Node(data["kind"], data["keys"], children, _builder(data["kind"], data["keys"]))
    except (TypeError, KeyError, ValueError, RecursionError) as e:
        raise CheckpointError(f"{where}: the description of the state is damaged ({e!r})") from e


def _builder(kind: str, keys: list[Any]) -> Callable[[list[Any], list[Any]], Any]:
    if kind in _BUILD:
        return _BUILD[kind]
    cls = _optax_class(kind)
    if cls is not None and list(cls._fields) == keys:
        return lambda keys, children: cls(*children)

    def refuse(keys: list[Any], children: list[Any]) -> Any:
        raise CheckpointError(
            f"the state holds a {kind} with fields {listed_fields}, which is not made from a file's word: pass "
            "like=, a state of the same structure"
        )

    listed_fields = ", ".join(map(str, keys))
    return refuse


def _optax_class(kind: str) -> Any:
    """The named tuple of that name, if optax, already imported, has it."""
    module, _, name = kind.partition(":")
    if module.split(".")[0] != optax.__name__:
        return None
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields") else None
