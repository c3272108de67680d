"""What a model really read: its tokens, those it did not know, those that were cut off."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rankscope.arguments import checked
from rankscope.errors import InputError
from rankscope.models.text._reading import Tokenizer
from rankscope.numerals import plural

Origin = Literal["text", "ids", "embeddings", "noise images", "images"]
"""Where the tokens of an input came from."""

UNFIT_SHARE = 0.5  # of unknown tokens, above which no verdict rests on an input
WARNED_SHARE = 0.1  # from which on a reader is warned


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
            raise InputError("there is no sample to check; give the tokens of at least one.")
        nothing = {"special": (), "unknown": (), "lost": 0}
        for name, none in nothing.items():
            found = getattr(self, name) or (none,) * self.samples
            object.__setattr__(self, name, found)
            if len(found) != self.samples:
                raise InputError(
                    f"{name} is about {plural(len(found), 'sample')}, tokens about {self.samples}; "
                    "give an entry for each sample."
                )
        for tokens, marked in zip(self.tokens * 2, self.special + self.unknown, strict=True):
            if any(not 0 <= place < len(tokens) for place in marked):
                raise InputError(f"{marked} are no positions among {plural(len(tokens), 'token')}.")

    @property
    def samples(self) -> int:
        """How many were read."""
        return len(self.tokens)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sample, special ones among them."""
        return tuple(len(each) for each in self.tokens)

    @property
    def cut(self) -> int:
        """How many samples were cut."""
        return sum(lost > 0 for lost in self.lost)

    @property
    def lost_count(self) -> int:
        """How many tokens were cut off in all."""
        return sum(self.lost)

    @property
    def unknown_count(self) -> int:
        """How many tokens the tokeniser did not know."""
        return sum(map(len, self.unknown))

    @property
    def counted(self) -> int:
        """How many tokens there are, special ones apart unless they are unknown."""
        return sum(self._counted)

    @property
    def _counted(self) -> tuple[int, ...]:
        parts = zip(self.tokens, self.special, self.unknown, strict=True)
        return tuple(
            len(tokens) - len({*special} - {*unknown}) for tokens, special, unknown in parts
        )

    @property
    def unknown_share(self) -> float:
        """Of all tokens that count, those that are unknown."""
        return self.unknown_count / max(self.counted, 1)

    @property
    def unknown_shares(self) -> tuple[float, ...]:
        """The same for every sample."""
        counts = zip(self.unknown, self._counted, strict=True)
        return tuple(len(unknown) / max(counted, 1) for unknown, counted in counts)

    @property
    def fits(self) -> bool:
        """Whether the model knows at least half of the tokens, so that figures mean something."""
        return self.unknown_share <= UNFIT_SHARE

    def of_samples(self, numbers: Sequence[int]) -> "InputCheck":
        """The same of some of the samples."""
        names = ("tokens", "special", "unknown", "lost")
        return InputCheck(
            self.origin, *(tuple(getattr(self, name)[k] for k in numbers) for name in names)
        )

    def warnings(self) -> tuple[str, ...]:
        """What a reader must know before believing a figure, in sentences; mostly nothing."""
        told = []
        samples, share = plural(self.samples, "sample"), self._unknown_of_all
        unfit = sum(share > UNFIT_SHARE for share in self.unknown_shares)
        if not self.fits:
            told.append(
                f"{share} are unknown to the tokeniser: this text is not what the model reads, and "
                "figures on it mean nothing."
            )
        elif self.unknown_share >= WARNED_SHARE:
            told.append(
                f"{share} ({self.unknown_share:.0%}) are unknown to the tokeniser; all of them "
                "look the same to the model, which makes tokens more alike than the text is."
            )
        elif unfit:
            told.append(f"In {unfit:,} of {samples} most tokens are unknown to the tokeniser.")
        alone = sum(length < 2 for length in self.lengths)
        if self.origin == "noise images":
            told.append(
                "The model saw images of noise, since there were no others; what it does to real "
                "ones may differ."
            )
        elif alone:
            has = "has a single token" if alone == 1 else "have a single token each"
            told.append(f"{alone:,} of {samples} {has}, which has nothing to differ from.")
        return tuple(told)

    def summary(self, read_from: str) -> str:
        """How much was read, and where from, in a few words."""
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
    whole = [tokenizer.pieces(text) for text in texts]
    tokens = tuple((*row[: min(length, len(row)) - 1], row[-1]) for row in whole)
    lost = tuple(len(row) - len(kept) for row, kept in zip(whole, tokens, strict=True))
    return InputCheck("text", tokens, tuple((0, len(row) - 1) for row in tokens), lost=lost)
