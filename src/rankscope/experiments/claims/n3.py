"""Claim N3: which layers keep tokens at two poles, and which values pull bent poles straight.

**Derived.** One head, full mask, no skip, a norm on each row; ``n₊`` tokens at +x, ``n₋`` at −x,
and ``κ = x W_QK xᵀ · scale``. A token of sign s gives each token of its own sign the weight ``e^κ``
and each other one ``e^−κ``, so that it goes to

    s · xW · (n_s e^κ − n_−s e^−κ)/(n_s e^κ + n_−s e^−κ).

*Survival.* The norm leaves the sign. For ``κ > ½|ln(n₊/n₋)|`` both factors are positive and every
token keeps its pole, for ``κ < −½|ln(n₊/n₋)|`` all change theirs; in between one factor has either
sign, and all tokens are at one pole. With fresh weights κ comes arbitrarily close to 0: unequal
poles meet almost surely in the end, equal ones never do so.

*Bending.* Move token i to ``s_i x + δ_i``, ``δ_i ⟂ x``. ``δ_i = s_i z`` only turns the axis. For
``δ_i = z`` and ``n₊ = n₋`` the logits change by ``t·zW_QKxᵀ·scale = t·b`` with the sign t of the
key (and by what all keys share), so that token i goes to ``tanh(s_i κ + b) xW + zW``. To first
order b only changes lengths along xW, which the norm undoes, and with Π the projection orthogonal
to xW

    ‖z'‖ = coth|κ| · ‖zWΠ‖/‖xW‖ · ‖z‖.

Other changes, within one pole, change the weights alone and die out at once. Orthogonal values have
``‖zWΠ‖ = ‖z‖``, ``‖xW‖ = 1``: every layer bends. Gaussian values in d features make the ratio that
of independent lengths ``χ_{d−1}/χ_d``, so that the logarithm grows by

    λ = E ln coth|κ| + ½(ψ((d−1)/2) − ψ(d/2))        (ψ: digamma)

a layer, below 0 only where logits are so large that ``E ln coth|κ|`` is below about ``1/2d``.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Annotated, NamedTuple

import polars as pl
import torch
from torch import Tensor, nn

from rankscope import tables
from rankscope.arguments import Range
from rankscope.core.network import Block, Network
from rankscope.core.theory import head_weights
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.norm_cases import NormSetting, random_network
from rankscope.numerals import plural, short
from rankscope.process import require
from rankscope.streams import stream

ENTRY = kit.claim(
    "N3",
    "Poles ±x under attention and a norm stay apart in a layer if |κ| > ½|ln(n₊/n₋)|, and meet "
    "otherwise; a bend of equal poles grows by coth|κ| · ‖zWΠ‖/‖xW‖, so that poles never attract "
    "under orthogonal values, and under Gaussian ones only where logits are large.",
    source="derived for rankscope; on the antipodal attractors predicted in arXiv 2601.21942",
    question="Which layers keep two poles, and do bent poles become straight or bend further?",
    domain="one head on the sphere, full mask, no skip, fresh weights in every layer",
    beyond="LayerNorm and random queries and keys, as at initialisation",
    seconds=16,
    metrics=(
        kit.Metric(
            "bend_growth",
            "Growth of a bend",
            "ln(‖z′‖ / ‖z‖)",
            "linear",
            "Below 0 = poles attract",
            "The mean over layers of the logarithm by which a small bend of two equal poles grows.",
            includes=(0.0,),
            marks=((0.0, "attract below"),),
        ),
        kit.Metric(
            "meeting_share",
            "Layers in which poles meet",
            "share",
            "linear",
            "0 = poles stay apart in every layer",
            "The part of the layers that move all tokens from two poles to one.",
            includes=(0.0, 1.0),
        ),
        kit.Metric(
            "wrong_fates",
            "Layers with another fate",
            "layers",
            "linear",
            "0 = as derived in every layer",
            "The number of layers in which poles meet, stay or swap differently than derived.",
        ),
    ),
)
GROWTH, MET, WRONG, ERROR = "bend_growth", "meeting_share", "wrong_fates", "relative_error"
GAUSSIAN, ORTHOGONAL, LAYERNORM = "Gaussian values", "orthogonal values", "LayerNorm"
POLES, EXPECTED = "poles", ", expected"
CHARTS = tuple(
    kit.Drawing("by_setting", "Measured, and expected as derived.", metric)
    for metric in (GROWTH, MET)
)
_BEND = 1e-8
_NEAR = 1e-3  # of a logarithm: the bend is small, not infinitely small
_ERRORS = 4.0  # standard errors within which a mean is the expected one
_NAMES = ("model", "variant", "setting", "sample", "metric", "value", "error")
Row = tuple[str, str, float, int, str, float, float | None]


@dataclass(frozen=True)
class Config(kit.Config):
    """Networks whose κ is normal of deviation ``scales``, and ``counts`` of tokens at the poles."""

    widths: tuple[Annotated[int, Range(3, 512)], ...] = (4, 16)
    scales: tuple[float, ...] = (0.25, 1.0, 4.0, 16.0, 64.0)
    layers: int = 100
    draws: int = 4
    counts: tuple[tuple[int, int], ...] = ((1, 1), (4, 4), (4, 3), (5, 2), (7, 1))
    layernorm_width: int = 16
    layernorm_logits: tuple[float, ...] = (1.0, 4.0)  # times the usual ones


def measure(config: Config, on_step: kit.OnStep) -> pl.DataFrame:
    """Growth of a small bend in every layer, and how often poles of unequal size meet."""
    if not (config.widths and config.scales and config.counts):
        raise InputError("N3 needs at least one width, one scale and one pair of counts.")
    on_bends, on_fates, on_normed = kit.parts(on_step, 4, 3, 1)
    rows: list[Row] = []
    for (width, scale, kind), _ in kit.tracked(
        product(config.widths, config.scales, (GAUSSIAN, ORTHOGONAL)), on_bends
    ):
        panel = f"{width} features"
        mean, deviation = expected_growth(width, scale, kind)
        error = deviation / math.sqrt(config.layers * config.draws)
        rows.append((panel, kind + EXPECTED, scale, 0, GROWTH, mean, error))
        for draw in range(config.draws):
            network = draw_network(config, width, scale, kind, draw)
            rows += [
                (panel, kind, scale, draw, *figure, None)
                for figure in bend_figures(network).items()
            ]
    for ((plus, minus), scale), _ in kit.tracked(product(config.counts, config.scales), on_fates):
        name = f"{plus} and {minus} tokens"
        chance = math.erf(abs(math.log(plus / minus)) / scale / math.sqrt(8))
        error = math.sqrt(chance * (1 - chance) / (config.layers * config.draws))
        rows.append((POLES, name + EXPECTED, scale, 0, MET, chance, error))
        for draw in range(config.draws):
            network = draw_network(config, config.widths[0], scale, GAUSSIAN, draw)
            fates = list(pole_fates(network, plus, minus))
            share = sum(seen == "met" for seen, _ in fates) / len(fates)
            wrong = sum(seen != derived for seen, derived in fates)
            rows.append((POLES, name, scale, draw, MET, share, None))
            rows.append((POLES, name, scale, draw, WRONG, wrong, None))
    for (logits, draw), _ in kit.tracked(
        product(config.layernorm_logits, range(config.draws)), on_normed
    ):
        setting = NormSetting(heads=1, width=config.layernorm_width, logits=logits)
        figures = bend_figures(random_network(setting, config.layers, config.seed + draw))
        rows += [(LAYERNORM, LAYERNORM, logits, draw, *figure, None) for figure in figures.items()]
    return tables.joined({"deviation of κ": tables.from_rows(_NAMES, rows)}, column="parameter")


def draw_network(config: Config, width: int, scale: float, kind: str, draw: int) -> Network:
    """Fresh ``W_QK`` of independent normal entries, so that κ is normal, and values of a kind."""
    generator = stream(config.seed, "poles", kind, width, draw)
    shape = (config.layers, 1, width, width)
    query_key, values = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    if kind == ORTHOGONAL:
        values, triangle = torch.linalg.qr(values)
        values = values * triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return Network.from_matrices(scale * query_key, values, head_width=1, norm="sphere")


def bend_figures(network: Network) -> dict[str, float]:
    """The mean growth of a bend, and by how much any layer's is off the derived one."""
    pairs = list(bend_growth(network))
    return {
        GROWTH: sum(seen for seen, _ in pairs) / len(pairs),
        ERROR: max(abs(seen - derived) for seen, derived in pairs),
    }


