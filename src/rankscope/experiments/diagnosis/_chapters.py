"""The chapters of a diagnosis, from what was measured."""

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
from rankscope.experiments.diagnosis._rules import runs_of
from rankscope.experiments.diagnosis._stages import masks
from rankscope.experiments.diagnosis._texts import (
    TEXT_SPECTRUM,
    TEXTS,
    EmbeddingFigures,
    between_texts,
)
from rankscope.experiments.diagnosis._tokens import cosines
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
    measured: ModelFigures, loss: Loss, missing: Sequence[str], ablations: pl.DataFrame | str
) -> Part:
    """Curves with the references, the steps of every part, and the four ablations.

    ``ablations`` is the reason if there are none.
    """
    sentences = [
        "The relative residual after every layer, compared with the same architecture with random "
        "weights, and the step of every part of a block: the change of log10 of the relative "
        "residual, in decades. Steps add up to the change from the input to the last layer. A "
        "hollow mark is the step without the skip connection.",
        *missing,
    ]
    listings = [_totals(measured, loss)]
    drawings = [
        Drawing(
            "by_layer",
            "This model and random networks of its design on the same input: relative residual "
            "(composite norm), and relative dispersion (Frobenius norm), for which there are "
            "predictions.",
            options={"metrics": [_RESIDUAL, "relative_dispersion"]},
            only={"part": (measure.STATES,)},
            title="Relative residual after each layer",
        ),
        Drawing(
            "steps",
            "A norm before a branch belongs to the branch; a norm after the sum is a step of "
            "its own.",
            "residual_step",
            only={"part": (measure.STEPS,)},
            title="Steps by part",
        ),
    ]
    if isinstance(ablations, str):
        sentences.append(f"Predictions and ablations are left out: {ablations.rstrip('.')}.")
    elif ablations["variant"].n_unique() > 1:
        listings.append(_ablations(ablations))
        drawings.append(
            Drawing(
                "by_layer",
                "The same weights without some parts: SAN is self-attention alone, SAN+MLP adds "
                "the MLPs, SAN+skip the skip connections, and the transformer has all parts.",
                options={"metrics": [_RESIDUAL]},
                only={"part": (_ABLATIONS,)},
                title="Ablations",
            )
        )
    else:
        sentences.append("There are no ablations: it has neither skip connections nor MLPs.")
    return Part("Layer by layer", tuple(sentences), tuple(listings), tuple(drawings))


def trace_ablations(
    subject: kit.Subject, parts: variants.Parts, on_step: kit.OnStep
) -> pl.DataFrame:
    """The residual of SAN, SAN+MLP, SAN+skip and the model; equal networks are left out."""
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
    """The step of every part over all layers, and its largest fall."""
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
        "Steps of the relative residual by part, in decades (medians over the samples)",
        ("part", "all layers", "largest fall in layer", "step there", "without its skip"),
        tuple(rows),
        "All layers: up to the layer where tokens are alike. −1 leaves a tenth, −0.3 a half, −0.05 "
        "nine tenths.",
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
        "The same weights without some parts: relative residual (medians over the samples)",
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
    """Heads by rank, similarities of tokens, and which tokens stay apart."""
    shown = labels[:_MOST_TOKENS]
    of_heads = {
        "entropy_share": (
            "How evenly each head attends",
            "The entropy of its attention over that of uniform attention: 1 is uniform over all "
            "tokens, 0 attends to one.",
        ),
        "dobrushin": (
            "How different the rows of each head are",
            "τ is 0 if all queries take the same average, which makes all tokens equal at once.",
        ),
        "sink_share": (
            "Weight of each head on the first token",
            "A head that attends mostly to an attention sink changes the tokens little.",
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
            "The distance of the token at each position from the mean token, over the root mean "
            f"square token norm (medians over the samples; the first {measure.MOST_VALUES}).",
            "token_distance",
            {"along": "token"},
            {"part": (measure.TOKENS,)},
            title="Which positions stay apart",
        ),
    ]
    sentences = (*_of_heads(measured), *_of_tokens(measured, repeated, labels))
    listings = (_ranking(measured, shares),) if bool(measured.attends.any()) else ()
    return Part("Heads and tokens", sentences, listings, tuple(drawings))


