"""Every object that rankscope returns: a table, a short text, a display, a chart, a file."""

import importlib
import inspect
import json
import subprocess
import sys
import types
import typing
from dataclasses import fields
from pathlib import Path

import polars as pl
import pytest
import torch

import rankscope as rs
from rankscope import tables
from rankscope.core import theory
from rankscope.core.packing import pack, unpack
from rankscope.core.prediction import Band
from rankscope.core.tabular import Tabular
from rankscope.errors import InputError, KindError, MissingPackageError, RankscopeError
from rankscope.models import families, training
from rankscope.show import figures

from .test_public_names import NAMES

NET = rs.Network.random(rs.Spec(3, 2, 8), seed=4)
PURE = rs.Network.random(rs.Spec.pure_attention(3, 2, 8), seed=4)
X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
VALUES = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))[None, None]
STEP = rs.Network.from_matrices(0 * VALUES, VALUES, head_width=2, norm="sphere")
MASKED = rs.Spec(2, 2, 8, mask=torch.ones(5, 5).tril().bool(), scores=rs.network.Rotary())
GRID = {"heads": 1, "width": 8, "length": 4, "samples": 1, "axes": {"layers": [1, 2]}}
MODEL = training.SequenceModel.random(rs.Spec(1, 2, 8), outputs=3, symbols=3, positions=4, seed=1)
LESSON = training.Sorting(3, 4).draw(6, 0, "training")
RECIPE = training.Recipe(4, 2, goal=1.0, check_every=2)
MAKERS = {
    "trace": lambda _: rs.trace(NET, X, metrics=("residual", "attention_entropy")),
    "deep trace": lambda _: rs.deep_trace(NET, X),
    "prediction": lambda _: rs.predict(MASKED, X, draws=2),
    "bounds": lambda _: rs.bounds(PURE, X),
    "bounds that do not apply": lambda _: rs.bounds(NET, X),
    "path lengths": lambda _: rs.path_lengths(NET, X),
    "short paths": lambda _: rs.path_lengths(NET, X, max_length=1),
    "head shares": lambda _: rs.head_shares(NET, X),
    "top paths": lambda _: rs.top_paths(NET, X),
    "path counts": lambda _: rs.count_paths(3, 4),
    "many paths": lambda _: rs.count_paths(200, 300),
    "equilibria": lambda _: rs.find_equilibria(STEP, tokens=2, starts=3),
    "equilibrium": lambda _: theory.equilibrium_at(STEP, torch.tensor([[1.0, 0.0]])),
    "equilibria of every rank": lambda _: theory.every_rank(3),
    "stable search": lambda _: theory.stable_search(tokens=(2,), draws=9, descents=1, steps=2),
    "graph": lambda _: theory.graph_facts("star:1", 9),
    "disconnected graph": lambda _: theory.graph_facts(torch.eye(3).bool()),
    "ergodicity": lambda _: theory.ergodicity([X[:, :3, :3].softmax(-1)] * 2),
    "verification": lambda _: families.Verification("bert", (1e-7, 2e-7), 1e-4),
    "result": lambda folder: rs.reproduce(["D8"], folder / "claims")[0].result,
    "result of a trace": lambda _: rs.trace(NET, X).result,
    "sweep": lambda folder: rs.sweep(GRID, folder / "sweep", engine="inline"),
    "reproductions": lambda folder: rs.reproduce(["D8"], folder / "claims"),
    "trained model": lambda _: training.train(
        [MODEL], training.Classify(), [LESSON], RECIPE, seeds=[0]
    )[0],
}
NO_METRIC = {"verification", "top paths", "trained model"}
"""What has one metric alone."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Each object once, with the file it was saved in."""
    folder = tmp_path_factory.mktemp("returned")
    objects = {name: make(folder) for name, make in MAKERS.items()}
    return {
        name: (value, value.save(folder / f"{name}.parquet")) for name, value in objects.items()
    }


