"""The chapters that are told from what was measured."""

from collections.abc import Sequence

import polars as pl
import torch
from torch import Tensor

from rankscope import tables
from rankscope.core.network import Network
from rankscope.core.theory import thresholds
from rankscope.experiments import kit, variants
from rankscope.experiments.diagnosis import _measure as measure
from rankscope.experiments.diagnosis._evidence import Loss, signed
from rankscope.experiments.diagnosis._measure import ModelFigures
from rankscope.experiments.diagnosis._texts import TEXT_SPECTRUM, TEXTS, between_texts
from rankscope.experiments.diagnosis._tokens import cosines
from rankscope.models.text import InputCheck
from rankscope.numerals import plural, short
from rankscope.results import Drawing, Listing, Part, literal

_ABLATIONS, _SIMILARITY = "ablations", "similarity"
_RESIDUAL = "relative_residual"
_MOST_TOKENS = 32
_MOST_PANELS = 6
_MOST_HEADS = 12
_MOST_SAMPLES = 4
_FIRST_TOKENS = 24


def layer_part(
    measured: ModelFigures, loss: Loss, missing: Sequence[str], ablations: pl.DataFrame
) -> Part:
    """Curves beside the references, every part's steps, and the four ablations as explanation."""
    sentences = [
        "What every layer leaves of the relative residual, beside the same architecture with "
        "random weights; then which part of the block it was. Steps are changes of its "
        "logarithm in decades, and all of them add up to the whole way; a hollow mark is what "
        "the step would be without its skip.",
        *missing,
    ]
    listings = [_totals(measured, loss)]
    drawings = [
        Drawing(
            "by_layer",
            "This model beside random networks of its design on the same input: relative "
            "residual (composite norm), and relative dispersion (Frobenius norm), which can be "
            "predicted.",
            options={"metrics": [_RESIDUAL, "relative_dispersion"]},
            only={"part": (measure.STATES,)},
            title="What is left after each layer",
        ),
        Drawing(
            "steps",
            "A norm before a branch belongs to the branch; a norm after the sum is a step of "
            "its own.",
            "residual_step",
            only={"part": (measure.STEPS,)},
            title="Which part it was",
        ),
    ]
    if ablations["variant"].n_unique() > 1:
        listings.append(_ablations(ablations))
        drawings.append(
            Drawing(
                "by_layer",
                "The same weights less some parts: SAN is self-attention alone, SAN+MLP adds the "
                "MLPs, SAN+skip the skip connections, and the transformer has everything.",
                options={"metrics": [_RESIDUAL]},
                only={"part": (_ABLATIONS,)},
                title="What the parts are good for",
            )
        )
    else:
        sentences.append("It has neither skips nor MLPs that could be taken away.")
    return Part("Layer by layer", tuple(sentences), tuple(listings), tuple(drawings))


def trace_ablations(
    subject: kit.Subject, parts: variants.Parts, on_step: kit.OnStep
) -> pl.DataFrame:
    """The residual of SAN, SAN+MLP, SAN+skip and the whole; what it lacks anyway is not ablated."""
    networks: dict[str, Network] = {}
    for name, network in reversed(variants.four_variants(subject.network, parts).items()):
        if network.spec not in (known.spec for known in networks.values()):
            networks = {name: network, **networks}
    table = tables.joined(
        {
            name: subject.with_network(network).trace([_RESIDUAL], on_part).table
            for (name, network), on_part in kit.tracked(networks.items(), on_step)
        }
    )
    return table.with_columns(pl.lit(_ABLATIONS).alias("part"))


def _totals(measured: ModelFigures, loss: Loss) -> Listing:
    """What every part does over all layers, and where most."""
    rows = []
    for part, changes in measured.changes.items():
        if not bool((changes != 0).any()):
            continue
        steps = changes.quantile(0.5, dim=-1)
        worst = int(steps.argmin())
        alone = float(measured.alone[part].nanquantile(0.5, dim=-1)[worst])
        without = signed(alone) if alone == alone else "–"
        rows.append(
            (part, signed(loss.totals[part]), worst + 1, signed(float(steps[worst])), without)
        )
    return Listing(
        "What each part does to the relative residual, in decades (medians over the samples)",
        ("part", "all layers", "most is lost in layer", "there", "there, without its skip"),
        tuple(rows),
        "All layers as far as tokens are not alike. −1 leaves a tenth, −0.3 a half, −0.05 nine "
        "tenths.",
    )