def _ranking(measured: ModelFigures, shares: pl.DataFrame | None) -> Listing:
    """Heads by their share of the residual, or by the entropy of their attention."""
    entropy, tau, sink = (values.nanquantile(0.5, dim=-1) for values in measured.heads.values())
    flows: dict[tuple[int, int], float] = {}
    if shares is not None:
        rows = shares.filter(
            pl.col("head").is_not_null(), pl.col("length").is_null(), metric="residual_share"
        )
        medians = rows.group_by("layer", "head", maintain_order=True).agg(pl.col("value").median())
        flows = {(layer - 1, head): value for layer, head, value in medians.iter_rows()}
    places = [(at[0], at[1]) for at in (~sink.isnan()).nonzero().tolist()]
    key = flows.get if flows else lambda head: float(entropy[head])
    ranked = sorted(places, key=lambda head: -(key(head) or 0.0))[:_MOST_HEADS]
    own = ("share of the residual",) if flows else ()  # needs the paths of our network
    note = " The share counts all paths through a head, so shares do not add up to one."
    return Listing(
        f"The first {len(ranked)} of {plural(len(places), 'head')} by {(*own, 'entropy')[0]}",
        ("head", *own, "entropy share", "τ", "weight on the first token"),
        tuple(
            (
                f"layer {at[0] + 1}, head {at[1]}",
                *((flows.get(at),) if flows else ()),
                *(float(figure[at]) for figure in (entropy, tau, sink)),
            )
            for at in ranked
        ),
        "Medians over the samples." + note * bool(flows),
    )


def _of_heads(measured: ModelFigures) -> list[str]:
    """Which heads attend to one token, or to the first."""
    attends = measured.attends
    if not bool(attends.any()):
        return [f"Attention could not be observed ({measured.unread})."]
    seen = runs_of(attends.tolist())
    some = [] if bool(attends.all()) else [f"Attention was observed in {seen} only."]
    return some + _of_observed_heads(measured)


def _of_observed_heads(measured: ModelFigures) -> list[str]:
    entropy, _, sink = (values.nanquantile(0.5, dim=-1) for values in measured.heads.values())
    count = int((~sink.isnan()).sum())
    one_hot, most = thresholds.ONE_HOT_ENTROPY, thresholds.SINK_WEIGHT
    kinds = {
        f"attend to hardly more than one token (entropy share below {one_hot:g})": entropy
        < one_hot,
        f"put more than {most:g} of their attention on the first token": sink > most,
    }
    sentences = []
    for words, flags in kinds.items():
        indices = flags.nonzero().tolist()
        if indices:
            named = ", ".join(f"head {head} of layer {layer + 1}" for layer, head in indices[:6])
            more = ", …" if len(indices) > 6 else ""
            heads = f"{len(indices)} of {plural(count, 'head')}"
            sentences.append(f"{heads} {words}: {named}{more}.")
    known = entropy[~sink.isnan()]
    low, high = (short(float(value), digits=2) for value in (known.min(), known.max()))
    return sentences or [
        f"None of {plural(count, 'head')} is one-hot or attends mostly to the first token "
        f"(entropy share {low} to {high})."
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
            f"After the last layer, of the first {len(known)} tokens of the first sample, "
            f"{named(ranked[:3])} are farthest from the mean token (distance up to {far}) and "
            f"{named(ranked[-3:])} are nearest (down to {near})."
        )
    close = f"within {thresholds.MERGED_DISTANCE:g} of their length"
    before, after = (
        float((distances < thresholds.MERGED_DISTANCE).sum(0).double().quantile(0.5))
        for distances in measured.twins
    )
    if before or after:
        sentences.append(
            f"Tokens that coincide with another ({close}), median over the samples: "
            f"{short(before)} at the input, {short(after)} after the last layer."
        )
    else:
        sentences.append(f"No two tokens of a sample coincide ({close}).")
    if repeated is not None:
        size = float(repeated.quantile(0.5))
        lost = size < float(torch.finfo(torch.bfloat16).eps) / 2
        sentences.append(
            "Repeating the last token (the same vector, Barbero et al. 2024) changes its final "
            f"hidden state by {short(size, digits=2)} of its length"
            f"{', less than the precision of bfloat16' if lost else ''}."
        )
    return sentences


