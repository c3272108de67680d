"""Causes and repairs in words: those of a finding, and the chapters Why and What now."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rankscope.experiments.diagnosis import _causes as causes
from rankscope.experiments.diagnosis._measure import ModelFigures
from rankscope.experiments.diagnosis._repairs import RESTORED, Cause, Mended, health, is_bad
from rankscope.experiments.diagnosis._texts import between_texts
from rankscope.numerals import sentence_case, short
from rankscope.results import Finding, Listing, Part

_NOTHING: Final = "None of the repairs that were tried helps."


def explain(finding: Finding, mended: Mended) -> Finding:
    """A finding with its cause, and the repair that was tried."""
    if not is_bad(finding):
        return finding
    blamed = [cause for cause in mended.causes if _blames(cause, finding)]
    if not blamed:
        return finding
    return replace(
        finding,
        module=blamed[0].paths[0],
        cause=" ".join(f"The cause is {_location(cause)}: {cause.sentence}." for cause in blamed),
        remedy=_remedy(finding, blamed, mended),
    )


def _location(cause: Cause) -> str:
    if cause.layer < 0:
        return f"the {cause.part} of every layer"
    return f"the {cause.part} of layer {cause.layer}" if cause.layer else "the embedding"


def _remedy(finding: Finding, blamed: Sequence[Cause], mended: Mended) -> str:
    """How a repair of its causes changes a finding's figure, and which findings disappear."""
    left = {finding.kind for finding in mended.remaining if is_bad(finding)}
    shared = [other for other in mended.findings if any(_blames(cause, other) for cause in blamed)]
    repairs = "; ".join(cause.repair for cause in blamed)
    figure = (
        f"{_FIGURES[finding.kind]} from {_shown(finding, mended.before, mended)} to "
        f"{_shown(finding, mended.after, mended)}"
    )
    gone = [other.kind for other in shared if other.kind not in left]
    changes = "This changes" if len(mended.causes) == 1 else "All repairs together change"
    drawn = any(cause.drawn for cause in blamed)
    train = " (reinitialised weights must be trained again)" if drawn else ""
    words = f"Repair tried on this model{train}: {repairs}. {changes} {figure}"
    *most, last = gone or [""]
    listed = f"{', '.join(most)} and {last}" if most else last
    occur = "occur" if most or last.endswith("s") else "occurs"
    words += f"; {listed} no longer {occur}." if gone else "."
    return " ".join(filter(None, [words, at_fault(mended)]))


def _blames(cause: Cause, finding: Finding) -> bool:
    return is_bad(finding) and cause.restored.get(finding.kind, 0.0) >= RESTORED


def at_fault(mended: Mended) -> str:
    """Whether the weights or the design are at fault; empty if that is unknown."""
    lost = {
        finding.kind for finding in mended.findings if is_bad(finding) and finding.fate != "noted"
    }
    if not mended.twin or not lost:
        return ""
    same = lost & {finding.kind for finding in mended.twin if is_bad(finding)}
    if same:
        kinds = " and ".join(sorted(same))
        return f"The untrained twin shows {kinds} as well: the design is at fault."
    return "The architecture is sound at initialisation; the problem lies in this model's weights."


_FIGURES: Final = {
    "depth collapse": "the lowest relative residual",
    "width collapse": "the relative dispersion after the last layer",
    "entropy collapse": "the entropy share",
    "layer collapse": "the smallest turn of the tokens",
    "merged last token": "the last token's distance to its nearest neighbour",
    "cone": "the mean cosine",
    "collapse between texts": "the relative dispersion of the texts",
    "dead sublayer": "the variation of its output between tokens",
    "dominating sublayer": "the ratio of its output to the hidden state",
    "narrow sublayer": "the number of directions in its output",
    "unusual weights": "the factor between its weights and their usual size",
}


def _shown(finding: Finding, measured: ModelFigures, mended: Mended) -> str:
    """The figure of a finding as it is printed, not as it is compared."""
    value = health(finding, measured, mended.fresh)
    if finding.kind == "unusual weights":
        return short(math.exp(-value), digits=2)
    if finding.kind == "cone":
        return short(-value, digits=2)
    if finding.kind == "entropy collapse":
        return short(value, digits=2)
    return short(10 ** (-value if finding.kind == "dominating sublayer" else value), digits=2)


