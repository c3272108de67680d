"""Networks that collapse in a known way, and ordinary ones; figures by hand for single rules."""

import torch

from rankscope.ask import Subject
from rankscope.core.network import Network, Spec
from rankscope.experiments.diagnosis import RULES
from rankscope.experiments.diagnosis._diagnose import judge
from rankscope.experiments.diagnosis._evidence import Loss
from rankscope.experiments.diagnosis._measure import ModelFigures, measure
from rankscope.results import Finding

TOKENS, LAYERS = 40, 8


def tokens_of(width: int, *, seed: int, samples: int = 3, tokens: int = TOKENS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, tokens, width, generator=generator)


def network_of(place: str, *, seed: int, **fields: object) -> Network:
    return Network.random(Spec(LAYERS, 4, 32, norm_place=place, init=0.1, **fields), seed=seed)


def judged(
    network: Network, x: torch.Tensor, token_mask: torch.Tensor | None = None
) -> tuple[dict[str, Finding], Loss]:
    subject = Subject(network, x, token_mask)
    measured = measure(subject, lambda _: None)
    found, loss = judge(subject, measured, lambda _: None)
    assert [each.kind for each in found] == [rule.name for rule in RULES]
    return {each.kind: each for each in found}, loss


def made_up(
    residual: list[list[float]],
    *,
    cosine: float = 0.0,
    turned: list[float] | None = None,
    entropy: list[float] | None = None,
    last: list[float] | None = None,
    rank: float = 1.0,
) -> ModelFigures:
    """Figures as given, by layer and sample; the change of each layer is attention's."""
    values = torch.tensor(residual, dtype=torch.float64)
    layers, samples = len(values) - 1, values.shape[1]

    def spread(per_layer: list[float]) -> torch.Tensor:
        return torch.tensor(per_layer, dtype=torch.float64).unsqueeze(-1).expand(-1, samples)

    states = {
        "relative_residual": values,
        "relative_dispersion": values,
        "common_residual": values,
        "mean_cosine": torch.full_like(values, cosine),
        "effective_rank": torch.full_like(values, 8.0),
        "numerical_rank": torch.full_like(values, 10.0),
        "rank_share": torch.full_like(values, rank),
        "token_norm": torch.ones_like(values),
    }
    heads = spread(entropy or [0.8] * layers).unsqueeze(1)
    nothing = torch.zeros(layers, samples, dtype=torch.float64)
    changes = {"attention": values.log10().diff(dim=0), "MLP": nothing, "norm": nothing}
    return ModelFigures(
        states=states,
        heads={"entropy_share": heads, "dobrushin": heads, "sink_share": 0.1 * heads},
        changes=changes,
        alone={name: each * torch.nan for name, each in changes.items()},
        turned=spread(turned or [0.5] * layers),
        values=torch.full((layers + 1, 64, samples), torch.nan),
        distances=torch.full((layers + 1, 64, samples), torch.nan),
        last_apart=spread(last or [0.5] * (layers + 1)),
        last_neighbour=torch.full((samples,), 3),
        twins=torch.ones(2, 6, samples),
        tokens=torch.full((samples,), 10),
        **{name: dict(changes) for name in ("sizes", "lengths", "spreads")},
        logits=heads,
        views=torch.randn(layers + 1, 3, 8, samples, generator=torch.Generator().manual_seed(0)),
    )
