"""A tokeniser that needs no download: the words of the bundled passages, bytes for all others."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

from rankscope.arguments import checked
from rankscope.errors import InputError

_PIECE = re.compile(r"[^\W_]+|[^\w\s]|_")
_SPECIAL = ("[PAD]", "[CLS]", "[SEP]")


def passages() -> list[str]:
    """The bundled sample texts: short biographies of historical people, written for rankscope."""
    text = files("rankscope.models.text").joinpath("passages.txt").read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]


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
