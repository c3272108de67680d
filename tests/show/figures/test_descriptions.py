"""Charts in words: the numbers are those of the table."""

import pytest

from rankscope import tables
from rankscope.results import Drawing, Result
from rankscope.show.figures import description, metrics_of


def result(names, rows):
    return Result("r", "A result", "What?", (), tables.from_rows(names, rows), {})


CURVES = result(
    ("variant", "layer", "sample", "metric", "value"),
    [
        (variant, layer, sample, "mean_cosine", value + 100 * (sample == 2))
        for variant, values in (("SAN", (0.1, 0.9, 0.8)), ("transformer", (0.1, 0.2, 0.3)))
        for layer, value in enumerate(values)
        for sample in range(3)
    ],
)


def test_ends_and_extremes_of_every_curve_are_told_as_medians():
    said = description(Drawing("by_depth", metric="mean_cosine"), CURVES)
    assert said == (
        "Mean cosine against depth. "
        "Mean cosine, SAN: 0.1 at layer 0, 0.8 at layer 2, highest 0.9 at layer 1. "
        "Mean cosine, transformer: 0.1 at layer 0, 0.3 at layer 2."
    )


def test_only_rows_that_are_drawn_are_told():
    drawing = Drawing("by_depth", metric="mean_cosine", only={"variant": ("SAN",)})
    assert "transformer" not in description(drawing, CURVES)


def test_powers_of_ten_are_told_as_such():
    names = ("layer", "metric", "value")
    deep = result(names, [(0, "log10_residual", 0.0), (1, "log10_residual", -47003.1)])
    said = description(Drawing("by_depth", metric="log10_residual"), deep)
    assert "1 at layer 0, 10^−47,003.1 at layer 1." in said


def test_of_a_map_the_least_and_the_most_are_told_with_their_places():
    rows = [
        (layer, head, "attention_entropy", layer + 0.5 * head)
        for layer in (1, 2)
        for head in (0, 1, 2)
    ]
    maps = result(("layer", "head", "metric", "value"), rows)
    said = description(Drawing("head_map", metric="attention_entropy"), maps)
    assert "from 1 at layer 1, head 0 to 3 at layer 2, head 2." in said


def test_paths_are_told_by_length_after_the_last_layer():
    rows = [
        (layer, length, "residual_share", layer + 0.1 * length)
        for layer in (1, 2)
        for length in (0, 1)
    ]
    found = result(("layer", "length", "metric", "value"), rows)
    assert "2 at path length 0, 2.1 at path length 1." in description(Drawing("by_length"), found)


def test_maps_name_what_is_counted():
    rows = [
        (layer, index, None, "share", layer + 0.5 * index) for layer in (1, 2) for index in (1, 2)
    ]
    rows += [(layer, None, token, "distance", 1.0 * token) for layer in (1, 2) for token in (0, 3)]
    maps = result(("layer", "index", "token", "metric", "value"), rows)
    said = description(Drawing("layer_map", metric="share"), maps)
    assert "from 1.5 at layer 1, singular value 1 to 3 at layer 2, singular value 2." in said
    said = description(Drawing("layer_map", metric="distance", options={"along": "token"}), maps)
    assert "to 3 at layer 2, token 3." in said


def test_many_curves_are_counted():
    rows = [(f"v{k}", layer, "rank", 1.0 * k) for k in range(11) for layer in (0, 1)]
    many = result(("variant", "layer", "metric", "value"), rows)
    said = description(Drawing("by_depth", metric="rank"), many)
    assert "v7" in said
    assert "v8" not in said
    assert said.endswith("3 more curves are in the table's file.")


def test_what_is_not_known_is_said():
    unknown = result(("layer", "metric", "value"), [(0, "rank", float("nan"))])
    assert "Rank: not known." in description(Drawing("by_depth", metric="rank"), unknown)


@pytest.mark.parametrize(
    ("drawing", "expected"),
    [
        (Drawing("by_depth", metric="mean_cosine"), ["mean_cosine"]),
        (Drawing("by_layer", options={"metrics": ["mean_cosine"]}), ["mean_cosine"]),
        (Drawing("by_layer"), ["mean_cosine"]),
        (Drawing("by_length"), ["residual_share"]),
    ],
)
def test_metrics_are_those_asked_for_or_all(drawing, expected):
    assert metrics_of(drawing, CURVES) == expected
