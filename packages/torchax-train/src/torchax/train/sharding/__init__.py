"""Where parameters, optimizer state and activations live on a mesh of devices."""

from torchax.train.sharding._errors import ShardingError
from torchax.train.sharding._initialize import initialize
from torchax.train.sharding._layout import abstract_state, sharding_table, shardings
from torchax.train.sharding._mesh import batch_sharding, make_mesh
from torchax.train.sharding._parallelize import parallelize
from torchax.train.sharding._plans import Plan
from torchax.train.sharding._rules import Rules

__all__ = [
    "Plan",
    "Rules",
    "ShardingError",
    "abstract_state",
    "batch_sharding",
    "initialize",
    "make_mesh",
    "parallelize",
    "sharding_table",
    "shardings",
]
