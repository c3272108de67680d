"""A trace as a value: its table, its file, several as one."""

import dataclasses

import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.core.network import Network, Spec
from rankscope.core.tracing import Provenance, Trace, trace
from rankscope.errors import InputError


def traced(samples=2, *, seed=0, metrics=("residual", "dispersion")):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 4, 8, generator=generator)
    return trace(Network.random(Spec(2, 2, 8), seed=3), x, metrics=metrics)


def test_table_has_the_columns_of_the_schema():
    one = traced()
    assert one.table.columns == ["layer", "sample", "metric", "value"]
    assert one.table.dtypes == [pl.Int64, pl.Int64, pl.String, pl.Float64]
    assert one.table.to_dict(as_series=False) == one.columns


@pytest.mark.parametrize("metrics", [("residual",), ("residual", "dobrushin")], ids="+".join)
def test_save_and_load(metrics, tmp_path):
    one = traced(metrics=metrics)
    path = one.save(tmp_path / "new" / "trace.parquet")
    again = Trace.load(path)
    assert again == one
    assert again.table.equals(one.table)
    assert again.provenance.spec == Spec(2, 2, 8).digest(seed=3)
    assert again.provenance.versions == one.provenance.versions


def test_what_is_loaded_can_be_saved_and_joined(tmp_path):
    one = Trace.load(traced().save(tmp_path / "one.parquet"))
    assert Trace.load(one.save(tmp_path / "two.parquet")) == one
    assert (
        Trace.joined([one, one]).columns["sample"] == Trace.joined([traced()] * 2).columns["sample"]
    )


@pytest.mark.parametrize("kind", ["missing", "garbage", "foreign", "directory"])
def test_load_refuses(kind, tmp_path):
    path = tmp_path / "trace.parquet"
    if kind == "garbage":
        path.write_bytes(b"PAR1 not really PAR1")
    elif kind == "foreign":
        pl.DataFrame({"metric": ["a"], "value": [1.0]}).write_parquet(path)
    elif kind == "directory":
        path.mkdir()
    with pytest.raises(InputError, match=r"trace\.parquet"):
        Trace.load(path)


@pytest.mark.parametrize(
    "provenance", [{}, {"question": "D1"}, {"model": "a", "colour": "red"}], ids=str
)
def test_load_refuses_another_kind_of_table(provenance, tmp_path):
    path = tables.write(traced().table, tmp_path / "t.parquet", provenance)
    with pytest.raises(InputError, match=r"t\.parquet holds a table without an object"):
        Trace.load(path)
    held = {"rankscope.object": '{"class": "rankscope.core.tracing._trace:Trace", "fields": {}}'}
    tables.write(traced().table, path, provenance, held)
    with pytest.raises(InputError, match=r"t\.parquet holds a Trace that cannot be read"):
        Trace.load(path)


def test_a_doubt_is_shown():
    columns = {
        "layer": [0, 0, 0, 1, 1, 1, 2, 2, 2],
        "sample": [0, 1, 2] * 3,
        "metric": ["log10_residual"] * 9,
        "value": [0.0] * 9,
        "doubt": [False, False, False, False, True, False, False, True, True],
    }
    found = Trace(columns, Provenance("net"))
    assert repr(found).endswith("log10_residual; in doubt from layer 1 on (samples 1, 2)")
    assert "Figures are in doubt from layer 1 on (samples 1, 2)." in found._repr_html_()
    sure = Trace({**columns, "doubt": [False] * 9}, Provenance("net"))
    assert "doubt" not in repr(sure) + sure._repr_html_()


def test_joined_numbers_the_samples_on():
    first, second, third = traced(2), traced(3, seed=1), traced(1, seed=2)
    whole = Trace.joined([first, second, third])
    assert sorted(set(whole.columns["sample"])) == [0, 1, 2, 3, 4, 5]
    assert dataclasses.replace(whole.provenance, inputs=None) == dataclasses.replace(
        first.provenance, inputs=None
    )
    assert whole.provenance.inputs not in {part.provenance.inputs for part in (first, second)}
    for part, start in ((first, 0), (second, 2), (third, 5)):
        rows = list(zip(*part.columns.values(), strict=True))
        shifted = [(layer, sample + start, name, value) for layer, sample, name, value in rows]
        assert set(shifted) <= set(zip(*whole.columns.values(), strict=True))
    assert len(whole.columns["value"]) == 6 * 3 * 2


def test_joined_keeps_what_any_part_notes():
    first, second, third = (
        traced().noted({"norm": "fro", **more})
        for more in ({}, {"doubt": "layer 3"}, {"doubt": "layer 5"})
    )
    whole = Trace.joined([first, second, third, third])
    assert whole.provenance.notes == {"norm": "fro", "doubt": "layer 3; layer 5"}
    assert first.provenance.notes == {"norm": "fro"}


def test_joined_leaves_its_parts_alone():
    first, second = traced(2), traced(2, seed=1)
    before = {name: list(column) for name, column in first.columns.items()}
    Trace.joined([first, second])
    assert first.columns == before


def test_joined_is_what_one_big_batch_gives():
    net = Network.random(Spec(2, 2, 8), seed=0, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 5, 8, generator=generator, dtype=torch.float64)
    whole = trace(net, x).table.sort("layer", "sample", "metric")
    parts = Trace.joined([trace(net, x[:1]), trace(net, x[1:])])
    again = parts.table.sort("layer", "sample", "metric")
    assert again.drop("value").equals(whole.drop("value"))
    assert again["value"].to_list() == pytest.approx(whole["value"].to_list(), rel=1e-10)


def test_joined_refuses_traces_of_different_columns():
    with pytest.raises(InputError, match="cannot be joined"):
        Trace.joined([traced(), traced(metrics=("dobrushin",))])


def test_joined_of_nothing():
    with pytest.raises(InputError):
        Trace.joined([])


def test_traces_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        traced().columns = {}
    with pytest.raises(dataclasses.FrozenInstanceError):
        Provenance("a").model = "b"


def test_plot_draws_each_metric():
    pytest.importorskip("rankscope.show.figures")
    drawn = traced().plot().to_dict()
    assert "Residual" in str(drawn)
    assert "Dispersion" in str(drawn)