def _ablations(table: pl.DataFrame) -> Listing:
    rows = []
    summary = tables.summary(table).sort("layer", maintain_order=True)
    for (name,), curve in summary.group_by("variant", maintain_order=True):
        values = curve["median"].to_list()
        lowest = min(range(len(values)), key=values.__getitem__)
        fate, layer = thresholds.fate_of(values)
        figure = short(values[layer], digits=1)
        words = f"shrinks to {figure} at layer {layer}" if fate == "slow" else "stays apart"
        words = f"collapses at layer {layer} ({figure})" if fate == "collapse" else words
        rows.append((name, values[0], values[lowest], lowest, values[-1], words))
    return Listing(
        "The same weights less some parts: relative residual (medians over the samples)",
        ("network", "input", "lowest", "at layer", "last layer", "fate"),
        tuple(rows),
        f"Collapses: below {thresholds.COLLAPSED_RESIDUAL:g}; shrinks: below "
        f"{thresholds.SHRUNK_RESIDUAL:g} of its largest value so far. On the first "
        f"{plural(table['sample'].n_unique(), 'sample')}.",
    )


def mixing_part(
    measured: ModelFigures,
    shares: pl.DataFrame | None,
    repeated: Tensor | None,
    labels: Sequence[str],
) -> Part:
    """Heads ranked, token by token similarity, and who survives."""
    shown = labels[:_MOST_TOKENS]
    of_heads = {
        "entropy_share": (
            "How evenly each head attends",
            "The entropy of its attention over that of even attention: 1 spreads over all "
            "tokens alike, 0 looks at one.",
        ),
        "dobrushin": (
            "How different the rows of each head are",
            "τ is 0 where all queries take the same average, which makes all tokens alike at once.",
        ),
        "sink_share": (
            "How much each head gives to the first token",
            "Sinks: attention that goes to a token nobody needs changes little.",
        ),
    }
    drawings = [
        Drawing("head_map", caption, metric, only={"part": (measure.HEADS,)}, title=title)
        for metric, (title, caption) in of_heads.items()
    ]
    drawings += [
        Drawing(
            "token_map",
            f"Cosines between the first {len(shown)} tokens of the first sample.",
            "token_cosine",
            {"labels": list(shown)},
            {"part": (_SIMILARITY,)},
            title="Which tokens merge",
        ),
        Drawing(
            "layer_map",
            "How far the token at each position is from the center of all, in root mean squares of "
            f"their lengths (medians over the samples; the first {measure.MOST_VALUES}).",
            "token_distance",
            {"along": "token"},
            {"part": (measure.TOKENS,)},
            title="Which positions stay apart",
        ),
    ]
    sentences = (*_of_heads(measured), *_of_tokens(measured, repeated, labels))
    return Part("Heads and tokens", sentences, (_ranking(measured, shares),), tuple(drawings))


def _ranking(measured: ModelFigures, shares: pl.DataFrame | None) -> Listing:
    """Heads by the share of the residual that flows through, or by how evenly they mix."""
    entropy, tau, sink = (values.nanquantile(0.5, dim=-1) for values in measured.heads.values())
    flows: dict[tuple[int, int], float] = {}
    if shares is not None:
        rows = shares.filter(
            pl.col("head").is_not_null(), pl.col("length").is_null(), metric="residual_share"
        )
        medians = rows.group_by("layer", "head", maintain_order=True).agg(pl.col("value").median())
        flows = {(layer - 1, head): value for layer, head, value in medians.iter_rows()}
    places = [(layer, head) for layer in range(len(entropy)) for head in range(entropy.shape[1])]
    key = flows.get if flows else lambda head: float(entropy[head])
    ranked = sorted(places, key=lambda head: -(key(head) or 0.0))[:_MOST_HEADS]
    by = "the residual that flows through them" if flows else "how evenly they attend"
    return Listing(
        f"The first {len(ranked)} of {plural(len(places), 'head')} by {by}",
        ("head", "share of the residual", "entropy share", "τ", "weight on the first token"),
        tuple(
            (
                f"layer {at[0] + 1}, head {at[1]}",
                flows.get(at),
                *(float(figure[at]) for figure in (entropy, tau, sink)),
            )
            for at in ranked
        ),
        "Medians over the samples. Shares are of everything that passes through a head on any "
        "path, so that they do not add up to one.",
    )


