"""Claim W6: with suitable values many sequences never tend to rank one under a norm."""

from dataclasses import dataclass

import polars as pl

from rankscope import tables
from rankscope.experiments import depths, kit
from rankscope.experiments.claims._norm_starts import (
    ABOVE,
    APART,
    RADIUS,
    STABLE,
    Dynamics,
    Row,
    StartsPlan,
    follow,
)
from rankscope.numerals import plural, sentence_case

ENTRY = kit.claim(
    "W6",
    "With suitable values a general class of sequences does not converge to rank one under "
    "attention and LayerNorm.",
    source="Wu et al. 2024, abstract",
    question="Do starts in general position stay above rank one at all depths?",
    domain="one head on the sphere, causal mask, suitable values, tokens in general position",
    beyond="other masks and norms, and random values",
    seconds=91,
)
CHARTS = (kit.Drawing("by_depth", "A curve for each kind of values, mask and norm.", ABOVE),)
_LASTING = 0.9  # the part of the starts above rank one that must still be there with all layers


@dataclass(frozen=True)
class Config(kit.Config):
    """Suitable values, controls that should collapse, and what lies beyond the claim.

    Every start is followed for ``layers`` layers and four times as many: a level may not last.
    """

    starts: int = 200
    layers: int = 50
    every: int = 5  # layers between those that are recorded
    draws: int = 3  # random weights that share the starts, where weights are random
    suitable: tuple[Dynamics, ...] = (
        Dynamics("2 tokens of 2 features", tokens=2),
        Dynamics("8 tokens of 2 features"),
        Dynamics("16 tokens of 4 features", tokens=16, width=4),
        Dynamics("skewed values, uniform attention", "skewed", "uniform", tokens=2, decay=0.5),
    )
    controls: tuple[Dynamics, ...] = (
        Dynamics("orthogonal values", "orthogonal"),
        Dynamics("orthogonal values, uniform", "orthogonal", "uniform", 16, 4),
    )
    others: tuple[Dynamics, ...] = (
        Dynamics("full mask", mask="full"),
        Dynamics("LayerNorm", tokens=16, width=4, norm="layer", strength=4.0),
        Dynamics("RMSNorm", tokens=16, width=4, norm="rms", strength=2.0),
        Dynamics("random values and scores", "random", "random", 16, 4, strength=1.0),
    )

    @property
    def cases(self) -> tuple[Dynamics, ...]:
        """All of them."""
        return (*self.suitable, *self.controls, *self.others)

    @property
    def least(self) -> float:
        """The share of starts above rank one from which they are a general class.

        More than what no hit at all could hide: if a share p of all starts is above rank one, none
        of N starts is with the probability ``(1 − p)ᴺ``, which is 5 % at ``p = 3/N``.
        """
        return 3 / self.starts


def measure(config: Config, on_step: kit.OnStep) -> depths.Measured:
    """Follow every case from many starts: what differs, and what is above rank one, two shares."""
    rows: list[Row] = []
    notes: dict[str, str] = {}
    plan = StartsPlan(config.seed, config.starts, config.layers, config.every, config.draws)
    for case, on_case in kit.tracked(config.cases, on_step):
        followed, doubts = follow(plan, case, on_case)
        rows += followed
        notes |= doubts
    table = tables.from_rows(("variant", "layer", "metric", "value"), rows)
    return depths.Measured(table, notes, about={"dispersion": "Frobenius norm"})


def judge(config: Config, measured: depths.Measured) -> kit.Answer:
    """Suitable values keep a share of the starts above rank one; orthogonal ones keep none apart.

    A case keeps them if more than ``config.least`` of the starts are above rank one in the end, and
    no fewer than nine of ten of those that were so after a quarter of the layers.
    """
    table = measured.table
    above = {case.name: _ends(table, case.name, ABOVE, config) for case in config.cases}
    keeps = {
        name: after > config.least and after >= _LASTING * before
        for name, (before, after) in above.items()
    }
    suitable, others = (
        {case.name: keeps[case.name] for case in cases}
        for cases in (config.suitable, config.others)
    )
    controls = {
        case.name: _ends(table, case.name, APART, config)[1] == 0.0 for case in config.controls
    }

    def shares(lasting: bool) -> str:
        """What was measured on either side, where a verdict depends."""
        words = []
        for name in (name for name, lasts in others.items() if lasts is lasting):
            before, after = (f"{share:.0%}" for share in above[name])
            early = f"{before} after {config.layers} layers, "
            late = f"{after} after {4 * config.layers}"
            words.append(f"{name} ({after if before == after else early + late})")
        return ", ".join(words)

    lasting = [above[name][1] for name in suitable]
    return kit.Answer(
        (
            f"A share of the starts stays above rank one with {sum(suitable.values())} of "
            f"{len(suitable)} suitable values over {plural(4 * config.layers, 'layer')}; no start "
            f"stays apart with {sum(controls.values())} of {len(controls)} orthogonal ones.",
        ),
        stated=suitable | controls,
        on={"holds": f"for {min(lasting):.0%} to {max(lasting):.0%} of random starts"},
        beyond=others or None,
        on_beyond={
            "depends": f"a share of the starts stays above rank one with "
            f"{shares(True)}; not with {shares(False)}"
        },
        key_figures={"starts above rank one, largest share": max(lasting)},
        listings=(_listing(config, table),),
        shown=(ABOVE, APART),
    )


def _ends(table: pl.DataFrame, name: str, metric: str, config: Config) -> tuple[float, float]:
    """A share after a quarter of the layers and after all."""
    rows = dict(table.filter(variant=name, metric=metric).select("layer", "value").iter_rows())
    return rows[config.layers], rows[4 * config.layers]


def _listing(config: Config, table: pl.DataFrame) -> kit.Listing:
    """The shares of every case, and what those that differ are like."""
    rows = []
    for case in config.cases:
        before, above = _ends(table, case.name, ABOVE, config)
        apart = _ends(table, case.name, APART, config)[1]
        rank, radius = (
            next(iter(table.filter(variant=case.name, metric=metric)["value"].to_list()), None)
            for metric in (STABLE, RADIUS)
        )
        rows.append(
            (
                sentence_case(case.name),
                f"{apart:.0%}",
                f"{before:.0%}",
                f"{above:.0%}",
                rank,
                radius,
            )
        )
    few, all_ = config.layers, 4 * config.layers
    return kit.Listing(
        "Shares of the starts",
        (
            "values, mask or norm",
            f"differ after {all_} layers",
            f"above rank one after {few}",
            f"after {all_}",
            "stable rank",
            "spectral radius",
        ),
        tuple(rows),
        "The stable rank is the median of the starts that differ in the end; the spectral radius "
        "is that of one at rest, which is stable if it is below 1.",
    )
