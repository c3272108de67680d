"""Claim D3: MLPs stop the collapse of attention, or slow it by their Lipschitz constant."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, cast

import torch
from torch import Tensor, nn

from rankscope import tables
from rankscope.core.metrics import matrix_norm
from rankscope.core.network import MLP, Attention, Network, Spec
from rankscope.core.theory import Law, row_gain
from rankscope.errors import InputError
from rankscope.experiments import depths, kit
from rankscope.numerals import power_of_ten

ENTRY = kit.claim(
    "D3",
    "MLPs stop the output of attention from degenerating; the larger their Lipschitz constant, the "
    "slower it falls.",
    source="Dong et al. 2021, abstract and corollary 3.2",
    question="Do MLPs stop the doubly exponential fall, and are steeper MLPs slower?",
    domain="attention and MLPs at initialisation, without skips and norms",
    beyond="the same MLPs, scaled so that token norms are those without MLPs",
    seconds=5,
)
_NONE, _SCALED = "no MLP", "no MLP, output"
_DOUBLY: Final = ("doubly exponential", "equal")


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """Attention with MLPs of every activation and slope, and without any."""

    layers: int = 8
    heads: int = 4
    mlp_ratio: float = 4.0
    activations: tuple[str, ...] = ("relu", "gelu")
    gains: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 16.0)
    """What the MLPs' last weights are multiplied by: their Lipschitz constants go with it. As a
    control, so are the attention's output weights where there is no MLP."""
    init: str = "lecun"
    draws: int = 5  # of weights, for the comparison of MLPs that keep the tokens' size with none


Facts = tuple[Mapping[str, Law], Mapping[str, float]]
"""By network: the law it follows, and the largest Lipschitz constant of its MLPs."""


def measure(config: Config, on_step: kit.OnStep) -> kit.Measured[Facts]:
    """Pure attention with MLPs of growing slope, without skips, beside two controls.

    A larger last weight makes an MLP steeper and the tokens larger, and larger tokens alone slow
    the collapse, because logits grow with them. So the same factor is also given to attention
    without an MLP; and MLPs are also scaled, layer by layer, so that tokens keep the size that they
    have without one, which leaves what an MLP does and a factor does not.
    """
    if not config.gains or not config.activations:
        raise InputError("D3 needs at least one activation and one gain to try.")
    x, token_mask = config.texts()
    steep = {
        _name(kind, gain): _network(config, kind, gain)
        for kind in config.activations
        for gain in config.gains
    }
    networks = {
        _NONE: _network(config, None),
        **{_name(_SCALED, gain): _network(config, None, gain) for gain in config.gains},
        **steep,
    }
    for draw in range(config.draws):
        networks[f"{_NONE}, draw {draw}"] = plain = _network(config, None, draw=draw)
        for kind in config.activations:
            network = _network(config, kind, draw=draw)
            networks[_kept(kind, draw)] = _size_kept(plain, network, x, token_mask)
    compared = depths.compare(networks, x, token_mask, on_step=on_step)
    laws = depths.laws(tables.summary(compared.table))
    slopes = {name: _lipschitz(network) for name, network in steep.items()}
    return replace(compared, facts=(laws, slopes))


def judge(config: Config, measured: kit.Measured[Facts]) -> kit.Answer:
    """As stated: as they are drawn they end the doubly exponential fall, and slow it the steeper.

    Beyond: slower than without any MLP. Networks in which no law can be seen are left out.
    """
    laws, slopes = measured.facts
    stops, rising = {}, {}
    for kind in config.activations:
        by_gain = {gain: laws[_name(kind, gain)] for gain in sorted(config.gains)}
        decided = {gain: law for gain, law in by_gain.items() if law.decided}
        if 1.0 in decided:
            stops[f"{kind} stops the fall"] = decided[1.0].kind not in _DOUBLY
        if len(decided) > 1:
            rising[f"{kind} is slower the steeper"] = all(
                flat.last <= steep.last for flat, steep in pairwise(decided.values())
            )
    # Whether MLPs that leave the tokens' size alone slow the collapse, draw by draw.
    slower = {
        (kind, draw): laws[_kept(kind, draw)].last > laws[f"{_NONE}, draw {draw}"].last
        for kind in config.activations
        for draw in range(config.draws)
        if laws[_kept(kind, draw)].decided
    }
    counted = " and ".join(
        f"{sum(holds for (other, _), holds in slower.items() if other == kind)} of {config.draws} "
        f"draws with {kind}"
        for kind in config.activations
    )
    rises = trends(config, laws)
    control = rises.get(_SCALED, 0.0)
    likewise = ""
    if control > 0 and all(rising.values()):
        low, high = (
            control / end(rises[kind] for kind in config.activations) for end in (max, min)
        )
        likewise = (
            " (so is attention without MLPs when its own weights are scaled by the same factor, "
            f"by {low:.2g} to {high:.2g} times as much)"
        )
    first_draw = tuple(name for name in laws if ", draw " not in name)
    return kit.Answer(
        _sentences(config, laws, rises),
        stated=stops | rising,
        on={"depends": f"{_asked(config, laws, stops, rising)}{likewise}"},
        beyond={f"{kind}, draw {draw + 1}": holds for (kind, draw), holds in slower.items()},
        on_beyond={"depends": f"slower in {counted}"},
        key_figures={f"{kind}, decades by doubling": rise for kind, rise in rises.items()},
        listings=(
            kit.Listing(
                f"Relative residual after {config.layers} layers",
                ("network", "Lipschitz", *depths.LAW_COLUMNS),
                tuple(
                    (name, slopes.get(name), *depths.law_entries(laws[name]))
                    for name in (_NONE, *(_name(_SCALED, gain) for gain in config.gains), *slopes)
                ),
                "Lipschitz: at most this, the largest of the layers' MLPs. Medians over the "
                f"samples. {depths.LAW_NOTE}",
            ),
        ),
        charts=(
            kit.Drawing(
                "by_depth",
                "A curve for each network of the first draw.",
                depths.RELATIVE,
                {"lowest": -200.0},
                {"variant": first_draw},
            ),
        ),
    )


