"""Text and notebook displays of objects of the core.

The core holds numbers and codes. Its objects that people print (``print(*prediction.verdict)``,
``bounds.sentences``, ``str(law)``) import the functions here when text is needed, as ``.table``
imports ``rankscope.tables``.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, groupby, pairwise
from textwrap import shorten
from typing import TYPE_CHECKING, Final

from rankscope.numerals import plural, power_of_ten, short, some, span_of
from rankscope.show.display import card, paragraph, table

if TYPE_CHECKING:
    from torch import Tensor

    from rankscope.core.prediction import PredictedOutcome, Prediction
    from rankscope.core.theory import Bounds, GraphFacts, Law, LayerBounds, Obstacle

# ---------------------------------------------------------------------------------------- laws

LAW_NAMES: Final[Mapping[str, str]] = {"none": "no collapse", "equal": "all tokens equal"}
_CERTAIN: Final = 2.0  # standard errors to either side of a fitted constant, shown next to it


def law_name(law: "Law") -> str:
    """The name of a law, and the last layer it was fitted to if later figures are in doubt."""
    named = LAW_NAMES.get(law.kind, law.kind)
    return named if law.sure_to is None else f"{named} (to layer {law.sure_to})"


def law_pace(law: "Law") -> str:
    """The constant of a law: the growth of a step of the logarithm, or the factor per layer."""
    if law.kind == "doubly exponential":
        return f"step × {_with_error(law.growth, law.growth_error)}"
    if law.kind == "between":
        return f"step + {_with_error(-law.bend, law.bend_error)}"
    return "" if law.kind == "equal" else f"layer × {_law_factor(law)}"


def describe_law(law: "Law") -> str:
    """A law with its constant, in a clause."""
    if law.sure_to == 0:
        return "all figures from layer 1 on are in doubt"
    factor = _law_factor(law)
    clause = {
        "doubly exponential": "doubly exponential: each step is "
        f"{_with_error(law.growth, law.growth_error)} times the one before",
        "between": "between exponential and doubly exponential: each step is "
        f"{_with_error(-law.bend, law.bend_error)} decades larger than the one before",
        "exponential": f"exponential: each layer multiplies the residual by {factor}",
        "equal": "all tokens are equal, or differ by less than the logarithms can resolve",
        "undecided": "undecided: too few layers, or too uneven; "
        f"the last layers multiply the residual by {factor}",
        "none": f"no collapse: each layer multiplies the residual by {factor}",
    }[law.kind]
    if law.sure_to is None:
        return clause
    return f"{clause}, up to layer {law.sure_to}; later figures are in doubt"


def _law_factor(law: "Law") -> str:
    """The factor per layer, with its error bounds if they differ from it."""
    off = _CERTAIN * law.rate_error
    at, low, high = (
        power_of_ten(rate, digits=3) for rate in (law.rate, law.rate - off, law.rate + off)
    )
    return at if low == high else f"{at} ({low} to {high})"


def _with_error(value: float, error: float) -> str:
    """Two digits after the point, and the error if it is visible in them."""
    return f"{value:.2f}" if error < 0.005 else f"{value:.2f} ± {error:.2f}"


# ---------------------------------------------------------------------------------- predictions


def describe_outcome(outcome: "PredictedOutcome") -> str:
    """One outcome in a sentence, and a second sentence if the networks disagree."""
    sentence = _OUTCOMES[outcome.about](outcome)
    if outcome.is_sure:
        return sentence
    shares = ", ".join(f"{share:.0%} show {kind}" for kind, share in outcome.shares.items())
    return f"{sentence} The sampled networks disagree: {shares}."


def _describe_tokens(outcome: "PredictedOutcome") -> str:
    start, end = (power_of_ten(outcome.figures[at]) for at in ("first", "last"))
    layers, trend, fall = plural(outcome.layers, "layer"), outcome.trend, ""
    if trend is not None and trend.rate <= 0 and math.isfinite(trend.rate):
        factor = short(trend.factor, digits=2)
        fall = {
            "level": "",
            "exponential": f"; the decay is exponential, by a factor of {factor} per layer",
            "faster than exponential": "; the decay is faster than exponential",
            "polynomial": f"; it decays like layer^{short(trend.power, digits=2)}",
            "unclear": f"; in the second half each layer multiplies it by {factor}",
        }[trend.kind]
    if outcome.kind == "depth collapse":
        since = f"from layer {outcome.layer} on" if outcome.layer is not None else "at the end"
        return (
            f"Depth collapse: {since} the relative dispersion of the tokens is below 0.001, "
            f"and {end} after {layers}{fall}."
        )
    opening, fall = {
        "collapse under way": ("Depth collapse under way", fall),
        "tokens kept apart": ("No depth collapse", ""),
        "chaos": ("Chaos, tokens move apart", ""),
    }[outcome.kind]
    way = f"goes from {start} to {end}" if start != end else f"stays near {start}"
    halved = outcome.figures["last"] - outcome.figures["first"] < math.log10(0.5)
    if outcome.kind == "tokens kept apart" and halved:
        opening = "Tokens become more alike, but do not collapse"
    return f"{opening}: the relative dispersion of the tokens {way} over {layers}{fall}."


def _describe_attention(outcome: "PredictedOutcome") -> str:
    figures = outcome.figures
    most = figures["even_entropy"]
    entropies = f"{short(figures['entropy'], digits=2)} of {short(most, digits=2)} nats"
    seen = f"{entropies} at layer {figures['least_at']:.0f}"
    # Rounded down, so that 99.96% does not appear as 100%.
    least = f"{math.floor(1000 * figures['least']) / 10:g}%"
    if outcome.kind == "entropy collapse":
        layers = f"{figures['sharp_layers']:.0f} of {plural(outcome.layers, 'layer')}"
        return (
            f"Entropy collapse: in {layers} the attention entropy is below a quarter of its "
            f"maximum ({seen}). Each query attends to few keys."
        )
    if outcome.kind == "even attention" and most == 0:
        return "Every query sees only one key."
    if outcome.kind == "even attention":
        return (
            f"Attention is nearly uniform in every layer: its entropy is at least {least} of the "
            "maximum."
        )
    return f"The attention entropy is at least {least} of its maximum ({seen})."


def _describe_size(outcome: "PredictedOutcome") -> str:
    trend, figures = outcome.trend, outcome.figures
    assert trend is not None  # every size has one
    law = {
        "exponential": f" exponentially, by a factor of {short(trend.factor)} per layer",
        "faster than exponential": " faster than exponentially",
        "polynomial": f" polynomially, like layer^{short(trend.power, digits=2)}",
    }.get(trend.kind, "")
    verb = {  # if only a few networks grow, there is no law of growth
        "bounded size": "stay bounded",
        "growing size": f"grow{law if trend.rate > 0 else ''}",
        "shrinking size": f"shrink{law if trend.rate < 0 else ''}",
    }[outcome.kind]
    return (
        f"Token norms {verb}: {short(figures['first'])} at the input, "
        f"{short(figures['last'])} at the last layer."
    )


def _describe_gradients(outcome: "PredictedOutcome") -> str:
    opening = {
        "vanishing gradients": "Gradients vanish",
        "exploding gradients": "Gradients explode",
        "level gradients": "Gradients keep their size",
    }[outcome.kind]
    return (
        f"{opening}: the gradient at the input is {short(outcome.figures['ratio'])} times that at "
        f"the last layer, a factor of {short(outcome.figures['factor'])} per layer."
    )


def _describe_queries(outcome: "PredictedOutcome") -> str:
    figures = outcome.figures
    least = short(figures["least"], digits=2)
    seen = f"{least} times those of values (layer {figures['least_at']:.0f})"
    if outcome.kind == "learning queries":
        return f"Gradients of queries and keys are at least {seen}."
    return (
        f"Queries and keys hardly learn in {figures['starved_layers']:.0f} of "
        f"{plural(outcome.layers, 'layer')}: their gradients are as small as {seen}."
    )


_OUTCOMES: Final[Mapping[str, Callable[["PredictedOutcome"], str]]] = {
    "tokens": _describe_tokens,
    "attention": _describe_attention,
    "size": _describe_size,
    "gradients": _describe_gradients,
    "queries": _describe_queries,
}


def prediction_doubt(prediction: "Prediction") -> str:
    """Which figures of a prediction are in doubt, and why; empty if none."""
    if prediction.doubtful:
        networks = prediction.draws * prediction.samples
        return (
            f"in {prediction.doubtful} of {networks} networks scaled arithmetic may have lost ten "
            "or more digits; their smallest dispersions are in doubt"
        )
    if prediction.only_floats:
        return (
            "centred attention without a skip is computed in plain float64: once tokens are "
            "smaller than the input by sixteen digits, figures are rounding errors"
        )
    return ""


def prediction_html(prediction: "Prediction") -> str:
    """The bands of every metric, by layer."""
    bands = [prediction.band(name) for name in prediction.metrics]
    rows = []
    for layer in some(range(prediction.layers + 1)):
        numbers = ([float(part[layer]) for part in band] for band in bands)
        cells = ("" if m != m else f"{short(m)} ({short(a)} to {short(b)})" for m, a, b in numbers)
        rows.append([str(layer), *cells])
    about = paragraph(f"{prediction.spec.describe()}; {plural(prediction.draws, 'draw')}.")
    return card("Prediction", about, table(["layer", *prediction.metrics], rows))


# --------------------------------------------------------------------------------------- bounds

_OBSTACLES: Final[Mapping[str, str]] = {
    "part": "it has {}, for which no bound is derived",
    "skip": "a skip carries the tokens past the attention",
    "norm": "a norm ({}) divides each token by its size",
    "parallel": "an MLP in parallel to the attention carries the tokens past it",
    "mask": "under the mask {} not all tokens attend to the same tokens",
    "centered": "centred attention removes the common part of the tokens",
    "scores": "its scores ({}) are not plain dot products of queries and keys",
    "activation": "the slopes of the activation {!r} are unknown",
    "range": "products of its weights are too large or too small for float64",
    "gated": "a gated MLP has no Lipschitz constant for all inputs; the data-dependent bounds use "
    "one for this input",
}
_BOUND_COLUMNS: Final[Mapping[str, str]] = {
    "log10_residual": "residual",
    "log10_sharp_bound": "sharp",
    "log10_data_bound": "data",
    "log10_a_priori_bound": "a priori",
    "log10_depth_data_bound": "data, all layers",
    "log10_depth_bound": "Dong et al. 2021, all layers",
    "log10_depth_input_bound": "input norm, all layers",
}
_LAYERS_SHOWN: Final = 12


def describe_obstacle(obstacle: "Obstacle") -> str:
    """Why no bound covers a layer, in a clause."""
    return _OBSTACLES[obstacle.kind].format(obstacle.detail)


def why_not(bounds: "Bounds", limit: float) -> str:
    """The first reason why the theorem does not cover the last layer; empty if it does."""
    for layer in bounds.layers:
        if layer.obstacle_a_priori is not None:
            return f"layer {layer.layer}: {layer.obstacle_a_priori}"
    for layer in bounds.layers:
        failing = int((~layer.condition).sum())
        if failing:
            return (
                f"layer {layer.layer}: the scores of a query differ by up to "
                f"{_largest(layer.log10_score_difference)}, more than {limit:.4f}, in {failing} of "
                f"{len(layer.condition)} samples"
            )
    return ""


def layer_bounds_line(layer: "LayerBounds") -> str:
    """A layer's residual and the bounds on it."""
    residual = (
        f"layer {layer.layer}; residual {_largest(layer.log10_residual)} from "
        f"{_largest(layer.log10_input_residual)}"
    )
    if layer.obstacle is not None:
        return f"LayerBounds({residual}; no bound: {shorten(layer.why_not, 200, placeholder=' …')})"
    bounds = ", ".join(
        f"{name.replace('_', ' ')} {_largest(getattr(layer, f'log10_{name}_bound'))}"
        for name in ("sharp", "data", "a_priori")
    )
    return f"LayerBounds({residual}; bounds: {bounds})"