def _of_heads(measured: ModelFigures) -> list[str]:
    """Which heads look at one token, or at the first."""
    entropy, _, sink = (values.nanquantile(0.5, dim=-1) for values in measured.heads.values())
    one_hot, most = thresholds.ONE_HOT_ENTROPY, thresholds.SINK_WEIGHT
    kinds = {
        f"look at hardly more than one token (entropy share below {one_hot:g})": entropy < one_hot,
        f"put more than {most:g} of their attention on the first token": sink > most,
    }
    sentences = []
    for words, flags in kinds.items():
        indices = flags.nonzero().tolist()
        if indices:
            named = ", ".join(f"head {head} of layer {layer + 1}" for layer, head in indices[:6])
            more = ", …" if len(indices) > 6 else ""
            heads = f"{len(indices)} of {plural(entropy.numel(), 'head')}"
            sentences.append(f"{heads} {words}: {named}{more}.")
    low, high = (short(float(value), digits=2) for value in (entropy.min(), entropy.max()))
    return sentences or [
        f"No head of {entropy.numel()} is one-hot or a sink (entropy share from {low} to {high})."
    ]


def _of_tokens(measured: ModelFigures, repeated: Tensor | None, labels: Sequence[str]) -> list[str]:
    """Which tokens stay apart, how many have a twin, and what repeating the last one does."""
    sentences = []
    last = measured.distances[-1, :, 0]
    known = (~last.isnan()).nonzero().squeeze(-1).tolist()
    ranked = sorted(known, key=lambda token: -float(last[token]))

    def named(places: Sequence[int]) -> str:
        words = {at: label for at, label in enumerate(labels) if label != str(at)}
        return ", ".join(
            f"{at} ({literal(words[at])})" if at in words else f"{at}" for at in places
        )

    if len(ranked) >= 6:
        far, near = (short(float(last[ranked[at]]), digits=2) for at in (0, -1))
        sentences.append(
            f"Of the first {len(known)} tokens of the first sample those that stay farthest from "
            f"the center are {named(ranked[:3])}, at {far} and less; nearest to it are "
            f"{named(ranked[-3:])}, at {near}."
        )
    close = f"within {thresholds.MERGED_DISTANCE:g} of their length"
    before, after = (
        float((distances < thresholds.MERGED_DISTANCE).sum(0).double().quantile(0.5))
        for distances in measured.twins
    )
    if before or after:
        sentences.append(
            f"Tokens that have a twin ({close}), in the median over the samples: {short(before)} "
            f"at the input, {short(after)} after the last layer."
        )
    else:
        sentences.append(f"No two tokens of a sample become one ({close}).")
    if repeated is not None:
        size = float(repeated.quantile(0.5))
        lost = size < float(torch.finfo(torch.bfloat16).eps) / 2
        sentences.append(
            "Repeating the last token once more (the same vector again, Barbero et al. 2024) "
            f"changes its final state by {short(size, digits=2)} of its length"
            f"{', less than bfloat16 can show' if lost else ''}."
        )
    return sentences


