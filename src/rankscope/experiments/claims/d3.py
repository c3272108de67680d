"""Claim D3: MLPs slow the collapse by their Lipschitz constant and do not stop it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn

from rankscope import tables
from rankscope.core.metrics import matrix_norm
from rankscope.core.network import MLP, Attention, Network, Spec
from rankscope.core.theory import Law, row_gain
from rankscope.errors import InputError
from rankscope.experiments import depths, kit

ENTRY = kit.claim(
    "D3",
    "MLPs between the layers leave the collapse of pure attention doubly exponential; the larger "
    "their Lipschitz constant, the slower it is.",
    source="Dong et al. 2021, corollary 3.2",
    domain="attention and MLPs, without skips and norms",
    seconds=4,
)
_BEYOND = "the same MLPs with tokens kept at the size they have without: what is not weight scale"
_NONE, _SCALED = "no MLP", "no MLP, output"
_DOUBLY: Final = ("doubly exponential", "equal")


@dataclass(frozen=True)
class Config(depths.DeepConfig):
    """Attention with MLPs of every activation and slope, and without any."""

    layers: int = 8
    heads: int = 4
    mlp_ratio: float = 4.0
    activations: tuple[str, ...] = ("relu", "gelu")
    gains: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    """What the MLPs' last weights are multiplied by: their Lipschitz constants go with it. As a
    control, so are the attention's output weights where there is no MLP."""
    init: str = "lecun"
    draws: int = 5
    """Of weights, for the comparison of MLPs that keep the tokens' size with none."""


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Pure attention with MLPs of growing slope, without skips, beside two controls.

    A larger last weight makes an MLP steeper and the tokens larger, and larger tokens alone slow
    the collapse, because logits grow with them. So the same factor is also given to attention
    without an MLP; and MLPs are also scaled, layer by layer, so that tokens keep the size that they
    have without one, which leaves what an MLP does and a factor does not.
    """
    if not config.gains or not config.activations:
        raise InputError("D3 needs at least one activation and one gain to try.")
    x, token_mask = config.texts()
    networks = _networks(config, x, token_mask)
    compared = depths.compare(networks, x, token_mask, on_step=on_step)
    laws = depths.laws(tables.summary(compared.table))
    judgement, beyond, sentences = judge(config, laws)
    slopes = {name: _lipschitz(networks[name]) for name in _steepened(config)}
    return ENTRY.result(
        config,
        question="Is the fall doubly exponential with MLPs, and slower the steeper they are?",
        sentences=sentences,
        table=compared.table,
        listings=(_listing(config, laws, slopes),),
        notes=compared.notes,
        judgement=judgement,
        beyond=beyond,
        key_figures=trends(config, laws),
        drawings=(
            kit.Drawing(
                "by_depth",
                "A curve for each network of the first draw.",
                depths.RELATIVE,
                {"lowest": -200.0},
                {"variant": tuple(name for name in networks if ", draw " not in name)},
            ),
        ),
        shown=(depths.RELATIVE,),
    )


def judge(
    config: Config, laws: Mapping[str, Law]
) -> tuple[kit.Judgement, kit.Judgement, tuple[str, ...]]:
    """As stated: still doubly exponential, and slower the steeper; beyond: than without any MLP.

    Networks in which no law can be seen are left out.
    """
    stated = {
        f"{kind} stays doubly exponential": all(law.kind in _DOUBLY for law in each)
        for kind in config.activations
        if (each := _decided(laws, (_name(kind, gain) for gain in sorted(config.gains))))
    } | {
        f"{kind} is slower the steeper": rising(each)
        for kind in config.activations
        if len(each := _decided(laws, (_name(kind, gain) for gain in sorted(config.gains)))) > 1
    }
    found = trends(config, laws)
    rises = ", ".join(f"{name.partition(',')[0]} {value:,.0f}" for name, value in found.items())
    return (
        kit.judged(
            ENTRY.domain, stated, _same_trend(config, found) if all(stated.values()) else ""
        ),
        _judge_kept(config, laws),
        (
            f"When the factor doubles, the exponent after {config.layers} layers rises by {rises}.",
            *_beside_none(config, laws),
        ),
    )


def _beside_none(config: Config, laws: Mapping[str, Law]) -> list[str]:
    """Which MLPs as they are drawn, of gain 1, are faster and slower than none at all."""
    plain = laws[_NONE].last
    drawn = {
        kind: laws[_name(kind, 1.0)].last for kind in config.activations if 1.0 in config.gains
    }
    return [
        f"As drawn, MLPs make the fall {words} than none does: {', '.join(kinds)}."
        for words, kinds in (
            ("faster", [kind for kind, last in drawn.items() if last < plain]),
            ("slower", [kind for kind, last in drawn.items() if last > plain]),
        )
        if kinds
    ]


def _judge_kept(config: Config, laws: Mapping[str, Law]) -> kit.Judgement:
    """Whether MLPs that leave the tokens' size alone slow the collapse, draw by draw."""
    slower = {
        (kind, draw): laws[_kept(kind, draw)].last > laws[_kept(None, draw)].last
        for kind in config.activations
        for draw in range(config.draws)
        if laws[_kept(kind, draw)].decided
    }
    counted = [
        f"{sum(held for (other, _), held in slower.items() if other == kind)} of {config.draws} "
        f"draws with {kind}"
        for kind in config.activations
    ]
    mixed = 0 < sum(slower.values()) < len(slower)
    on = f"the weights drawn: slower in {' and '.join(counted)}" if mixed else ""
    return kit.judged(_BEYOND, {str(case): held for case, held in slower.items()}, on)


