"""Tasks that models are trained on: examples, loss and score; those of Dong et al. 2021."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from rankscope.arguments import Count, Range, checked
from rankscope.core.checks import real, usable_device, whole_numbers
from rankscope.errors import InputError, ShapeError
from rankscope.models.text import Tokenizer
from rankscope.process import require
from rankscope.streams import stream

Scores = Float[Tensor, "seed"]
IGNORED = -100  # the label of a token that has no target: padding, or a token that is only read


@checked
@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets, one row per example; ``token_mask`` is False at padding.

    >>> from rankscope.models.training import Examples, Sorting
    >>> drawn = [Sorting(symbols=5, tokens=4).draw(10, seed, "training") for seed in (0, 1)]
    >>> both = Examples.stack(drawn)
    >>> both.inputs.shape, both.seeds
    (torch.Size([20, 4]), 2)

    After ``stack``, the examples of all seeds follow each other.
    """

    inputs: Tensor
    targets: Tensor
    token_mask: Tensor | None = None
    seeds: int = 0

    @classmethod
    def stack(cls, sets: Sequence["Examples"]) -> "Examples":
        """Concatenate the examples of several seeds, which have equal shapes."""
        if not sets:
            raise InputError("there are no examples to train on; give at least one set.")
        if len({part.inputs.shape for part in sets}) > 1:
            raise InputError("examples that are trained on together must have the same shape.")
        masks = [part.token_mask for part in sets if part.token_mask is not None]
        return cls(
            torch.cat([part.inputs for part in sets]),
            torch.cat([part.targets for part in sets]),
            torch.cat(masks) if masks else None,
            len(sets),
        )

    @property
    def count(self) -> int:
        """The number of examples per seed."""
        return len(self.inputs) // max(1, self.seeds)

    def to(self, device: str) -> "Examples":
        """The same on another device."""
        usable_device("device", device)
        mask = None if self.token_mask is None else self.token_mask.to(device)
        return Examples(self.inputs.to(device), self.targets.to(device), mask, self.seeds)

    def pick(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The examples of rows ``(seed, batch)``: inputs and mask end to end, targets by seed."""
        whole_numbers("rows", rows, least=0, most=self.count - 1)
        if rows.ndim != 2 or len(rows) != self.seeds:
            raise ShapeError(
                f"rows has shape {tuple(rows.shape)}, expected ({self.seeds} seeds, batch)."
            )
        first = torch.arange(self.seeds, device=rows.device).mul(self.count).unsqueeze(1)
        at = (rows + first).flatten()
        mask = None if self.token_mask is None else self.token_mask[at]
        return self.inputs[at], self.targets[at].unflatten(0, rows.shape), mask


@runtime_checkable
class Task(Protocol):
    """Compares outputs ``(seed, batch, token, output)`` with targets, for each seed.

    >>> from rankscope.models.training import Classify, Task
    >>> isinstance(Classify(), Task)
    True
    """

    def loss(self, outputs: Tensor, targets: Tensor) -> Scores: ...

    def score(self, outputs: Tensor, targets: Tensor) -> tuple[Scores, Scores]:
        """A sum over tokens, and its divisor; a higher quotient is better."""
        ...


@checked
@dataclass(frozen=True)
class Classify:
    """Classify every token that has a label; the score is the accuracy.

    >>> import torch
    >>> from rankscope.models.training import Classify
    >>> right, counted = Classify().score(torch.eye(3)[None, None], torch.tensor([[[0, 1, 0]]]))
    >>> right / counted
    tensor([0.6667])
    """

    def loss(self, outputs: Tensor, targets: Tensor) -> Scores:
        _check_labels(outputs, targets)
        losses = cross_entropy(
            outputs.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="none"
        )
        counted = (targets != IGNORED).flatten(1).sum(1)
        return losses.view(len(targets), -1).sum(1) / counted

    def score(self, outputs: Tensor, targets: Tensor) -> tuple[Scores, Scores]:
        _check_labels(outputs, targets)
        right = (outputs.argmax(-1) == targets).flatten(1).sum(1).float()
        return right, (targets != IGNORED).flatten(1).sum(1).float()


@checked
@dataclass(frozen=True)
class Approach:
    """Approach a target point with every token; the score is minus the mean squared distance.

    >>> import torch
    >>> from rankscope.models.training import Approach
    >>> Approach().loss(torch.ones(1, 2, 3, 2), torch.zeros(1, 2, 3, 2))
    tensor([1.])
    """

    def loss(self, outputs: Tensor, targets: Tensor) -> Scores:
        _check_alike(outputs, targets)
        return (outputs - targets).square().flatten(1).mean(1)

    def score(self, outputs: Tensor, targets: Tensor) -> tuple[Scores, Scores]:
        _check_alike(outputs, targets)
        missed = (outputs - targets).square().sum(-1).flatten(1)
        return -missed.sum(1), torch.full_like(missed[:, 0], missed.shape[1])


def _check_labels(outputs: Tensor, targets: Tensor) -> None:
    real(outputs, name="outputs", axes="(seed, batch, token, output)", least=4)
    if outputs.shape[:-1] != targets.shape:
        raise ShapeError(
            f"targets have shape {tuple(targets.shape)}, expected {tuple(outputs.shape[:-1])}: a "
            "label for every token."
        )
    asked = targets[targets != IGNORED]
    asked = asked if asked.numel() else asked.long()
    whole_numbers("targets", asked, least=0, most=outputs.shape[-1] - 1)


def _check_alike(outputs: Tensor, targets: Tensor) -> None:
    for name, tensor in {"outputs": outputs, "targets": targets}.items():
        real(tensor, name=name, axes="(seed, batch, token, output)", least=4)
    if outputs.shape != targets.shape:
        raise ShapeError(
            f"targets have shape {tuple(targets.shape)}, outputs {tuple(outputs.shape)}; "
            "give a point for every token."
        )


@checked
@dataclass(frozen=True)
class Sorting:
    """Sort sequences of symbols, which are drawn independently and may repeat.

    >>> from rankscope.models.training import Sorting
    >>> examples = Sorting(symbols=5, tokens=4).draw(2, seed=0, purpose="training")
    >>> bool((examples.targets == examples.inputs.sort(-1).values).all())
    True
    """

    symbols: Count = 10
    tokens: Count = 8

    def draw(self, count: Count, seed: int, purpose: str) -> Examples:
        """Draw ``count`` sequences; each purpose, such as training, has its own stream."""
        shape = (count, self.tokens)
        ids = torch.randint(self.symbols, shape, generator=stream(seed, "sorting", purpose))
        return Examples(ids, ids.sort(-1).values)


@checked
@dataclass(frozen=True)
class Hull:
    """Label uniform points of the square [−1, 1]²: 1 on their convex hull, else 0.

    >>> from rankscope.models.training import Hull
    >>> examples = Hull(points=6).draw(2, seed=0, purpose="training")
    >>> examples.inputs.shape, bool((examples.targets.sum(-1) >= 3).all())
    (torch.Size([2, 6, 2]), True)
    """

    points: Annotated[int, Range(3, 1_000_000)] = 10

    def draw(self, count: Count, seed: int, purpose: str) -> Examples:
        """Draw ``count`` sets; each purpose, such as training, has its own stream."""
        generator = stream(seed, "hull", purpose)
        points = 2 * torch.rand(count, self.points, 2, generator=generator, dtype=torch.float64) - 1
        return Examples(points.float(), on_hull(points))


def on_hull(points: Tensor) -> Tensor:
    """1 for the corners of each set's convex hull, 0 for the points inside."""
    hull_of = require("scipy.spatial").ConvexHull
    labels = torch.zeros(points.shape[:-1], dtype=torch.long)
    for row, point_set in zip(labels, points.numpy(), strict=True):
        row[torch.from_numpy(hull_of(point_set).vertices.astype(np.int64))] = 1
    return labels


_ENDS = re.compile(r"(?<=[.!?])\s+")


@checked
@dataclass(frozen=True)
class Memorisation:
    """Memorise random labels of sentences, each cut to ``tokens`` tokens including CLS and SEP.

    >>> from rankscope.models.training import Memorisation
    >>> examples = Memorisation(("A rose is a rose.", "It rains.")).draw(seed=0)
    >>> examples.inputs.shape, examples.token_mask.sum(-1).tolist()
    (torch.Size([2, 8]), [8, 5])

    The vocabulary is that of these sentences.
    """

    sentences: tuple[str, ...]
    tokens: Annotated[int, Range(3, 1_000_000)] = 24
    labels: Count = 2

    def draw(self, seed: int) -> Examples:
        """All sentences, with labels drawn from this seed; padding has none."""
        if not self.sentences:
            raise InputError("there is no sentence to memorise; give at least one.")
        tokenizer = Tokenizer.of(self.sentences)
        rows = [torch.tensor(tokenizer(text, length=self.tokens)) for text in self.sentences]
        ids = pad_sequence(rows, batch_first=True)
        drawn = torch.randint(self.labels, ids.shape, generator=stream(seed, "random labels"))
        return Examples(ids, torch.where(ids != 0, drawn, IGNORED), token_mask=ids != 0)


def split_sentences(texts: Sequence[str]) -> list[str]:
    """The sentences of some texts: what ends in a full stop, question or exclamation mark."""
    pieces = (piece.strip() for text in texts for piece in _ENDS.split(text))
    return [piece for piece in pieces if piece]


@checked
def read_sentences(path: str | Path) -> tuple[str, ...]:
    """The sentences of a file in UTF-8, in order.

    >>> from pathlib import Path
    >>> from rankscope.models.training import read_sentences
    >>> _ = Path("sentences.txt").write_text("It rains.")
    >>> read_sentences("sentences.txt")
    ('It rains.',)

    Of a ``.tsv`` file these are the columns whose name, in its first row, begins with "sentence".
    Of any other file each line that is not empty.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not in UTF-8: {error}; convert it first.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
    candidates = _from_columns(path, lines) if path.suffix.lower() == ".tsv" else lines
    sentences = tuple(sentence.strip() for sentence in candidates if sentence.strip())
    if not sentences:
        raise InputError(f"{path} contains no sentence.")
    return sentences


def _from_columns(path: Path, lines: list[str]) -> list[str]:
    """The cells of the columns of sentences, row by row."""
    header, *rows = [line.split("\t") for line in lines if line.strip()] or [[]]
    chosen = [at for at, name in enumerate(header) if name.strip().lower().startswith("sentence")]
    if not chosen:
        raise InputError(
            f"{path} has no column whose name begins with 'sentence'; name the columns to read "
            "in its first row, or give a text file."
        )
    if not rows:
        raise InputError(f"{path} has no row below its header.")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise InputError(
                f"{path}, row {number}: {len(row)} columns where the header has {len(header)}; "
                "columns are separated by tabs."
            )
    return [row[at] for row in rows for at in chosen]
