"""``tables.pooled``, against values worked out by hand."""

import math

import polars as pl
import pytest

from rankscope import tables
from rankscope.errors import InputError

METRIC = "relative_residual"
NAMES = ("run", "norm", "layers", "seed", "layer", "sample", "metric", "value")


def falling(norm, layer):
    """Halved in every layer without a norm, slower with one."""
    return 0.5**layer if norm == "none" else 0.8**layer


def sweep(depths=(2, 4, 8), norms=("none", "layer"), value=falling):
    """Three seeds and two samples of each; seeds differ by a factor, samples do not."""
    rows = [
        (f"{norm}-{depth}-{seed}", norm, depth, seed, layer, sample, METRIC, value(norm, layer) * f)
        for norm in norms
        for depth in depths
        for seed, f in enumerate((0.9, 1.0, 1.3))
        for layer in range(depth + 1)
        for sample in range(2)
    ]
    return pl.DataFrame(rows, schema=list(NAMES), orient="row")


def test_a_run_at_several_points_counts_once_where_they_are_one():
    at = [("a", "full", 1), ("a", "full", 2), ("b", "window", 1), ("c", "window", 2)]
    rows = [(*point, None, METRIC, {"a": 0.5, "b": 0.2, "c": 0.4}[point[0]]) for point in at] * 2
    names = ["run", "mask", "radius", "other", "metric", "value"]
    swept = pl.DataFrame(rows, schema=names, orient="row")
    apart = tables.pooled(swept, metric=METRIC, by=["radius", "mask"])
    assert apart["median"].to_list() == [0.5, 0.5, 0.2, 0.4]
    full = tables.pooled(swept.filter(mask="full"), metric=METRIC, by=["mask"])
    assert full.select("count", "median").rows() == [(2, 0.5)]
    with pytest.raises(InputError, match="radius also varies"):
        tables.pooled(swept, metric=METRIC, by=["mask"])


def test_each_run_counts_with_its_own_last_layer():
    found = tables.pooled(sweep(norms=("none",)), metric=METRIC, by=["layers"])
    assert found["layers"].to_list() == [2, 4, 8]
    assert found["median"].to_list() == pytest.approx([0.25, 0.0625, 0.5**8])
    assert found["count"].to_list() == [6, 6, 6]
    # Six numbers, 0.9 0.9 1 1 1.3 1.3 times the median: the tenth percentile is the half-th.
    assert found["low"][0] == pytest.approx(0.25 * 0.9)
    assert found["high"][0] == pytest.approx(0.25 * 1.3)


def test_a_layer_can_be_named_and_runs_without_it_are_left_out():
    found = tables.pooled(sweep(norms=("none",)), metric=METRIC, by=["depth"], layer=4)
    assert found.rows() == [(4, METRIC, 6, *found.row(0)[3:]), (8, METRIC, 6, *found.row(1)[3:])]
    assert found["median"].to_list() == pytest.approx([0.0625] * 2)
    with pytest.raises(InputError, match="no run has layer 9; layers range from 0 to 8"):
        tables.pooled(sweep(), metric=METRIC, by=["norm", "layers"], layer=9)
    with pytest.raises(InputError, match="cannot be combined with an axis"):
        tables.pooled(sweep(), metric=METRIC, by=["norm", "layers"], layer=1, below=0.1)


def test_below_is_the_first_layer_of_the_median_curve():
    found = tables.pooled(sweep(), metric=METRIC, by=["norm", "layers"], below=0.3)
    cells = {(row["norm"], row["layers"]): row for row in found.to_dicts()}
    assert set(found["metric"]) == {"collapse_layer"}
    assert cells["none", 8]["median"] == 2  # 1/4 is the first power below 0.3
    assert cells["layer", 8]["median"] == 6  # 0.8^5 = 0.33, 0.8^6 = 0.26
    assert (cells["layer", 8]["low"], cells["layer", 8]["high"]) == (5, 7)  # 0.9 × 0.33, 1.3 × 0.26
    assert math.isnan(cells["layer", 4]["median"])
    assert len(cells) == 6


def test_metrics_without_layers_are_taken_as_they_are():
    rows = sweep(depths=(2,)).filter(layer=2).with_columns(layer=pl.lit(None, pl.Int64))
    assert tables.pooled(rows, metric=METRIC, by=["norm"]).height == 2
    assert tables.pooled(rows.drop("layer"), metric=METRIC, by=["norm"]).height == 2


def test_what_would_mix_designs_is_refused():
    with pytest.raises(InputError, match=r"layers also varies \(2, 4, 8\)"):
        tables.pooled(sweep(), metric=METRIC, by=["norm"])
    pooled = tables.pooled(sweep(), metric=METRIC, by=["norm"], pool=["seed", "layers"])
    assert pooled["count"].to_list() == [18, 18]
    with pytest.raises(InputError, match="seed also varies"):
        tables.pooled(sweep(), metric=METRIC, by=["norm", "layers"], pool=())
    tied = sweep().with_columns(width=1024 // pl.col("layers"))
    assert tables.pooled(tied, metric=METRIC, by=["norm", "layers"]).height == 6
    with pytest.raises(InputError, match="no rows for metric 'rank'; it has relative_residual"):
        tables.pooled(sweep(), metric="rank", by=["norm"])
    with pytest.raises(InputError, match="no column 'mask'; it has run, norm, layers"):
        tables.pooled(sweep(), metric=METRIC, by=["mask"])


def test_lazy_frames_give_the_same_numbers():
    whole = tables.pooled(sweep(), metric=METRIC, by=["norm", "layers"])
    lazy = tables.pooled(sweep().lazy(), metric=METRIC, by=["norm", "layers"])
    assert lazy.equals(whole)
