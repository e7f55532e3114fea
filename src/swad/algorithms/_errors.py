"""Errors of the registry and of SAM, in a file of their own so that neither has to import the other."""


class AlgorithmError(ValueError):
    """There is no such algorithm, or the requested combination is not possible; the message says what to do."""
