"""Exceptions: one class for each kind of the C++ program's errors."""

from __future__ import annotations


class SwitchyardError(Exception):
    """Base class. `str(error)` is the complete message of the C++ error.

    Attributes:
        kind: the C++ error's kind, such as "invalid" or "resource".
        hint: how to fix it, or "". It is part of the message too.
        param: the argument or request field that is wrong, such as "sampling_params.top_k", or "".
    """

    kind = "peer"

    def __init__(self, message: str, param: str = "", kind: str | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.param = param
        self.hint = hint
        if kind is not None:
            self.kind = kind


class InvalidError(SwitchyardError, ValueError):
    """A flag, a file or a field of a request is malformed or contradictory."""

    kind = "invalid"


class NotFoundError(SwitchyardError, LookupError):
    """A file, tensor, model or route does not exist."""

    kind = "not_found"


class TooLargeError(SwitchyardError, ValueError):
    """A value exceeds a stated limit."""

    kind = "too_large"


class BusyError(SwitchyardError, RuntimeError):
    """The queue is full (max_queued_requests)."""

    kind = "busy"


class UnavailableError(SwitchyardError, RuntimeError):
    """The engine has been shut down, has lost its ranks, or belongs to another process."""

    kind = "unavailable"


class RanksTimeoutError(SwitchyardError, TimeoutError):
    """A rank waited too long for another one; the message names both."""

    kind = "timeout"


class PeerError(SwitchyardError, RuntimeError):
    """A rank failed."""

    kind = "peer"


class ResourceError(SwitchyardError, RuntimeError):
    """There is not enough memory, or another resource of the machine is exhausted."""

    kind = "resource"


class UnsupportedError(SwitchyardError, NotImplementedError, AttributeError):
    """A method of SGLang's Engine that this engine does not have. An AttributeError, so that hasattr returns False."""

    kind = "unsupported"


_CLASSES = {
    "invalid": InvalidError,
    "not_found": NotFoundError,
    "too_large": TooLargeError,
    "busy": BusyError,
    "unavailable": UnavailableError,
    "timeout": RanksTimeoutError,
    "peer": PeerError,
    "resource": ResourceError,
}


def from_core(kind: str, message: str, param: str, hint: str) -> SwitchyardError:
    """The exception for an error of the C++ library. Called by the extension module."""
    return _CLASSES.get(kind, SwitchyardError)(message, param, kind, hint)
