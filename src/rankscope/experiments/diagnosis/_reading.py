"""Chapter: what the model read."""

from collections.abc import Sequence

from rankscope.models.text import InputCheck
from rankscope.numerals import plural
from rankscope.results import Listing, Part, literal

_MOST_SAMPLES = 4
_MOST_TOKENS = 24


def reading_part(check: InputCheck | None, samples: int, tokens: int) -> Part:
    """The tokens as the model saw them, how many were unknown, what was cut."""
    if check is None:
        said = f"{plural(samples, 'sample')} of up to {plural(tokens, 'token')}, given as vectors."
        return Part("What the model read", (said,))
    rows = tuple(
        (
            sample,
            length,
            len(check.unknown[sample]),
            check.lost[sample],
            _tokens(check.tokens[sample]),
        )
        for sample, length in enumerate(check.lengths[:_MOST_SAMPLES])
    )
    listing = Listing(
        f"The first {plural(len(rows), 'sample')} as the model saw them",
        ("sample", "tokens", "unknown", "cut off", "how they begin"),
        rows,
        f"Of {plural(check.samples, 'sample')}.",
    )
    return Part("What the model read", (check.describe(),), (listing,))


def _tokens(tokens: Sequence[str]) -> str:
    return literal(" ".join(tokens[:_MOST_TOKENS])) + " …" * (len(tokens) > _MOST_TOKENS)
