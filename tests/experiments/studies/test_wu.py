"""The figure of Wu et al. 2024: four masks times four sets of parts."""

from dataclasses import replace

import polars as pl
import pytest
import torch

from rankscope.core.metrics import dispersion
from rankscope.errors import InputError
from rankscope.experiments.depths import DISPERSION, RELATIVE_DISPERSION
from rankscope.experiments.studies.wu import ENTRY, Config, random_subject
from rankscope.numerals import power_of_ten

from ..made import TEXTS
from ..shown import can_be_shown, steps_of
from ..tiny import Tiny

SMALL = Config(depth=5, width=16, heads=2, tokens=10, samples=2, window=2)


@pytest.fixture(scope="module")
def figure():
    found, seen = steps_of(ENTRY.run, SMALL)
    assert len(seen) == 16 + 4 + 1
    return found


def last(found, model: str, mask: str, metric: str = DISPERSION) -> float:
    rows = found.summary.filter(model=model, variant=mask, metric=metric)
    return rows.sort("layer")["median"][-1]


def test_figure_has_every_panel_curve_and_layer(figure) -> None:
    can_be_shown(figure)
    pairs = figure.summary.select("model", "variant").unique()
    assert len(pairs) == 4 * 4
    depths = figure.summary.group_by("model", "variant").agg(pl.col("layer").max())
    assert set(depths["layer"]) == {5}
    # A logarithmic depth axis would make exponential decay look doubly exponential.
    assert all(set(each.options) == {"lowest"} for each in figure.drawings)


def test_loaded_models_are_repeated_as_often_as_fits() -> None:
    bert = Tiny("bert")
    config = replace(
        SMALL, depth=7, parts=(("everything", ()),), models=(bert,), texts=TEXTS, length=6
    )
    found, _ = steps_of(ENTRY.run, config)
    loaded = bert.load()
    x, mask, _ = loaded.inputs(list(TEXTS), length=6)
    with torch.no_grad():
        y = loaded.network(loaded.network(x, mask), mask)
    rows = found.table.filter(model="bert (init): everything", variant="full", metric=DISPERSION)
    assert rows["layer"].max() == 6  # three layers, twice
    got = rows.filter(layer=6)["value"].to_list()
    assert got == pytest.approx(dispersion(y).log10().tolist(), abs=1e-9)
    assert len(found.sentences) == 2


def test_dispersion_is_that_of_the_plain_network(figure) -> None:
    subject = random_subject(SMALL)
    network = subject.network.without("mlp").with_mask("causal-window:2").double()
    with torch.no_grad():
        y = network(subject.x.double(), subject.token_mask)
    found = figure.table.filter(
        model="BERT shape (init): + LayerNorm + skip",
        variant="causal sliding window",
        metric=DISPERSION,
        layer=5,
    )["value"]
    assert found.to_list() == pytest.approx(
        dispersion(y, token_mask=subject.token_mask).log10().tolist(), abs=1e-9
    )


def test_full_attention_falls_fastest_and_skips_keep_tokens_apart(figure) -> None:
    for bare in ("pure attention", "+ LayerNorm"):
        model = f"BERT shape (init): {bare}"
        relative = {mask: last(figure, model, mask, RELATIVE_DISPERSION) for mask in SMALL.masks}
        assert relative["full"] < -10 < relative["causal"] < relative["sliding window"]
    for whole in ("+ LayerNorm + skip", "everything"):
        assert last(figure, f"BERT shape (init): {whole}", "full", RELATIVE_DISPERSION) > -1


def test_width_keeps_products_of_weights_as_large_as_berts() -> None:
    network = random_subject(Config(depth=1, width=192)).network
    weight = network.blocks[0].attention.value.weight
    assert weight.std().item() == pytest.approx(0.04, rel=0.02)  # 0.02 · √(768/192)


def test_sentences_tell_every_mask(figure) -> None:
    assert len(figure.sentences) == len(figure.listings) == 4
    for (name, *_), listing, said in zip(
        SMALL.parts, figure.listings, figure.sentences, strict=True
    ):
        model = f"BERT shape (init): {name}"
        assert listing.title == model
        assert [row[0] for row in listing.rows] == list(SMALL.masks)
        ends = {mask: last(figure, model, mask, RELATIVE_DISPERSION) for mask in SMALL.masks}
        for mask, dispersed, relative, _ in listing.rows:
            assert dispersed == power_of_ten(last(figure, model, mask))
            assert relative == power_of_ten(ends[mask])
        alike = sum(end < -3 for end in ends.values())
        most = max(ends, key=ends.get)
        assert f" under {alike} of 4 masks, and most under {most}, by" in said


def test_the_seed_draws_other_weights_and_names_another_run() -> None:
    one, other = (random_subject(replace(SMALL, seed=seed)).network for seed in (0, 1))
    weights = [net.blocks[0].attention.query.weight for net in (one, other)]
    assert not torch.equal(*weights)
    assert SMALL.digest("wu") != replace(SMALL, seed=1).digest("wu")


def test_no_layers_are_refused() -> None:
    with pytest.raises(InputError, match="depth=0"):
        ENTRY.run(replace(SMALL, depth=0), lambda _: None)
