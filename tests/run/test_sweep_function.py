"""``rankscope.sweep``: what it returns and how that shows itself."""

import pytest

import rankscope
from rankscope.errors import InputError, RankscopeError
from rankscope.experiments.catalogue import Entry
from rankscope.run import ENGINES, Inline, Processes, RayEngine
from rankscope.run._engine import make_engine

GRID = {
    "heads": 1,
    "width": 8,
    "length": 4,
    "samples": 1,
    "axes": {"layers": [1, 2], "seed": [0, 1]},
    "quick": {"axes": {"seed": [0]}},
}


def test_it_returns_where_the_results_are_and_how_many(tmp_path):
    quick = rankscope.sweep(GRID, tmp_path / "out", engine="inline", quick=True)
    assert (quick.total, quick.done, quick.before, quick.failed) == (2, 2, 0, 0)
    seen = []
    whole = rankscope.sweep(
        GRID, tmp_path / "out", engine=Inline(), on_outcome=lambda *each: seen.append(each)
    )
    assert (whole.total, whole.done, whole.before, whole.failed) == (4, 4, 2, 0)
    assert len(seen) == 2
    assert whole.folder == tmp_path / "out"
    table = whole.table
    assert table.columns[:3] == ["run", "layers", "seed"]
    assert table.select("layers", "seed").unique(maintain_order=True).rows() == [
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
    ]
    assert "4 runs: 4 done (2 earlier), in" in repr(whole)
    assert repr(whole).startswith(f"Sweep({str(tmp_path / 'out')!r}")
    assert "<b>Sweep in " in whole._repr_html_()
    assert "<table>" not in whole._repr_html_()


def test_points_that_are_the_same_run_are_merged(tmp_path):
    grid = {**GRID, "mask": "{mask_a}", "axes": {"mask_a": ["full", "full"]}, "layers": 1}
    del grid["quick"]
    found = rankscope.sweep(grid, tmp_path / "out", engine="inline")
    assert (found.total, found.merged) == (1, 1)
    once = rankscope.sweep(
        {**grid, "axes": {"mask_a": ["full"]}}, tmp_path / "one", engine="inline"
    )
    assert found.table.equals(once.table)


def test_a_run_at_several_points_is_in_the_table_with_the_settings_of_each(tmp_path):
    axes = {"mask": ["full", "window:{radius}"], "radius": [1, 2]}
    grid = {**GRID, "layers": 1, "axes": axes}
    del grid["quick"]
    found = rankscope.sweep(grid, tmp_path / "out", engine="inline")
    assert (found.total, found.merged, rankscope.run.status(found.folder).total) == (3, 1, 3)
    rows = found.table
    points = rows.select("mask", "radius").unique(maintain_order=True).rows()
    assert points == [("full", 1), ("full", 2), ("window:1", 1), ("window:2", 2)]
    full = [rows.filter(mask="full", radius=radius).drop("radius") for radius in (1, 2)]
    assert full[0].height
    assert full[0].equals(full[1])


def test_what_failed_is_shown(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("<out of luck>")

    monkeypatch.setattr(Entry, "run", fail)
    found = rankscope.sweep(GRID, tmp_path / "out", engine="inline")
    assert (found.done, found.failed) == (0, 4)
    assert "0 done, 4 failed" in str(found)
    assert found.failures[0].error == "RuntimeError: <out of luck>."
    html = found._repr_html_()
    assert "trace (layers=1, seed=0)" in html
    assert "&lt;out of luck&gt;" in html


def test_engines_are_made_by_name_and_refuse_what_they_have_no_use_for(tmp_path):
    assert make_engine("processes", workers=3).workers == 3
    assert isinstance(make_engine("processes"), Processes)
    assert isinstance(make_engine("inline"), Inline)
    ray = make_engine("ray", address="host:1", cpus=2, gpus=0.5, memory=1)
    assert isinstance(ray, RayEngine)
    assert (ray.address, ray.cpus, ray.gpus, ray.memory) == ("host:1", 2, 0.5, 2**30)
    with pytest.raises(InputError, match="inline has no option workers; it has no options"):
        make_engine("inline", workers=2)
    with pytest.raises(InputError, match="ray has no option workers; it has address, cpus"):
        rankscope.sweep(GRID, tmp_path, engine="ray", workers=2)
    with pytest.raises(RankscopeError, match="engine"):
        rankscope.sweep(GRID, tmp_path, engine="threads")
    with pytest.raises(RankscopeError, match=r"workers='two' is a str"):
        rankscope.sweep(GRID, tmp_path, workers="two")
    assert all(make_engine(name) for name in ENGINES)
    with pytest.raises(InputError, match="got the options workers and an engine"):
        rankscope.sweep(GRID, tmp_path, engine=Inline(), workers=2)
