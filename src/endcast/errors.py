"""What can go wrong, as a tree of exceptions: catch ``EndcastError`` to catch them all.

Every message says what is wrong and, in ``hint``, what to do about it.
"""

from __future__ import annotations


class EndcastError(Exception):
    """Base of every error that endcast raises on purpose."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class InputError(EndcastError, ValueError):
    """A value that a caller gave is out of its bounds; ``field`` names it."""

    def __init__(self, field: str, message: str, *, hint: str = "") -> None:
        super().__init__(f"{field}: {message}", hint=hint)
        self.field = field


class TraceError(EndcastError):
    """A log cannot be read; the message names the file and, where there is one, the line."""


class BundleError(EndcastError):
    """A bundle is damaged, unknown or unusable; whoever holds an older one keeps it."""


class TrainingError(EndcastError):
    """A model cannot be trained or evaluated on the data given."""


class UnknownNameError(EndcastError, KeyError):
    """A registry has no entry of that name; the message lists those it has."""

    __str__ = EndcastError.__str__


class SimulationError(EndcastError):
    """A simulation cannot run, or stopped making progress."""
