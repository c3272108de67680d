"""Chapter: singular values, ranks, angles and sizes."""

from rankscope.experiments.diagnosis._measure import MOST_VALUES, Measured
from rankscope.experiments.diagnosis._references import THIS
from rankscope.experiments.diagnosis._rows import SPECTRUM, STATES
from rankscope.numerals import short
from rankscope.results import Drawing, Part

_METRICS = ("effective_rank", "mean_cosine", "token_norm", "layer_turn")


def spectrum_part(measured: Measured) -> Part:
    """Layer × singular value, and four figures by layer."""
    values = measured.values.nanquantile(0.5, dim=-1)  # layer, value
    first, last = (float(values[at, 0]) for at in (0, -1))
    rank = measured.states["effective_rank"].quantile(0.5, dim=-1)
    return Part(
        "Spectrum, angles and sizes",
        (
            f"The largest singular value is {short(first, digits=2)} of the sum of all at the "
            f"input and {short(last, digits=2)} after the last layer; the effective rank goes from "
            f"{short(float(rank[0]))} to {short(float(rank[-1]))}.",
        ),
        (),
        (
            Drawing(
                "layer_map",
                f"Each singular value as a part of their sum, the first {MOST_VALUES}. A layer "
                "that darkens quickly from the top down has few directions left.",
                "singular_value_share",
                {"along": "index"},
                {"part": (SPECTRUM,)},
                title="Singular values",
            ),
            Drawing(
                "by_layer",
                options={"metrics": list(_METRICS)},
                only={"part": (STATES,), "variant": (THIS,)},
                title="Rank, angles, sizes, and what each layer turns",
            ),
        ),
    )
