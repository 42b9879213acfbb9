"""``View``: a class that no tensor is an instance of. Views are ordinary tensors here."""


class View:
    """For ``isinstance(x, View)`` tests in code written for google/torchax: they are false."""

    def __init__(self) -> None:
        raise TypeError("torchax has no View class: x.view(...), x[0] ... are torchax.Tensor like any other")
