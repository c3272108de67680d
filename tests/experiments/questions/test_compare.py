"""Networks whose figures are known, side by side."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
import transformers as hf

from rankscope import Network, Result, Spec, compare, results, tables, trace
from rankscope.ask import Model, Subject
from rankscope.errors import InputError
from rankscope.experiments import CATALOGUE
from rankscope.experiments.questions import _comparison as words
from rankscope.models.text import embed, passages
from rankscope.show import figures

PURE = Spec(4, 2, 16, mlp_ratio=0, norm="none", skip=0.0)


@pytest.fixture(scope="module")
def subjects() -> dict[str, Subject]:
    """Pure attention, which collapses, and the same with skips, which does not."""
    x, token_mask = embed(passages()[:3], 16, length=12)
    nets = {"without": PURE, "with": replace(PURE, skip=1.0)}
    return {name: Subject(Network.random(s), x, token_mask) for name, s in nets.items()}


@pytest.fixture(scope="module")
def found(subjects) -> Result:
    return compare(subjects)


def test_figures_are_those_of_a_trace(subjects, found: Result) -> None:
    for name, subject in subjects.items():
        alone = trace(
            subject.network, subject.x, token_mask=subject.token_mask, metrics=words.METRICS
        ).table
        ours = found.table.filter(variant=name)
        for metric in words.METRICS:
            expected = alone.filter(metric=metric)["value"].to_list()
            assert ours.filter(metric=metric)["value"].to_list() == expected


def test_listed_figures_are_medians_of_the_table(found: Result) -> None:
    residuals, ends = found.listings[:2]
    for row in residuals.rows:
        named = dict(zip(residuals.columns, row, strict=True))
        own = found.table.filter(variant=named["model"], metric="relative_residual")
        medians = own.group_by("layer").agg(pl.col("value").median()).sort("layer")["value"]
        assert named["layers"] == 4
        assert named["input"] == pytest.approx(medians[0])
        assert named["end"] == pytest.approx(medians[-1])
        assert named["lowest"] == pytest.approx(medians.min())
        assert named["at layer"] == medians.arg_min()
    for row in ends.rows:
        own = found.table.filter(variant=row[0])
        last = own.filter(layer=4)
        cosine = last.filter(metric="mean_cosine")["value"].median()
        assert row[1] == pytest.approx(cosine)
        entropy = own.filter(metric="attention_entropy")["value"].median()
        assert row[-1] == pytest.approx(entropy)


def test_the_one_that_collapses_is_named(found: Result) -> None:
    assert found.headline.text.startswith("with keeps its tokens apart best")
    assert found.sentences[0].startswith("Tokens become most alike in without")
    assert "furthest apart in with:" in found.sentences[0]
    assert "without and with differ from layer 1 on" in found.sentences[1]
    assert "most alike in without" in found.sentences[2]
    assert found.warnings == ()
    chart = figures.draw(found.drawings[0], found).to_dict()
    assert "without" in str(chart)
    assert len(chart["concat"]) == len(words.OF_TOKENS)


def measured(name: str, *layers: tuple[float, ...], **more: object) -> words.ModelCurve:
    """A model by its relative residuals: for each layer those of its samples."""
    rows = [
        (layer, sample, "relative_residual", value)
        for layer, values in enumerate(layers)
        for sample, value in enumerate(values)
    ]
    table = tables.from_rows(("layer", "sample", "metric", "value"), rows)
    return words.ModelCurve(Model(name, label=name, **more), table)


def test_the_healthier_is_the_one_whose_tokens_stay_apart() -> None:
    """From 0.9 to 0.3 more is lost than from 0.2 to 0.18, and yet more is left."""
    found = [measured("a", (0.9,), (0.3,)), measured("b", (0.2,), (0.18,))]
    assert words.headline(found).text.startswith("a keeps its tokens apart best")
    assert "0.3 at its lowest, 0.18 in b" in words.headline(found).text
    said = words.sentences(found)
    assert said[0].startswith("Tokens become most alike in b")
    assert said[0].endswith("Relative to its input, a loses most: 0.33 of the residual remains.")
    assert "most alike in b" in said[2]
    assert "loses most" not in words.sentences([found[1], measured("c", (0.9,), (0.9,))])[0]


def test_they_part_where_samples_overlap_no_more() -> None:
    a = measured("a", (1.0, 1.0), (0.9, 1.0), (0.5, 0.55), (0.4, 0.45))
    b = measured("b", (1.0, 1.0), (0.9, 1.0), (0.9, 0.95), (0.9, 0.95))
    assert "differ from layer 2 on" in words.sentences([a, b])[1]
    # Once they overlap again at the end, they have not parted.
    c = measured("c", (1.0, 1.0), (0.5, 0.5), (0.9, 0.95), (0.85, 0.93))
    assert "do not differ" in words.sentences([b, c])[1]
    # Medians that differ do not tell models apart whose samples overlap.
    wide, narrow = measured("wide", (1.0, 1.0), (0.4, 0.9)), measured("n", (1.0, 1.0), (0.8, 1.0))
    assert "do not differ" in words.sentences([wide, narrow])[1]
    # Of another depth, at the share of it.
    deep = measured("deep", *[(1.0,)] * 4, *[(0.1,)] * 5)
    flat = measured("flat", (1.0,), (0.9,), (0.9,))
    assert "differ from 50% of the depth on" in words.sentences([deep, flat])[1]


def test_models_that_lose_alike_are_said_to() -> None:
    found = [measured("a", (1.0,), (0.95,)), measured("b", (1.0,), (0.96,))]
    assert words.headline(found).text.startswith("All models keep their tokens about")
    assert words.sentences(found)[0].startswith("Tokens are about equally far apart in all")
    assert "no more than a tenth" in words.sentences(found)[3]
    rising = [measured("a", (0.5,), (0.9,)), measured("b", (1.0,), (0.2,))]
    assert (
        "furthest apart in a: its relative residual never falls below its value at the input, 0.5"
        in words.sentences(rising)[0]
    )


def test_training_is_told_from_its_first_checkpoint_to_its_last() -> None:
    courses = {10: 0.8, 20: 0.5, 30: 0.2}
    steps = [
        measured(f"checkpoint-{step}", (1.0,), (low,), step=step, training="run")
        for step, low in courses.items()
    ]
    said = words.sentences(steps)[-1]
    assert said.startswith("From checkpoint-10 to checkpoint-30")
    assert "always falls, from 0.8 to 0.2" in said
    assert "up and down" in words.sentences([steps[1], steps[0], steps[2]])[-1]
    assert not any("From checkpoint" in each for each in words.sentences(steps[:1] * 2)[:-1])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    shape = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 2}
    more = {"num_attention_heads": 2, "intermediate_size": 8}
    for step in (10, 200):
        model = hf.BertModel(hf.BertConfig(**shape, **more))
        model.save_pretrained(tmp_path / "run" / f"checkpoint-{step}")
    return tmp_path / "run"


def test_checkpoints_their_architecture_and_an_earlier_result(saved: Path, tmp_path: Path) -> None:
    ids = [[1, 7, 8, 2], [1, 9, 2]]
    first = compare([saved, f"{saved}/checkpoint-10@init"], ids, seed=3)
    names = ["checkpoint-10", "checkpoint-200", "checkpoint-10 at initialisation"]
    assert first.table["variant"].drop_nulls().unique(maintain_order=True).to_list() == names
    assert len(set(first.provenance["weights"].values())) == 3
    assert "From checkpoint-10 to checkpoint-200" in first.sentences[-1]
    steps = tables.summary(first.table.filter(metric="lowest_relative_residual"))
    lowest = {row[0]: row[3] for row in first.listings[0].rows}
    assert dict(zip(steps["setting"], steps["median"], strict=True)) == pytest.approx(
        {10.0: lowest["checkpoint-10"], 200.0: lowest["checkpoint-200"]}
    )
    assert [each.figure for each in first.drawings] == ["by_setting"] * 3 + ["by_layer"]
    for drawing in first.drawings:
        figures.draw(drawing, first)
    again = compare([saved, f"{saved}/checkpoint-10@init"], ids, seed=3)
    assert again.provenance["digest"] == first.provenance["digest"]
    assert again.table.equals(first.table)
    # A trace kept in a file stands for its model, on whatever it read.
    model = hf.BertModel.from_pretrained(saved / "checkpoint-10")
    kept = CATALOGUE["trace"]
    subject = Subject(Network.random(Spec(2, 2, 8)), torch.randn(2, 4, 8))
    old = kept.run(kept.configuration(subject=subject, metrics=("relative_residual",)))
    path = results.write(old, tmp_path / "old.parquet")
    mixed = compare([path, model], ids)
    assert mixed.table["variant"].unique(maintain_order=True).to_list() == ["old", "BertModel"]
    assert mixed.listings[1].rows[0][1:] == (None,) * 4
    assert "not measured on the same input" in compare([path, saved], ids[:1]).warnings[0]


def test_what_cannot_be_compared_is_refused(subjects) -> None:
    d8 = CATALOGUE["D8"].run(CATALOGUE["D8"].configuration())
    with pytest.raises(InputError, match="has no relative_residual"):
        compare([d8, subjects["with"]])
    both = compare(subjects)
    with pytest.raises(InputError, match="several networks"):
        compare([both, subjects["with"]])
    with pytest.raises(InputError, match="two models or more"):
        CATALOGUE["compare"].configuration(models=())
    limited = CATALOGUE["compare"].configuration(
        models=(Model(subjects["with"], label="a"), Model(subjects["without"], label="b")),
        limited=True,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankscope.ask._estimates._LONG", 1e-9)
        with pytest.raises(InputError, match="--yes"):
            CATALOGUE["compare"].run(limited)


def test_text_a_model_does_not_know_is_not_compared_on(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]))
    tokenizer = hf.BertTokenizer(str(tmp_path / "v.txt"))
    shape = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 1}
    model = hf.BertModel(hf.BertConfig(**shape, num_attention_heads=2, intermediate_size=8))
    with pytest.raises(InputError, match="BertModel: 2 of 3 tokens are unknown"):
        compare([model, model], ["a b c"], tokenizer=tokenizer)
    fine = compare({"one": model, "other": model}, ["a a b a a a"], tokenizer=tokenizer)
    assert "one: 1 of 6 tokens" in fine.warnings[0]


def test_special_tokens_can_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]))
    tokenizer = hf.BertTokenizer(str(tmp_path / "v.txt"))
    shape = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 1}
    model = hf.BertModel(hf.BertConfig(**shape, num_attention_heads=2, intermediate_size=8))
    made = {"one": model, "other": model}
    found = compare(made, ["a a a"], tokenizer=tokenizer, special_tokens=False)
    assert "attention_entropy" not in found.table["metric"].to_list()
    every = compare(made, ["a a a"], tokenizer=tokenizer)
    metric = pl.col("metric") == "relative_residual"
    assert not found.table.filter(metric)["value"].equals(every.table.filter(metric)["value"])


def test_models_of_few_positions_cut_what_they_read(tmp_path: Path) -> None:
    """As a diagnosis does, and it is said where others read more."""
    words_known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    (tmp_path / "v.txt").write_text("\n".join(words_known))
    tokenizer = hf.BertTokenizer(str(tmp_path / "v.txt"))
    shape = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8}
    made = {
        str(most): hf.BertModel(
            hf.BertConfig(**shape, num_attention_heads=2, max_position_embeddings=most)
        )
        for most in (16, 64)
    }
    found = compare(made, ["a " * 100], tokenizer=tokenizer)
    (warning,) = found.warnings
    assert "16 at 16 tokens, 64 at 64 tokens; use --length 16 for" in warning
    assert compare(made, ["a " * 100], tokenizer=tokenizer, length=16).warnings == ()
