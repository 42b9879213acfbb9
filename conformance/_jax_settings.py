"""JAX on CPU with cheap compilation, kept between runs: import it before jax. What the environment says goes first."""

import os
import tempfile

_SETTINGS = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_backend_optimization_level=0",  # a third less compile time, the same results
    "JAX_COMPILATION_CACHE_DIR": os.path.join(tempfile.gettempdir(), "torchax-conformance-cache"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
for _name, _value in _SETTINGS.items():
    os.environ.setdefault(_name, _value)
