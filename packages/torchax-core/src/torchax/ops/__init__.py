"""Conversions and registries, under the names that code for google/torchax knows."""

from torchax.ops import jaten, jlibrary, jtorch, mappings, ops_registry

__all__ = ["jaten", "jlibrary", "jtorch", "mappings", "ops_registry"]
