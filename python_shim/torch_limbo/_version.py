"""Which Limbo this is, and for which torch. The build reads this file too: pyproject.toml makes the
wheel's version of both, and CMake insists on the same (a test compares them)."""

__version__ = "0.1.0"

#: The minor version of torch that this package is built for. The allocator's interface changes
#: with nearly every minor version, and a library for the wrong one would call wrong functions.
TORCH_MINOR = "2.11"
