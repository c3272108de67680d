"""The main question: how do a network and its ablations treat the differences between tokens?"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rankscope import tables
from rankscope.arguments import checked
from rankscope.experiments import estimates, kit, variants
from rankscope.experiments.fates import findings
from rankscope.network import Network

ENTRY = kit.entry("diagnose")
DIAGNOSTIC_METRICS = ("relative_residual", "mean_cosine", "effective_rank", "spectral_ratio")


@dataclass(frozen=True)
class Config(kit.Question):
    """``reading`` says what is meant by SAN."""

    reading: variants.Reading = field(default_factory=variants.Reading)

    def describe(self) -> dict[str, Any]:
        """The reading in words."""
        return {"reading": str(self.reading)}


def cost(config: Config) -> estimates.Cost:
    """What it will take: four networks, none larger than the one."""
    return estimates.measuring(config.subject, DIAGNOSTIC_METRICS).times(4)


def run(config: Config, on_step: kit.OnStep) -> kit.Result:
    """Trace SAN, SAN+MLP, SAN+skip and the transformer on the same input and say what is seen."""
    subject = config.subject
    networks = variants.four_variants(subject.network, config.reading)
    table = tables.joined(
        {
            name: subject.with_network(network).trace(DIAGNOSTIC_METRICS, on_part).table
            for (name, network), on_part in kit.tracked(networks.items(), on_step)
        }
    )
    found = findings(tables.summary(table), epsilon=torch.finfo(subject.x.dtype).eps)
    return ENTRY.result(
        config,
        title=subject.name,
        question=ENTRY.title,
        sentences=tuple(f"{each.kind}: {each.sentence}" for each in found),
        table=table,
        findings=found,
        drawings=(
            kit.Drawing(
                "by_layer",
                "Each curve is one network on the same input with the same weights; only the parts "
                "differ. SAN is self-attention alone, SAN+MLP adds the MLPs, SAN+skip the skip "
                "connections, and the transformer has everything.",
                options={"metrics": list(DIAGNOSTIC_METRICS)},
            ),
        ),
        shown=("relative_residual",),
    )


@checked
def diagnose(
    network: Network,
    x: Tensor,
    token_mask: Tensor | None = None,
    *,
    measured: Tensor | None = None,
    reading: variants.Reading | None = None,
    batch_size: int = 8,
    on_step: kit.OnStep | None = None,
) -> kit.Result:
    """Which parts of a network keep the tokens apart, for a network and its input at hand.

    >>> from rankscope import Network, Spec
    >>> from rankscope.text import embed, passages
    >>> x, token_mask = embed(passages()[:2], 16)
    >>> found = diagnose(Network.random(Spec(2, 2, 16)), x, token_mask)
    >>> [finding.kind for finding in found.findings]
    ['SAN', 'SAN+MLP', 'SAN+skip', 'transformer']

    ``measured`` leaves tokens out of the figures that the network still sees (CLS and the like);
    ``reading`` says what is meant by SAN; ``on_step`` is called with the share of the work done.
    """
    subject = kit.Subject(network, x, token_mask, measured, batch_size=batch_size)
    return run(Config(subject, reading or variants.Reading()), on_step or kit.silent)