@torch.no_grad()
def bend_growth(network: Network) -> Iterator[tuple[float, float]]:
    """By layer the logarithm of a small bend's growth, measured and derived.

    The bend is made small again after every layer, and keeps its direction.
    """
    signs = torch.tensor([[1.0], [-1.0]] * 2, dtype=torch.float64)
    axis, bend = start(network)
    for block, seen in network.sighted_blocks(len(signs)):
        derived = math.log(derived_factor(block, axis, bend))
        tokens = block((signs * axis + _BEND * bend).unsqueeze(0), seen)[0]
        turned, common = (signs * tokens).mean(0), tokens.mean(0)
        new_axis = turned * (axis.norm() / turned.norm())
        common = common - new_axis * (common @ new_axis) / new_axis.square().sum()
        yield math.log(float(common.norm() / (_BEND * bend.norm()))), derived
        axis, bend = new_axis, common * (axis.norm() / common.norm())


def start(network: Network) -> tuple[Tensor, Tensor]:
    """An axis and a bend orthogonal to it, as long as tokens are behind the network's norm."""
    width = network.spec.width
    features = torch.arange(width, dtype=torch.float64)
    if network.spec.norm == "sphere":
        return torch.eye(width, dtype=torch.float64)[0], torch.eye(width, dtype=torch.float64)[1]
    waves = torch.stack([(2 * math.pi * (features + 0.5) * k / width).cos() for k in (1, 2)])
    axis, bend = waves / waves.square().mean(-1, keepdim=True).sqrt()
    return axis, bend


