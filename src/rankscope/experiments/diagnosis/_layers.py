"""Chapter: what each part of each block does to the residual, and what ablations would do."""

from collections.abc import Mapping

import polars as pl

from rankscope import tables
from rankscope.core.network import Network
from rankscope.core.theory import thresholds
from rankscope.experiments import kit, variants
from rankscope.experiments.diagnosis._blame import Loss, signed
from rankscope.experiments.diagnosis._measure import Measured
from rankscope.experiments.diagnosis._references import References
from rankscope.experiments.diagnosis._rows import STATES, STEPS
from rankscope.experiments.diagnosis._walk import PARTS
from rankscope.numerals import plural, short
from rankscope.results import Drawing, Listing, Part

ABLATIONS = "ablations"
_METRIC = "relative_residual"
_ABLATED = Drawing(
    "by_layer",
    "The same weights less some parts: SAN is self-attention alone, SAN+MLP adds the MLPs, "
    "SAN+skip the skip connections, and the transformer has everything.",
    options={"metrics": [_METRIC]},
    only={"part": (ABLATIONS,)},
    title="What the parts are good for",
)


def layer_part(
    measured: Measured, loss: Loss, reference: References, ablations: pl.DataFrame
) -> Part:
    """Curves beside the references, every part's steps, and the four ablations as explanation."""
    ablated = ablations["variant"].n_unique() > 1
    return Part(
        "Layer by layer",
        (
            "What every layer leaves of the relative residual, beside the same architecture with "
            "random weights; then which part of the block it was. Steps are changes of its "
            "logarithm in decades, and all of them add up to the whole way; a hollow mark is what "
            "the step would be without its skip.",
            *reference.missing,
            *([] if ablated else ["It has neither skips nor MLPs that could be taken away."]),
        ),
        (_totals(measured, loss), *([_ablations(ablations)] if ablated else [])),
        (
            Drawing(
                "by_layer",
                "This model beside random networks of its design on the same input: relative "
                "residual (composite norm), and relative dispersion (Frobenius norm), which can be "
                "predicted.",
                options={"metrics": ["relative_residual", "relative_dispersion"]},
                only={"part": (STATES,)},
                title="What is left after each layer",
            ),
            Drawing(
                "steps",
                "A norm before a branch belongs to the branch; a norm after the sum is a step of "
                "its own.",
                "residual_step",
                only={"part": (STEPS,)},
                title="Which part it was",
            ),
            *([_ABLATED] if ablated else []),
        ),
    )


def trace_ablations(
    subject: kit.Subject, reading: variants.Reading, on_step: kit.OnStep
) -> pl.DataFrame:
    """The residual of SAN, SAN+MLP, SAN+skip and the whole; what it lacks anyway is not ablated."""
    networks: dict[str, Network] = {}
    for name, network in reversed(variants.four_variants(subject.network, reading).items()):
        if network.spec not in (each.spec for each in networks.values()):
            networks = {name: network, **networks}
    table = tables.joined(
        {
            name: subject.with_network(network).trace([_METRIC], on_part).table
            for (name, network), on_part in kit.tracked(networks.items(), on_step)
        }
    )
    return table.with_columns(pl.lit(ABLATIONS).alias("part"))


def _totals(measured: Measured, loss: Loss) -> Listing:
    """What every part does over all layers, and where most."""
    typical = {part: measured.changes[part].quantile(0.5, dim=-1) for part in PARTS}
    alone = {part: measured.alone[part].nanquantile(0.5, dim=-1) for part in PARTS}
    rows = []
    for part in PARTS:
        steps = typical[part]
        if not bool((measured.changes[part] != 0).any()):
            continue
        worst = int(steps.argmin())
        without = float(alone[part][worst])
        rows.append(
            (
                part,
                signed(loss.totals[part]),
                worst + 1,
                signed(float(steps[worst])),
                signed(without) if without == without else "–",
            )
        )
    return Listing(
        "What each part does to the relative residual, in decades (medians over the samples)",
        ("part", "all layers", "most is lost in layer", "there", "there, without its skip"),
        tuple(rows),
        "All layers as far as tokens are not alike. −1 leaves a tenth, −0.3 a half, −0.05 nine "
        "tenths.",
    )


def _ablations(table: pl.DataFrame) -> Listing:
    summary, samples = tables.summary(table), table["sample"].n_unique()
    rows = []
    for name in summary["variant"].unique(maintain_order=True):
        own = summary.filter(variant=name).sort("layer")
        values = dict(zip(own["layer"], own["median"], strict=True))
        lowest = min(values, key=values.__getitem__)
        rows.append((name, *_course(values, lowest), _verdict(values)))
    return Listing(
        "The same weights less some parts: relative residual (medians over the samples)",
        ("network", "input", "lowest", "at layer", "last layer", "fate"),
        tuple(rows),
        f"Collapses: below {thresholds.COLLAPSED_RESIDUAL:g}; shrinks: below "
        f"{thresholds.SHRUNK_RESIDUAL:g} of its largest value so far. On the first "
        f"{plural(samples, 'sample')}.",
    )


def _course(values: Mapping[int, float], lowest: int) -> tuple[float, float, int, float]:
    return values[min(values)], values[lowest], lowest, values[max(values)]


def _verdict(values: Mapping[int, float]) -> str:
    fate, layer = thresholds.fate_of([values[layer] for layer in sorted(values)])
    figure = short(values[layer], digits=1)
    if fate == "collapse":
        return f"collapses at layer {layer} ({figure})"
    return f"shrinks to {figure} at layer {layer}" if fate == "slow" else "stays apart"
