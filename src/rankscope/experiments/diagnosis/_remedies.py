"""Changes of structure tried on the very weights of a model that collapses."""

from dataclasses import replace
from typing import Final

from rankscope import tables
from rankscope.core.network import Network, drawable
from rankscope.core.theory import thresholds
from rankscope.errors import RankscopeError
from rankscope.experiments import advice, kit
from rankscope.results import Listing

_METRIC: Final = "relative_residual"
_MOST: Final = 8


def remedies(subject: kit.Subject, on_step: kit.OnStep) -> Listing:
    """What other skips, norms and masks would do to the residual, best first; none if none helps.

    Nothing is trained anew: the figures say what the structure does to these weights' tokens, not
    how well such a model would work.
    """
    network, tokens = subject.network, subject.x.shape[1]
    before = _lowest(subject, network)
    tried = []
    for change, _ in kit.tracked(advice.changes(drawable(network), tokens), on_step):
        spec = replace(change.spec, scores=network.spec.scores)
        try:
            after = _lowest(subject, network.with_structure(spec))
        except RankscopeError:  # it needs other weights, or does not fit this input
            continue
        if after[0] >= thresholds.REMEDY_FACTOR * before[0]:
            tried.append((change.words, *after))
    best = sorted(tried, key=lambda row: -row[1])[:_MOST]
    note = "" if best else "Nothing that was tried on these weights helps."
    return Listing(
        "On this very model, with its own weights: relative residual (medians over the samples)",
        ("change", "lowest", "after the last layer"),
        (("as it is", *before), *best),
        note or "Nothing was trained anew: a model that works needs training with the change.",
    )


def _lowest(subject: kit.Subject, network: Network) -> tuple[float, float]:
    """The lowest residual of all layers, and that after the last."""
    found = tables.summary(subject.with_network(network).trace([_METRIC]).table).sort("layer")
    by_layer = found["median"].to_list()
    return min(by_layer), by_layer[-1]
