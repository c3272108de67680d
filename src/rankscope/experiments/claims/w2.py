"""Claim W2: LayerNorm alone stops the collapse of randomly initialised attention."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from rankscope import tables
from rankscope.experiments import depths, kit
from rankscope.experiments.claims import _bert_shape, _plateau
from rankscope.experiments.claims._bert_shape import DROPOUT, Shape, last_dispersions
from rankscope.experiments.studies import _layernorm_groups as _groups
from rankscope.experiments.studies import _layernorm_outcomes as outcomes
from rankscope.experiments.studies import layernorm
from rankscope.experiments.studies._layernorm_listing import list_cases
from rankscope.experiments.studies._layernorm_outcomes import Outcome

ENTRY = kit.claim(
    "W2",
    "LayerNorm alone stops μ → 0 in randomly initialised models.",
    source="Wu et al. 2024, figure 2",
    domain="BERT-base's shape with LayerNorm only, under four masks",
    seconds=297,
    small=False,
)
PAPER = {
    "shape": Shape(layers=160, samples=4),
    "sweep": layernorm.Config(),
}
"""As many cases and draws as the LayerNorm study has, and more layers for the slow window."""

_QUICK = layernorm.Config(scales=(1.0, 16.0, 256.0), draws=2)


@dataclass(frozen=True)
class Config(kit.Config):
    """The shape of the claim, and the LayerNorm study's settings for what lies beyond it."""

    shape: Shape = field(default_factory=Shape)
    sweep: layernorm.Config = _QUICK


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Measure the claim's shape and the study's settings, and judge both."""
    on_shape, on_sweep = kit.parts(on_step, 1, 2)
    found = _bert_shape.measure(config.shape, config.seed, on_shape)
    sweep = layernorm.measure(replace(config.sweep, seed=config.seed), on_sweep)
    return judge(config, found, sweep)


def judge(config: Config, found: depths.Measured, sweep: depths.Measured) -> kit.Result:
    """Both verdicts from scaled arithmetic alone, sample by sample.

    A sample bears the claim out if its relative dispersion has stopped shrinking before it is
    small, and is still where it was with more layers. What keeps rank is judged apart from what
    keeps μ: tokens at ±x differ, and have rank one. Where some samples of a setting stay apart and
    others do not, the table names the two groups separately.
    """
    ends, others = outcomes.outcomes(found.table), outcomes.outcomes(sweep.table)
    panels = {name: _groups.panels(name, one) for name, one in others.items()}
    drawn, *beyond = _drawings(config.shape, others, panels)
    noisy = last_dispersions(found.table, DROPOUT)
    return ENTRY.result(
        config,
        question="Does μ stop falling under LayerNorm alone, and do the tokens keep their rank?",
        sentences=_plateau.sentences(config.shape, found.table, ends, others),
        listings=(_plateau.listing(config.shape, found.table, ends),),
        parts=(
            kit.Part(
                "Beyond that shape",
                (
                    *layernorm.sentences(config.sweep, sweep.table),
                    *layernorm.search_sentences(config.sweep, sweep.table),
                ),
                (list_cases("Relative dispersion, by case", others),) if others else (),
                tuple(beyond),
            ),
        ),
        table=tables.stack([found.table, _groups.relabel(sweep.table, panels)]),
        about={"dispersion": "Frobenius norm"},
        notes={**found.notes, **sweep.notes},
        judgement=_judged(ENTRY.domain, ends),
        beyond=_judged("other shapes, weights, biases, norms and masks", others),
        key_figures={
            "samples that stay apart": float(sum(one.staying for one in ends.values())),
            "lowest μ with dropout": 10 ** min(noisy.values()),
            "μ that dropout keeps (derived)": config.shape.dropout_floor,
        },
        drawings=(drawn,),
    )


def _judged(domain: str, ends: Mapping[str, Outcome]) -> kit.Judgement:
    """What holds of μ, in the verdict; what holds of rank, in the words that complete it."""
    stay = outcomes.verdicts(ends)
    apart, ranks = sum(stay.values()), outcomes.high_ranks(ends)
    if not stay:
        return kit.judged(domain, {}, "the layers are too few to show what becomes of μ")
    if not apart:
        return kit.judged(domain, stay, "for μ and with it for rank")
    words = f"μ stays in {apart} of {len(stay)} samples, a rank above one in {ranks} of these"
    return kit.judged(domain, stay, words if apart == len(stay) else f"the sample: {words}")


def _drawings(
    shape: Shape, others: Mapping[str, Outcome], panels: Mapping[str, tuple[str, ...]]
) -> Iterator[kit.Drawing]:
    """The claim's shape, and beyond it the few settings that differ in what becomes of them."""
    yield kit.Drawing(
        "by_depth",
        "BERT-base's shape with LayerNorm only: scaled arithmetic beside plain numbers, and "
        "float32 with dropout.",
        depths.DISPERSION,
        {"lowest": -12.0},
        {"model": shape.panels},
        depths.FLOORS,
    )
    drawn = tuple(
        panel for name in _groups.cases_to_draw(others) for panel in dict.fromkeys(panels[name])
    )
    if drawn:
        yield kit.Drawing(
            "by_depth",
            "Beyond that shape: the first case of every law, the one that ends highest, and those "
            "in which some sample stays apart.",
            depths.RELATIVE_DISPERSION,
            {"lowest": layernorm.LOWEST},
            {"model": drawn},
            depths.FLOORS,
        )
