"""Claim D5, Dong et al. 2021, figure 2: skips keep BERT, ALBERT and XLNet from collapsing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import polars as pl

from rankscope import tables
from rankscope.core.theory import levels_off, thresholds
from rankscope.experiments import kit, models, variants
from rankscope.experiments.models import Case
from rankscope.numerals import short

ENTRY = kit.claim(
    "D5",
    "BERT, ALBERT and XLNet lose rank with depth as attention alone (SAN) and with MLPs "
    "(SAN+MLP), and keep it with skip connections.",
    source="Dong et al. 2021, figure 2",
    domain="BERT, ALBERT and XLNet, pretrained and at initialisation",
    options=("seed", "models", "texts", "length", "reading"),
    seconds=108,
    small=False,
)
_RESIDUAL = "relative_residual"
_WITHOUT: Final = (variants.SAN, variants.SAN_MLP)
Fate = Literal["collapsed", "still falling", "level"]


def _models() -> tuple[Case, ...]:
    known = models.papers_models()
    return known if any(case.trained for case in known) else (*known, models.TrainedHere())


@dataclass(frozen=True)
class Config(models.ModelsConfig):
    """The models, what they read (as much as in the paper), and what is taken away from them."""

    models: tuple[Case, ...] = field(default_factory=_models)
    samples: int = 8
    reading: variants.Reading = field(default_factory=variants.Reading)


PAPER: Final = {"samples": 32}


class Course(NamedTuple):
    """How the relative residual of one variant goes: first, last, and whether it is going on."""

    first: float
    last: float
    fate: Fate

    def __str__(self) -> str:
        told = f"{short(self.first, digits=2)} → {short(self.last, digits=2)}"
        return f"{told}, {self.fate}"


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Trace the four variants of every model; one model is in memory at a time."""
    measured: dict[str, pl.DataFrame] = {}
    families: dict[str, str] = {}
    skills: list[str] = []
    for (name, case), on_case in kit.tracked(models.by_name(config.models).items(), on_step):
        on_load, on_trace = kit.parts(on_case, 1, 3)
        subject = case.subject(config, on_load)
        families[name] = subject.about["family"]
        skills += [f"{name}: {subject.about['skill']}."] if "skill" in subject.about else []
        measured[name] = _measure(config, subject, on_trace)
    courses = {name: read(table) for name, table in measured.items()}
    judgement, beyond = judge(courses, families)
    return ENTRY.result(
        config,
        question="Do the tokens become alike without skip connections, and only then?",
        sentences=(
            _counted(courses),
            *skills,
            *_not_tried(config, families),
        ),
        table=tables.joined(measured, column="model"),
        listings=(_listing(courses),),
        about={"variants": str(config.reading)},
        judgement=judgement,
        beyond=beyond,
        key_figures={
            f"{name}, {variants.SAN_SKIP} at the end": each[variants.SAN_SKIP].last
            for name, each in courses.items()
        },
        drawings=(
            kit.Drawing("by_model", f"A panel for each model; {config.reading}.", _RESIDUAL),
        ),
        shown=(_RESIDUAL,),
    )


def _counted(courses: Mapping[str, Mapping[str, Course]]) -> str:
    """How many variants without skips collapse, and with them are level."""
    without, with_skips = (
        [
            found.fate
            for each in courses.values()
            for variant, found in each.items()
            if (variant in _WITHOUT) is side
        ]
        for side in (True, False)
    )
    return (
        f"Tokens collapse in {without.count('collapsed')} of {len(without)} networks without "
        f"skips; with them they stay level in {with_skips.count('level')} of {len(with_skips)}."
    )


def _listing(courses: Mapping[str, Mapping[str, Course]]) -> kit.Listing:
    known = list(dict.fromkeys(variant for each in courses.values() for variant in each))
    return kit.Listing(
        "Relative residual from the input to the last layer",
        ("model", *known),
        tuple(
            (name, *(str(each[variant]) if variant in each else None for variant in known))
            for name, each in courses.items()
        ),
        f"Means over the samples. Collapsed is below {thresholds.COLLAPSED_RESIDUAL:g} in the end.",
    )


def judge(
    courses: Mapping[str, Mapping[str, Course]], families: Mapping[str, str]
) -> tuple[kit.Judgement, kit.Judgement | None]:
    """A model bears the claim out if both variants without skips collapse and both with are level.

    Collapsed is a relative residual under a thousandth after the last layer, level one whose last
    quarter of the layers is not lower than the quarter before by a tenth of a decade.
    """
    against = {name: _against(each) for name, each in courses.items()}
    borne_out = {name: not reasons for name, reasons in against.items()}
    judgement, beyond = models.judged_by_family(ENTRY.domain, borne_out, families)
    return _with_reasons(judgement, against), beyond and _with_reasons(beyond, against)


def read(table: pl.DataFrame) -> dict[str, Course]:
    """The course of every variant, from the medians over the samples."""
    summary = tables.summary(table.filter(metric=_RESIDUAL))
    return {
        variant: course(summary.filter(variant=variant).sort("layer")["median"].to_list())
        for variant in summary["variant"].unique(maintain_order=True).to_list()
    }


def course(residuals: Sequence[float]) -> Course:
    """Where a relative residual starts and ends, and what becomes of it.

    >>> str(course([0.63, 0.5, 0.4, 0.31, 0.25, 0.19, 0.15, 0.11, 0.072]))
    '0.63 → 0.072, still falling'
    """
    last = residuals[-1]
    logs = [math.log10(value) if value > 0 else -math.inf for value in residuals]
    if last < thresholds.COLLAPSED_RESIDUAL:
        fate: Fate = "collapsed"
    else:
        fate = "level" if levels_off(logs) else "still falling"
    return Course(residuals[0], last, fate)


def _against(courses: Mapping[str, Course]) -> list[str]:
    """What of a model is not as stated."""
    return [
        f"{variant} {found}"
        for variant, found in courses.items()
        if found.fate != ("collapsed" if variant in _WITHOUT else "level")
    ]


def _not_tried(config: Config, families: Mapping[str, str]) -> list[str]:
    """What of the domain no model was named for."""
    known = models.by_name(config.models)
    trained = any(
        case.trained and families[name] in models.FAMILIES for name, case in known.items()
    )
    return (
        []
        if trained
        else ["None of the paper's models was tried with trained weights (--pretrained)."]
    )


def _with_reasons(judgement: kit.Judgement, against: Mapping[str, Sequence[str]]) -> kit.Judgement:
    """The judgement with what speaks against it, where the cases differ."""
    if judgement.verdict != "depends":
        return judgement
    told = [f"{name}: {', '.join(reasons)}" for name, reasons in against.items() if reasons]
    return kit.Judgement("depends", judgement.domain, f"the model ({'; '.join(told)})")


def _measure(config: Config, subject: kit.Subject, on_step: kit.OnStep) -> pl.DataFrame:
    """The table of one model's variants."""
    networks = variants.four_variants(subject.network, config.reading)
    return tables.joined(
        {
            name: subject.with_network(network).trace((_RESIDUAL,), on_variant).table
            for (name, network), on_variant in kit.tracked(networks.items(), on_step)
        }
    )