def derived_factor(block: Block, axis: Tensor, bend: Tensor) -> float:
    """``coth|κ| · ‖zWΠ‖/‖xW‖`` for a bend z as long as the axis x; LayerNorm centres rows of W."""
    weights = head_weights(block.attention)
    kappa = float(axis @ weights.query_key[0] @ axis) * weights.scale
    moved, bent = axis @ weights.values[0], bend @ weights.values[0]
    if isinstance(block.norms["attention"], nn.LayerNorm):
        moved, bent = moved - moved.mean(), bent - bent.mean()
    across = bent - moved * (bent @ moved) / moved.square().sum()
    return float(across.norm() / moved.norm()) / math.tanh(abs(kappa))


def expected_growth(width: int, scale: float, kind: str) -> tuple[float, float]:
    """λ for κ normal of deviation ``scale``, and the standard deviation of one layer's growth."""
    quad, special = require("scipy.integrate").quad, require("scipy.special")

    def moment(power: int) -> float:
        def integrand(u: float) -> float:
            return math.exp(-u * u / 2) * (-math.log(math.tanh(scale * u))) ** power

        # coth is 1 to all digits from 20 on; the logarithm at 0 has a part of its own.
        ends = [0.0, *(end for end in (0.01 / scale, 1 / scale, 20 / scale) if end < 9), 9.0]
        parts = (quad(integrand, *pair)[0] for pair in pairwise(ends))
        return math.sqrt(2 / math.pi) * float(sum(parts))

    mean, variance = moment(1), moment(2) - moment(1) ** 2
    if kind == GAUSSIAN:
        mean += float(special.digamma((width - 1) / 2) - special.digamma(width / 2)) / 2
        spread = special.polygamma(1, (width - 1) / 2) + special.polygamma(1, width / 2)
        variance += float(spread) / 4
    return mean, math.sqrt(variance)


@torch.no_grad()
def pole_fates(network: Network, plus: int, minus: int) -> Iterator[tuple[str, str]]:
    """By layer what becomes of poles, seen and derived: ``kept``, ``swapped`` or ``met``.

    Each layer is given the poles at the axis that the layers before would have turned it to.
    """
    signs = torch.tensor([1.0] * plus + [-1.0] * minus, dtype=torch.float64)
    level = abs(math.log(plus / minus)) / 2
    axis, _ = start(network)
    for block, seen in network.sighted_blocks(len(signs)):
        weights = head_weights(block.attention)
        kappa = float(axis @ weights.query_key[0] @ axis) * weights.scale
        derived = "met" if abs(kappa) < level else "kept" if kappa > 0 else "swapped"
        tokens = block((signs[:, None] * axis).unsqueeze(0), seen)[0]
        moved = axis @ weights.values[0]
        after = (tokens @ moved).sign()
        fates = {"kept": after == signs, "swapped": after == -signs, "met": after == after[0]}
        yield next((fate for fate, here in fates.items() if bool(here.all())), "scattered"), derived
        axis = moved / moved.norm()