def bounds_line(bounds: "Bounds") -> str:
    """The residual at both ends and the best bounds on it."""
    last, first = bounds.layers[-1], bounds.layers[0]
    sharp = f", at most {_largest(last.log10_sharp_bound)} by the last layer's sharp bound"
    theorem = (
        f"at most {_largest(last.log10_depth_bound)} by Dong et al. 2021"
        if bounds.applies
        else f"Dong et al. 2021 does not apply ({shorten(bounds.why_not, 200, placeholder=' …')})"
    )
    return (
        f"Bounds({plural(len(bounds.layers), 'layer')}, "
        f"{plural(len(last.log10_residual), 'sample')}; residual "
        f"{_largest(first.log10_input_residual)} at the input, {_largest(last.log10_residual)} "
        f"after the last layer{sharp if last.applies else ''}; {theorem}"
        f"{'; residuals in doubt' if bounds.doubtful else ''})"
    )


def bounds_sentences(bounds: "Bounds", limit: float) -> tuple[str, ...]:
    """Summary of bounds, each for the sample for which it is largest."""
    doubts = (f"Note: {doubt}." for doubt in bounds.doubts)
    return (*_coverage(bounds, limit), *_all_layers(bounds), *doubts)


def _coverage(bounds: "Bounds", limit: float) -> Iterator[str]:
    """The layers that no bound covers, with reasons; adjacent layers with one reason are grouped.

    Then the constants of the layers that are covered.
    """
    for reason, group in groupby(bounds.layers, key=lambda layer: layer.why_not_a_priori):
        layers = [layer.layer for layer in group]
        if reason:
            which = f"Layer {layers[0]}" if len(layers) == 1 else f"Layers {layers[0]}–{layers[-1]}"
            yield f"{which}: the theorem of Dong et al. 2021 does not apply: {reason}."
    failing = [
        layer for layer in bounds.layers if layer.applies and not bool(layer.condition.all())
    ]
    if failing:
        which = ", ".join(str(layer.layer) for layer in failing)
        worst = max(
            (layer.log10_score_difference for layer in failing), key=lambda d: float(d.max())
        )
        samples = max(int((~layer.condition).sum()) for layer in failing)
        yield (
            f"Layer{'s' * (len(failing) > 1)} {which}: the bounds of Dong et al. 2021 require the "
            f"scores of each query to differ by at most {limit:.4f}. Here they differ by up to "
            f"{_largest(worst)}; up to {samples} of {len(failing[0].condition)} samples fail."
        )
    covered = [layer for layer in bounds.layers if layer.applies]
    if not covered:
        return
    ranges = []  # of the constants in the bounds, over the covered layers
    symbols = {"gamma": "γ", "beta": "β", "paper_beta": "their βH", "lipschitz": "λ"}
    for name, symbol in symbols.items():
        values = [float(value) for layer in covered for value in getattr(layer, name)]
        ranges.append(f"{symbol} {span_of(min(values), max(values))}")
    useful = [str(layer.layer) for layer in covered if bool(layer.informative.all())]
    where = f"in layers {', '.join(useful)}" if useful else "in no layer"
    yield (
        f"{', '.join(ranges)}; the a-priori bound of Dong et al. 2021 guarantees that the residual "
        f"shrinks {where}."
    )