def why_part(mended: Mended) -> Part | None:
    """Which weights are unusual, and which of them are causes; None if nothing is bad."""
    if not any(map(is_bad, mended.findings)):
        return None
    blamed = {path for cause in mended.causes for path in cause.paths}
    sentences = [f"{sentence_case(_location(cause))}: {cause.sentence}." for cause in mended.causes]
    rows = tuple(
        (
            f"`{suspect.path}`",
            suspect.weight.layer or "embeddings",
            suspect.weight.role if suspect.weight.layer else "table",
            causes.WORDS[suspect.figure][0],
            *(suspect.value, suspect.elsewhere, suspect.fresh),
            "yes" if suspect.path in blamed else "",
        )
        for suspect in mended.unusual
    )
    if not rows:
        nothing = "No weight is unusual compared with other layers and the untrained twin."
        return Part("Why", (nothing,))
    if not sentences:
        sentences = ["The table lists unusual weights, but repairing them restores nothing."]
    listing = Listing(
        "Unusual weights, compared with the other layers and the untrained twin",
        ("weight", "layer", "role", "figure", "here", "other layers", "untrained", "cause"),
        rows,
        "A weight is a cause if its repair restores the figure of a finding; see What now.",
    )
    listings = (listing, _attention(mended)) if mended.products else (listing,)
    return Part("Why", tuple(sentences), listings)


def _attention(mended: Mended) -> Listing:
    """The maps of attention by layer, and the logits compared with the critical scale."""
    tokens = float(mended.before.tokens.double().quantile(0.5))
    scales = mended.before.logits.mean(1).quantile(0.5, dim=-1).tolist()
    rows = tuple(
        (layer, *product, scale)
        for layer, (product, scale) in enumerate(zip(mended.products, scales, strict=True), start=1)
    )
    critical = short(math.sqrt(2 * math.log(max(tokens, 2.0))), digits=2)
    return Listing(
        "The maps of attention, by layer",
        (
            *("layer", "W_Q W_Kᵀ, size", "its directions", "W_V W_O, size", "its directions"),
            "scale of the logits",
        ),
        rows,
        "Means over the heads. Independent logits with a standard deviation above √(2 ln T), here "
        f"{critical}, condense on few tokens (claim P1).",
    )


def repair_part(mended: Mended) -> Part | None:
    """The effect of each repair, the best first, and whether weights or design are at fault."""
    bad = [finding for finding in mended.findings if is_bad(finding)]
    lost = [finding for finding in bad if finding.fate != "noted"]
    if not bad or not (lost or mended.causes):
        return None
    sentences = [at_fault(mended), "" if mended.causes else _NOTHING]

    def last(measured: ModelFigures) -> tuple[float, ...]:
        texts = between_texts(measured.views)["relative_dispersion"][-1, 0]
        states = (measured.states[name][-1] for name in ("relative_residual", "mean_cosine"))
        return (*(float(values.quantile(0.5)) for values in states), float(texts))

    rows: list[tuple[str | float | None, ...]] = [
        ("unchanged", None, *last(mended.before), None),
    ]
    for trial in mended.tried:
        share = max(trial.restored.values())
        price = f"{trial.changed:,} weights" + ", reinitialised" * trial.drawn
        rows.append((trial.repair, max(0.0, share), *last(trial.after), price))
    if len(mended.causes) > 1:
        rows.append(("all repairs that help", None, *last(mended.after), None))
    listing = Listing(
        "Repairs of this model's weights, measured",
        (
            *("repair", "restored", "relative residual at the end", "mean cosine at the end"),
            *("relative dispersion of texts at the end", "changes"),
        ),
        tuple(rows),
        "Restored: the share of the gap to the untrained twin that is closed, for the finding with "
        "the largest one. `rankscope diagnose --fix FOLDER` writes the repaired checkpoint.",
    )
    return Part("What now", tuple(filter(None, sentences)), (listing,))
