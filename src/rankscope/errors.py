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

from rankscope.version import documentation

_LONGEST = 2000  # characters of a message, which may quote a long input


class RankscopeError(Exception):
    """Base class of all errors raised by rankscope; the command line prints one sentence.

    >>> import rankscope
    >>> try:
    ...     rankscope.load("./no/such/folder")
    ... except rankscope.errors.RankscopeError as error:
    ...     print(type(error).__name__)
    SourceError

    A note, which Python prints below the message, names the page about the class of the error.
    """

    exit_code = 2

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(str(message)))
        ours = (kind.__name__ for kind in type(self).__mro__ if kind.__module__ == __name__)
        self.add_note(f"See {documentation('errors', next(ours))}")


def printable(message: str) -> str:
    """Shorten a message, keeping its beginning and end, and escape what cannot be encoded.

    >>> len(printable("x" * 300_000))
    2000
    """
    if len(message) > _LONGEST:
        message = f"{message[: _LONGEST // 2 - 1]}…{message[-_LONGEST // 2 :]}"
    return message.encode(errors="backslashreplace").decode()


class InputError(RankscopeError, ValueError):
    """An invalid value.

    >>> import torch
    >>> from rankscope import residual
    >>> residual(torch.tensor([[1.0], [float("nan")]]))
    Traceback (most recent call last):
    rankscope.errors.InputError: x is nan at [1, 0] (1 of 2 entries are not finite); ...
    """


class ShapeError(InputError):
    """Missing or inconsistent axes.

    >>> import torch
    >>> from rankscope import residual
    >>> residual(torch.ones(3))
    Traceback (most recent call last):
    rankscope.errors.ShapeError: x has shape (3,), expected (..., token, feature) ...
    """


class SpecError(InputError):
    """An inconsistent network description.

    >>> from rankscope import Spec
    >>> Spec(2, 3, 8)
    Traceback (most recent call last):
    rankscope.errors.SpecError: width=8 is not divisible by heads=3; choose a multiple, ...
    """


class KindError(RankscopeError, TypeError):
    """The wrong type: integers where floats are needed.

    >>> import torch
    >>> from rankscope import residual
    >>> residual(torch.tensor([[1], [2]]))
    Traceback (most recent call last):
    rankscope.errors.KindError: x has dtype torch.int64, expected a real floating dtype ...
    """


class MissingPackageError(RankscopeError, ImportError):
    """An optional package is not installed; the message says how to install it.

    >>> from rankscope.errors import MissingPackageError
    >>> issubclass(MissingPackageError, ImportError)
    True
    """


class ModelError(RankscopeError, ValueError):
    """A model that rankscope does not support.

    >>> import torch
    >>> from rankscope import trace
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> trace(encoder, torch.randn(1, 3, 8), metrics=["attention_entropy"])
    Traceback (most recent call last):
    rankscope.errors.ModelError: attention metrics need a rankscope Network or ...
    """


class BlocksNotFoundError(ModelError):
    """The model has no stack of blocks, or no module of the given name.

    >>> import torch
    >>> from rankscope import trace
    >>> trace(torch.nn.Linear(4, 4), torch.ones(1, 3, 4))
    Traceback (most recent call last):
    rankscope.errors.BlocksNotFoundError: Linear has no stack of blocks that can be detected; ...
    """


class UnsupportedModelError(ModelError):
    """No family for the architecture of a model; ``trace`` still works.

    >>> import transformers
    >>> from rankscope import load
    >>> small = transformers.FNetConfig(vocab_size=9, hidden_size=8, intermediate_size=16)
    >>> load(transformers.FNetModel(small))
    Traceback (most recent call last):
    rankscope.errors.UnsupportedModelError: layer 1 (FNetLayer): its attention is not ...
    """


class SourceError(ModelError):
    """A model cannot be loaded from its source.

    >>> from rankscope import load
    >>> load("./no/such/folder")
    Traceback (most recent call last):
    rankscope.errors.SourceError: there is no folder ./no/such/folder; give a folder ...
    """


class VerificationError(ModelError):
    """Our network and the original give different outputs.

    >>> from rankscope.models.families import Verification
    >>> Verification("BERT", errors=(1e-7, 0.5), tolerance=1e-4).check()
    Traceback (most recent call last):
    rankscope.errors.VerificationError: BERT: our layer 2 differs from the original by ...
    """
