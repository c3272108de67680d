"""Grids: what they come to, counted by hand and by itertools, and what is refused, and where."""

from enum import IntEnum
from itertools import product

import numpy as np
import pytest
import torch

from rankscope.errors import RankscopeError
from rankscope.run import plan, read_grid

SMALL = {"heads": 1, "width": 8}


def points(**axes):
    return list(read_grid({"axes": axes}).points())


def refused(content, tmp_path=None):
    """The one sentence that a grid is refused with; text stands for a file."""
    if isinstance(content, str | bytes):
        path = tmp_path / "grid.toml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        content = path
    with pytest.raises(RankscopeError) as found:
        plan(read_grid(content))
    return str(found.value)


def test_the_product_is_that_of_itertools_and_the_last_axis_is_fastest():
    layers, heads, seeds = [2, 4, 8, 16], [1, 2, 4], range(10)
    found = points(layers=layers, heads=heads, seed={"from": 0, "to": 9})
    assert found == [
        {"layers": a, "heads": b, "seed": c} for a, b, c in product(layers, heads, seeds)
    ]
    assert len(found) == 120


def test_names_with_a_comma_vary_together():
    joint = [[2, 256], [8, 128], [32, 64]]
    found = points(**{"layers, width": joint, "seed": [0, 1]})
    assert found == [{"layers": a, "width": b, "seed": c} for (a, b), c in product(joint, (0, 1))]


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ({"from": 0, "to": 3}, [0, 1, 2, 3]),
        ({"from": -1, "to": 5, "step": 3}, [-1, 2, 5]),
        ({"from": 0, "to": 1, "count": 5}, [0, 0.25, 0.5, 0.75, 1]),
        ({"from": 2, "to": 64, "count": 6, "spacing": "log"}, [2, 4, 8, 16, 32, 64]),
        ({"from": 0.001, "to": 1.0, "count": 4, "spacing": "log"}, [0.001, 0.01, 0.1, 1.0]),
        ({"from": 8, "to": 2, "count": 3}, [8, 5, 2]),
        (range(3), [0, 1, 2]),
        (np.linspace(0, 1, 3), [0.0, 0.5, 1.0]),
    ],
)
def test_a_range_is_the_list_that_one_would_write(written, values):
    found = [point["skip"] for point in points(skip=written)]
    assert found == values
    assert [type(each) for each in found[1:-1]] == [type(each) for each in values[1:-1]]


def test_places_in_text_are_filled_in_everywhere():
    content = {
        **SMALL,
        "mask": "window:{radius}",
        "init": {"kind": "lecun", "scale": "{scale}"},
        "text": {"sentences": ["{{radius}} of {radius}, {} too"]},
        "axes": {"radius": [1, 2], "scale": [0.5]},
    }
    first, second = plan(read_grid(content)).runs
    assert first.fields == {
        **SMALL,
        "mask": "window:1",
        "init": {"kind": "lecun", "scale": 0.5},
        "text": {"sentences": ["{radius} of 1, {} too"]},
    }
    assert second.fields["mask"] == "window:2"
    assert second.axes == {"radius": 2, "scale": 0.5}


def test_an_axis_may_refer_to_another_and_what_comes_to_the_same_is_merged():
    axes = {"mask": ["full", "window:{radius}"], "radius": [1, 2, 4]}
    found = plan(read_grid({**SMALL, "axes": axes}))
    assert [run.axes["mask"] for run in found.runs] == ["full", "window:1", "window:2", "window:4"]
    assert found.merged == 2


