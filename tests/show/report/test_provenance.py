"""Where a result came from, in words."""

import pytest

from rankscope.show.report._page import in_words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, "3"),
        (1e-12, "1e-12"),
        (True, "yes"),
        (False, "no"),
        ([1, 2], "1, 2"),
        ({"torch": "2.6", "python": "3.11"}, "torch 2.6, python 3.11"),
        ({"heads": [1, 2], "mlp_ratio": 0.0}, "heads 1, 2; mlp ratio 0"),
        (
            [{"source": "a", "label": ""}, {"source": "b", "trained": True}],
            "(source a); (source b, trained yes)",
        ),
        ({"window": None, "masks": {"n": 2}}, "masks (n 2)"),
        ([["width", 8], ["heads", [1, 2]]], "width 8; heads 1, 2"),
        ({"base": [["width", 8], ["init_scale", 0.5]]}, "base (width 8, init scale 0.5)"),
        ([["a", "b"]], "a b"),
        (["ab", "cd"], "ab, cd"),
    ],
)
def test_values(value, words):
    assert in_words({"it": value}) == {"it": words}


@pytest.mark.parametrize("nothing", [None, "", [], {}, [None], {"a": None}, {"a": {"b": []}}])
def test_nothing_is_left_out(nothing):
    assert in_words({"spec": nothing, "seed": 0}) == {"seed": "0"}


def test_long_lists_are_told_by_their_beginning():
    assert in_words({"seeds": list(range(16))})["seeds"].endswith("14, 15")
    assert in_words({"seeds": list(range(32))})["seeds"] == "0, 1, 2, … (32 in total)"


def test_what_nobody_would_read_is_cut():
    words = in_words({"config": {f"setting {k}": "x" * 100 for k in range(9)}})["config"]
    assert len(words) < 550
    assert words.endswith(" … (the table's file has the full text)")
    assert in_words({"config": "word " * 99})["config"] == "word " * 99


def test_what_a_configuration_repeats_is_said_once():
    words = in_words({"seed": 1, "config": {"seed": 1, "width": 8}, "other": {"seed": 2}})
    assert words == {"seed": "1", "config": "width 8", "other": "seed 2"}


def test_names_are_words():
    assert in_words({"batch_size": 8}) == {"batch size": "8"}
