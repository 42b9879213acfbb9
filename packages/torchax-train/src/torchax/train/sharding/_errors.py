"""The error of shardings that cannot be."""


class ShardingError(ValueError):
    """A mesh, rule or plan does not fit the devices or the model; the message names the parameters."""
