"""Texts that ship with the tool or are given, their tokens, and the input of a network's blocks."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import layer_norm
from torch.nn.utils.rnn import pad_sequence

from rankscope.arguments import Count, checked
from rankscope.core.checks import real_dtype
from rankscope.errors import InputError
from rankscope.streams import stream

_PIECE = re.compile(r"[^\W_]+|[^\w\s]|_")
_SPECIAL = ("[PAD]", "[CLS]", "[SEP]")
_BERT_STD = 0.02
_BERT_EPS = 1e-12
_USUAL_LENGTH = 4096


def passages() -> list[str]:
    """The bundled sample texts: short biographies of historical people, written for rankscope."""
    text = files("rankscope.models.text").joinpath("passages.txt").read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a text, separated by blank lines, each on one line.

    >>> paragraphs("A rose\\nis a rose.\\n \\n\\nSo they say.")
    ['A rose is a rose.', 'So they say.']
    """
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]
    return [part for part in parts if part]


@checked
@dataclass(frozen=True)
class Tokenizer:
    """Words and punctuation → ids; a word outside the vocabulary is spelled in its UTF-8 bytes.

    >>> Tokenizer(("a", "rose")).pieces("A rose!")
    ['[CLS]', 'a', 'rose', '<21>', '[SEP]']

    Ids 0, 1, 2 are padding, CLS and SEP; then the 256 bytes; then the words in order.
    """

    words: tuple[str, ...]

    @classmethod
    @cache
    def bundled(cls) -> "Tokenizer":
        """The vocabulary of the bundled passages."""
        return cls.of(passages())

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Tokenizer":
        """The vocabulary of some texts, in alphabetical order.

        >>> Tokenizer.of(["A rose", "is a rose"]).words
        ('a', 'is', 'rose')
        """
        return cls(tuple(sorted({word for text in texts for word in _split(text)})))

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """Every token as text; the index is its id."""
        return (*_SPECIAL, *(f"<{byte:02x}>" for byte in range(256)), *self.words)

    @cached_property
    def _ids(self) -> dict[str, int]:
        first = len(_SPECIAL) + 256
        return {word: first + index for index, word in enumerate(self.words)}

    @checked
    def __call__(self, text: str, *, length: int | None = None) -> list[int]:
        """Ids of a text between CLS and SEP, cut so that at most ``length`` of them remain."""
        ids: list[int] = []
        for word in _split(text):
            spelled = [len(_SPECIAL) + byte for byte in word.encode()]
            ids += [self._ids[word]] if word in self._ids else spelled
        if not ids:
            raise InputError("the text has no word in it; give at least one.")
        if length is not None and length < 3:
            raise InputError(f"length={length} leaves no room between CLS and SEP; use 3 or more.")
        return [1, *(ids if length is None else ids[: length - 2]), 2]

    def pieces(self, text: str) -> list[str]:
        """The tokens of a text, as text."""
        return [self.vocabulary[index] for index in self(text)]


def _split(text: str) -> list[str]:
    return _PIECE.findall(text.lower())


@checked
def embed(
    texts: Sequence[str],
    width: Count,
    *,
    length: Count = 128,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Float[Tensor, "batch token feature"], Bool[Tensor, "batch token"]]:
    """Random embeddings of texts and their token mask, each text cut to ``length`` tokens.

    >>> from rankscope.models.text import embed, passages
    >>> x, token_mask = embed(passages()[:2], 16)
    >>> x.shape
    torch.Size([2, 128, 16])

    Token plus absolute position, both normal with standard deviation 0.02, then LayerNorm: what
    BERT feeds its blocks before training. Absolute positions leave the scores without pairwise
    terms, so pure attention on this input collapses doubly exponentially (docs/theory.md,
    section 5).
    """
    real_dtype("dtype", dtype)
    if not texts:
        raise InputError("embed takes a list of one or more texts.")
    tokenizer = Tokenizer.bundled()
    rows = [torch.tensor(tokenizer(text, length=length)) for text in texts]
    ids = pad_sequence(rows, batch_first=True, padding_value=0)

    def draw(name: str, rows: int) -> Tensor:
        generator = stream(seed, "embedding", name)
        return torch.randn(rows, width, generator=generator, dtype=torch.float64) * _BERT_STD

    # Enough rows for any usual length, so that a text's embedding does not depend on the batch.
    rows_of_positions = max(ids.shape[1], min(length, _USUAL_LENGTH))
    tokens = draw("tokens", len(tokenizer.vocabulary))
    positions = draw("positions", rows_of_positions)
    summed = tokens[ids] + positions[: ids.shape[1]]
    return layer_norm(summed, (width,), eps=_BERT_EPS).to(dtype), ids != 0
