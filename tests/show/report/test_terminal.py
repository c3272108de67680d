"""Every kind of result in a terminal."""

import io
from dataclasses import replace

import polars as pl
import pytest
from rich.console import Console

from rankscope import tables
from rankscope.metric_catalogue import metric
from rankscope.show.report import show

from .conftest import DEEP, table_of


def printed(result, width=80, *, full=True):
    console = Console(file=io.StringIO(), width=width)
    show(result, console, full=full)
    return console.file.getvalue()


def lines(result):
    return [line.split() for line in printed(result).splitlines()]


def test_title_question_and_sentences_come_first(study):
    text = printed(study)
    words = (study.question, study.title, "triples its", "Causal [a] does not.", "Relative")
    places = [text.index(each) for each in words]
    assert places == sorted(places)
    assert "**" not in text


def test_a_claim_is_told_by_its_id_its_statement_and_its_verdict(claim):
    first, *_ = printed(claim, width=200).splitlines()
    assert first == f"D9  {claim.title}"
    told = lines(claim)
    assert ["not", "supported", "(chains", "of", "attention)"] in told
    assert ["beyond:", "supported", "in", "part", "the", "mask", "(chains", "of", "masks)"] in told
    assert "supported" not in printed(replace(claim, judgement=None, beyond=None))


def test_sentences_are_broken_between_words_beside_their_points(study):
    long = replace(study, sentences=("antidisestablishment " * 12,) * 2, shown=("rank",))
    found = [line for line in printed(long, width=60).splitlines() if "antidis" in line]
    assert {line[:2] for line in found} == {"• ", "  "}
    assert {word for line in found for word in line.split()} == {"•", "antidisestablishment"}


def test_findings_are_a_table_and_told_once(diagnosis):
    text, found = printed(diagnosis), lines(diagnosis)
    assert text.count("It falls.") == 1
    assert ["kind", "status", "details", "where", "samples"] in found
    assert ["SAN", "present", "It", "falls.", "layer", "2,", "attention", "2", "of", "3"] in found
    assert ["transformer", "absent", "It", "stays.", "0", "of", "3"] in found
    assert "Both were seen." in text


def test_warnings_headline_and_answer_come_first(answer):
    text = printed(answer)
    words = (
        "Warning: 2 of 3 tokens are unknown.",
        "Warning: One sample.",
        answer.question,
        answer.title,
        "No collapse\n• The tokens stay apart.",
        "• It falls.",
        "kind",
        "In short",
        "Heads\n• Head 0 mixes most.",
        "Heads that mix",
    )
    places = [text.index(each) for each in words]
    assert places == sorted(places)
    assert "**" not in text
    assert "Charts" not in text  # a part of nothing but charts is left to the page


def test_on_a_screen_there_is_the_answer_and_its_first_table(answer):
    rows = tuple((f"head {k}", 1.0, k, "") for k in range(7))
    listing = replace(answer.listings[0], rows=rows)
    labels = ("where", "")
    text = printed(replace(answer, labels=labels, listings=(listing, listing)), full=False)
    first = [line.rstrip() for line in text.splitlines()[2:6]]
    assert first == [answer.title, "", "No collapse", "where The tokens stay apart."]
    assert "It falls." not in text  # no label: for those who want all of it
    assert text.count("In short") == 1
    assert "head 4" in text
    assert "head 5" not in text
    for left_out in (answer.question, "kind", "Head 0 mixes most.", "layer"):
        assert left_out not in text.replace(answer.title, "")


def test_labels_are_told_once_and_what_has_none_comes_last(answer):
    said = replace(answer, sentences=("A.", "B.", "C."), labels=("where", "", "where"))
    assert [line.split() for line in printed(said).splitlines()][6:8] == [
        ["where", "A.", "C."],
        ["•", "B."],
    ]


def test_what_has_no_headline_is_printed_whole(study):
    assert printed(study, full=False) == printed(study)


def test_listings_are_tables(answer):
    found = lines(answer)
    assert ["head", "entropy", "seen", "note"] in found
    assert ["layer", "1,", "head", "0", "2.1e−7", "3", "one-hot,", "10^-3"] in found
    assert ["layer", "2,", "head", "<1>", "–", "1,200", "–"] in found
    assert found.count(["Medians", "over", "the", "samples."]) == 2


def test_long_listings_are_cut(answer):
    rows = tuple((f"head {k}", 1.0, k, "") for k in range(12))
    long = replace(answer, listings=(replace(answer.listings[0], rows=rows),), parts=())
    text = printed(long)
    assert "head 9 " in text
    assert "head 10" not in text
    assert "2 more rows on the page." in text
    one = replace(long, listings=(replace(long.listings[0], rows=rows[:11]),))
    assert "1 more row on the page." in printed(one)


def test_key_figures_are_one_line_without_those_not_known(diagnosis):
    assert "paths 10^20.0; heads 12; share 0.25\n" in printed(diagnosis)


