"""The operators of ``torch.nn``: activations, layers, normalization, pooling, attention, losses, recurrence.

One module a section of ``torch.nn``'s documentation; `torchax_ops` has them all by name.
"""