def _asked(
    config: Config, laws: Mapping[str, Law], stops: Mapping[str, bool], rising: Mapping[str, bool]
) -> str:
    """What MLPs do as they are drawn, from which slope on, and whether steeper ones are slower."""
    words = []
    if stops:
        ends = [
            f"{power_of_ten(laws[_name(kind, 1.0)].last)} ({kind})" for kind in config.activations
        ]
        words.append(
            f"as drawn, MLPs {'stop it' if all(stops.values()) else 'do not stop it'}: after "
            f"{config.layers} layers {' and '.join(ends)}, {power_of_ten(laws[_NONE].last)} "
            "without MLPs"
        )
    steep = [
        gain
        for gain in config.gains
        if all(laws[_name(kind, gain)].kind not in _DOUBLY for kind in config.activations)
    ]
    if steep:
        words.append(f"from × {min(steep):g} on it is no longer doubly exponential")
    words.append(f"steeper MLPs are {'' if all(rising.values()) else 'not always '}slower")
    return "; ".join(words)


def trends(config: Config, laws: Mapping[str, Law]) -> dict[str, float]:
    """By how much the final logarithm rises when the gain doubles, with each MLP and without.

    Among the gains under which every network falls doubly exponentially.
    """
    kinds = (*config.activations, _SCALED)
    doubly = [
        gain
        for gain in config.gains
        if all(laws[_name(kind, gain)].kind in _DOUBLY for kind in kinds)
    ]
    low, high = min(doubly, default=1.0), max(doubly, default=1.0)
    if low == high:
        return {}
    octaves = float(torch.tensor(high / low).log2())
    return {
        kind: (laws[_name(kind, high)].last - laws[_name(kind, low)].last) / octaves
        for kind in kinds
    }


def _sentences(
    config: Config, laws: Mapping[str, Law], rises: Mapping[str, float]
) -> Iterator[str]:
    """The trends, and which MLPs as they are drawn are faster and slower than none at all."""
    listed = ", ".join(f"{kind.partition(',')[0]} {rise:,.0f}" for kind, rise in rises.items())
    yield f"When the factor doubles, the exponent after {config.layers} layers rises by {listed}."
    kinds = config.activations if 1.0 in config.gains else ()
    drawn = {kind: laws[_name(kind, 1.0)].last - laws[_NONE].last for kind in kinds}
    for words, sign in (("faster", -1), ("slower", 1)):
        such = [kind for kind, difference in drawn.items() if sign * difference > 0]
        if such:
            yield f"As drawn, MLPs make the fall {words} than none does: {', '.join(such)}."


def _name(kind: str, gain: float) -> str:
    return f"{kind} × {gain:g}"


def _kept(kind: str, draw: int) -> str:
    return f"{kind}, size kept, draw {draw}"


def _network(config: Config, kind: str | None, gain: float = 1.0, *, draw: int = 0) -> Network:
    spec = Spec(
        config.layers,
        config.heads,
        config.width,
        mlp_ratio=config.mlp_ratio,
        activation=kind or "gelu",
        norm="none",
        skip=False,
        init=config.init,
    )
    network = Network.random(spec, seed=config.seed + draw).double()
    if kind is None:
        network = network.without("mlp")
        lasts = [part.output for part in network.modules() if isinstance(part, Attention)]
    else:
        lasts = [mlp.down for mlp in _mlps(network)]
    for last in lasts:
        cast(nn.Linear, last).weight.data.mul_(gain)
    return network


def _size_kept(plain: Network, network: Network, x: Tensor, token_mask: Tensor) -> Network:
    """The network with each MLP scaled so that tokens are as large as they are without MLPs."""
    with torch.no_grad():
        wanted = [torch.linalg.vector_norm(state) for state in plain.states(x, token_mask)]
        for layer, mlp in enumerate(_mlps(network)):
            state = list(network.states(x, token_mask))[layer]
            down = cast(nn.Linear, mlp.down)
            down.weight.mul_(wanted[layer] / torch.linalg.vector_norm(state))
    return network


def _mlps(network: Network) -> list[MLP]:
    return [module for module in network.modules() if isinstance(module, MLP)]


def _lipschitz(network: Network) -> float:
    """The largest λ of the layers, in the composite sense of ``rankscope.core.theory``."""
    gains = [row_gain(mlp, width=network.spec.width) for mlp in _mlps(network)]
    return max(float(matrix_norm(gain, "composite")) for gain in gains if gain is not None)