def test_medians_by_layer_a_table_for_each_model(study):
    text, found = printed(study), lines(study)
    assert "Relative residual ‖res(X)‖ / ‖X‖, BERT, median over the samples" in text
    assert ", ViT, median" in text
    assert found.count(["layer", "full", "causal"]) == 2
    assert found.count(["8", "10^−3,280.0", "10^−3.28"]) == 2
    assert found.count(["10", "exactly", "0", "exactly", "0"]) == 2


def test_settings_under_their_own_name(study):
    found = lines(replace(study, shown=("rank",)))
    start = found.index(["window", "full", "causal"])
    assert found[start + 1 : start + 3] == [["1", "7", "7"], ["2.5", "17.5", "17.5"]]


def test_lengths_with_a_column_for_each_metric(lengths):
    text, found = printed(lengths), lines(lengths)
    assert "by length, median over the samples, after the last layer" in text
    assert ["length", "Share", "of", "the", "residual", "Projection"] in found
    assert ["0", "1.5", "1.5"] in found
    assert ["bias", "0.0625", "0.0625"] in found


def test_what_was_not_measured_is_blank_and_what_is_not_known_a_dash(study):
    table = table_of(
        ("a", 0, "rank", 3.0),
        ("a", 1, "rank", float("nan")),
        ("b", 1, "rank", 2.0),
        names=("variant", "layer", "metric", "value"),
    )
    found = lines(replace(study, table=table))
    assert ["0", "3"] in found
    assert ["1", "–", "2"] in found


def test_numbers_in_doubt_are_marked_and_the_mark_is_explained(study):
    table = table_of(
        ("a", 0, 0, DEEP, -1.0, False),
        ("a", 1, 0, DEEP, -70.0, False),
        ("a", 1, 1, DEEP, -70.0, True),
        ("b", 1, 0, DEEP, -5.0, False),
        names=("variant", "layer", "sample", "metric", "value", "doubt"),
    )
    found = printed(replace(study, table=table))
    assert ["1", "10^−70.00?", "10^−5.00"] in [line.split() for line in found.splitlines()]
    assert found.count("? inaccurate: the differences") == 1
    assert "in doubt" not in printed(replace(study, table=table.filter(~table["doubt"])))


@pytest.mark.parametrize("width", [80, 120])
def test_many_curves_are_broken_and_names_are_no_markup(study, width):
    rows = [(f"a mask named [m{k}] here", layer) for k in range(6) for layer in range(200)]
    table = table_of(
        *((name, layer, DEEP, -40_000.0 * layer) for name, layer in rows),
        names=("variant", "layer", "metric", "value"),
    )
    text = printed(replace(study, table=table), width)
    assert text.count(" layer ") == 2  # four curves, then two
    assert text.count("10^−7,960,000.0") == 6  # the last layer, in each
    assert text.count("[m5]") == 1
    assert all(len(line) <= width for line in text.splitlines())


def test_a_console_is_not_needed(claim, capsys):
    show(claim)
    assert "D9" in capsys.readouterr().out


def test_what_would_fill_screens_is_left_to_the_page(study):
    rows = [
        (f"model {k}", variant, 0, "rank", 1.0) for k in range(11) for variant in ("full", "causal")
    ]
    names = ("model", "variant", "layer", "metric", "value")
    text = printed(replace(study, table=table_of(*rows, names=names)))
    assert text.count(" layer ") == 8
    assert "3 more tables on the page." in text
    nine = table_of(*rows[:18], names=names)
    assert "1 more table on the page." in printed(replace(study, table=nine))
    eight = table_of(*rows[:16], names=names)
    assert "more" not in printed(replace(study, table=eight))


def test_the_one_curve_there_is_needs_no_name(study):
    table = table_of(
        *((0, sample, "projection", 1.0) for sample in (0, 1)),
        names=("layer", "sample", "metric", "value"),
    )
    text = printed(replace(study, table=table))
    assert "Projection part·X / ‖X‖², median over the samples" in text
    assert ["layer", "median"] in [line.split() for line in text.splitlines()]


def test_metrics_that_are_one_number_each_are_rows(study):
    table = table_of(
        ("full", "rank", 3.0),
        ("causal", "rank", 2.0),
        ("full", "mean_cosine", 0.5),
        ("causal", "mean_cosine", 1.0),
        names=("variant", "metric", "value"),
    )
    found = lines(replace(study, table=table))
    assert ["full", "causal"] in found
    assert ["Rank", "3", "2"] in found
    assert ["Mean", "cosine", "0.5", "1"] in found


def test_single_numbers_of_many_curves_have_a_row_for_each_curve(study):
    names = [f"change {letter}" for letter in "abcdef"]
    rows = [(name, metric, 1.5) for name in names for metric in ("rank", "gamma")]
    table = tables.from_rows(("variant", "metric", "value"), rows)
    found = lines(replace(study, table=table, shown=("rank", "gamma"), drawings=()))
    assert found[-7] == [metric("rank").title, metric("gamma").title]
    assert found[-6:] == [["change", letter, "1.5", "1.5"] for letter in "abcdef"]
    few = table.filter(pl.col("variant").is_in(names[:4]))
    told = lines(replace(study, table=few, shown=("rank", "gamma"), drawings=()))
    assert told[-1][-4:] == ["1.5"] * 4