def state_of(value):
    """All that an object says of itself."""
    names = {field.name for field in fields(value)} - {"_loaded"}
    if "_errors" in names:  # before it is saved, a question
        names = names - {"_errors"} | {"errors"}
    if isinstance(value, training.Trained):  # a module is known by its weights
        names = names - {"model"}
    weights = dict(value.model.state_dict()) if isinstance(value, training.Trained) else {}
    return json.dumps([pack({name: getattr(value, name) for name in sorted(names)}), pack(weights)])


@pytest.mark.parametrize("name", MAKERS)
def test_a_returned_object_has_a_table_a_text_a_display_and_a_chart(name, made, capsys):
    value, _ = made[name]
    assert isinstance(value, Tabular)
    assert isinstance(value.table, pl.DataFrame)
    assert value.table.height
    text = repr(value)
    assert type(value).__name__ in text
    assert len(text) <= 600
    assert "\n" not in text
    assert "tensor(" not in text
    assert value._repr_html_().startswith("<")
    assert "concat" in value.plot().to_dict()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "reproductions"])
def test_plot_draws_the_metric_that_is_named(name, made):
    value, _ = made[name]
    drawable = value.table.filter(pl.col("value").is_not_null() & pl.col("value").is_finite())
    if name.endswith("graph"):
        drawable = drawable.drop_nulls("index")
    chosen = drawable["metric"].to_list()[-1]
    if name not in NO_METRIC:
        assert drawable["metric"].n_unique() > 1 or name == "result"
    drawn = json.dumps(value.plot(metric=chosen).to_dict())
    assert rs.metric_catalogue.metric(chosen).title.split("`")[0][:8] in drawn
    with pytest.raises(InputError, match="no_such_metric"):
        value.plot(metric="no_such_metric")


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_saved_is_loaded(name, made):
    value, path = made[name]
    again = type(value).load(path)
    assert type(again) is type(value)
    assert again.table.equals(value.table)
    assert repr(again) == repr(value)
    assert state_of(again) == state_of(value)
    assert again._repr_html_() == value._repr_html_()


