"""The exception hierarchy of rankscope.

RankscopeError                 base class of all errors raised by rankscope
├── InputError (ValueError)    an invalid value: NaN, no token left, unknown name
│   ├── ShapeError             missing or inconsistent axes
│   └── SpecError              an inconsistent network description
├── KindError (TypeError)      the wrong type: integers where floats are needed
├── MissingPackageError        an optional package is not installed (an ImportError)
└── ModelError (ValueError)    a model that rankscope does not support
    ├── BlocksNotFoundError    no stack of blocks, or no module of the given name
    ├── UnsupportedModelError  a part of its architecture is not supported
    ├── SourceError            it cannot be loaded
    └── VerificationError      our network and the original give different outputs
"""

_LONGEST = 2000  # characters of a message, which may quote a long input


class RankscopeError(Exception):
    """Base class of all errors raised by rankscope; the command line prints one sentence."""

    exit_code = 2

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(str(message)))


def printable(message: str) -> str:
    """Shorten a message, keeping its beginning and end, and escape what cannot be encoded.

    >>> len(printable("x" * 300_000))
    2000
    """
    if len(message) > _LONGEST:
        message = f"{message[: _LONGEST // 2 - 1]}…{message[-_LONGEST // 2 :]}"
    return message.encode(errors="backslashreplace").decode()


class InputError(RankscopeError, ValueError):
    """An invalid value."""


class ShapeError(InputError):
    """Missing or inconsistent axes."""


class SpecError(InputError):
    """An inconsistent network description."""


class KindError(RankscopeError, TypeError):
    """The wrong type: integers where floats are needed."""


class MissingPackageError(RankscopeError, ImportError):
    """An optional package is not installed; the message says how to install it."""


class ModelError(RankscopeError, ValueError):
    """A model that rankscope does not support."""


class BlocksNotFoundError(ModelError):
    """The model has no stack of blocks, or no module of the given name."""


class UnsupportedModelError(ModelError):
    """No family for the architecture of a model; ``trace`` still works."""


class SourceError(ModelError):
    """A model cannot be loaded from its source."""


class VerificationError(ModelError):
    """Our network and the original give different outputs."""