@torch.no_grad()
def similarity_rows(subject: kit.Subject, most_lost: int) -> pl.DataFrame:
    """Cosines between the first tokens of the first sample in a few layers.

    These are the first, the last, where most is lost, and some between.
    """
    batch = subject.batches()[0]
    real, counted = masks(batch)
    tokens = counted[0].nonzero().squeeze(-1)[:_MOST_TOKENS]
    if subject.traced is None:
        states = [batch.x[:1], *subject.network.states(batch.x[:1], real[:1])]
    else:
        first_batch = subject.of_samples(torch.arange(1)).batches()[0]
        one = subject.traced.of_samples(torch.arange(1))
        states = one.record(first_batch, states_only=True).states
        fewest = min(state.shape[1] for state in states)  # layers may merge tokens
        tokens = tokens[tokens < fewest]
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


def text_part(
    measured: ModelFigures, twin: ModelFigures | None, embedded: EmbeddingFigures | None = None
) -> Part:
    """Distances between texts by layer, with the untrained twin and unrelated vectors."""
    count = measured.views.shape[-1]
    if count < thresholds.LEAST_TEXTS:
        why = f"Not measured: it needs {thresholds.LEAST_TEXTS} texts, and there are {count}."
        return Part("Between texts", (why,))
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
            f"Vectors that represent {plural(count, 'text')}, compared with each other. If they "
            "are alike, all texts have the same embedding, however different their tokens are.",
            *(() if embedded is None else embedded.sentences()),
        ),
        (
            *(() if embedded is None else embedded.listings()),
            Listing(
                "After the last layer",
                (
                    *("vector of a text", "relative dispersion", "mean cosine"),
                    *("effective rank", "uniformity", "relative dispersion, untrained twin"),
                ),
                tuple(rows),
                "A first token that attends only to itself is equal in texts that begin alike.",
            ),
        ),
        (
            Drawing(
                "by_layer",
                "By the vector that represents a text, with the untrained twin and independent "
                "random vectors.",
                options={
                    "metrics": [
                        *("relative_dispersion", "mean_cosine"),
                        *("effective_rank", "uniformity"),
                    ]
                },
                only={"part": (TEXTS,)},
                title="Distances between texts",
            ),
            Drawing(
                "layer_map",
                "Singular values of the matrix of all texts' means, over their sum. A layer "
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
            f"The largest singular value is {first} of their sum at the input and {last} "
            f"after the last layer; the effective rank goes from {short(float(rank[0]))} to "
            f"{short(float(rank[-1]))}.",
        ),
        drawings=(
            Drawing(
                "layer_map",
                f"Singular values as shares of their sum, the first {measure.MOST_VALUES}. A "
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
                title="Rank, angles, norms, and turn by layer",
            ),
        ),
    )


def reading_part(subject: kit.Subject) -> Part:
    """The tokens as the model read them, and how many were unknown or cut off."""
    title, check = "What the model read", subject.check
    if check is None:
        samples, tokens = subject.x.shape[:2]
        size = f"{plural(samples, 'sample')} of up to {plural(tokens, 'token')}"
        given = "hidden states" if subject.traced is None else "tensors"
        return Part(title, (f"{size}, given as {given}.",))
    rows = []
    for sample, words in enumerate(check.tokens[:_MOST_SAMPLES]):
        begin = literal(" ".join(words[:_FIRST_TOKENS])) + " …" * (len(words) > _FIRST_TOKENS)
        rows.append((sample, len(words), len(check.unknown[sample]), check.lost[sample], begin))
    listing = Listing(
        f"The first {plural(len(rows), 'sample')} as the model read them",
        ("sample", "tokens", "unknown", "cut off", "how they begin"),
        tuple(rows),
        f"Of {plural(check.samples, 'sample')}.",
    )
    return Part(title, (check.describe(),), (listing,))