def test_a_new_process_loads_every_file(made):
    """Classes are looked up among those that are loaded, and so must all be that are needed."""
    kinds = {str(path): type(value) for value, path in made.values()}
    code = "import sys, importlib\n" + "".join(
        f"print(repr(importlib.import_module({kind.__module__!r}).{kind.__name__}.load({path!r})))\n"
        for path, kind in kinds.items()
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [repr(value) for value, _ in made.values()]


@pytest.mark.parametrize("name", MAKERS)
def test_a_damaged_or_foreign_file_is_refused(name, made, tmp_path):
    value, path = made[name]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(content)
    with pytest.raises(InputError, match=r"damaged\.parquet.*damaged"):
        type(value).load(damaged)
    other = "trace" if "trace" not in name or name == "result of a trace" else "head shares"
    held = type(made[other][0]).__name__
    with pytest.raises(InputError, match=f"holds a {held}, expected a {type(value).__name__}"):
        type(value).load(made[other][1])
    plain = tables.write(rs.trace(NET, X).table, tmp_path / "plain.parquet", {})
    with pytest.raises(InputError, match="holds a table without an object of rankscope"):
        type(value).load(plain)
    with pytest.raises(InputError, match="does not exist"):
        type(value).load(tmp_path / "missing.parquet")


def test_errors_of_saved_path_lengths_are_kept_without_the_network(made):
    value, path = made["path lengths"]
    again = type(value).load(path)
    assert again.errors == value.errors
    assert again.reconstruction_error < 1e-5


def test_saved_equilibria_are_those_of_the_loaded_network(made):
    def step(network, equilibrium):
        return network(equilibrium.x[None])[0]

    value, path = made["equilibria of every rank"]
    again = type(value).load(path)
    for equilibrium in again.equilibria:
        assert torch.equal(step(again.network, equilibrium), step(value.network, equilibrium))
        torch.testing.assert_close(step(again.network, equilibrium), equilibrium.x)
    value, path = made["stable search"]
    for design, saved in zip(type(value).load(path).designs, value.designs, strict=True):
        assert design.network.spec == saved.network.spec
        assert torch.equal(step(design.network, design.best), step(saved.network, saved.best))


def test_a_saved_sweep_needs_no_folder(tmp_path):
    swept = rs.sweep(GRID, tmp_path / "here", engine="inline")
    path = swept.save(tmp_path / "sweep.parquet")
    (tmp_path / "here").rename(tmp_path / "there")
    assert type(swept).load(path).table.height > 0
    with pytest.raises(InputError):
        _ = swept.table


def test_a_sweep_is_drawn_along_what_varies(tmp_path):
    grid = {**GRID, "axes": {"layers": [1, 2], "mask": ["full", "causal"], "seed": [0, 1]}}
    swept = rs.sweep(grid, tmp_path / "sweep", engine="inline")
    assert isinstance(swept.scan(), pl.LazyFrame)
    assert swept.scan().collect().equals(swept.table)
    drawn = json.dumps(swept.plot("residual").to_dict())
    assert "depth in layers" in drawn
    assert "causal" in drawn
    assert swept.plot("residual", x="layer", color="mask", facet="layers").to_dict()


def test_reproductions_are_a_sequence_and_say_what_came_of_each(made, tmp_path):
    found = rs.reproduce(["D8", "D1"], tmp_path, seed=1.5)  # D8 draws nothing; no such seed for D1
    assert len(found) == 2
    assert found[0].entry.id == "D8"
    assert [each.entry.id for each in found] == found.table["claim"].to_list() == ["D8", "D1"]
    assert found.table["verdict"].to_list() == ["holds", None]
    assert "seed" in found.table["failure"][1]
    assert repr(found) == "Reproductions(2 runs of claims: 1 holds, 1 failed)"
    assert type(found).load(found.save(tmp_path / "two.parquet")).table.equals(found.table)
    assert made["reproductions"][0].plot("seconds").to_dict()


# ------------------------------------------------------------------------------ every signature

NOT_ANSWERS = {
    "Network": "a model",
    "Loaded": "a model",
    "SequenceModel": "a model",
    "LanguageModel": "a model",
    "Session": "a model that is traced many times",
    "Tokenizer": "reads text",
    "Spec": "a description of a model",
    "Path": "an argument of other functions",
    "Mask": "an argument of other functions",
    "Family": "a row of a catalogue",
    "Entry": "a row of a catalogue",
    "Grid": "an argument of plan",
    "SweepPlan": "an argument of sweep",
    "Engine": "an argument of sweep",
    "Progress": "how far a sweep is; Sweep has its results",
    "Status": "how far a sweep is; Sweep has its results",
    "SweepEstimate": "seconds and bytes before a sweep",
    "Reproduction": "one of Reproductions",
    "ClaimRun": "one row of Reproductions",
    "ClaimSeries": "some rows of Reproductions",
    "Certified": "one number a sample, with its bounds",
    "SplitState": "hidden states",
    "ScaledTensor": "a tensor",
    "Measure": "an argument of trace",
    "Stability": "three numbers, of an Equilibrium",
    "InputCheck": "what was read of a text",
    "Metric": "a description",
}
PACKAGES = [name for name in NAMES if ".show." not in name and "metrics" not in name]


def returned(annotation, names):
    """Our dataclasses in what a function is said to return."""
    if isinstance(annotation, str):
        annotation = eval(annotation, dict(names))
    if isinstance(annotation, type) and not typing.get_args(annotation):
        ours = annotation.__module__.startswith("rankscope.")
        return {annotation} if ours and not issubclass(annotation, RankscopeError) else set()
    return {kind for inner in typing.get_args(annotation) for kind in returned(inner, names)}


def public_functions():
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in NAMES[package].split():
            thing = getattr(module, name)
            if inspect.isfunction(thing):
                yield f"{package}.{name}", thing


FUNCTIONS = dict(public_functions())


def answers_of(function):
    inner = inspect.unwrap(function)
    names = {**vars(typing), **inner.__globals__, "polars": pl, "pl": pl}
    names |= {kind.__name__: kind for kind in (rs.Result, rs.Trace)}
    return returned(inspect.signature(inner).return_annotation, names)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_public_function_returns_is_tabular_and_tested_above(name, made):
    tested = {type(value) for value, _ in made.values()}
    for kind in answers_of(FUNCTIONS[name]):
        is_exempt = {parent.__name__ for parent in kind.__mro__} & NOT_ANSWERS.keys()
        assert is_exempt or (issubclass(kind, Tabular) and kind in tested), kind


def test_the_walk_sees_what_is_returned():
    """If this one fails, the one above says nothing."""
    kinds = {kind.__name__ for function in FUNCTIONS.values() for kind in answers_of(function)}
    expected = "Trace Result Prediction Bounds PathLengths HeadShares TopPaths PathCounts"
    expected += (
        " Equilibria Equilibrium GraphFacts Ergodicity Verification Sweep Reproductions Trained"
    )
    assert set(expected.split()) <= kinds
    assert len(FUNCTIONS) > 60


# -------------------------------------------------------------------------------------- packing


@pytest.mark.parametrize(
    "value",
    [
        (1, [2.5, None], "a", True),
        {"a": {1: (float("inf"), -float("inf"))}, None: b"\x00\xff"},
        10**40,
        Path("a/b"),
        Band(*torch.randn(3, 4)),
        rs.Spec(2, 2, 8, mask=torch.eye(4).bool(), init=0.3, skip=0.5),
        rs.Path.of(0, None, 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_packed_is_unpacked(value):
    again = unpack(json.loads(json.dumps(pack(value), allow_nan=False)))
    assert type(again) is type(value)
    if isinstance(value, Band):
        assert all(map(torch.equal, again, value))
    else:
        assert again == value
        assert repr(again) == repr(value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.complex64, torch.int64])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_of_every_kind_are_packed(dtype, shape):
    tensor = (10 * torch.randn(shape)).to(dtype)
    again = unpack(pack(tensor))
    assert again.dtype == dtype
    assert torch.equal(again, tensor)
    not_a_number = unpack(pack(torch.tensor([float("nan")])))
    assert bool(not_a_number.isnan().all())


def test_tables_are_packed():
    table = rs.trace(NET, X).table
    assert unpack(pack(table)).equals(table)


def test_what_is_not_a_value_of_rankscope_is_not_packed():
    for value in (NET, object(), {1, 2}, subprocess.Popen):
        with pytest.raises(KindError, match="cannot be saved"):
            pack(value)


HOSTILE = [
    {"class": "subprocess:Popen", "fields": {"args": "true"}},
    {"class": "builtins:eval", "fields": {}},
    {"class": "rankscope.core.network._network:Network", "fields": {}},
    {"class": "rankscope.core.packing:sys", "fields": {}},
    {"class": "rankscope.core.packing:Path", "fields": {}},
    {"class": "rankscope.__main__:main", "fields": {}},
    {"class": "rankscope.core.paths._path:Path", "fields": {"choices": "abc"}},
    {"class": "rankscope.core.paths._path:Path", "fields": {"unknown": 1}},
    {"class": 3, "fields": {}},
    {"tensor": {"dtype": "save", "shape": [1], "content": ""}},
    {"tensor": {"dtype": "float32", "shape": [3], "content": "AAAA"}},
    {"tensor": {"dtype": "float32", "shape": [10**9], "content": "AAAAAA=="}},
    {"bytes": "not base64"},
    {"float": "one"},
    {"what": 1},
    {"tuple": 1},
    {},
]


@pytest.mark.parametrize("packed", HOSTILE, ids=json.dumps)
def test_a_file_with_anything_else_in_it_is_refused(packed, tmp_path):
    held = {"class": "rankscope.core.paths._top:TopPaths", "fields": {"paths": packed}}
    for written in (packed, held):
        content = {"rankscope.object": json.dumps(written)}
        path = tables.write(rs.top_paths(NET, X).table, tmp_path / "a.parquet", {}, content)
        with pytest.raises(InputError, match=r"a\.parquet holds .*load another file"):
            rs.paths.TopPaths.load(path)


# --------------------------------------------------------------------------------------- pandas


class Column(list):
    """A pandas column, as far as it is used."""

    tolist = list.copy

    def isna(self):
        return Column(value is None or value != value for value in self)


class DataFrame:
    """A pandas frame, as far as it is used: whole numbers with a gap are floats, as in pandas."""

    def __init__(self, columns):
        self._columns = {name: self._as_in_pandas(column) for name, column in columns.items()}

    @staticmethod
    def _as_in_pandas(values):
        numbers = [value for value in values if value is not None]
        if len(numbers) < len(values) and all(type(value) is int for value in numbers):
            return Column(float("nan") if value is None else float(value) for value in values)
        return Column(values)

    @property
    def columns(self):
        return list(self._columns)

    def __getitem__(self, name):
        return self._columns[name]


@pytest.fixture
def pandas(monkeypatch):
    module = types.ModuleType("pandas")
    module.DataFrame = DataFrame
    module.Timestamp, module.Series = type("Timestamp", (), {}), Column  # Altair asks for them
    monkeypatch.setattr(DataFrame, "__module__", "pandas.core.frame")
    monkeypatch.setitem(sys.modules, "pandas", module)
    return module


@pytest.mark.parametrize("name", MAKERS)
def test_to_pandas_has_the_columns_of_the_table(name, made, pandas):
    value, _ = made[name]
    frame = value.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.columns == value.table.columns
    assert len(frame[frame.columns[0]]) == value.table.height


def test_without_pandas_the_error_says_what_to_install(made, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match="pip install 'pandas'"):
        made["trace"][0].to_pandas()


def test_a_pandas_frame_is_taken_where_a_table_is(made, pandas, tmp_path, monkeypatch):
    lengths = made["path lengths"][0]
    frame = lengths.to_pandas()
    assert tables.summary(frame).equals(tables.summary(lengths.table))
    assert tables.stack([frame, frame]).height == 2 * lengths.table.height
    assert tables.joined({"a": frame})["variant"].to_list() == ["a"] * lengths.table.height
    path = tables.write(frame, tmp_path / "a.parquet", {})
    assert tables.read(path)[0].equals(lengths.table)
    summary = tables.summary(lengths.table)
    by_length = figures.by_length(pandas.DataFrame(summary.to_dict(as_series=False)))
    swept = made["sweep"][0]
    by_axis = figures.by_axis(swept.to_pandas(), metric="residual", x="layers")
    monkeypatch.delitem(sys.modules, "pandas")  # Altair asks pandas for more than ours has
    assert by_length.to_dict() == figures.by_length(summary).to_dict()
    assert by_axis.to_dict() == swept.plot("residual").to_dict()


def test_a_pandas_frame_that_is_no_table_is_refused(pandas):
    halves = {"layer": [0.5, 1.0], "metric": ["a", "a"], "value": [1.0, 2.0]}
    with pytest.raises(InputError, match="pandas frame cannot be read"):
        tables.summary(pandas.DataFrame(halves))
    with pytest.raises(KindError, match="expected a Network"):
        rs.head_shares(pandas.DataFrame({"metric": ["a"], "value": [1.0]}), X)


def test_the_documentation_lists_every_returned_type(made):
    page = (Path(__file__).parents[1] / "docs" / "api.md").read_text("utf-8")
    answers = page.split("## Answers")[1].split("\n## ")[0]
    returned = {type(value).__name__ for value, _ in made.values()}
    assert [name for name in sorted(returned) if f"`{name}`" not in answers] == []
