"""Rank and cone of real hidden states, beside untrained ones and a null."""

from functools import partial
from pathlib import Path

import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.ask import SMALL, Model
from rankscope.experiments import kit
from rankscope.experiments.claims.w5 import (
    ENTRY,
    LARGEST,
    NULL,
    TRAINED,
    TWIN,
    Config,
    rank_share,
)

from ...models.families.conftest import TINY, lively, minilm
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


class WithTwin(Made):
    """A model whose untrained twin is the one transformers initialises."""

    def twin(self) -> Model:
        return Made("bert", label=self.label, make=untrained)


CONE = WithTwin("bert", at_init=False, label="cone", make=partial(flattened, 1.0, 2.0))
NO_RANK = WithTwin("bert", at_init=False, label="no rank", make=partial(flattened, 1e-20, 2.0))
NO_CONE = WithTwin("bert", at_init=False, label="no cone", make=untrained)
FRESH = Made("bert", make=untrained)


def found(*models: Model):
    return steps_of(ENTRY.run, Config(models=models, texts=TEXTS, length=6))[0]


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
    assert str(cone.judgement) == "holds, tried on cone (pretrained)"
    assert cone.beyond.verdict == "fails"  # its twin has no cone
    assert cone.sentences[1].startswith("Trained: full rank at every layer in 1 of 1")
    assert cone.listings[0].rows[0][:3] == ("cone (pretrained)", "trained", "full")
    ranks = cone.drawings[0]
    assert (ranks.metric, dict(ranks.roles)) == ("numerical_rank", {LARGEST: "bound"})
    assert cone.drawings[1].metric == "effective_rank"
    largest = cone.table.filter(variant=LARGEST, metric="numerical_rank")
    own = cone.table.filter(variant=TRAINED, metric="numerical_rank")
    assert largest["value"].unique().to_list() == [6.0]
    assert own.filter(pl.col("layer") > 0)["value"].unique().to_list() == [6.0]
    lost = found(NO_RANK)
    assert lost.verdict == "fails"
    assert lost.listings[0].rows[0][2] == "17% (layer 1)"  # one of six
    assert found(NO_CONE).verdict == "fails"
    assert found(CONE, NO_RANK).verdict == "depends"


def test_untrained_models_alone_are_no_trial_of_it() -> None:
    alone = found(FRESH)
    assert str(alone.judgement) == (
        "not tried: no trained model was named; pass one with --pretrained"
    )
    assert alone.beyond.verdict == "fails"
    assert alone.sentences[0].startswith("No trained model was named")
    assert set(alone.table["variant"]) == {TWIN, NULL, LARGEST}


def test_tokens_that_point_anywhere_have_full_rank_and_no_cosine() -> None:
    null = found(CONE).table.filter(variant=NULL)
    assert null.filter(metric="rank_share")["value"].min() == 1.0
    # Means of 15 cosines of 12 features, whose deviation is at most 1/√12.
    assert null.filter(metric="mean_cosine")["value"].abs().max() < 0.3
    assert abs(null.filter(metric="mean_cosine")["value"].mean()) < 0.1


def made(ranks, cosines, variants=(TRAINED, TRAINED)):
    """A table of two models with two layers; only the second shows anything."""
    rows = [
        (model, variant, layer, 0, metric, value if layer == 2 else 1.0 * (metric == "rank_share"))
        for model, variant, rank, cosine in zip("ab", variants, ranks, cosines, strict=True)
        for layer in range(3)
        for metric, value in (
            ("rank_share", rank),
            ("mean_cosine", cosine),
            ("effective_rank", 4.0),
        )
    ]
    return tables.from_rows(("model", "variant", "layer", "sample", "metric", "value"), rows)


def judged(table: pl.DataFrame) -> kit.Result:
    return kit.conclude(ENTRY, Config(), kit.Measured(table, facts={}))


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
    result = judged(made(ranks, cosines))
    assert (result.verdict, result.beyond) == (verdict, None)
    assert len(result.sentences) == 2
    full = sum(rank == 1.0 for rank in ranks)
    assert f"full rank at every layer in {full} of 2" in result.sentences[1]


def test_the_verdict_says_how_far_it_hangs_on_its_threshold() -> None:
    assert judged(made((1.0, 1.0), (0.65, 0.35))).sentences[0] == (
        "With a cone from a mean cosine of 0.5 the verdict is 'depends', as it is from 0.4 to "
        "0.6; otherwise: holds from 0.1, holds from 0.2, holds from 0.3, fails from 0.7, fails "
        "from 0.8, fails from 0.9."
    )


def test_images_of_noise_are_read_where_a_model_sees() -> None:
    seen = steps_of(ENTRY.run, Config(models=(Tiny("vit"),), samples=2))[0]
    assert seen.table["sample"].n_unique() == 2
    assert set(seen.table["metric"]) == {
        "rank_share",
        "numerical_rank",
        "mean_cosine",
        "effective_rank",
    }


def test_without_a_trained_model_at_hand_one_is_trained_here() -> None:
    assert Config().models == (SMALL,)


def test_pretrained_minilm_keeps_full_rank_in_a_wide_cone(minilm: Path) -> None:
    case = Model(str(minilm), label="MiniLM")
    result = steps_of(ENTRY.run, Config(models=(case,), length=32))[0]
    trained = result.table.filter(variant=TRAINED)
    assert trained.filter(metric="rank_share")["value"].min() == 1.0
    summary = tables.summary(trained).filter(metric="mean_cosine")
    cosines = summary.sort("layer")["median"].to_list()
    assert len(cosines) == 7
    assert 0.15 < cosines[-1] < 0.5
    assert cosines[0] < cosines[-1]
    assert result.verdict == "fails"
    twin = result.summary.filter(variant=TWIN, metric="mean_cosine", layer=6)["median"].item()
    assert twin > cosines[-1]  # an untrained model points into a narrower cone
