"""The lab's figures are those of rankscope's own calls, and its pictures draw them."""

import copy
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope import bounds, deep_trace, path_lengths, predict, trace
from rankscope.show.lab import _compute
from rankscope.show.lab._charts import ROWS, TITLES, charts, picture
from rankscope.show.lab._compute import (
    DRAWS,
    clean,
    first,
    place_tokens,
    principal_axes,
    run_task,
    second,
    warm,
)
from rankscope.show.lab._network import input_of, matrix_of, network_of, snippet
from rankscope.show.lab._state import State
from rankscope.show.lab._words import POWERS, choose_ticks

SMALL = {"layers": 3, "width": 8, "tokens": 5}
SKIPLESS = State(**SMALL, format="bfloat16", init="normal", scale=0.3)
WHOLE = State(**SMALL, skip=1.0, mlp=1.0, norm="layer", mask="causal", scores="rotary")


def logarithms(values):
    return [math.log10(value) if value > 0 else None for value in values]


def by_layer(traced, metric):
    table = traced.table.filter(metric=metric).sort("layer")
    return table["value"].to_list()


def curves_of(rows, field="drawn_median"):
    """The values of each curve, layer by layer."""
    curves = {}
    for row in rows:
        curves.setdefault(row["variant"], []).append(row.get(field))
    return curves


@pytest.fixture(scope="module", params=[SKIPLESS, WHOLE], ids=["skipless", "whole"])
def case(request):
    state = request.param
    return state, network_of(state), input_of(state), first(state), second(state)


def test_residuals_are_those_of_deep_trace_and_trace(case):
    state, network, x, found, _ = case
    curves = curves_of(found["residual"])
    assert list(curves) == ["scaled", "float64", state.format]
    assert curves["scaled"] == by_layer(deep_trace(network, x), "log10_relative_residual")
    for name in ("float64", state.format):
        dtype = getattr(torch, name)
        direct = trace(copy.deepcopy(network).to(dtype), x.to(dtype), metrics="relative_residual")
        assert curves[name] == logarithms(by_layer(direct, "relative_residual"))
    if state.format == "bfloat16":
        assert curves["float64"] != curves["bfloat16"]


def test_path_shares_are_those_of_path_lengths(case):
    _, network, x, _, found = case
    table = path_lengths(network, x).table
    last = table.filter(layer=network.spec.layers, metric="residual_share").drop_nulls("length")
    assert [row["share"] for row in found["paths"]] == last.sort("length")["value"].to_list()


def test_the_band_is_that_of_predict(case):
    _, network, x, _, found = case
    band = predict(network.spec, x[0], draws=DRAWS[False]).band("log10_relative_dispersion")
    for name, values in (("median", band.mean), ("low", band.low), ("high", band.high)):
        curves = curves_of(found["prediction"], f"drawn_{name}")
        assert curves["random networks"] == values.tolist()
    measured = by_layer(deep_trace(network, x, norm="fro"), "log10_relative_residual")
    assert curves_of(found["prediction"])["this network"] == measured


def test_bounds_are_those_of_bounds_or_a_reason(case):
    state, network, x, _, found = case
    direct = bounds(network, x)
    if state is WHOLE:
        assert found["bounds"] == []
        assert found["sentences"]["bounds"] == (
            f"No bound applies from layer 1 on: {direct.layers[0].why_not}."
        )
        return
    curves = curves_of(found["bounds"])
    sharp, measured = curves["sharp, this layer"], curves["measured"]
    assert sharp == [float(layer.log10_sharp_bound[0]) for layer in direct.layers]
    assert all(bound >= value for bound, value in zip(sharp, measured, strict=True))


def test_spectra_are_singular_values_as_parts_of_the_largest(case):
    _, network, x, found, _ = case
    for layer, state in enumerate([x, *network.states(x)]):
        sigma = torch.linalg.svdvals(state.detach()[0])
        rows = [row["shade"] for row in found["spectrum"] if row["across"] == layer]
        for row, ratio in zip(rows, (sigma / sigma[0]).tolist(), strict=True):
            if row is None:
                assert ratio < 1e-13
            else:
                assert row == pytest.approx(math.log10(ratio), abs=1e-6 + 1e-15 / ratio)


def test_the_answer_has_its_numbers(case):
    state, _, _, found, _ = case
    assert found["tone"] == ("collapse" if state is SKIPLESS else "holds")
    scaled = curves_of(found["residual"])["scaled"]
    end = found["headline"]
    if state is SKIPLESS:
        assert f"10^−{-scaled[-1]:.1f} after" in end
    else:
        assert end.endswith(f"to {10 ** scaled[-1]:.2g} over 3 layers.")


def test_places_keep_lengths_and_angles_where_the_plane_holds_them():
    """Tokens of a plane in three dimensions, turned: products stay, each layer of size one."""
    turn = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(1)).double()).Q
    flat = torch.tensor([[3.0, 0, 0], [0, 1, 0], [-2, 0, 0]]).double()
    rows = place_tokens([flat @ turn, 1e200 * flat @ turn])
    size = math.sqrt((9 + 1 + 4) / 3)
    for layer in (0, 1):
        places = torch.tensor([[row["x"], row["y"]] for row in rows if row["layer"] == layer])
        products = (flat @ flat.T).float() / size**2  # about the origin, not the mean
        assert torch.allclose(places @ places.T, products, atol=1e-5)
    for row in rows:
        assert math.hypot(row["sx"], row["sy"], row["sz"]) == pytest.approx(1)


