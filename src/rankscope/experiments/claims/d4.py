"""Claim D4: with skips there are infinitely many networks whose residual does not shrink."""

import math
from dataclasses import dataclass

import polars as pl

from rankscope import tables
from rankscope.core.network import Init, Network, Spec
from rankscope.core.theory import expanding_network
from rankscope.experiments import depths, kit
from rankscope.experiments.depths import medians
from rankscope.numerals import plural, power_of_ten, short

ENTRY = kit.claim(
    "D4",
    "Skips stop the collapse: there are infinitely many parameterisations whose residual does not "
    "shrink at any depth, however small the weights.",
    source="Dong et al. 2021, claim 3.1",
    question="Does some network with skips keep its input's residual however small β is, and is it "
    "lost without the skips?",
    domain="attention and skips, without MLPs and norms",
    beyond="random weights with skips, no construction",
    seconds=19,
)
_METRIC = "log10_residual"
CHARTS = (kit.Drawing("by_depth", "A curve for each network.", _METRIC, {"lowest": -30.0}),)
_ROUNDING = 1e-9  # decades
EXPANDING, BARE, RANDOM = "every head expands a feature", "the same without skips", "random weights"


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """Networks with skips in which every head expands one feature; β is as small as one likes.

    The largest ``‖W_QK‖₁`` is ``strength``, so that attention depends on the tokens however small β
    is: all of β's smallness is in the values.
    """

    layers: int = 64
    width: int = 16
    betas: tuple[float, ...] = (1e-1, 1e-3, 1e-6, 1e-9, 1e-12)
    controls: tuple[float, ...] = (1e-1, 1e-3)  # those that are also run without their skips
    strength: float = 1.0
    random_heads: int = 4
    random_scales: tuple[float, ...] = (0.1, 0.3, 1.0, 2.0)
    """LeCun's weights times these, beyond the claim."""

    def random(self, scale: float) -> Network:
        """A network with skips and nothing constructed."""
        return Network.random(
            Spec(
                self.layers,
                self.random_heads,
                self.width,
                mlp_ratio=0.0,
                norm="none",
                skip=True,
                init=Init("lecun", scale),
            ),
            seed=self.seed,
        )


def measure(config: Config, on_step: kit.OnStep) -> depths.Measured:
    """Members of a family with β from large to tiny, each without its skips, and random networks.

    Residuals are about the medians. The construction lowers them in no layer, nor those about the
    best center (see ``expanding_network``), so that a residual at the medians which is never below
    the input's is what claim 3.1 asks for.
    """
    x, token_mask = config.texts()
    expanding = {
        beta: expanding_network(
            config.layers, config.width, beta=beta, strength=config.strength, seed=config.seed
        )
        for beta in (*config.betas, *config.controls)
    }
    networks = {
        **{_name(EXPANDING, beta): expanding[beta] for beta in config.betas},
        **{_name(BARE, beta): expanding[beta].without("skip") for beta in config.controls},
        **{_scaled(scale): config.random(scale) for scale in config.random_scales},
    }
    return depths.compare(networks, x, token_mask, center="median", on_step=on_step)


def judge(config: Config, measured: depths.Measured) -> kit.Answer:
    """Claim 3.1's own inequality in every layer and sample, for each β; the same for random ones.

    The claim is supported for a β if the residual is never below the input's and the control, the
    same weights without skips, collapses.
    """
    table = measured.table
    summary = tables.summary(table)
    laws = depths.laws(summary, _METRIC)
    lows = {name: least_kept(table, name) for name in laws}
    relative = {name: medians(summary, depths.RELATIVE, variant=name)[-1] for name in laws}
    betas = [_name(EXPANDING, beta) for beta in config.betas]
    never = {name: lows[name] >= -_ROUNDING for name in betas}
    lost = {name: laws[name].collapses for name in (_name(BARE, beta) for beta in config.controls)}
    random = {name: lows[name] >= -_ROUNDING for name in map(_scaled, config.random_scales)}
    least, lowest = (
        power_of_ten(min((log10[name] for name in random), default=0.0))
        for log10 in (lows, relative)
    )
    words = f"residuals stay above {least} of the input's, but relative ones end as low as {lowest}"
    return kit.Answer(
        (
            "With skips and every head expanding one feature no layer of any sample has a residual "
            f"below its input's for {sum(never.values())} of {len(never)} β.",
            f"Without the skips {sum(lost.values())} of {len(lost)} such networks collapse.",
        ),
        stated=never | lost,
        on={"holds": f"for β down to {short(min(config.betas))}"},
        beyond=random or None,
        on_beyond={"holds": words, "fails": words, "depends": words},
        key_figures={
            "residual over the input's, smallest of all layers": 10 ** min(lows[n] for n in betas)
        },
        listings=(
            kit.Listing(
                f"Residuals over {plural(config.layers, 'layer')}",
                ("network", "least change", "residual in the end", "relative residual", "law"),
                tuple(
                    (
                        name,
                        math.expm1(lows[name] * math.log(10)),
                        power_of_ten(law.last),
                        power_of_ten(relative[name]),
                        law.name,
                    )
                    for name, law in laws.items()
                ),
                "The least change is by which part of the input's residual the lowest of any layer "
                "and sample is above it (below it where negative); the others are medians over the "
                "samples.",
            ),
        ),
        shown=(_METRIC, depths.RELATIVE),
        about={"residuals": "composite norm, about the medians"},
    )


def least_kept(table: pl.DataFrame, variant: str) -> float:
    """The smallest residual of any layer over the input's, in decades, of the worst sample."""
    rows = table.filter(metric=_METRIC, variant=variant)
    at_input = rows.filter(layer=0).select("sample", first="value")
    later = rows.filter(pl.col("layer") > 0).join(at_input, on="sample")
    least: float = min((later["value"] - later["first"]).to_list())
    return least


def _name(kind: str, beta: float) -> str:
    return f"{kind}, β = {short(beta)}"


def _scaled(scale: float) -> str:
    return f"{RANDOM}, LeCun × {scale:g}"
