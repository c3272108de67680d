"""Ranks and absolute cosines of hidden states, beside untrained ones and isotropic ones."""

import math
from functools import partial
from pathlib import Path

import numpy as np
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
    absolute_cosine,
    rank_share,
    smallest_singular_value,
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


def test_figures_are_those_of_numpy_on_the_real_tokens() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3, 7, 5))
    counts = [7, 4, 1]
    mask = torch.tensor([[i < n for i in range(7)] for n in counts])
    cosines, smallest = (
        measure(torch.tensor(x), token_mask=mask).tolist()
        for measure in (absolute_cosine, smallest_singular_value)
    )
    for sample, n in enumerate(counts):
        real = x[sample, :n]
        values = np.linalg.svd(real, compute_uv=False)
        assert smallest[sample] == pytest.approx(values[-1])
        pairs = [
            abs(a @ b) / np.sqrt((a @ a) * (b @ b))
            for i, a in enumerate(real)
            for b in real[i + 1 :]
        ]
        assert cosines[sample] == pytest.approx(np.mean(pairs) if pairs else 1.0)
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert absolute_cosine(opposite).item() == 1.0
    assert smallest_singular_value(opposite).item() == pytest.approx(0.0, abs=1e-7)


def test_pretrained_models_are_judged_as_stated() -> None:
    cone = found(CONE)
    can_be_shown(cone)
    assert str(cone.judgement) == "Supported for cone (pretrained)"
    assert cone.listings[0].rows[0][:3] == ("cone (pretrained)", "trained", "full")
    largest = cone.table.filter(variant=LARGEST, metric="numerical_rank")
    ranks = cone.table.filter(variant=TRAINED, metric="numerical_rank")
    assert largest["value"].unique().to_list() == [6.0]
    assert ranks.filter(pl.col("layer") > 0)["value"].unique().to_list() == [6.0]
    lost = found(NO_RANK)
    assert lost.verdict == "depends"  # all tokens on one line are anisotropic, too
    assert lost.listings[0].rows[0][2] == "17% (layer 1)"  # one of six
    smallest = lost.table.filter(variant=TRAINED, metric="smallest_singular_value")
    assert smallest.filter(pl.col("layer") > 0)["value"].max() < 1e-12


def test_without_a_pretrained_model_it_is_not_tried() -> None:
    alone = found(FRESH)
    assert str(alone.judgement) == (
        "Not tested: no pretrained model was named; pass one with --pretrained"
    )
    assert alone.sentences[0].startswith("No pretrained model was named")
    assert set(alone.table["variant"]) == {TWIN, NULL, LARGEST}
    assert alone.beyond is not None


def test_isotropic_tokens_have_full_rank_and_the_derived_cosine() -> None:
    null = found(CONE).table.filter(variant=NULL)
    assert null.filter(metric="rank_share")["value"].min() == 1.0
    # E|cos| of two directions in d features is Γ(d/2)/(√π Γ((d+1)/2)); here d is 24.
    expected = math.gamma(12) / (math.sqrt(math.pi) * math.gamma(12.5))
    assert null.filter(metric="absolute_cosine")["value"].mean() == pytest.approx(
        expected, rel=0.15
    )


def made(ranks, cosines, variants=(TRAINED, TRAINED), twins=(0.2, 0.2)):
    """A table of two models with two layers; isotropic tokens have a cosine of 0.1 or 0.12."""
    rows = []
    for model, variant, rank, cosine, twin in zip(
        "ab", variants, ranks, cosines, twins, strict=True
    ):
        for layer in range(3):
            of_rank = rank if layer == 2 else 1.0
            rows += [
                (model, variant, layer, 0, "rank_share", of_rank),
                (model, variant, layer, 0, "absolute_cosine", cosine),
                (model, variant, layer, 0, "smallest_singular_value", of_rank),
            ]
            for other, values in ((TWIN, (twin, twin)), (NULL, (0.1, 0.12))):
                for sample, value in enumerate(values):
                    rows += [
                        (model, other, layer, sample, "rank_share", 1.0),
                        (model, other, layer, sample, "absolute_cosine", value),
                        (model, other, layer, sample, "smallest_singular_value", 1.0),
                    ]
    return tables.from_rows(("model", "variant", "layer", "sample", "metric", "value"), rows)


def judged(table: pl.DataFrame, **trained_here: str) -> kit.Result:
    return kit.conclude(ENTRY, Config(), kit.Measured(table, facts=trained_here))


@pytest.mark.parametrize(
    ("ranks", "cosines", "verdict"),
    [
        ((1.0, 1.0), (0.13, 0.9), "holds"),
        ((1.0, 0.9), (0.6, 0.9), "depends"),
        ((1.0, 1.0), (0.6, 0.11), "depends"),  # above one isotropic sample, below the other
        ((0.9, 0.9), (0.11, 0.05), "fails"),
    ],
)
def test_every_verdict_can_be_reached(ranks, cosines, verdict) -> None:
    result = judged(made(ranks, cosines))
    assert result.verdict == verdict
    full = sum(rank == 1.0 for rank in ranks)
    assert f"full rank at every layer in {full} of 2" in result.sentences[0]


def test_a_model_trained_here_is_beyond_the_claim() -> None:
    table = made((0.9, 1.0), (0.6, 0.6))
    both = judged(table, a="fills in 43% of masked tokens")
    assert str(both.judgement) == "Supported for b"
    assert str(both.beyond) == "Supported except for: a: full rank"
    assert "a: fills in 43% of masked tokens." in both.sentences
    neither = judged(table, a="", b="")
    assert neither.verdict == "not tried"


@pytest.mark.parametrize(("twin", "learnt"), [(0.2, True), (0.7, False)])
def test_whether_training_makes_tokens_anisotropic_is_beyond_it(twin, learnt) -> None:
    result = judged(made((1.0, 1.0), (0.6, 0.6), twins=(twin, 0.2)))
    assert result.verdict == "holds"
    assert result.beyond.verdict == ("holds" if learnt else "depends")
    assert ("a: more anisotropic than its untrained twin" in str(result.beyond)) is not learnt


def test_images_of_noise_are_read_where_a_model_sees() -> None:
    seen = steps_of(ENTRY.run, Config(models=(Tiny("vit"),), samples=2))[0]
    assert seen.table["sample"].n_unique() == 2
    assert set(seen.table["metric"]) == {
        "rank_share",
        "numerical_rank",
        "absolute_cosine",
        "smallest_singular_value",
        "effective_rank",
    }


def test_without_a_pretrained_model_at_hand_one_is_trained_here() -> None:
    assert Config().models == (SMALL,)


def test_pretrained_minilm_keeps_full_rank_and_is_anisotropic(minilm: Path) -> None:
    case = Model(str(minilm), label="MiniLM")
    result = steps_of(ENTRY.run, Config(models=(case,), length=32))[0]
    assert str(result.judgement) == "Supported for MiniLM (pretrained)"
    summary = tables.summary(result.table).filter(metric="absolute_cosine", layer=6)
    trained, twin, null = (
        summary.filter(variant=variant)["median"].item() for variant in (TRAINED, TWIN, NULL)
    )
    assert null == pytest.approx(math.sqrt(2 / (384 * math.pi)), rel=0.05)
    assert 0.15 < trained < 0.5
    assert twin > trained  # an untrained model is more anisotropic
    assert "more anisotropic than its untrained twin" in str(result.beyond)
