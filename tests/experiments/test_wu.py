"""W's figure and W5: four masks times four sets of parts; rank and cone of real hidden states."""

from functools import partial
from pathlib import Path

import polars as pl
import pytest
import torch

from rankscope import figures
from rankscope.experiments import w5, wu_figure
from rankscope.experiments.d5 import Case
from rankscope.experiments.wu_figure import DISPERSION, Shape
from rankscope.families import load
from rankscope.metrics import dispersion

from ..families.conftest import TINY, lively, minilm

__all__ = ["minilm"]

SHAPE = Shape(width=16, heads=2, tokens=10, samples=2)
IDS = torch.tensor([[5, 17, 42, 8, 66, 23], [1, 2, 3, 4, 5, 6]])


def case(name: str) -> Case:
    return Case(name, lambda: load(lively(name), dtype=torch.float64))


@pytest.fixture(scope="module")
def figure():
    ticks: list[int] = []
    found = wu_figure.wu_figure(depth=5, shape=SHAPE, window=2, on_run=lambda: ticks.append(1))
    assert len(ticks) == wu_figure.runs() == 16
    return found


def last(found, model: str, mask: str, metric: str = DISPERSION) -> float:
    rows = found.summary.filter(model=model, variant=mask, metric=metric)
    return rows.sort("layer")["median"][-1]


def test_figure_has_every_panel_curve_and_layer(figure) -> None:
    pairs = figure.summary.select("model", "variant").unique()
    assert len(pairs) == 4 * 4
    depths = figure.summary.group_by("model", "variant").agg(pl.col("layer").max())
    assert set(depths["layer"]) == {5}


def test_loaded_models_are_repeated_as_often_as_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wu_figure, "PARTS", {"everything": ()})
    found = wu_figure.wu_figure([case("bert")], depth=7, shape=SHAPE, window=2, texts=IDS)
    loaded = case("bert").model()
    x, mask, _ = loaded.inputs(IDS)
    with torch.no_grad():
        y = loaded.network(loaded.network(x, mask), mask)
    rows = found.table.filter(model="bert: everything", variant="full", metric=DISPERSION)
    assert rows["layer"].max() == 6  # three layers, twice
    got = rows.filter(layer=6)["value"].to_list()
    assert got == pytest.approx(dispersion(y).log10().tolist(), abs=1e-9)
    assert wu_figure.runs([case("bert")]) == 8


def test_dispersion_is_that_of_the_plain_network(figure) -> None:
    network = SHAPE.network(5).without("mlp").with_mask("causal-window:2").double()
    x, mask = SHAPE.inputs()
    with torch.no_grad():
        y = network(x.double(), mask)
    found = figure.table.filter(
        model="BERT shape (init): + LayerNorm + skip",
        variant="causal sliding window",
        metric=DISPERSION,
        layer=5,
    )["value"]
    assert found.to_list() == pytest.approx(
        dispersion(y, token_mask=mask).log10().tolist(), abs=1e-9
    )


def test_full_attention_falls_fastest_and_skips_keep_tokens_apart(figure) -> None:
    for bare in ("pure attention", "+ LayerNorm"):
        model = f"BERT shape (init): {bare}"
        relative = {
            mask: last(figure, model, mask, wu_figure.RELATIVE) for mask in wu_figure.masks(2)
        }
        assert relative["full"] < -10 < relative["causal"] < relative["sliding window"]
    for whole in ("+ LayerNorm + skip", "everything"):
        assert last(figure, f"BERT shape (init): {whole}", "full", wu_figure.RELATIVE) > -1


def test_width_keeps_products_of_weights_as_large_as_berts() -> None:
    weight = Shape(width=192, heads=4).network(1).blocks[0].attention.value.weight
    assert weight.std().item() == pytest.approx(0.04, rel=0.02)  # 0.02 · √(768/192)


