"""What was saved against what is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchax.checkpoint._arrays import Spec, fits, wanted
from torchax.checkpoint._errors import CheckpointError, listed
from torchax.checkpoint._structure import Leaf, Node, leaves, take_apart


def match(
    tree: Node | Leaf, saved: Mapping[str, Spec], values: Mapping[str, Any], like: Any, where: str
) -> tuple[Node | Leaf, dict[str, Spec]]:
    """The structure to build, and what each saved array becomes in it.

    Raises:
        CheckpointError: keys are missing, too many, or of another shape or dtype; it names all of them.
    """
    if like is None:
        return tree, dict(saved)
    shape = take_apart(like)
    asked = {leaf.name: leaf.value for leaf in leaves(shape)}
    targets: dict[str, Spec] = {}
    missing = [n for n in asked if n not in saved and n not in values]
    extra = [n for n in (*saved, *values) if n not in asked]
    wrong = []
    for name, x in asked.items():
        if name in saved:
            target = wanted(x, saved[name])
            if target is None or not fits(saved[name], target):
                wrong.append(f"{name} (saved {saved[name]}, asked for {target or type(x).__name__})")
            else:
                targets[name] = target
        elif name in values and hasattr(x, "shape"):
            wrong.append(f"{name} (saved {values[name]!r}, asked for an array)")
    said = [
        f"{what}: {listed(names)}"
        for what, names in (("missing from it", missing), ("not asked for", extra), ("of another form", wrong))
        if names
    ]
    if said:
        raise CheckpointError(f"{where} is not like the state asked for; {'; '.join(said)}")
    return shape, targets
