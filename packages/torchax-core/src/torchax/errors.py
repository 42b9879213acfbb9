"""Errors of torchax's own."""


class OperatorNotFound(NotImplementedError):
    """An operator has neither a JAX function nor a decomposition onto operators that do.

    The message names the operator, its schema and how to register one.
    """
