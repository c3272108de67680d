"""LayerNorm alone: what becomes of μ by mask and draw, with dropout and without."""

from dataclasses import replace

import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.experiments import kit
from rankscope.experiments.claims._bert_shape import (
    DROPOUT,
    NORMED,
    NORMED_SKIPPING,
    OUTPUTS_DROPPED,
    PURE,
    SKIPPING,
    DropoutRates,
    Shape,
    embedded,
    layers_of,
    measure,
)
from rankscope.experiments.claims.w2 import (
    ENTRY,
    PAPER,
    Config,
    PretrainedFacts,
    ends_with_dropout,
    read,
)
from rankscope.experiments.depths import DISPERSION
from rankscope.process.progress import silent

from ..made import TEXTS, Made
from ..shown import can_be_shown, steps_of
from ..tiny import Tiny
from .small import DEEP

MASKS = ("full", "causal", "window:1", "causal-window:1")
SHAPE = Shape(
    layers=20, draws=2, heads=2, width=32, tokens=12, masks=MASKS, other_heads=2, other_width=16
)
FEW = Config(shape=SHAPE)


@pytest.fixture(scope="module")
def ran() -> kit.Result:
    return steps_of(ENTRY.run, FEW)[0]


def made(normed: dict[str, list[list[float]]], **panels: list[float]) -> pl.DataFrame:
    """A table of log10 μ by mask and draw; the other panels have a draw under the full mask."""
    others = {PURE: [1.0, -9.0], SKIPPING: [1.0, 1.0], NORMED_SKIPPING: [1.0, 1.0]}
    others |= {DROPOUT: [1.0, 1.0]} | panels
    curves = [
        *((NORMED, mask, draw, it) for mask, by in normed.items() for draw, it in enumerate(by)),
        *((panel, "full", 0, curve) for panel, curve in others.items()),
    ]
    rows = [
        (panel, mask, draw, layer, metric, value)
        for panel, mask, draw, curve in curves
        for layer, log10 in enumerate(curve)
        for metric, value in ((DISPERSION, log10), ("stable_rank", 1.5))
    ]
    return tables.from_rows(("model", "variant", "sample", "layer", "metric", "value"), rows)


def judged(table: pl.DataFrame, facts: PretrainedFacts | None = None) -> kit.Result:
    return kit.conclude(ENTRY, FEW, kit.Measured(table, facts=facts or PretrainedFacts()))


STAYS, FALLS, LATE = [2.0, 1.5, 1.0, 0.5], [2.0, 0.1, -0.1, -7.0], [2.0, 2.0, 1.9, -0.01]


@pytest.mark.parametrize(
    ("full", "window", "words"),
    [
        (
            [FALLS, FALLS],
            [STAYS, STAYS],
            "Supported for window up to layer 3; not for full (μ below 1% "
            "of its "
            "initial value from layer 2 on); not tested: pretrained models",
        ),
        (
            [FALLS, LATE],
            [STAYS, LATE],  # one draw of two falls
            "Not supported for full, window (μ below 1% of its initial value from layer 2 to 3, "
            "3 to "
            "4 on); not tested: pretrained models",
        ),
        (
            [STAYS, STAYS],
            [STAYS, STAYS],
            "Supported for full, window up to layer 3; not tested: pretrained models",
        ),
    ],
)
def test_each_verdict_can_be_reached(full, window, words) -> None:
    result = judged(made({"full": full, "window": window}))
    assert str(result.judgement) == words
    assert result.beyond.verdict == "holds"
    assert result.key_figures["full, layers with a hundredth of μ"] == min(
        max(layer for layer, log10 in enumerate(curve) if log10 >= 0.0) for curve in full
    )


def test_the_sentences_say_between_which_conventions_the_verdict_is_the_same() -> None:
    sentences = judged(made({"full": [FALLS], "window": [STAYS]})).sentences
    assert "Any other part of the input's μ from 10^−9.0 to 0.032 gives the same verdict." in (
        sentences
    )
    assert sentences[-1].startswith("Hypothesis (ours): with dropout left on")


@pytest.mark.parametrize(
    ("panel", "curve"),
    [(PURE, STAYS), (SKIPPING, FALLS), (NORMED_SKIPPING, FALLS), (DROPOUT, FALLS)],
)
def test_each_panel_beyond_the_claim_can_speak_against_it(panel, curve) -> None:
    beyond = judged(made({"full": [STAYS]}, **{panel: curve})).beyond
    assert str(beyond) == f"Supported except for: {panel}, full"


@pytest.mark.parametrize(("apart", "verdict"), [(0.5, "holds"), (0.001, "depends")])
def test_pretrained_models_are_judged_where_they_are_given(apart, verdict) -> None:
    table = made({"full": [STAYS]})
    given = judged(table, PretrainedFacts(("mini (pretrained)",), {"mini (pretrained)": apart}))
    assert given.verdict == verdict
    assert "not tested" not in str(given.judgement)
    others = judged(table, PretrainedFacts((), {"mini (init)": apart}))
    assert "not tested: pretrained models" in str(others.judgement)
    assert others.beyond.verdict == verdict