@torch.no_grad()
def similarity_rows(subject: kit.Subject, most_lost: int) -> pl.DataFrame:
    """Cosines between the first tokens of the first sample in a few layers.

    These are the first, the last, where most is lost, and some between.
    """
    batch = subject.batches()[0]
    real, counted = measure.masks(batch)
    tokens = counted[0].nonzero().squeeze(-1)[:_MOST_TOKENS]
    states = [batch.x[:1], *subject.network.states(batch.x[:1], real[:1])]
    first = [state[0, tokens.to(state.device)] for state in states]
    last = len(states) - 1
    layers = {0, last, most_lost, max(most_lost - 1, 0)}
    for part in range(_MOST_PANELS):
        if len(layers) < _MOST_PANELS:
            layers.add(round(part * last / (_MOST_PANELS - 1)))
    size = len(tokens)
    places = torch.arange(size**2)
    return tables.stack(
        tables.frame(
            {
                "part": [_SIMILARITY] * size**2,
                "layer": [layer] * size**2,
                "token": (places // size).tolist(),
                "other_token": (places % size).tolist(),
                "sample": [0] * size**2,
                "metric": ["token_cosine"] * size**2,
                "value": cosines(first[layer]).flatten().tolist(),
            }
        )
        for layer in sorted(layers)
    )


def text_part(measured: ModelFigures, twin: ModelFigures | None) -> Part:
    """How far whole texts lie apart, by layer, beside the untrained twin and unrelated vectors."""
    count = measured.views.shape[-1]
    if count < thresholds.LEAST_TEXTS:
        why = f"It takes {thresholds.LEAST_TEXTS} texts, and there are {count}."
        return Part("Between texts", (f"Cannot be told: {why}",))
    mine = between_texts(measured.views)
    fresh = None if twin is None else between_texts(twin.views)
    rows = []
    for at, view in enumerate(measure.VIEWS):
        entries = [float(mine[name][-1, at]) for name in mine]
        drawn = None if fresh is None else float(fresh["relative_dispersion"][-1, at])
        rows.append((view, *entries, drawn))
    return Part(
        "Between texts",
        (
            f"What stands for each of {plural(count, 'text')}, held against the others: where "
            "these are alike, all texts have one embedding, however different their tokens are.",
        ),
        (
            Listing(
                "After the last layer",
                (
                    *("what stands for a text", "relative dispersion", "mean cosine"),
                    *("effective rank", "relative dispersion, untrained twin"),
                ),
                tuple(rows),
                "A first token that sees itself alone is the same in all texts that begin alike.",
            ),
        ),
        (
            Drawing(
                "by_layer",
                "By what stands for a text, beside the untrained twin and vectors drawn "
                "independently of each other.",
                options={"metrics": ["relative_dispersion", "mean_cosine", "effective_rank"]},
                only={"part": (TEXTS,)},
                title="How far texts lie apart",
            ),
            Drawing(
                "layer_map",
                "Singular values of the matrix of all texts' means, as parts of their sum. A layer "
                "that darkens quickly from the top down has few directions left.",
                "singular_value_share",
                {"along": "index"},
                {"part": (TEXT_SPECTRUM,)},
                title="Singular values over the texts",
            ),
        ),
    )


def spectrum_part(measured: ModelFigures) -> Part:
    """Layer × singular value, and four figures by layer."""
    values = measured.values.nanquantile(0.5, dim=-1)  # layer, value
    first, last = (short(float(values[at, 0]), digits=2) for at in (0, -1))
    rank = measured.states["effective_rank"].quantile(0.5, dim=-1)
    return Part(
        "Spectrum, angles and sizes",
        (
            f"The largest singular value is {first} of the sum of all at the input and {last} "
            f"after the last layer; the effective rank goes from {short(float(rank[0]))} to "
            f"{short(float(rank[-1]))}.",
        ),
        drawings=(
            Drawing(
                "layer_map",
                f"Each singular value as a part of their sum, the first {measure.MOST_VALUES}. A "
                "layer that darkens quickly from the top down has few directions left.",
                "singular_value_share",
                {"along": "index"},
                {"part": (measure.SPECTRUM,)},
                title="Singular values",
            ),
            Drawing(
                "by_layer",
                options={"metrics": ["effective_rank", "mean_cosine", "token_norm", "layer_turn"]},
                only={"part": (measure.STATES,), "variant": (measure.THIS,)},
                title="Rank, angles, sizes, and what each layer turns",
            ),
        ),
    )


def reading_part(check: InputCheck | None, samples: int, tokens: int) -> Part:
    """The tokens as the model saw them, how many were unknown, what was cut."""
    title = "What the model read"
    if check is None:
        size = f"{plural(samples, 'sample')} of up to {plural(tokens, 'token')}"
        return Part(title, (f"{size}, given as vectors.",))
    rows = []
    for sample, words in enumerate(check.tokens[:_MOST_SAMPLES]):
        begin = literal(" ".join(words[:_FIRST_TOKENS])) + " …" * (len(words) > _FIRST_TOKENS)
        rows.append((sample, len(words), len(check.unknown[sample]), check.lost[sample], begin))
    listing = Listing(
        f"The first {plural(len(rows), 'sample')} as the model saw them",
        ("sample", "tokens", "unknown", "cut off", "how they begin"),
        tuple(rows),
        f"Of {plural(check.samples, 'sample')}.",
    )
    return Part(title, (check.describe(),), (listing,))