def _all_layers(bounds: "Bounds") -> Iterator[str]:
    """The bound on all layers by each chain, next to the measured residual."""
    last, start = bounds.layers[-1], bounds.layers[0].log10_input_residual
    chains = {
        "the theorem of Dong et al. 2021": (last.log10_depth_bound, start),
        "the chain of data-dependent bounds": (last.log10_depth_data_bound, start),
        "the bound from the norm of the input alone": (last.log10_depth_input_bound, start),
        "the sharp bound of the last layer, given its true input,": (
            last.log10_sharp_bound,
            last.log10_input_residual,
        ),
    }
    known = {name: pair for name, pair in chains.items() if not bool(pair[0].isnan().any())}
    measured = _largest(last.log10_residual)
    if not known:
        yield f"No bound covers the last layer; its residual is {measured}."
        return
    yield (
        f"After layer {last.layer} the residual is {measured}, from {_largest(start)} at "
        "the input (the largest of the samples, composite norm, best center)."
    )
    for name, (bound, before) in known.items():
        above = int(((bound >= before) & ~before.isneginf()).sum())
        empty = f" (not below the input in {above} of {len(start)} samples)" if above else ""
        yield f"By {name} it is at most {_largest(bound)}{empty}."


def bounds_html(bounds: "Bounds") -> str:
    """A row for each layer; the middle layers of a deep network are omitted."""
    samples = plural(len(bounds.layers[-1].log10_residual), "sample")
    notes = any(layer.why_not_a_priori for layer in bounds.layers)
    half, rows = _LAYERS_SHOWN // 2, []
    for index, layer in enumerate(bounds.layers):
        if half <= index < len(bounds.layers) - half:
            rows += [["…"]] * (index == half)
            continue
        values = (getattr(layer, name) for name in _BOUND_COLUMNS)
        cells = ("–" if bool(value.isnan().any()) else _largest(value) for value in values)
        rows.append([str(layer.layer), *cells, *([layer.why_not_a_priori] if notes else [])])
    return card(
        f"Residual and its bounds (largest of {samples}, composite norm, best center)",
        table(("layer", *_BOUND_COLUMNS.values(), *(["does not apply"] if notes else [])), rows),
        *(paragraph(f"Note: {doubt}.") for doubt in bounds.doubts),
    )


