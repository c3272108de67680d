"""Chapter: what the model read."""

from collections.abc import Sequence

from rankscope.numerals import plural
from rankscope.results import Listing, Part
from rankscope.text import InputCheck

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
            _tokens(check.tokens[sample], check.unknown[sample]),
        )
        for sample, length in enumerate(check.lengths[:_MOST_SAMPLES])
    )
    listing = Listing(
        f"The first {plural(len(rows), 'sample')} as the model saw them",
        ("sample", "tokens", "unknown", "cut off", "how they begin"),
        rows,
        f"Of {plural(check.samples, 'sample')}; unknown tokens stand in bold.",
    )
    return Part("What the model read", (check.describe(),), (listing,))


def _tokens(tokens: Sequence[str], unknown: Sequence[int]) -> str:
    shown = [
        f"**{token}**" if place in unknown else token
        for place, token in enumerate(tokens[:_MOST_TOKENS])
    ]
    return " ".join(shown) + (" …" if len(tokens) > _MOST_TOKENS else "")
