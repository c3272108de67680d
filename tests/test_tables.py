"""The one long table: its columns, joining, summing up, writing and reading."""

import json

import polars as pl
import pytest

from rankscope import tables
from rankscope.errors import InputError

INF = float("inf")
PROVENANCE = {"model": "Network", "seed": 3, "versions": {"torch": "2"}}


def small(**more):
    return tables.frame({"metric": ["a", "a"], "value": [1.0, 2.0], **more})


def test_columns_are_typed_and_in_order():
    table = tables.frame(
        {"value": [1, 2], "metric": ["a", "b"], "sample": [0, 1], "layer": [0, 0], "run": ["r"] * 2}
    )
    assert table.columns == ["run", "layer", "sample", "metric", "value"]
    assert table.schema["value"] == pl.Float64
    assert table.schema["layer"] == table.schema["sample"] == pl.Int64


def test_every_column_can_be_given():
    values = {pl.String: "x", pl.Int64: 1, pl.Float64: 0.5, pl.Boolean: True}
    table = tables.frame({name: [values[kind]] for name, kind in tables.COLUMNS.items()})
    assert table.columns == list(tables.COLUMNS)
    assert table.dtypes == list(tables.COLUMNS.values())


def test_columns_of_nothing_but_null_keep_their_type():
    table = small(head=[None, None])
    assert table.schema["head"] == pl.Int64


def test_rows_are_the_same_table_as_their_columns():
    names = ("metric", "head", "value")
    rows = [("a", None, 1.0), ("a", 3, 2.0)]
    assert tables.from_rows(names, rows).equals(small(head=[None, 3]))
    assert tables.from_rows(names, []).equals(small(head=[None, 3]).clear())
    with pytest.raises(ValueError, match="row 0: got 2 values, expected 3"):
        tables.from_rows(names, [("a", 1.0)])


def test_a_stack_keeps_every_row_and_the_order_of_columns():
    stacked = tables.stack([small(sample=[0, 1]), small(layer=[4, 5])])
    assert stacked.columns == ["layer", "sample", "metric", "value"]
    assert stacked["layer"].to_list() == [None, None, 4, 5]
    assert stacked["sample"].to_list() == [0, 1, None, None]


@pytest.mark.parametrize(
    "columns",
    [
        {"metric": ["a"]},
        {"value": [1.0]},
        {},
        {"metric": ["a"], "value": [1.0], "colour": ["red"]},
    ],
    ids=["no-value", "no-metric", "nothing", "unknown"],
)
def test_wrong_columns(columns):
    with pytest.raises(InputError, match="expected metric, value and any of part, run"):
        tables.frame(columns)


def test_joined_labels_and_fills():
    plain, with_heads = small(layer=[0, 1]), small(head=[0, 1])
    table = tables.joined({"one": plain, "two": with_heads})
    assert table.columns == ["variant", "layer", "head", "metric", "value"]
    assert table["variant"].to_list() == ["one", "one", "two", "two"]
    assert table["layer"].to_list() == [0, 1, None, None]
    assert table["head"].to_list() == [None, None, 0, 1]


def test_joined_by_another_column():
    table = tables.joined({"bert": small(), "gpt": small()}, column="model")
    assert table["model"].to_list() == ["bert", "bert", "gpt", "gpt"]


@pytest.mark.parametrize("column", ["optimiser", "value", "layer"])
def test_joined_by_a_column_that_cannot_hold_labels(column):
    """It would be dropped, or overwrite numbers."""
    with pytest.raises(InputError, match=column):
        tables.joined({"one": small(), "two": small()}, column=column)


def test_joined_of_nothing():
    with pytest.raises(InputError):
        tables.joined({})


def test_summary_by_hand():
    table = tables.frame(
        {
            "variant": ["b"] * 5 + ["a"],
            "layer": [0] * 6,
            "sample": [0, 1, 2, 3, 4, 0],
            "metric": ["r"] * 6,
            "value": [4.0, 0.0, 1.0, 2.0, 13.0, 7.0],
        }
    )
    summed = tables.summary(table)
    assert summed["variant"].to_list() == ["b", "a"]  # as they came, not sorted
    first = summed.row(0, named=True)
    assert (first["layer"], first["metric"], first["count"]) == (0, "r", 5)
    # Sorted 0 1 2 4 13: the 10th percentile lies 0.4 of the way from 0 to 1, the 90th from 4 to 13.
    expected = {"mean": 4.0, "low": 0.4, "median": 2.0, "high": 4 + 0.6 * 9}
    assert {name: first[name] for name in expected} == pytest.approx(expected)
    alone = summed.row(1, named=True)
    assert {alone[name] for name in expected} == {7.0}


def test_summary_pools_heads_and_keeps_layers_and_metrics_apart():
    table = tables.frame(
        {
            "layer": [1, 1, 1, 1, 2, 1],
            "head": [0, 1, 0, 1, 0, None],
            "sample": [0, 0, 1, 1, 0, 0],
            "metric": ["p"] * 5 + ["q"],
            "value": [1.0, 2.0, 3.0, 6.0, 8.0, 9.0],
        }
    )
    summed = tables.summary(table)
    assert summed.select("layer", "metric", "count", "mean").rows() == [
        (1, "p", 4, 3.0),
        (2, "p", 1, 8.0),
        (1, "q", 1, 9.0),
    ]