def test_axes_do_not_turn_over_for_a_sign():
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double()
    assert torch.allclose(principal_axes(rows), principal_axes(-rows))
    assert principal_axes(rows[:, :2]).shape == (2, 3)


def test_a_matrix_is_read_row_by_row():
    assert matrix_of("bd8", 3).int().tolist() == [[1, 0, 1], [1, 1, 1], [0, 1, 1]]
    found = first(State(tokens=3, layers=1, mask="bits:bd8"))
    assert found["mask"] == ["101", "111", "011"]


def test_overflow_is_told_and_what_comes_before_it_drawn():
    found = first(
        State(**SMALL | {"layers": 6}, scale=4.0, sharpness=0.01, skip=1.0, format="float16")
    )
    assert "none in float16 (it overflows in layer" in found["sentences"]["residual"]
    curves = curves_of(found["residual"])
    assert 0 < len(curves["float16"]) < 7
    assert len(curves["scaled"]) == 7


def test_paths_that_carry_rounding_alone_have_no_shares():
    found = second(State(layers=6, tokens=6, width=8))
    assert found["paths"] == []
    assert "equal up to rounding" in found["sentences"]["paths"]


@pytest.mark.parametrize("name", TITLES)
def test_every_chart_is_drawn_as_a_picture(case, name):
    state, *_, found, more = case
    rows = clean({**more, **found}[ROWS.get(name, name)])
    drawn = picture(name, rows, subtitle=["five tokens"])
    assert drawn.startswith("<svg")
    assert "five tokens" in drawn
    assert TITLES[name] in drawn
    marks = drawn.count("<path") + drawn.count("<rect")
    assert marks >= len(rows) / (state.layers + 1)


def test_charts_wait_for_rows_and_follow_the_page():
    drawn = charts()
    assert list(drawn) == list(TITLES)
    for name, spec in drawn.items():
        assert spec["data"] == {"name": ROWS.get(name, name)}
        assert spec["background"] == "transparent"
        assert "var(--on-3a4656, #3a4656)" in json.dumps(spec)  # words, light or dark


def test_legends_name_the_curves_that_are_there(case):
    state, *_, found, _ = case
    drawn = picture("residual", clean(found["residual"]), subtitle=[])
    for name in ("float32", "bfloat16", "float16"):
        assert (f">{name}<" in drawn) == (name == state.format)


def test_ticks_are_written_as_the_numbers_they_stand_for():
    assert POWERS[0.0] == "1"
    assert POWERS[round(math.log10(0.2), 6)] == "0.2"
    assert POWERS[-20.0] == "10⁻²⁰"
    assert POWERS[-1e13] == "10^−10¹³"


@given(st.lists(st.floats(-1e15, 400), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_ticks_never_touch_and_one_is_among_them(values):
    ticks = choose_ticks(values)
    assert 0.0 in ticks
    assert 1 <= len(ticks) <= 240 / 17 + 1
    low, high = min(0.0, *values), max(0.0, *values)
    assert all(low <= tick <= high for tick in ticks)


def test_json_holds_no_number_that_is_not_finite():
    assert clean({"a": [math.nan, -math.inf, 1.5, None, "x"]}) == {
        "a": [None, None, 1.5, None, "x"]
    }
    assert json.loads(run_task("first", "layers=1&tokens=2&width=2&heads=1"))["query"]


SNIPPETS = [
    "layers=2&tokens=3&width=8&mask=bits:bd8&skip=1&norm=rms&norm_place=post&format=bfloat16",
    "layers=2&tokens=4&width=8&input=arc&scores=gaussian&sharpness=3&mlp=1&shared=yes&mask=window:1",
]


@pytest.mark.parametrize("query", SNIPPETS)
def test_the_snippet_runs_and_gives_the_same_numbers(query, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    state = State.read(query)
    names = {}
    exec(compile(snippet(state), "lab.py", "exec"), names)
    assert names["network"].spec == network_of(state).spec
    assert torch.equal(names["x"], input_of(state))
    curves = curves_of(first(state)["residual"])
    assert by_layer(names["deep"], "log10_relative_residual") == curves["scaled"]
    plain = logarithms(by_layer(names["plain"], "relative_residual"))
    assert plain == curves[state.format]
    assert (tmp_path / "lab.html").stat().st_size > 1000
    assert "PathLengths" in capsys.readouterr().out


def test_the_page_opens_with_figures_that_the_warm_process_has(monkeypatch) -> None:
    run_task.cache_clear()
    warm()

    def refuse(_):
        raise AssertionError("it was computed before")

    monkeypatch.setattr(_compute, "first", refuse)
    monkeypatch.setattr(_compute, "second", refuse)
    assert json.loads(run_task("first", ""))["residual"]
    assert json.loads(run_task("second", ""))["prediction"]
    with pytest.raises(AssertionError):
        run_task("first", "layers=3")
    run_task.cache_clear()
