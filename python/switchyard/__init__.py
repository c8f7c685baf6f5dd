"""Switchyard: Mixture-of-Experts language models with expert parallelism, as a library.

    import switchyard

    with switchyard.Engine(model_path="DIR", tp_size=2, ep_size=2) as engine:
        print(engine.generate("The router", {"max_new_tokens": 16})["text"])

The import starts no thread; an Engine does. `switchyard --help` on the command line is the C++ program.
"""

from ._core import __version__, has_device_code
from .args import EngineArgs
from .engine import Engine
from .errors import (
    BusyError,
    InvalidError,
    NotFoundError,
    PeerError,
    RanksTimeoutError,
    ResourceError,
    SwitchyardError,
    TooLargeError,
    UnavailableError,
    UnsupportedError,
)

__all__ = [
    "BusyError",
    "Engine",
    "EngineArgs",
    "InvalidError",
    "NotFoundError",
    "PeerError",
    "RanksTimeoutError",
    "ResourceError",
    "SwitchyardError",
    "TooLargeError",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
    "has_device_code",
]
