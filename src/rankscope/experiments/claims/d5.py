"""Claim D5, Dong et al. 2021, figure 2: skips keep BERT, ALBERT and XLNet from collapsing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import polars as pl

from rankscope import tables
from rankscope.ask import SMALL, Model, by_name
from rankscope.core.theory import levels_off, thresholds
from rankscope.experiments import kit, models, variants
from rankscope.experiments.depths import medians
from rankscope.numerals import short

ENTRY = kit.claim(
    "D5",
    "BERT, ALBERT and XLNet lose rank with depth as attention alone (SAN) and with MLPs (SAN+MLP), "
    "and keep it with skip connections.",
    source="Dong et al. 2021, figure 2",
    question="Do the tokens become alike without skip connections, and only then?",
    domain="BERT, ALBERT and XLNet, pretrained and at initialisation",
    beyond="other models",
    options=("seed", "models", "texts", "length", "parts"),
    seconds=108,
    small=False,
)
PAPER: Final = {"samples": 32}
_RESIDUAL = "relative_residual"
_WITHOUT: Final = (variants.SAN, variants.SAN_MLP)
Fate = Literal["collapsed", "still falling", "level"]


def _models() -> tuple[Model, ...]:
    known = models.papers_models()
    return known if any(not model.at_init for model in known) else (*known, SMALL)


@dataclass(frozen=True)
class Config(models.ModelsConfig):
    """The models, what they read (as much as in the paper), and what is taken away from them."""

    models: tuple[Model, ...] = field(default_factory=_models)
    samples: int = 8
    parts: variants.Parts = "paper"


About = Mapping[str, Mapping[str, str]]
"""By model: its family, and what it has learnt where it was trained here."""


def measure(config: Config, on_step: kit.OnStep) -> kit.Measured[About]:
    """Trace the four variants of every model; one model is in memory at a time."""
    measured: dict[str, pl.DataFrame] = {}
    about: dict[str, Mapping[str, str]] = {}
    for (name, case), on_case in kit.tracked(by_name(config.models).items(), on_step):
        on_load, on_trace = kit.parts(on_case, 1, 3)
        subject = case.subject(config, on_load)
        about[name] = subject.about
        networks = variants.four_variants(subject.network, config.parts)
        measured[name] = tables.joined(
            {
                variant: subject.with_network(network).trace((_RESIDUAL,), on_variant).table
                for (variant, network), on_variant in kit.tracked(networks.items(), on_trace)
            }
        )
    return kit.Measured(
        tables.joined(measured, column="model"),
        facts=about,
        about={"variants": variants.PARTS[config.parts]},
    )


class Course(NamedTuple):
    """How the relative residual of one variant goes: first, last, and whether it is going on."""

    first: float
    last: float
    fate: Fate

    def __str__(self) -> str:
        return f"{short(self.first, digits=2)} → {short(self.last, digits=2)}, {self.fate}"


def course(residuals: Sequence[float]) -> Course:
    """Where a relative residual starts and ends, and what becomes of it.

    >>> str(course([0.63, 0.5, 0.4, 0.31, 0.25, 0.19, 0.15, 0.11, 0.072]))
    '0.63 → 0.072, still falling'
    """
    logs = [math.log10(value) if value > 0 else -math.inf for value in residuals]
    fate: Fate = "level" if levels_off(logs) else "still falling"
    if residuals[-1] < thresholds.COLLAPSED_RESIDUAL:
        fate = "collapsed"
    return Course(residuals[0], residuals[-1], fate)


def judge(config: Config, measured: kit.Measured[About]) -> kit.Answer:
    """A model bears the claim out if both variants without skips collapse and both with are level.

    Collapsed is a relative residual under a thousandth after the last layer, level one whose last
    quarter of the layers is not lower than the quarter before by a tenth of a decade.
    """
    families = {model: about["family"] for model, about in measured.facts.items()}
    summary = tables.summary(measured.table)
    known = summary["variant"].unique(maintain_order=True).to_list()
    courses = {
        model: {
            variant: course(medians(summary, _RESIDUAL, model=model, variant=variant))
            for variant in known
        }
        for model in families
    }
    against = {
        model: [
            f"{variant} {residuals}"
            for variant, residuals in by_variant.items()
            if residuals.fate != ("collapsed" if variant in _WITHOUT else "level")
        ]
        for model, by_variant in courses.items()
    }
    without = [by_variant[name].fate for by_variant in courses.values() for name in _WITHOUT]
    skipping = [name for name in known if name not in _WITHOUT]
    level = [by_variant[name].fate for by_variant in courses.values() for name in skipping]
    reasons = "; ".join(f"{model}: {', '.join(told)}" for model, told in against.items() if told)
    named = by_name(config.models)
    trained = any(families[name] in models.FAMILIES for name in named if not named[name].at_init)
    untried = "None of the paper's models was tried with trained weights (--pretrained)."
    return kit.Answer(
        (
            f"Tokens collapse in {without.count('collapsed')} of {len(without)} networks without "
            f"skips; with them they stay level in {level.count('level')} of {len(level)}.",
            *(f"{m}: {about['skill']}." for m, about in measured.facts.items() if "skill" in about),
            *([] if trained else [untried]),
        ),
        **models.by_family(
            {model: not told for model, told in against.items()},
            families,
            depends=f"the model ({reasons})",
        ),
        key_figures={
            f"{model}, {variants.SAN_SKIP} at the end": by_variant[variants.SAN_SKIP].last
            for model, by_variant in courses.items()
        },
        listings=(
            kit.Listing(
                "Relative residual from the input to the last layer",
                ("model", *known),
                tuple((model, *map(str, row.values())) for model, row in courses.items()),
                "Means over the samples. Collapsed is below "
                f"{thresholds.COLLAPSED_RESIDUAL:g} in the end.",
            ),
        ),
        charts=(
            kit.Drawing(
                "by_model", f"A panel for each model; {variants.PARTS[config.parts]}.", _RESIDUAL
            ),
        ),
    )
