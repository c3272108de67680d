"""Texts, their tokens, the input of a network's blocks, and what a model really read of them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import layer_norm
from torch.nn.utils.rnn import pad_sequence

from rankscope.arguments import Count, checked
from rankscope.core.checks import real_dtype
from rankscope.errors import InputError
from rankscope.numerals import plural
from rankscope.streams import stream

_PIECE = re.compile(r"[^\W_]+|[^\w\s]|_")
_SPECIAL = ("[PAD]", "[CLS]", "[SEP]")
_BERT_STD = 0.02
_BERT_EPS = 1e-12
_USUAL_LENGTH = 4096
Origin = Literal["text", "ids", "embeddings", "noise images", "images"]
"""Where the tokens of an input came from."""
UNFIT_SHARE = 0.5  # of unknown tokens, above which no verdict rests on an input
WARNED_SHARE = 0.1  # from which on a reader is warned


def passages() -> list[str]:
    """The bundled sample texts: short biographies of historical people, written for rankscope.

    >>> from rankscope.models.text import passages
    >>> len(passages()), passages()[0][:11]
    (36, 'Mary Anning')
    """
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


@checked
@dataclass(frozen=True)
class InputCheck:
    """The tokens of every sample as the model saw them, padding apart, and what to know of them.

    >>> read = (("[CLS]", "[UNK]", "rose", "[SEP]"),)
    >>> seen = InputCheck("text", read, ((0, 3),), unknown=((1,),), lost=(2,))
    >>> seen.unknown_count, seen.counted, seen.unknown_share, seen.fits
    (1, 2, 0.5, True)

    ``special`` and ``unknown`` hold, for each sample, the positions of such tokens among its own;
    ``lost`` how many tokens of each sample were cut off. Special tokens (CLS, BOS, SEP) are not
    counted in shares, unknown ones always are.
    """

    origin: Origin
    tokens: tuple[tuple[str, ...], ...]
    special: tuple[tuple[int, ...], ...] = ()
    unknown: tuple[tuple[int, ...], ...] = ()
    lost: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.tokens:
            raise InputError("there is no sample to check; give the tokens of at least one sample.")
        nothing = {"special": (), "unknown": (), "lost": 0}
        for name, none in nothing.items():
            entries = getattr(self, name) or (none,) * self.samples
            object.__setattr__(self, name, entries)
            if len(entries) != self.samples:
                raise InputError(
                    f"{name} is about {plural(len(entries), 'sample')}, tokens about "
                    f"{self.samples}; give an entry for each sample."
                )
        for tokens, marked in zip(self.tokens * 2, self.special + self.unknown, strict=True):
            if any(not 0 <= position < len(tokens) for position in marked):
                raise InputError(
                    f"{marked} are not positions among {plural(len(tokens), 'token')}."
                )

    @property
    def samples(self) -> int:
        """The number of samples."""
        return len(self.tokens)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of tokens of each sample, including special ones."""
        return tuple(len(row) for row in self.tokens)

    @property
    def cut(self) -> int:
        """The number of truncated samples."""
        return sum(lost > 0 for lost in self.lost)

    @property
    def lost_count(self) -> int:
        """The total number of tokens cut off."""
        return sum(self.lost)

    @property
    def unknown_count(self) -> int:
        """The number of unknown tokens."""
        return sum(map(len, self.unknown))

    @property
    def counted(self) -> int:
        """The number of tokens, without special ones unless they are unknown."""
        return sum(self._counted)

    @property
    def _counted(self) -> tuple[int, ...]:
        parts = zip(self.tokens, self.special, self.unknown, strict=True)
        return tuple(
            len(tokens) - len({*special} - {*unknown}) for tokens, special, unknown in parts
        )

    @property
    def unknown_share(self) -> float:
        """The share of unknown tokens among those that count."""
        return self.unknown_count / max(self.counted, 1)

    @property
    def unknown_shares(self) -> tuple[float, ...]:
        """The share of unknown tokens of every sample."""
        counts = zip(self.unknown, self._counted, strict=True)
        return tuple(len(unknown) / max(counted, 1) for unknown, counted in counts)

    @property
    def fits(self) -> bool:
        """Whether the model knows at least half of the tokens, so that figures mean something."""
        return self.unknown_share <= UNFIT_SHARE

    def of_samples(self, numbers: Sequence[int]) -> "InputCheck":
        """The check of some of the samples."""
        names = ("tokens", "special", "unknown", "lost")
        return InputCheck(
            self.origin, *(tuple(getattr(self, name)[k] for k in numbers) for name in names)
        )

    def warnings(self) -> tuple[str, ...]:
        """Sentences about input that makes figures unreliable; usually none."""
        sentences = []
        samples, share = plural(self.samples, "sample"), self._unknown_of_all
        unfit = sum(share > UNFIT_SHARE for share in self.unknown_shares)
        if not self.fits:
            sentences.append(
                f"{share} are unknown to the tokeniser: the model cannot read this text, and "
                "its figures are meaningless."
            )
        elif self.unknown_share >= WARNED_SHARE:
            sentences.append(
                f"{share} ({self.unknown_share:.0%}) are unknown to the tokeniser; the model "
                "cannot distinguish them, which makes tokens more alike than the text is."
            )
        elif unfit:
            sentences.append(f"In {unfit:,} of {samples} most tokens are unknown to the tokeniser.")
        alone = sum(length < 2 for length in self.lengths)
        if self.origin == "noise images":
            sentences.append(
                "The model was given images of noise, because no others were given; results on "
                "real images may differ."
            )
        elif alone:
            has = "has a single token" if alone == 1 else "have a single token each"
            sentences.append(
                f"{alone:,} of {samples} {has}, so that there is nothing to compare it with."
            )
        return tuple(sentences)

    def summary(self, read_from: str) -> str:
        """The number and length of samples and their source, in a few words."""
        return f"{self.samples} samples of up to {max(self.lengths)} tokens, {read_from}"

    def describe(self) -> str:
        """The check in one sentence.

        >>> InputCheck("text", (("a", "rose"),)).describe()
        '1 sample of 2 tokens, from text; no token is unknown, nothing was cut off.'
        """
        least, most = min(self.lengths), max(self.lengths)
        long = plural(most, "token") if least == most else f"{least:,} to {plural(most, 'token')}"
        known = f"{self._unknown_of_all} are" if self.unknown_count else "no token is"
        samples, lost = plural(self.samples, "sample"), "nothing was cut off"
        if self.cut:
            tokens = plural(self.lost_count, "token")
            lost = f"{self.cut:,} of {samples} were cut, by {tokens} in all"
        origin = f"from {self.origin}" if self.origin != "noise images" else "images of noise"
        return f"{samples} of {long}, {origin}; {known} unknown, {lost}."

    @property
    def _unknown_of_all(self) -> str:
        return f"{self.unknown_count:,} of {plural(self.counted, 'token')}"


@checked
def check_texts(texts: Sequence[str], *, length: int = 128) -> InputCheck:
    """What a network reads of texts that ``embed`` cuts to ``length`` tokens.

    >>> check_texts(["A rose is a rose."], length=5).tokens
    (('[CLS]', 'a', 'rose', 'is', '[SEP]'),)

    Nothing is unknown: a word outside the bundled vocabulary is spelled in bytes.
    """
    tokenizer = Tokenizer.bundled()
    rows = [tokenizer.pieces(text) for text in texts]
    tokens = tuple((*row[: min(length, len(row)) - 1], row[-1]) for row in rows)
    lost = tuple(len(row) - len(shortened) for row, shortened in zip(rows, tokens, strict=True))
    return InputCheck("text", tokens, tuple((0, len(row) - 1) for row in tokens), lost=lost)