def test_summary_does_not_pool_rows_with_a_head_and_rows_without():
    """A path table has both: the biases have no length, and neither have the heads."""
    table = tables.frame(
        {
            "layer": [1, 1, 1, 1],
            "head": [None, 0, 1, 1],
            "length": [None] * 4,
            "metric": ["residual_share"] * 4,
            "value": [1.0, 5.0, 6.0, 10.0],
        }
    )
    summed = tables.summary(table)
    assert summed.select("heads", "count", "mean").rows() == [(0, 1, 1.0), (2, 3, 7.0)]
    assert "by_head" not in summed.columns
    assert "heads" not in tables.summary(table.drop("head")).columns


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # Sorted −∞ −2 −1: the 10th percentile lies between −∞ and a number, so there is no end.
        ([-1.0, -2.0, -INF], (-INF, -INF, -2.0, -1.2)),
        ([-INF, -5.0], (-INF, -INF, -INF, -INF)),
        ([-INF, -INF], (-INF, -INF, -INF, -INF)),
        # Eleven values: the 10th percentile is the second of them, and −∞ has no part in it.
        ([-INF, *map(float, range(10))], (-INF, 0.0, 4.0, 8.0)),
        ([-5.0, INF, INF], (INF, INF, INF, INF)),
    ],
)
def test_summary_of_infinities_is_their_limit(values, expected):
    summed = tables.summary(tables.frame({"metric": ["m"] * len(values), "value": values}))
    got = summed.select("mean", "low", "median", "high").row(0)
    assert got == pytest.approx(expected)


def test_summary_of_what_is_no_number_is_none_either():
    """Polars would sort NaN above all numbers, and make percentiles of the rest."""
    values = [float("nan"), 1.0, 2.0, 3.0, -INF, INF]
    summed = tables.summary(tables.frame({"metric": [*"aaabcc"], "value": values}))
    assert summed.select("mean", "low", "median", "high").fill_nan(None).rows() == [
        (None, None, None, None),
        (3.0, 3.0, 3.0, 3.0),
        (None, None, None, None),  # nothing lies between the two infinities
    ]


def test_round_trip(tmp_path):
    table = small(layer=[0, 1], head=[None, 1])
    path = tables.write(table, tmp_path / "deep" / "down" / "t.parquet", PROVENANCE)
    assert path.is_file()
    again, provenance = tables.read(str(path))
    assert again.equals(table)
    assert again.schema == table.schema
    assert provenance == PROVENANCE


def test_round_trip_keeps_every_bit(tmp_path):
    values = [0.1, 1e-300, -0.0, 5e-324, 1.7976931348623157e308]
    table = tables.frame({"metric": ["m"] * 5, "value": values})
    again, _ = tables.read(tables.write(table, tmp_path / "t", {}))
    assert [v.hex() for v in again["value"]] == [v.hex() for v in values]


def garbage(path):
    path.write_bytes(b"no parquet at all" * 10)


def nothing(path):
    path.write_bytes(b"")


def cut_short(path):
    whole = tables.write(small(), path, PROVENANCE).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def foreign(path):
    pl.DataFrame({"a": [1]}).write_parquet(path)


def without_provenance(path):
    small().write_parquet(path)


def other_columns(path):
    pl.DataFrame({"a": [1]}).write_parquet(path, metadata={"rankscope": json.dumps(PROVENANCE)})


def other_provenance(path):
    small().write_parquet(path, metadata={"rankscope": "not json"})


def listed_provenance(path):
    small().write_parquet(path, metadata={"rankscope": "[1, 2]"})


def directory(path):
    path.mkdir()


def missing(path):
    assert not path.exists()


@pytest.mark.parametrize(
    "made",
    [
        garbage, nothing, cut_short, foreign, without_provenance, other_columns, other_provenance,
        listed_provenance, directory, missing,
    ],
    ids=lambda made: made.__name__,
)  # fmt: skip
def test_what_is_no_table(made, tmp_path):
    path = tmp_path / "t.parquet"
    made(path)
    with pytest.raises(InputError, match=r"t\.parquet"):
        tables.read(path)


def test_doubts_reach_the_summary_and_are_filled_where_a_table_has_none():
    sure = tables.frame({"layer": [0, 0], "sample": [0, 1], "metric": ["a"] * 2, "value": [1, 2]})
    doubted = sure.with_columns(pl.Series("doubt", [False, True]))
    whole = tables.joined({"sure": sure, "doubted": doubted})
    assert whole["doubt"].to_list() == [False, False, False, True]
    assert tables.summary(whole)["doubt"].to_list() == [False, True]
    assert tables.summary(whole).height == 2
    assert "doubt" not in tables.summary(sure).columns


def test_other_programs_read_our_files_and_a_file_without_our_digest_is_refused(tmp_path):
    table = tables.frame({"metric": ["rank", "rank"], "value": [1.5, 2.5]})
    path = tables.write(table, tmp_path / "table.parquet", {"seed": 0})
    assert pl.read_parquet(path).equals(table)
    assert pl.scan_parquet(path).select(pl.col("value").sum()).collect().item() == 4.0
    assert path.read_bytes() == tables.write(table, tmp_path / "again", {"seed": 0}).read_bytes()
    table.write_parquet(path, metadata={tables.PROVENANCE: "{}"})
    for content in (path.read_bytes(), b"", b"PAR1", b"\xff" * 100):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"table\.parquet is damaged, or was not written by"):
            tables.read(path)