def test_a_model_is_pretrained_if_its_weights_are(monkeypatch) -> None:
    trained = Made("bert", at_init=False, label="deep", make=DEEP.make)
    config = Config(models=(trained, Tiny("bert")), texts=TEXTS, length=6, shape=SHAPE)
    monkeypatch.setattr(
        "rankscope.experiments.claims._bert_shape.measure", lambda *_: made({"full": [STAYS]})
    )
    result = ENTRY.run(config, silent)
    can_be_shown(result)
    assert "not tested" not in str(result.judgement)
    rows = result.table.filter(model="deep (pretrained)", metric="relative_dispersion")
    subject = trained.subject(config)
    with torch.no_grad():
        y = subject.network(subject.x, subject.token_mask)
    apart = torch.linalg.matrix_norm(y - y.mean(1, keepdim=True)) / torch.linalg.matrix_norm(y)
    last = rows.filter(layer=12).sort("sample")["value"].to_list()
    assert last == pytest.approx(apart.tolist())


def attend(x: torch.Tensor, layer: torch.nn.Module, seen: torch.Tensor, heads: int):
    """LN(attention(x)) by hand, head by head."""
    part = layer.steps[0].branches[0].part
    q, k, v = (getattr(part, name)(x) for name in ("query", "key", "value"))
    width = x.shape[-1] // heads
    mixed = []
    for head in range(heads):
        at = slice(head * width, (head + 1) * width)
        scores = (q[:, at] @ k[:, at].T / width**0.5).masked_fill(~seen, -torch.inf)
        mixed.append(scores.softmax(-1) @ v[:, at])
    out = part.output(torch.cat(mixed, -1))
    return (out - out.mean(-1, keepdim=True)) / out.std(-1, correction=0, keepdim=True)


@pytest.mark.parametrize("mask", MASKS)
def test_figures_are_those_of_attention_written_out(ran, mask: str) -> None:
    i = torch.arange(SHAPE.tokens)
    behind = i[:, None] - i
    seen = {
        "full": behind < 99,
        "causal": behind >= 0,
        "window:1": behind.abs() <= 1,
        "causal-window:1": (behind >= 0) & (behind <= 1),
    }[mask]
    for draw in range(SHAPE.draws):
        x = embedded(draw, SHAPE.width, SHAPE.tokens)[0][0]
        rows = ran.table.filter(model=NORMED, variant=mask, sample=draw, metric=DISPERSION)
        log10 = rows.sort("layer")["value"].to_list()
        layers = [*layers_of(SHAPE, 8, draw, 0).blocks, *layers_of(SHAPE, 8, draw, 8).blocks]
        with torch.no_grad():
            for layer in range(min(len(log10), 12)):
                mu = float(torch.linalg.matrix_norm(x - x.mean(0)).log10())
                assert log10[layer] == pytest.approx(mu, abs=1e-4 if mu > -6 else 2)
                x = attend(x, layers[layer], seen, SHAPE.heads)


def test_no_layer_comes_twice() -> None:
    weights = [
        block.steps[0].branches[0].part.value.weight
        for first in (0, 8)
        for block in layers_of(SHAPE, 8, 0, first).blocks
    ]
    assert len({float(each.detach()[0, 0]) for each in weights}) == 16


def test_the_input_is_that_of_bert_at_initialisation() -> None:
    x, token_mask = embedded(0, 768, 128)
    assert x.shape == (1, 128, 768)
    assert bool(token_mask.all())
    size, mu = torch.linalg.matrix_norm(x), torch.linalg.matrix_norm(x - x.mean(1))
    assert float(size) == pytest.approx((128 * 768) ** 0.5, rel=1e-4)
    assert float(mu / size) == pytest.approx((2 / 3) ** 0.5, rel=0.03)


def test_full_and_causal_masks_fall_and_dropout_keeps_apart(ran) -> None:
    can_be_shown(ran)
    courses = read(ran.table)
    assert not courses[NORMED, "full"].stays
    assert not courses[NORMED, "causal"].stays
    assert max(courses[NORMED, "full"].apart) < min(courses[NORMED, "causal"].apart)
    assert max(courses[NORMED, "causal"].apart) < min(courses[NORMED, "window:1"].apart)
    assert all(not course.stays for (panel, _), course in courses.items() if panel == PURE)
    assert min(ends_with_dropout(ran.table).values()) > 0.5
    outputs = ran.table.filter(model=OUTPUTS_DROPPED, variant="full", metric=DISPERSION)
    late = 10 ** outputs.filter(pl.col("layer") > 8)["value"].mean()
    assert late == pytest.approx(SHAPE.dropout_floor, rel=0.2)  # of 32 features
    assert DropoutRates(hidden=0.1).floor(128, 768) == pytest.approx(98.76, abs=0.01)
    assert len(ran.sentences) <= 5


def test_a_run_is_the_same_again_and_a_seed_changes_all_of_it() -> None:
    shape = replace(SHAPE, layers=9, draws=1, masks=("causal",), dropout_layers=2)
    once, again, other = (measure(shape, seed, silent) for seed in (0, 0, 1))
    assert once.equals(again)
    for panel in once["model"].unique():
        values = [it.filter(model=panel, layer=1)["value"].to_list() for it in (once, other)]
        assert values[0] != values[1]


def test_draws_are_other_weights(ran) -> None:
    rows = ran.table.filter(model=NORMED, variant="causal", metric=DISPERSION, layer=1)
    assert rows["value"].n_unique() == SHAPE.draws


def test_its_scales_are_as_stated() -> None:
    quick, paper = Config(), replace(Config(), **PAPER)
    assert (quick.shape.heads, quick.shape.width, quick.shape.tokens) == (12, 768, 128)
    assert (quick.shape.layers, quick.shape.draws) == (128, 3)
    assert len(quick.shape.masks) == 4
    assert quick.shape.dropout == DropoutRates(attention=0.1, hidden=0.1)
    assert paper.shape.layers > quick.shape.layers
    assert quick.models == ()