def test_a_file_and_a_mapping_give_the_same_runs(tmp_path):
    (tmp_path / "grid.toml").write_text(
        '\ufeffexperiment = "deep"\nheads = 1\nwidth = 8\n[axes]\nlayers = [1, 2]\n'
        '"seed, mask" = [[0, "full"], [1, "causal"]]\n[quick]\nwidth = 4\n'
        '[quick.axes]\n"seed,mask" = [[3, "full"]]\n',
        encoding="utf-8",
    )
    content = {"experiment": "deep", **SMALL}
    axes = {"layers": [1, 2], "seed, mask": [[0, "full"], [1, "causal"]]}
    whole, same = (plan(read_grid(each)).runs for each in (
        tmp_path / "grid.toml", {**content, "axes": axes}
    ))  # fmt: skip
    assert [(run.key, run.axes, run.fields) for run in whole] == [
        (run.key, run.axes, run.fields) for run in same
    ]
    assert {run.folder for run in whole} == {str(tmp_path)}
    quick = plan(read_grid(tmp_path / "grid.toml", quick=True)).runs
    assert [(run.axes["layers"], run.axes["seed"]) for run in quick] == [(1, 3), (2, 3)]
    assert {run.fields["width"] for run in quick} == {4}


def test_structured_values_of_an_axis_are_columns_of_text():
    axes = {"init": ["lecun", {"kind": "lecun", "scale": 2}], "metrics": ["residual"]}
    found = plan(read_grid({**SMALL, "axes": axes})).runs
    assert [run.axes["init"] for run in found] == ["lecun", '{"kind": "lecun", "scale": 2}']