def rising(found: Sequence[Law]) -> bool:
    """Whether none ends lower than the one before.

    >>> rising([Law("doubly exponential", 3.0, -9.0, last) for last in (-50.0, -20.0)])
    True
    """
    return all(flat.last <= steep.last for flat, steep in pairwise(found))


def trends(config: Config, laws: Mapping[str, Law]) -> dict[str, float]:
    """By how much the final logarithm rises when the gain doubles, with each MLP and without."""
    low, high = min(config.gains), max(config.gains)
    if low == high:
        return {}
    octaves = float(torch.tensor(high / low).log2())
    return {
        f"{kind}, decades by doubling": (laws[_name(kind, high)].last - laws[_name(kind, low)].last)
        / octaves
        for kind in (*config.activations, _SCALED)
    }


def _same_trend(config: Config, found: Mapping[str, float]) -> str:
    """What the control says about the trend, to complete the verdict."""
    control = found.get(f"{_SCALED}, decades by doubling", 0.0)
    if control <= 0:
        return ""
    slowed = [found[f"{kind}, decades by doubling"] for kind in config.activations]
    return (
        f"but so it is without any MLP where attention's own weights are scaled alike, by "
        f"{control / max(slowed):.2g} to {control / min(slowed):.2g} times as much"
    )


def _listing(config: Config, laws: Mapping[str, Law], slopes: Mapping[str, float]) -> kit.Listing:
    """Every network of the first draw: how steep its MLPs are, and how it ends."""
    scaled = [_name(_SCALED, gain) for gain in config.gains]
    return kit.Listing(
        f"Relative residual after {config.layers} layers",
        ("network", "Lipschitz", *depths.LAW_COLUMNS),
        tuple(
            (name, slopes.get(name), *depths.law_entries(laws[name]))
            for name in (_NONE, *scaled, *slopes)
        ),
        "Lipschitz: at most this, the largest of the layers' MLPs. Medians over the samples. "
        f"{depths.LAW_NOTE}",
    )


def _decided(laws: Mapping[str, Law], names: Iterator[str]) -> list[Law]:
    return [laws[name] for name in names if laws[name].decided]


def _steepened(config: Config) -> list[str]:
    return [_name(kind, gain) for kind in config.activations for gain in config.gains]


def _name(kind: str, gain: float) -> str:
    return f"{kind} × {gain:g}"


def _kept(kind: str | None, draw: int) -> str:
    return f"{kind}, size kept, draw {draw}" if kind else f"{_NONE}, draw {draw}"


def _networks(config: Config, x: Tensor, token_mask: Tensor) -> dict[str, Network]:
    """By name: MLPs of every gain, the same gains without any, and draws that keep the size."""
    networks = {_NONE: _network(config, None)}
    networks |= {_name(_SCALED, gain): _network(config, None, gain) for gain in config.gains}
    for kind in config.activations:
        networks |= {_name(kind, gain): _network(config, kind, gain) for gain in config.gains}
    for draw in range(config.draws):
        networks[_kept(None, draw)] = plain = _network(config, None, draw=draw)
        for kind in config.activations:
            steep = _network(config, kind, draw=draw)
            networks[_kept(kind, draw)] = _size_kept(plain, steep, x, token_mask)
    return networks


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
        lasts = [_down(mlp) for mlp in _mlps(network)]
    for last in lasts:
        last.weight.data.mul_(gain)
    return network


def _size_kept(plain: Network, network: Network, x: Tensor, token_mask: Tensor) -> Network:
    """The network with each MLP scaled so that tokens are as large as they are without MLPs."""
    with torch.no_grad():
        wanted = [torch.linalg.vector_norm(state) for state in plain.states(x, token_mask)]
        for layer, mlp in enumerate(_mlps(network)):
            state = list(network.states(x, token_mask))[layer]
            _down(mlp).weight.mul_(wanted[layer] / torch.linalg.vector_norm(state))
    return network


def _lipschitz(network: Network) -> float:
    """The largest λ of the layers, in the composite sense of ``rankscope.core.theory``."""
    gains = [row_gain(mlp, width=network.spec.width) for mlp in _mlps(network)]
    return max(float(matrix_norm(gain, "composite")) for gain in gains if gain is not None)


def _mlps(network: Network) -> list[MLP]:
    return [module for module in network.modules() if isinstance(module, MLP)]


def _down(mlp: MLP) -> nn.Linear:
    assert isinstance(mlp.down, nn.Linear)
    return mlp.down