def judge(config: Config, table: pl.DataFrame) -> kit.Answer:
    """Every layer against its own factor, and means over layers against what is expected."""
    growths, met = (
        [row for row in compare(table) if row.metric == metric] for metric in (GROWTH, MET)
    )
    wrong = int(table.filter(metric=WRONG)["value"].sum())
    layers = config.layers * config.draws * len(met)
    errors = {
        kind: max(table.filter(variant=kind, metric=ERROR)["value"].to_list(), default=math.inf)
        for kind in (GAUSSIAN, ORTHOGONAL, LAYERNORM)
    }
    clear = [row for row in growths if abs(row.expected) > _ERRORS * row.error]
    normed = table.filter(variant=LAYERNORM, metric=GROWTH).sort("setting")
    usual = normed.filter(pl.col("setting") == pl.col("setting").min())["value"].to_list()
    off = max(row.off for row in growths)
    attract = [row for row in growths if row.expected < 0]
    return kit.Answer(
        (
            f"Measured and derived fates of poles differ in {wrong} of {plural(layers, 'layer')}.",
            "The logarithm of a bend's growth is off the derived one by "
            f"{short(max(errors.values()))} in any layer, its means over layers by {short(off)} "
            "standard errors at most.",
            f"Poles attract, on average over layers, in {len(attract)} of {len(growths)} settings: "
            f"{'; '.join(map(str, attract)) or 'none'}.",
        ),
        stated={
            "fate of poles in every layer": wrong == 0,
            "how often poles meet": all(row.off <= _ERRORS for row in met),
            **{
                f"growth of a bend, {kind}": errors[kind] < _NEAR for kind in (GAUSSIAN, ORTHOGONAL)
            },
            "mean growth": off <= _ERRORS,
            "its sign": all((row.mean > 0) == (row.expected > 0) for row in clear),
            "orthogonal values never attract": all(
                row.mean > 0 for row in growths if row.variant == ORTHOGONAL
            ),
            "Gaussian values attract at large logits": any(row.mean < 0 for row in clear),
        },
        beyond={
            "growth of a bend": errors[LAYERNORM] < _NEAR,
            "poles repel at initialisation": sum(usual) > 0,
        }
        if usual
        else None,
        key_figures={
            "means off the expected ones, in standard errors": off,
            "smallest mean growth of a bend": min(row.mean for row in growths),
        },
        listings=(
            kit.Listing(
                "Growth of a bend in a layer, as a logarithm",
                ("features", "values", "deviation of κ", "measured", "expected", "errors apart"),
                tuple((*row[:3], row.mean, row.expected, row.off) for row in growths),
                "Below 0 poles attract, above it they repel.",
            ),
        ),
    )


class Compared(NamedTuple):
    """A mean over layers and draws beside what is expected, with the standard error of that."""

    model: str
    variant: str
    setting: float
    metric: str
    mean: float
    expected: float
    error: float

    @property
    def off(self) -> float:
        """How far it is off, in standard errors."""
        gap = abs(self.mean - self.expected)
        return gap / self.error if self.error else math.inf if gap else 0.0

    def __str__(self) -> str:
        return f"{self.variant}, {self.model}, κ of {short(self.setting)} ({short(self.mean)})"


def compare(table: pl.DataFrame) -> list[Compared]:
    """Means over the draws of all for which something is expected."""
    keys = ("model", "variant", "setting", "metric")
    is_expected = pl.col("variant").str.ends_with(EXPECTED)
    expected = table.filter(is_expected).select(
        "model", pl.col("variant").str.strip_suffix(EXPECTED), *keys[2:], "value", "error"
    )
    means = table.filter(~is_expected).group_by(*keys, maintain_order=True).agg(pl.mean("value"))
    joined = means.join(expected, on=keys, maintain_order="left")
    return [Compared(*row) for row in joined.iter_rows()]
