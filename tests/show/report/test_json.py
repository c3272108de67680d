"""Every kind of result as JSON."""

import json
import math
from dataclasses import replace

import polars as pl
import pytest

from rankscope import tables
from rankscope.errors import InputError
from rankscope.show.report import to_json

from .conftest import table_of

KEYS = {
    "id", "title", "question", "source", "verdict", "judgement", "beyond", "sentences",
    "findings", "key_figures", "summary", "table", "provenance", "files", "headline", "warnings",
    "listings", "parts", "answers",
}  # fmt: skip


def read_back(fields):
    return json.loads(json.dumps(fields, allow_nan=False), parse_constant=pytest.fail)


def test_every_result_has_the_same_keys(study, claim, diagnosis, lengths, answer):
    for result in (study, claim, diagnosis, lengths, answer):
        assert set(read_back(to_json(result))) == KEYS


def test_what_there_is_not_is_null_or_empty(study, claim):
    fields = read_back(to_json(study))
    assert (fields["source"], fields["verdict"], fields["table"]) == (None, None, None)
    assert (fields["findings"], fields["key_figures"], fields["files"]) == ([], {}, {})
    assert (fields["judgement"], fields["beyond"]) == (None, None)
    told = read_back(to_json(claim))
    assert told["verdict"] == told["judgement"]["verdict"] == "fails"
    assert told["judgement"]["domain"] == "chains of attention"
    beyond = {"verdict": "depends", "domain": "chains of masks", "on": "the mask", "checks": {}}
    assert told["beyond"] == beyond


def test_what_is_told_is_the_result_itself(diagnosis):
    fields = read_back(to_json(diagnosis, {"table": "here.parquet"}))
    assert fields["sentences"] == list(diagnosis.sentences)
    assert fields["findings"][1] == {
        "kind": "transformer",
        "fate": "absent",
        "sentence": "It stays.",
        "rule": "below 10^-3",
        "figure": 0.81,
        "layer": 2,
        "part": "",
        "found_in": 0,
        "samples": 3,
        "module": "",
        "cause": "",
        "remedy": "",
        "url": "",
    }
    assert fields["summary"] == diagnosis.summary.to_dicts()
    assert fields["files"] == {"table": "here.parquet"}


def test_headline_warnings_tables_and_parts_are_told(answer):
    fields = read_back(to_json(answer))
    assert fields["headline"] == {"text": "No collapse", "tone": "holds"}
    assert fields["warnings"] == list(answer.warnings)
    (listing,) = fields["listings"]
    assert listing["rows"][0] == {
        "head": "layer 1, head 0",
        "entropy": 2.1e-7,
        "seen": 3,
        "note": "one-hot, 10^-3",
    }
    assert [part["title"] for part in fields["parts"]] == ["Heads", "Charts"]
    assert fields["parts"][0]["sentences"] == list(answer.parts[0].sentences)
    assert fields["parts"][0]["listings"][0]["note"] == "Medians over the samples."


def test_the_table_is_there_if_asked_for(diagnosis):
    assert read_back(to_json(diagnosis, with_table=True))["table"] == diagnosis.table.to_dicts()


def test_what_is_in_doubt_is_said_row_by_row(study):
    table = table_of(
        (0, 0, "rank", 3.0, False),
        (1, 0, "rank", 2.0, True),
        (1, 1, "rank", 2.0, False),
        names=("layer", "sample", "metric", "value", "doubt"),
    )
    rows = to_json(replace(study, table=table))["summary"]
    assert [row["doubt"] for row in rows] == [False, True]


def test_infinities_are_words_and_nan_is_null(study, diagnosis):
    table = study.table.with_columns(
        value=pl.when(pl.col("layer") == 1).then(math.nan).otherwise(pl.col("value"))
    )
    fields = read_back(to_json(replace(study, table=table)))
    assert fields["provenance"]["lowest"] == "-inf"
    rows = {row["layer"]: row for row in fields["summary"] if row["model"] == "BERT"}
    assert rows[10]["median"] == "-inf"
    assert float(rows[10]["median"]) == -math.inf
    assert rows[1]["median"] is None
    assert tables.summary(table).height == len(fields["summary"])
    assert read_back(to_json(diagnosis))["findings"][0]["figure"] is None
    assert read_back(to_json(diagnosis))["key_figures"]["error"] is None


def test_the_summary_is_short(answer):
    """No rows by token, none of metrics that a long result does not tell, no empty column."""
    fine = table_of(
        *((layer, token, "relative_residual", 1.0) for layer in (0, 1) for token in (None, 3)),
        (0, None, "mean_cosine", 0.5),
        names=("layer", "token", "metric", "value"),
    ).with_columns(sample=0, variant=None)
    short = to_json(replace(answer, table=fine, shown=("relative_residual",)))["summary"]
    assert [(row["layer"], row["metric"]) for row in short] == [
        (0, "relative_residual"),
        (1, "relative_residual"),
    ]
    assert not {"token", "variant"} & set(short[0])
    every = to_json(replace(answer, table=fine, parts=()))["summary"]
    assert {row["metric"] for row in every} == {"relative_residual", "mean_cosine"}


def test_answers_are_told_by_what_they_answer(answer):
    assert to_json(answer)["answers"] == {}
    labelled = replace(answer, labels=("where", "what now"))
    assert to_json(labelled)["answers"] == {
        "where": "The tokens **stay apart**.",
        "what now": "It falls.",
    }
    with pytest.raises(InputError, match="1 labels for 2 sentences"):
        replace(answer, labels=("where",))
