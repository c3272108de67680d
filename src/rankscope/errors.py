"""Every error rankscope raises on purpose, as one tree.

RankscopeError                 anything the caller can mend
├── InputError (ValueError)    a value that cannot be measured: NaN, no token left, unknown name
│   ├── ShapeError             axes missing or in disagreement
│   └── SpecError              a network description that contradicts itself
├── KindError (TypeError)      the wrong kind of thing: integers where reals are needed
└── ModelError (ValueError)    a model rankscope cannot work with
    ├── BlocksNotFoundError    no stack of blocks was found in it, or not the one that was named
    ├── UnsupportedModelError  no family converts it
    ├── SourceError            it could not be loaded
    └── VerificationError      our network does not compute what the original does
"""

_LONGEST = 2000  # characters of a message; what was got may be a book


class RankscopeError(Exception):
    """Base of all errors the caller can mend; the command line shows it as one sentence."""

    exit_code = 2

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(str(message)))


def printable(message: str) -> str:
    """A message of bounded length that can be encoded: its beginning, and its end, which advises.

    >>> len(printable("x" * 300_000))
    2000
    """
    if len(message) > _LONGEST:
        message = f"{message[: _LONGEST // 2 - 1]}…{message[-_LONGEST // 2 :]}"
    return message.encode(errors="backslashreplace").decode()


class InputError(RankscopeError, ValueError):
    """A value that cannot be measured."""


class ShapeError(InputError):
    """Axes that are missing or that disagree."""


class SpecError(InputError):
    """A network description that contradicts itself."""


class KindError(RankscopeError, TypeError):
    """The wrong kind of thing: integers where reals are needed."""


class ModelError(RankscopeError, ValueError):
    """A model rankscope cannot work with."""


class BlocksNotFoundError(ModelError):
    """No stack of blocks was found in a model, or not the one that was named."""


class UnsupportedModelError(ModelError):
    """No family converts this model; ``trace`` still works on it."""


class SourceError(ModelError):
    """A model could not be loaded from where it was said to be."""


class VerificationError(ModelError):
    """Our network does not compute what the original does."""
