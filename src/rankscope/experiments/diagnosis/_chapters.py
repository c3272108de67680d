"""The chapters that are told from what was measured."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.core.network import Network
from rankscope.core.theory import thresholds
from rankscope.experiments import kit, variants
from rankscope.experiments.diagnosis._evidence import Loss, signed
from rankscope.experiments.diagnosis._measure import (
    HEADS,
    MOST_VALUES,
    SPECTRUM,
    STATES,
    STEPS,
    THIS,
    TOKENS,
    Measured,
    cosines,
    counted_tokens,
    real_tokens,
)
from rankscope.experiments.diagnosis._references import References
from rankscope.experiments.diagnosis._stages import PARTS
from rankscope.models.text import InputCheck
from rankscope.numerals import plural, short
from rankscope.results import Drawing, Listing, Part, literal

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


SIMILARITY = "similarity"
_MOST_TOKENS = 32
_MOST_PANELS = 6
_MOST_HEADS = 12


def mixing_part(
    measured: Measured,
    shares: pl.DataFrame | None,
    repeated: Tensor | None,
    labels: Sequence[str],
) -> Part:
    """Heads ranked, token by token similarity, and who survives."""
    shown = labels[:_MOST_TOKENS]
    drawings = [
        Drawing("head_map", caption, metric, only={"part": (HEADS,)}, title=title)
        for metric, title, caption in (
            (
                "entropy_share",
                "How evenly each head attends",
                "The entropy of its attention over that of even attention: 1 spreads over all "
                "tokens alike, 0 looks at one.",
            ),
            (
                "dobrushin",
                "How different the rows of each head are",
                "τ is 0 where all queries take the same average, which makes all tokens alike at "
                "once.",
            ),
            (
                "sink_share",
                "How much each head gives to the first token",
                "Sinks: attention that goes to a token nobody needs changes little.",
            ),
        )
    ]
    drawings += [
        Drawing(
            "token_map",
            f"Cosines between the first {len(shown)} tokens of the first sample.",
            "token_cosine",
            {"labels": list(shown)},
            {"part": (SIMILARITY,)},
            title="Which tokens merge",
        ),
        Drawing(
            "layer_map",
            "How far the token at each position is from the center of all, in root mean squares of "
            f"their lengths (medians over the samples; the first {MOST_VALUES}).",
            "token_distance",
            {"along": "token"},
            {"part": (TOKENS,)},
            title="Which positions stay apart",
        ),
    ]
    said = (
        *_extremes(measured),
        *_survivors(measured, labels),
        *_merged(measured),
        *_repeated(repeated),
    )
    return Part("Heads and tokens", said, (_ranking(measured, shares),), tuple(drawings))


def _ranking(measured: Measured, shares: pl.DataFrame | None) -> Listing:
    """Heads by the share of the residual that flows through, or by how evenly they mix."""
    entropy, tau, sink = (
        measured.heads[name].nanquantile(0.5, dim=-1)
        for name in ("entropy_share", "dobrushin", "sink_share")
    )
    flows = {} if shares is None else _flows(shares)
    layers, heads = entropy.shape
    places = [(layer, head) for layer in range(layers) for head in range(heads)]
    key = flows.get if flows else lambda place: float(entropy[place])
    ranked = sorted(places, key=lambda place: -(key(place) or 0.0))
    rows = tuple(
        (
            f"layer {layer + 1}, head {head}",
            flows.get((layer, head)),
            float(entropy[layer, head]),
            float(tau[layer, head]),
            float(sink[layer, head]),
        )
        for layer, head in ranked[:_MOST_HEADS]
    )
    by = "the residual that flows through them" if flows else "how evenly they attend"
    return Listing(
        f"The first {len(rows)} of {plural(len(places), 'head')} by {by}",
        ("head", "share of the residual", "entropy share", "τ", "weight on the first token"),
        rows,
        "Medians over the samples. Shares are of everything that passes through a head on any "
        "path, so that they do not add up to one.",
    )


def _flows(shares: pl.DataFrame) -> dict[tuple[int, int], float]:
    rows = shares.filter(pl.col("head").is_not_null(), pl.col("metric") == "residual_share")
    if "length" in rows.columns:
        rows = rows.filter(pl.col("length").is_null())
    typical = rows.group_by("layer", "head", maintain_order=True).agg(pl.col("value").median())
    return {(layer - 1, head): value for layer, head, value in typical.iter_rows()}


def _extremes(measured: Measured) -> list[str]:
    entropy = measured.heads["entropy_share"].nanquantile(0.5, dim=-1)
    sink = measured.heads["sink_share"].nanquantile(0.5, dim=-1)
    count = entropy.numel()
    said = []
    for flags, words in (
        (
            entropy < thresholds.ONE_HOT_ENTROPY,
            "look at hardly more than one token (entropy share below "
            f"{thresholds.ONE_HOT_ENTROPY:g})",
        ),
        (
            sink > thresholds.SINK_WEIGHT,
            f"put more than {thresholds.SINK_WEIGHT:g} of their attention on the first token",
        ),
    ):
        found = flags.nonzero().tolist()
        if found:
            named = ", ".join(f"head {head} of layer {layer + 1}" for layer, head in found[:6])
            more = ", …" if len(found) > 6 else ""
            said.append(f"{len(found)} of {plural(count, 'head')} {words}: {named}{more}.")
    return said or [
        f"No head of {count} is one-hot or a sink (entropy share from "
        f"{short(float(entropy.min()), digits=2)} to {short(float(entropy.max()), digits=2)})."
    ]


def _survivors(measured: Measured, labels: Sequence[str]) -> list[str]:
    """Which tokens of the first sample are farthest from the others in the end."""
    last = measured.distances[-1, :, 0]
    known = (~last.isnan()).nonzero().squeeze(-1).tolist()
    ranked = sorted(known, key=lambda place: -float(last[place]))

    def name(place: int) -> str:
        known = place < len(labels) and labels[place] != str(place)
        return f"{place} ({literal(labels[place])})" if known else str(place)

    if len(ranked) < 6:
        return []
    far, near = ranked[:3], ranked[-3:]
    return [
        f"Of the first {len(known)} tokens of the first sample those that stay farthest from the "
        f"center are {', '.join(map(name, far))}, at {short(float(last[far[0]]), digits=2)} and "
        f"less; nearest to it are {', '.join(map(name, near))}, at "
        f"{short(float(last[near[-1]]), digits=2)}."
    ]


def _merged(measured: Measured) -> list[str]:
    """How many tokens have a twin, before the first layer and after the last."""
    before, after = (
        float((each < thresholds.MERGED_DISTANCE).sum(0).double().quantile(0.5))
        for each in measured.twins
    )
    if not before and not after:
        return [
            f"No two tokens of a sample become one (within {thresholds.MERGED_DISTANCE:g} of their "
            "length)."
        ]
    return [
        f"Tokens that have a twin (within {thresholds.MERGED_DISTANCE:g} of their length), in the "
        f"median over the samples: {short(before)} at the input, {short(after)} after the last "
        "layer."
    ]


def _repeated(change: Tensor | None) -> list[str]:
    if change is None:
        return []
    size = float(change.quantile(0.5))
    limit = float(torch.finfo(torch.bfloat16).eps) / 2
    lost = ", less than bfloat16 can show" if size < limit else ""
    return [
        "Repeating the last token once more (the same vector again, Barbero et al. 2024) changes "
        f"its final state by {short(size, digits=2)} of its length{lost}."
    ]


@torch.no_grad()
def similarity_rows(subject: kit.Subject, most_lost: int) -> pl.DataFrame:
    """Cosines between the first tokens of the first sample in a few layers."""
    batch = subject.batches()[0]
    kept = counted_tokens(batch)[0].nonzero().squeeze(-1)[:_MOST_TOKENS]
    states = [batch.x[:1], *subject.network.states(batch.x[:1], real_tokens(batch)[:1])]
    frames: list[dict[str, list[Any]]] = []
    for layer in chosen_layers(len(states) - 1, most_lost):
        found = cosines(states[layer][0, kept.to(states[layer].device)])
        size = len(found)
        frames.append(
            {
                "layer": [layer] * size**2,
                "token": [first for first in range(size) for _ in range(size)],
                "other_token": [second for _ in range(size) for second in range(size)],
                "value": found.flatten().tolist(),
            }
        )
    columns = {key: [each for part in frames for each in part[key]] for key in frames[0]}
    count = len(columns["value"])
    return tables.frame(
        {
            **columns,
            "part": [SIMILARITY] * count,
            "sample": [0] * count,
            "metric": ["token_cosine"] * count,
        }
    )


def chosen_layers(layers: int, most_lost: int) -> list[int]:
    """A few layers worth a picture: the first, the last, where most is lost, and some between."""
    wanted = {0, layers, most_lost, max(most_lost - 1, 0)}
    even = [round(k * layers / (_MOST_PANELS - 1)) for k in range(_MOST_PANELS)]
    for layer in even:
        if len(wanted) >= _MOST_PANELS:
            break
        wanted.add(layer)
    return sorted(wanted)


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


_MOST_SAMPLES = 4
_FIRST_TOKENS = 24


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
    return literal(" ".join(tokens[:_FIRST_TOKENS])) + " …" * (len(tokens) > _FIRST_TOKENS)
