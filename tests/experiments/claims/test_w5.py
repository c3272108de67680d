"""Rank and cone of real hidden states."""

from functools import partial
from pathlib import Path

import pytest
import torch

from rankscope import tables
from rankscope.experiments import Case
from rankscope.experiments.claims.w5 import Config, judge, rank_share, run

from ...families.conftest import TINY, lively, minilm
from ..made import TEXTS, Made
from ..shown import can_be_shown, steps_of
from ..tiny import Tiny

__all__ = ["minilm"]


def untrained() -> torch.nn.Module:
    """As transformers initialises it: tokens have hardly anything in common."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TINY["bert"]().eval()


def flattened(scale: float, common: float) -> torch.nn.Module:
    """A BERT whose last norm leaves ``scale`` of each token and adds a common row."""
    model = lively("bert").double()
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.output.LayerNorm.weight.fill_(scale)
            layer.output.LayerNorm.bias.fill_(common)
    return model


CONE = Made("bert", trained=True, label="cone", make=partial(flattened, 1.0, 2.0))
NO_RANK = Made("bert", trained=True, label="no rank", make=partial(flattened, 1e-20, 2.0))
NO_CONE = Made("bert", trained=True, label="no cone", make=untrained)
FRESH = Made("bert", make=untrained)


def found(*models: Case):
    return steps_of(run, Config(models=models, texts=TEXTS, length=6))[0]


def test_rank_share_counts_real_tokens_only() -> None:
    x = torch.eye(4, dtype=torch.float64).repeat(2, 1, 1)
    x[1, 1] = x[1, 0]
    assert rank_share(x).tolist() == [1.0, 0.75]
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    assert rank_share(x, token_mask=mask).tolist() == [1.0, 0.5]
    assert rank_share(torch.randn(1, 9, 4, dtype=torch.float64)).tolist() == [1.0]


def test_it_holds_for_a_cone_of_full_rank_and_fails_without_either() -> None:
    cone = found(CONE)
    can_be_shown(cone)
    assert cone.verdict == "holds"
    assert cone.sentences[0] == "1 of 1 trained models have full rank and a cone."
    assert "full rank at every layer" in cone.sentences[1]
    lost = found(NO_RANK)
    assert lost.verdict == "fails"
    assert "rank down to 17% of what can be (layer 1)" in lost.sentences[1]  # one of six
    assert found(NO_CONE).verdict == "fails"
    assert found(CONE, NO_RANK).verdict == "depends"


def test_it_is_about_trained_models_and_shows_others_beside() -> None:
    both = found(FRESH, CONE)
    assert both.verdict == "holds"
    assert both.sentences[-1].startswith("Not trained: bert (init): full rank")
    assert set(both.table["model"]) == {"bert (init)", "cone (pretrained)"}
    alone = found(FRESH)
    assert alone.verdict is None
    assert alone.sentences[0].startswith("No trained model was tried")


@pytest.mark.parametrize(
    ("ranks", "cosines", "verdict"),
    [
        ((1.0, 1.0), (0.6, 0.9), "holds"),
        ((1.0, 0.9), (0.6, 0.9), "depends"),
        ((1.0, 1.0), (0.6, 0.4), "depends"),
        ((0.9, 1.0), (0.6, 0.4), "fails"),
    ],
)
def test_every_verdict_can_be_reached(ranks, cosines, verdict) -> None:
    models = (Case("a", trained=True), Case("b", trained=True))
    rows = [
        (case.name, layer, 0, metric, value if layer == 2 else 1.0 * (metric == "rank_share"))
        for case, rank, cosine in zip(models, ranks, cosines, strict=True)
        for layer in range(3)
        for metric, value in (
            ("rank_share", rank),
            ("mean_cosine", cosine),
            ("effective_rank", 4.0),
        )
    ]
    names = ("model", "layer", "sample", "metric", "value")
    table = tables.frame(dict(zip(names, zip(*rows, strict=True), strict=True)))
    got, sentences = judge(Config(models=models), table)
    assert got == verdict
    assert len(sentences) == 3


def test_images_of_noise_are_read_where_a_model_sees() -> None:
    seen = steps_of(run, Config(models=(Tiny("vit"),), samples=2))[0]
    assert seen.table["sample"].n_unique() == 2
    assert set(seen.table["metric"]) == {"rank_share", "mean_cosine", "effective_rank"}


def test_pretrained_minilm_keeps_full_rank_in_a_wide_cone(minilm: Path) -> None:
    case = Case(str(minilm), trained=True, label="MiniLM")
    result = steps_of(run, Config(models=(case,), length=32))[0]
    ranks = result.table.filter(metric="rank_share")["value"]
    assert ranks.min() == 1.0
    cosines = result.summary.filter(metric="mean_cosine").sort("layer")["median"].to_list()
    assert len(cosines) == 7
    assert 0.15 < cosines[-1] < 0.5
    assert cosines[0] < cosines[-1]
    assert result.verdict == "fails"
