"""Claim D5, Dong et al. 2021, figure 2: skips mitigate the rank collapse of three architectures.

The figure's curves, read off the authors' vector files, are in ``dong2021_figure2.csv`` and stand
beside those measured here: all at 128 tokens, ours of the bundled passages, theirs of wiki_bio. The
authors drew new weights for each of the four variants; here the four share them, seed by seed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Final, NamedTuple

import polars as pl

from rankscope import tables
from rankscope.ask import by_name
from rankscope.experiments import kit, models, variants
from rankscope.numerals import short

ENTRY = kit.claim(
    "D5",
    "Without skip connections (SAN, SAN+MLP) the relative residual of BERT, ALBERT and XLNet ends "
    "far below its value with them (SAN+skip, transformer): skips mitigate rank collapse.",
    source="Dong et al. 2021, figure 2",
    question="Do the tokens become far more alike without skip connections?",
    domain="BERT, ALBERT and XLNet, at initialisation and pretrained",
    beyond="other models",
    options=("seed", "models", "texts", "length", "parts"),
    seconds=48,
    small=False,
)
PAPER: Final = {"samples": 32}
RESOLUTION: Final = 1e-3
"""The lower end of the figure's axis; smaller values count as this."""
FAR: Final = 10.0
"""How many times as much is "far" above."""
_RESIDUAL = "relative_residual"
_WITHOUT: Final = (variants.SAN, variants.SAN_MLP)
_WITH: Final = (variants.SAN_SKIP, variants.TRANSFORMER)
_EVERY: Final = (*_WITHOUT, *_WITH)
_WEIGHTS: Final = {"init": "{} at initialisation", "pretrained": "pretrained {}"}


@dataclass(frozen=True)
class Config(models.ModelsConfig):
    """The models, what they read, what is taken away, and how often weights are drawn."""

    samples: int = 4
    draws: int = 3
    parts: variants.Parts = "paper"


class ModelFacts(NamedTuple):
    """Of one model: its family, ``init``, ``pretrained`` or neither, and its draws of weights."""

    family: str
    weights: str
    draws: int = 1
    skill: str = ""

    @property
    def panel(self) -> str:
        """What the panel of figure 2 is called that it belongs to; empty if there is none."""
        known = self.family in models.FAMILIES and self.weights in _WEIGHTS
        return _WEIGHTS[self.weights].format(self.family) if known else ""


def measure(config: Config, on_step: kit.OnStep) -> kit.Measured[dict[str, ModelFacts]]:
    """Trace the four variants of every model; one model is in memory at a time.

    The samples of the second draw of weights are numbered after those of the first, and so on.
    """
    measured: dict[str, pl.DataFrame] = {}
    facts: dict[str, ModelFacts] = {}
    for (name, case), on_case in kit.tracked(by_name(config.models).items(), on_step):
        weights = "trained here" if case.trained_here else "pretrained"
        draws = range(config.draws if case.at_init else 1)
        traced = []
        for draw, on_draw in kit.tracked(draws, on_case):
            on_load, on_trace = kit.parts(on_draw, 1, 3)
            subject = case.subject(replace(config, seed=config.seed + draw), on_load)
            networks = variants.four_variants(subject.network, config.parts)
            by_variant = {
                variant: subject.with_network(network).trace((_RESIDUAL,), on_variant).table
                for (variant, network), on_variant in kit.tracked(networks.items(), on_trace)
            }
            numbered = pl.col("sample") + draw * len(subject.x)
            traced.append(tables.joined(by_variant).with_columns(numbered))
        skill = subject.about.get("skill", "")
        weights = "init" if case.at_init else weights
        facts[name] = ModelFacts(subject.about["family"], weights, len(draws), skill)
        measured[name] = tables.stack(traced)
    ours, theirs = tables.joined(measured, column="model"), figure()
    # Each panel of the figure beside the first model that it is of, the others in the end.
    panels = {fact.panel: name for name, fact in reversed(facts.items())}
    beside = {name: [f"{panel}, figure 2"] for panel, name in panels.items() if panel}
    order = [label for name in facts for label in (name, *beside.get(name, []))]
    order += [label for label in theirs["model"].unique(maintain_order=True) if label not in order]
    both = tables.stack([ours, theirs]).partition_by("model", as_dict=True)
    return kit.Measured(
        tables.stack(both[label,] for label in order),
        facts=facts,
        about={"variants": f"{config.parts}: {variants.PARTS[config.parts]}"},
    )


