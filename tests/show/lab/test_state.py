"""States and permalinks: what is written is read back, and what is out of limits is refused."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.errors import InputError
from rankscope.show.lab._compute import first
from rankscope.show.lab._presets import PRESETS
from rankscope.show.lab._state import (
    LONGEST_QUERY,
    PARAMETERS,
    Choice,
    MaskText,
    Real,
    State,
    Whole,
    read_query,
)


def values_of(parameter):
    match parameter:
        case Whole():
            return st.integers(parameter.least, parameter.most)
        case Real():
            return st.floats(parameter.least, parameter.most)
        case Choice():
            return st.sampled_from(list(parameter.options))
        case MaskText():
            return st.sampled_from(["full", "causal", "window:3", "causal-window:0", "star:48"])


@st.composite
def states(draw):
    drawn = {name: draw(values_of(each)) for name, each in PARAMETERS.items()}
    state = State(**drawn)
    return replace(state, width=max(1, state.width // state.heads) * state.heads)


@settings(max_examples=40, deadline=None)
@given(states())
def test_a_permalink_reads_back_as_the_state_that_wrote_it(state):
    if state.width < 2:
        state = replace(state, width=2 * state.heads)
    assert State.read(state.query()) == state


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 48), st.randoms())
def test_a_matrix_of_any_size_reads_back(tokens, random):
    digits = "".join(random.choice("0123456789abcdef") for _ in range(-(-(tokens**2) // 4)))
    state = State(tokens=tokens, mask=f"bits:{digits}")
    assert State.read(state.query()) == state


def test_defaults_need_no_query():
    assert State.read("") == State()
    assert State().query() == ""


@pytest.mark.parametrize("name", [n for n, p in PARAMETERS.items() if isinstance(p, Whole | Real)])
def test_limits_hold_on_both_sides(name):
    parameter = PARAMETERS[name]
    assert parameter.read(parameter.write(parameter.least)) == parameter.least
    assert parameter.read(parameter.write(parameter.most)) == parameter.most
    above = parameter.most + (1 if isinstance(parameter, Whole) else 1e-9)
    for text in (parameter.write(above), "-1", "nan", "inf", "1e999", "", " 1", "0x2", "1_0", "²"):
        with pytest.raises(InputError, match=rf"(?m)^{name}=.* is not an? .*\.$"):
            State.of([(name, text)])


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("nonsense=1", "unknown parameter 'nonsense'; choose one of layers"),
        ("layers=3&layers=4", "layers is given twice"),
        ("norm=batch", "norm='batch' is unknown; choose one of none, layer"),
        ("width=9&heads=2", "width=9 is not divisible by heads=2"),
        ("mask=window", "mask='window' is not a mask of the lab"),
        ("mask=full:2", "mask='full:2' is not a mask of the lab"),
        ("mask=window:49", "numbers up to 48"),
        ("mask=bits:ff", "mask has 2 hex digits, but 12 tokens need 36"),
        ("mask=bits:" + "g" * 36, "is not a mask of the lab"),
        ("mask=bits:" + "f" * 600, "is not a mask of the lab"),
        ("mask=../../etc/passwd", "is not a mask of the lab"),
        ("a=1&" * 70, "more than 64 fields"),
        ("a" * (LONGEST_QUERY + 1), "expected at most 4096"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(query, said):
    with pytest.raises(InputError) as error:
        State.read(query)
    assert said in str(error.value)
    assert str(error.value).endswith(".")
    assert len(str(error.value)) < 400


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_a_state_or_one_sentence(query):
    try:
        said = State.read(query).query()
    except InputError as error:
        said = str(error)
    assert said.isprintable()


def test_read_query_keeps_what_is_empty():
    assert read_query("mask=&seed=1") == [("mask", ""), ("seed", "1")]


def test_every_field_is_a_parameter_with_a_default_of_its_own():
    assert [each.name for each in fields(State)] == list(PARAMETERS)
    for parameter in PARAMETERS.values():
        assert parameter.read(parameter.write(parameter.default)) == parameter.default


def test_presets_are_states_one_for_each_figure():
    assert len({State.read(preset.query) for preset in PRESETS}) == len(PRESETS)
    assert len({preset.title for preset in PRESETS}) == len(PRESETS)
    for preset in PRESETS:
        assert State.read(preset.query).query() == preset.query
    titles = " ".join(preset.title for preset in PRESETS)
    assert all(f"Fig. {number}" in titles for number in (2, 3, 4, 5))
    assert {preset.paper for preset in PRESETS} >= {"Dong et al. 2021", "Wu et al. 2024"}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("title", "tone"),
    [
        ("Fig. 2, SAN", "collapse"),
        ("Fig. 2, SAN + MLP", "collapse"),
        ("Fig. 2, SAN + skip", "holds"),
        ("Fig. 2, transformer", "holds"),
        ("Fig. 3, one layer repeated", "collapse"),
        ("Fig. 3, with a skip", "holds"),
        ("Causal mask", "collapse"),
        ("LayerNorm, random values", "collapse"),
    ],
)
def test_presets_show_what_they_name_with_any_seed(title, tone, seed):
    (query,) = (preset.query for preset in PRESETS if preset.title == title)
    assert first(replace(State.read(query), seed=seed))["tone"] == tone