LOOP: list[object] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"axes": {"layers": []}}, "axes.layers: got an empty list"),
        ({"axes": {"layers": 3}}, "axes.layers: got 3, expected a list"),
        ({"axes": {"layers": "12"}}, 'axes.layers: got "12", expected a list'),
        ({"axes": [1]}, "axes: got [1], expected a table"),
        ({"axes": {"layers": [[1, 2]]}}, "axes.layers[0]: layers is a list, expected a whole"),
        ({"axes": {"layers, heads": [[1, 2], [1]]}}, 'axes."layers, heads"[1]: got [1], expected'),
        ({"axes": {"skip": [0.5, float("nan")]}}, "axes.skip[1]: got nan"),
        ({"skip": float("inf")}, "skip: got inf"),
        ({"axes": {"seed": {"from": 0, "to": 10**9}}}, "expected at most 1,000,000 values"),
        ({"axes": {"seed": range(10**7)}}, "axes.seed: got 10,000,000 items, expected at most"),
        ({"axes": {"seed": {"from": 0, "to": 10**5000}}}, "seed.to: got an integer of more than"),
        ({"axes": {"seed": {"from": 5, "to": 1}}}, "expected from <= to"),
        ({"axes": {"seed": {"from": 0}}}, "a range needs to"),
        ({"axes": {"seed": {"form": 0, "to": 1}}}, "did you mean from?"),
        ({"axes": {"skip": {"from": 0, "to": 1, "count": 3, "spacing": "log"}}}, "positive"),
        ({"axes": {"skip": {"from": 0.0, "to": 1}}}, "give the count: count"),
        ({"axes": {"seed": {"from": 0, "to": 9, "count": True}}}, "axes.seed.count: got True"),
        (
            {"axes": {"seed": {"from": 1, "to": 10**4}, "heads": {"from": 1, "to": 1000}}},
            "axes: got 10000 × 1000 = 10,000,000 runs, expected at most 1,000,000",
        ),
        ({"axes": {"layers": [1], "layers, seed": [[1, 2]]}}, "layers is already an axis"),
        ({"axes": {"layers": [1], "depth": [2]}}, "depth is an alias of layers"),
        ({"layers": 2, "axes": {"layers": [1]}}, "layers is both a field and an axis"),
        ({"axes": {"a b": [1]}}, "got the name 'a b'"),
        ({"axes": {"größe": [1]}}, "größe is not a field of trace"),
        ({"axes": {"hedas": [1]}}, "axes.hedas[0]: hedas is not a field of trace"),
        ({"hedas": 1}, "did you mean heads"),
        ({"mask": "window:{rad}", "axes": {"radius": [1]}}, "did you mean radius?"),
        ({"mask": "window:{rad}"}, "the grid has no axes"),
        ({"axes": {"mask": ["{norm}"], "norm": ["{mask}"]}}, "nested placeholders"),
        ({"axes": {"mask": ["{mask}"]}}, "nested placeholders"),
        ({"axes": {"heads": [1, True]}}, "axes.heads[1]: heads=True is a bool"),
        ({"axes": {"seed": [0, -1]}}, "axes.seed[1]: seed=-1 is out of range"),
        ({"axes": {"norm": ["layer", "batch"]}}, "axes.norm[1]: norm='batch' is unknown; choose"),
        ({"axes": {"experiment": ["trace", "trce"]}}, "axes.experiment[1]: there is no experiment"),
        ({"experiment": 3}, "experiment: entry: id_=3 is a int, expected a str"),
        ({"heads": 5, "axes": {"width": [60, 64]}}, "run 2 of 2 (width=64): width=64 is not"),
        ({"metrics": ["residual", "rank"]}, "metrics: unknown metric 'rank'; choose among"),
        ({"init": {"kind": "lecun", "scal": 1}}, "init: Init has no field scal; did you mean"),
        ({"scores": "rotory"}, "dot, rotary, relativebias"),
        ({"text": "{metric}", "axes": {"metric": ["a"]}}, "axes.metric: metric is a column"),
        ({"text": "{value_in_run}", "axes": {"value_in_run": ["a"]}}, "is a column of the results"),
        (
            {"axes": {"seed": {"from": 10**13, "to": 10**13 + 10, "count": 11}}},
            "axes.seed: got 10000000000000 to 10000000000010, which need more than 12",
        ),
        ({"axes": {"skip": {"from": 1.0, "to": 1 + 1e-11, "count": 9}}}, "more than 12 digits"),
        ({"text": "~nobody-of-this-name/a.txt"}, "text: the home directory in"),
        ({"model": "~nobody-of-this-name/a"}, "model: the home directory in"),
        ({"text": "a\0b"}, "cannot be read as UTF-8 text: embedded null byte"),
        ({"variant": ["SAN"]}, "variant is unknown; choose one of SAN"),
        ({"quick": 3}, "quick: got 3, expected a table"),
        ({"init": {3: 4}}, "init: got the name 3, expected text"),
        ({"text": LOOP}, "levels deep"),
        ({"text": b"abc"}, "got a bytes"),
        ({"mask": "\ud800"}, "surrogate"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_where_it_stands(content, said):
    found = refused(content)
    assert found.startswith("grid: ")
    assert said in found


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("layers = [1,\nwidth = 3\n", "is not valid TOML: "),
        ("layers = [1,\nwidth = 3\n", "line 2"),
        ("when = 2024-01-01\n", "when: got a date, expected"),
        (b"mask = '\xff'", "is not UTF-8 text"),
        ("skip = nan\n", "skip: got nan"),
        ("[axes]\nnorm = ['batch']\n", "axes.norm[0]: norm='batch'"),
        ("a = " + "[" * 5000, "not valid TOML"),
    ],
)
def test_a_file_is_named_in_what_is_wrong_with_it(tmp_path, content, said):
    found = refused(content, tmp_path)
    assert found.startswith(str(tmp_path / "grid.toml"))
    assert said in found


def test_a_folder_or_nothing_in_the_place_of_a_file_is_refused(tmp_path):
    assert "is a folder, expected a TOML file" in refused(tmp_path)
    assert "no-such.toml cannot be read" in refused(tmp_path / "no-such.toml")


def test_a_quick_axis_must_be_an_axis():
    with pytest.raises(
        RankscopeError, match=r"quick.axes.sed is not an axis of the grid; did you mean"
    ):
        read_grid({"axes": {"seed": [0]}, "quick": {"axes": {"sed": [1]}}}, quick=True)


def test_a_member_of_an_enumeration_is_its_number():
    member = IntEnum("Depth", "ONE").ONE
    (run,) = plan(read_grid({**SMALL, "axes": {"layers": [member]}})).runs
    assert type(run.axes["layers"]) is int
    assert type(run.fields["layers"]) is int


def test_a_file_in_the_home_of_nobody_is_refused():
    with pytest.raises(RankscopeError, match="the home directory in"):
        read_grid("~nobody-of-this-name/grid.toml")


def test_a_tensor_without_plain_numbers_is_refused():
    ragged = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    assert "layers: a NestedTensor cannot be read as numbers; give a list." in refused(
        {"axes": {"layers": ragged}}
    )