def figure() -> pl.DataFrame:
    """The 24 curves of figure 2 as a table; ``error`` is what can be read off its axis."""
    text = files("rankscope.experiments").joinpath("dong2021_figure2.csv").read_text("utf-8")
    lines = [line.split(",") for line in text.splitlines() if not line.startswith("#")]
    rows = [
        (f"{_WEIGHTS[weights].format(model)}, figure 2", variant, int(layer), float(residual))
        for model, weights, variant, layer, residual in lines[1:]
    ]
    names = ("model", "variant", "layer", "sample", "metric", "value", "error")
    return tables.from_rows(names, [(*row[:3], 0, _RESIDUAL, row[3], RESOLUTION) for row in rows])


class Ends(NamedTuple):
    """Relative residuals of the four variants, as means over samples: first and last layer."""

    first: Mapping[str, float]
    last: Mapping[str, float]

    @property
    def far_below(self) -> bool:
        """Whether both variants without skips end at a tenth at most of both with them."""
        highest = max(RESOLUTION, *(self.last[variant] for variant in _WITHOUT))
        return FAR * highest <= min(self.last[variant] for variant in _WITH)


def ends(rows: pl.DataFrame, draws: int = 1) -> list[Ends]:
    """For each draw of the weights of one model, where its curves begin and end."""
    samples = rows["sample"].n_unique() // draws
    means = rows.group_by(pl.col("sample") // samples, "variant", "layer").agg(pl.mean("value"))
    last = int(means["layer"].max() or 0)  # type: ignore[arg-type]
    return [
        Ends(
            *(
                dict(means.filter(sample=draw, layer=layer).select("variant", "value").iter_rows())
                for layer in (0, last)
            )
        )
        for draw in range(draws)
    ]


def judge(config: Config, measured: kit.Measured[dict[str, ModelFacts]]) -> kit.Answer:
    """A panel of figure 2 supports the claim if SAN and SAN+MLP end far below the other two.

    Far below is a tenth at most, after the last layer, in means over the samples; what is below a
    thousandth, which the figure's axis does not show, counts as a thousandth. It has to be so in
    every draw of the weights. The paper has no number for "far": the rule was settled when the
    authors' curves were known (five panels of six pass it, and pretrained ALBERT, whose SAN+skip
    itself ends below a thousandth, does not), and not changed for those measured here.
    """
    facts = measured.facts
    table = {label: rows for (label,), rows in measured.table.group_by("model")}
    ours = {name: ends(table[name], fact.draws) for name, fact in facts.items()}
    theirs = {
        label.removesuffix(", figure 2"): ends(rows)[0]
        for label, rows in table.items()
        if label not in facts
    }
    holds = {name: all(draw.far_below for draw in draws) for name, draws in ours.items()}
    stated: dict[str, bool | None] = {}
    for panel in (words.format(f) for words in _WEIGHTS.values() for f in models.FAMILIES):
        tried = [holds[name] for name, fact in facts.items() if fact.panel == panel]
        stated[panel] = all(tried) if tried else None
    others = {name: holds[name] for name, fact in facts.items() if not fact.panel}
    against = [panel for panel, end in theirs.items() if not end.far_below]
    return kit.Answer(
        (
            f"In {sum(holds.values())} of {len(holds)} models both variants without skips end at a "
            "tenth at most of both with skips.",
            *_beside_the_figure(ours, theirs, facts),
            f"The authors' own curves do so in {len(theirs) - len(against)} of {len(theirs)} "
            f"panels{''.join(_exception(panel, theirs[panel]) for panel in against)}.",
            *(f"{name}: {fact.skill}." for name, fact in facts.items() if fact.skill),
        ),
        stated=stated,
        on=_words(config, [name for name, fact in facts.items() if fact.panel], ours),
        beyond=others or None,
        on_beyond=_words(config, others, ours),
        key_figures={
            f"{name}, {variants.SAN_SKIP} at the end": kit.Mean.of(
                [draw.last[variants.SAN_SKIP] for draw in draws]
            ).value
            for name, draws in ours.items()
        },
        listings=(_listing(measured.table, ours, theirs),),
        charts=(
            kit.Drawing(
                "by_depth",
                "A panel for each model, all samples of all draws of its weights, beside the "
                "authors' own curves, which are means; hollow marks: zero, or less than the "
                f"figure's axis shows. Variants ({config.parts}): {variants.PARTS[config.parts]}.",
                _RESIDUAL,
                options={"lowest": RESOLUTION / 2},
            ),
        ),
    )


def _words(config: Config, names: Iterable[str], ours: Mapping[str, list[Ends]]) -> kit.Phrase:
    """What completes a verdict: how many draws there were, and which ends are against it."""
    seeds = f"in each of {config.draws} draws of random weights"
    apart = "; ".join(
        f"{name} ({', '.join(f'{v} {short(end.last[v], digits=2)}' for v in _EVERY)})"
        for name in names
        for end in [draw for draw in ours[name] if not draw.far_below][:1]
    )
    return {
        "holds": seeds,
        "fails": f"for {apart}",
        "depends": f"supported except for: {apart}",
        "not tried": "name a model with --models or --pretrained",
    }


def _beside_the_figure(
    ours: Mapping[str, list[Ends]], theirs: Mapping[str, Ends], facts: Mapping[str, ModelFacts]
) -> Iterable[str]:
    """Where SAN+skip ends here and in the figure, which are the same network if weights are."""
    ends = [
        f"{short(kit.Mean.of([draw.last[variants.SAN_SKIP] for draw in draws]).value, digits=3)} "
        f"(figure 2: {short(theirs[facts[name].panel].last[variants.SAN_SKIP], digits=3)}) for "
        f"{facts[name].panel}"
        for name, draws in ours.items()
        if facts[name].panel in theirs
    ]
    return [f"{variants.SAN_SKIP} ends at {', '.join(ends)}."] if ends else []


def _exception(panel: str, end: Ends) -> str:
    start, last = (residuals[variants.SAN_SKIP] for residuals in end)
    shown = f"below {RESOLUTION:g}" if last < RESOLUTION else short(last, digits=2)
    return f", not for {panel}, whose {variants.SAN_SKIP} goes from {start:g} to {shown}"


def _listing(
    table: pl.DataFrame, ours: Mapping[str, list[Ends]], theirs: Mapping[str, Ends]
) -> kit.Listing:
    rows = []
    for label in table["model"].unique(maintain_order=True):
        draws = ours.get(label) or [theirs[label.removesuffix(", figure 2")]]
        cells = []
        for variant in _EVERY:
            lasts = sorted(draw.last[variant] for draw in draws)
            span = dict.fromkeys(short(last, digits=2) for last in (lasts[0], lasts[-1]))
            first = kit.Mean.of([draw.first[variant] for draw in draws]).value
            cells.append(f"{short(first, digits=2)} → {' to '.join(span)}")
        passed = sum(draw.far_below for draw in draws)
        rows.append((label, *cells, f"{passed} of {len(draws)}"))
    return kit.Listing(
        "Relative residual from the input to the last layer",
        ("model", *_EVERY, "far below"),
        tuple(rows),
        "Means over the samples; where draws of the weights differ, the lowest and the highest. "
        "Far below: draws in which both variants without skips end at no more than a tenth of both "
        "with skips. In figure 2, 0 means below 0.001.",
    )
