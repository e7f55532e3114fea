"""The version, where every folder can import it without a cycle."""

__version__ = "0.1.0"