def test_figure_can_be_drawn_with_logarithmic_depth(figure) -> None:
    drawing = figure.drawings[0]
    assert (drawing.figure, drawing.metric) == ("by_depth", DISPERSION)
    assert all(each.options["log_depth"] for each in figure.drawings)
    figures.by_depth(figure.summary, metric=DISPERSION, **drawing.options)
    assert len(figure.sentences) == 4
    assert "full 10^-" in figure.sentences[0]


def test_rank_share_counts_real_tokens_only() -> None:
    x = torch.eye(4, dtype=torch.float64).repeat(2, 1, 1)
    x[1, 1] = x[1, 0]
    assert w5.rank_share(x).tolist() == [1.0, 0.75]
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    assert w5.rank_share(x, token_mask=mask).tolist() == [1.0, 0.5]
    assert w5.rank_share(torch.randn(1, 9, 4, dtype=torch.float64)).tolist() == [1.0]


def untrained() -> Case:
    """As transformers initialises it: tokens have hardly anything in common."""

    def made():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return load(TINY["bert"]().eval().double())

    return Case("flat (pretrained)", made)


def flattened(scale: float, common: float) -> Case:
    """A BERT whose last norm leaves ``scale`` of each token and adds a common row."""

    def made():
        model = lively("bert").double()
        with torch.no_grad():
            for layer in model.encoder.layer:
                layer.output.LayerNorm.weight.fill_(scale)
                layer.output.LayerNorm.bias.fill_(common)
        return load(model)

    return Case(f"{scale:g} and {common:g} (pretrained)", made)


def test_w5_holds_for_a_cone_of_full_rank_and_fails_without_either() -> None:
    cone, no_cone, no_rank = flattened(1.0, 2.0), untrained(), flattened(1e-20, 2.0)
    ticks: list[int] = []
    claim = w5.w5([cone], texts=IDS, on_batch=lambda: ticks.append(1))
    assert claim.verdict == "holds"
    assert claim.reasons[0] == "1 of 1 trained models have full rank and a cone."
    assert "full rank at every layer" in claim.reasons[1]
    assert len(ticks) == w5.passes([cone], len(IDS)) == 1
    lost = w5.w5([no_rank], texts=IDS)
    assert lost.verdict == "fails"
    assert "rank down to 17% of what can be (layer 1)" in lost.reasons[1]  # one of six
    assert w5.w5([no_cone], texts=IDS).verdict == "fails"
    assert w5.w5([cone, no_rank], texts=IDS).verdict == "depends"


def test_w5_is_about_trained_models_and_shows_others_beside() -> None:
    cone, flat = flattened(1.0, 2.0), untrained()
    fresh = Case("bert (init)", flat.model)
    claim = w5.w5([fresh, cone], texts=IDS)
    assert claim.verdict == "holds"
    assert claim.reasons[-1].startswith("Not trained: bert (init): full rank")
    assert set(claim.summary["model"]) == {"bert (init)", cone.name}
    alone = w5.w5([fresh], texts=IDS)
    assert alone.verdict == "depends"
    assert alone.reasons[0].startswith("No trained model was tried")
    assert w5.pretrained("mine (pretrained) 2")


def test_w5_reads_images_where_a_model_does() -> None:
    claim = w5.w5([case("vit")], texts=["one", "two"])
    assert claim.table["sample"].n_unique() == 2
    assert set(claim.table["metric"]) == {"rank_share", "mean_cosine", "effective_rank"}


def test_pretrained_minilm_keeps_full_rank_in_a_wide_cone(minilm: Path) -> None:
    claim = w5.w5([Case("MiniLM (pretrained)", partial(load, str(minilm)))], length=32)
    ranks = claim.table.filter(metric="rank_share")["value"]
    assert ranks.min() == 1.0
    cosines = claim.summary.filter(metric="mean_cosine").sort("layer")["median"].to_list()
    assert len(cosines) == 7
    assert 0.15 < cosines[-1] < 0.5
    assert cosines[0] < cosines[-1]
    assert claim.verdict == "fails"