def _largest(log10: "Tensor") -> str:
    """The largest of some numbers given by their logarithms."""
    return power_of_ten(float(log10.max()), digits=3)


# ---------------------------------------------------------------------------------------- masks

_RUNS_SHOWN: Final = 6


def describe_graph(facts: "GraphFacts") -> str:
    """The graph of a mask in a line."""
    size = f"{facts.tokens} tokens, {facts.edges} edges"
    if not facts.quasi_strongly_connected:
        count = len(facts.closed_classes)
        return f"{size}; no center: {count} closed classes that stay independent"
    centers = f"{len(facts.centers)} tokens are centers"
    if facts.strongly_connected:
        centers = "every token is a center"
    elif len(facts.centers) == 1:
        centers = f"token {facts.centers[0]} is the only center"
    clock = "" if facts.collapses else f"; period {facts.periods[0]}"
    loops = len(facts.missing_self_loops)
    missing = f"; {loops} without self-loop" if loops else ""
    return (
        f"{size}; {centers}, radius {_layers(facts.radius)}, "
        f"diameter {_layers(facts.diameter)}{clock}{missing}"
    )


def graph_html(facts: "GraphFacts") -> str:
    """Every fact in a row of its own."""
    classes = facts.closed_classes[:_RUNS_SHOWN]
    more = len(facts.closed_classes) - len(classes)
    rows = (
        ("tokens", f"{facts.tokens:,}"),
        ("edges", f"{facts.edges:,}"),
        ("centers", _positions(facts.centers)),
        ("radius", _layers(facts.radius)),
        ("diameter", _layers(facts.diameter)),
        ("contracts after (layers)", _layers(facts.contracts_after)),
        ("closed classes", "; ".join([*map(_positions, classes), *[f"{more} more"] * (more > 0)])),
        ("periods", ", ".join(map(str, sorted(set(facts.periods))))),
        ("without self-loop", _positions(facts.missing_self_loops)),
        ("powers tend to rank one", "yes" if facts.collapses else "no"),
    )
    return card("Graph of a mask", table(("", ""), rows))


def _layers(layers: float) -> str:
    return "infinite" if math.isinf(layers) else f"{layers:g}"


def _positions(positions: Sequence[int]) -> str:
    """Positions in order as runs, ``0–3, 7``, the first few of them."""
    if not positions:
        return "none"
    gaps = [pair for pair in pairwise(positions) if pair[1] - pair[0] > 1]
    edges = [positions[0], *chain.from_iterable(gaps), positions[-1]]
    runs = list(zip(edges[::2], edges[1::2], strict=True))
    shown = [str(a) if a == b else f"{a}–{b}" for a, b in runs[:_RUNS_SHOWN]]
    more = f", … ({len(positions):,} tokens)" if len(runs) > _RUNS_SHOWN else ""
    return ", ".join(shown) + more
