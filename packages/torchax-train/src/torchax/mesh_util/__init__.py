"""``Mesh`` and ``SingleAxisSharder``: models split over one mesh axis by the first dim that divides."""

from torchax._coexistence import check as _check

_check()

from torchax.mesh_util._mesh import Mesh, SingleAxisSharder

__all__ = ["Mesh", "SingleAxisSharder"]
