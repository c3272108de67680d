"""What a command reads, and what it refuses to begin: text that fits, token ids, long work."""

import json
from pathlib import Path

import pytest
import torch
import transformers as hf

from rankscope import trace


@pytest.fixture
def protein(tmp_path: Path) -> str:
    """A tiny BERT whose tokeniser knows amino acids alone."""
    shape = {"vocab_size": 30, "hidden_size": 24, "num_hidden_layers": 2}
    more = {"num_attention_heads": 4, "intermediate_size": 40}
    hf.BertModel(hf.BertConfig(**shape, **more)).save_pretrained(tmp_path / "protein")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"LAGVESIKRDTPNQFYMHCWX"]
    (tmp_path / "acids.txt").write_text("\n".join(vocabulary))
    reading = hf.BertTokenizer(str(tmp_path / "acids.txt"), do_lower_case=False)
    reading.save_pretrained(tmp_path / "protein")
    return "protein"


def test_text_that_does_not_fit_a_model_is_refused(rankscope, refuses, protein, tmp_path) -> None:
    said = refuses("trace", protein, "--samples", "2")
    assert "tokens are unknown to the tokeniser" in said
    assert said.startswith("rankscope: protein")
    (tmp_path / "acids.txt").write_text(
        "M K T A Y I A K Q R quite Q\n\nG L S D G E W Q L V L N V W"
    )
    got = rankscope("trace", protein, "--text", "acids.txt", "--json")
    assert got.returncode == 0
    assert json.loads(got.stdout)["provenance"]["unknown tokens"] == "1 of 26"


def test_a_diagnosis_warns_where_the_text_does_not_fit(rankscope, protein) -> None:
    got = rankscope("diagnose", protein, "--samples=2", "--length=12", "--json", "--output=here")
    assert got.returncode == 0, got.stderr
    told = json.loads(got.stdout)
    assert "tokens are unknown to the tokeniser" in told["warnings"][0]
    # Where the answer goes is no part of the question.
    command = "rankscope diagnose protein --samples=2 --length=12"
    assert told["provenance"]["command"] == command


def test_ids_stand_in_for_text(rankscope, refuses, tmp_path) -> None:
    shape = {"vocab_size": 30, "hidden_size": 24, "num_hidden_layers": 2}
    more = {"num_attention_heads": 4, "intermediate_size": 40}
    hf.BertModel(hf.BertConfig(**shape, **more)).save_pretrained(tmp_path / "mute")
    said = refuses("trace", "mute")
    assert "--tokenizer" in said
    assert "--ids" in said
    (tmp_path / "ids.txt").write_text("[2, 7, 8, 9, 3]\n2 11 3\n\n")
    got = rankscope("trace", "mute", "--ids", "ids.txt", "--json", "--table")
    assert got.returncode == 0, got.stderr
    told = json.loads(got.stdout)
    assert told["provenance"]["input"] == "2 samples of up to 5 tokens, ids.txt"
    one = torch.tensor([[2, 11, 3]])
    expected = trace(hf.BertModel.from_pretrained(tmp_path / "mute"), {"input_ids": one})
    values = [
        row["value"]
        for row in told["table"]
        if row["sample"] == 1 and row["metric"] == "relative_residual"
    ]
    known = expected.table.filter(metric="relative_residual")["value"].to_list()
    assert values == pytest.approx(known, rel=1e-5)
    assert "which ids are special" in refuses(
        "trace", "mute", "--ids", "ids.txt", "--no-special-tokens"
    )
    assert "two inputs" in refuses("trace", "mute", "--ids", "ids.txt", "--text", "ids.txt")
    (tmp_path / "words.txt").write_text("2 3\nfour 5")
    assert "line 2: expected token ids, got 'four 5'" in refuses(
        "trace", "mute", "--ids", "words.txt"
    )
    (tmp_path / "words.txt").write_text("2 31")
    assert "token ids run from 2 to 31" in refuses("trace", "mute", "--ids", "words.txt")


def test_broken_weights_are_named(refuses, wordy, tmp_path) -> None:
    for place in ("encoder.layer.1.attention.self.query.weight", "embeddings.LayerNorm.weight"):
        model = hf.BertModel.from_pretrained(tmp_path / wordy)
        with torch.no_grad():
            model.get_parameter(place).view(-1)[3] = torch.nan
        model.save_pretrained(tmp_path / "broken")
        hf.AutoTokenizer.from_pretrained(tmp_path / wordy).save_pretrained(tmp_path / "broken")
        for command in ("diagnose", "trace"):
            assert place in refuses(command, "broken", "--samples", "1")


def test_another_tokeniser_can_be_named(rankscope, refuses, wordy, tmp_path) -> None:
    shape = {"vocab_size": 2400, "hidden_size": 24, "num_hidden_layers": 2}
    more = {"num_attention_heads": 4, "intermediate_size": 40}
    hf.BertModel(hf.BertConfig(**shape, **more)).save_pretrained(tmp_path / "mute")
    assert "came without a tokeniser" in refuses("trace", "mute")
    got = rankscope("trace", "mute", "--tokenizer", wordy, "--samples", "1", "--json")
    assert got.returncode == 0, got.stderr
    assert "holds no tokeniser" in refuses("trace", "mute", "--tokenizer", "mute")


def test_the_answer_comes_before_files_that_cannot_be_written(rankscope, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    small = ("--layers", "2", "--heads", "2", "--width", "8", "--samples", "1")
    monkeypatch.setattr("os.fsync", full)
    got = rankscope("trace", *small, "--json", "--output", "out")
    assert got.returncode == 2
    told = json.loads(got.stdout)
    assert told["id"] == "trace"
    path = told["files"]["table"]
    sentence = f"rankscope: {path} cannot be written: No space left on device."
    assert got.stderr.splitlines() == [sentence, "  See docs/errors.md#inputerror"]
    assert list(Path("out").iterdir()) == []


def test_long_work_is_begun_only_when_asked_for(rankscope, refuses, monkeypatch) -> None:
    monkeypatch.setattr("rankscope.ask._estimates._LONG", 1e-9)
    small = ("--layers", "2", "--heads", "2", "--width", "8", "--samples", "1", "--length", "9")
    for command in ("trace", "deep", "masks", "bounds", "paths", "diagnose", "predict"):
        said = refuses(command, *small, "--json")
        assert "say --yes to run it" in said
        assert "--layers" not in said  # that is the question
        assert ("--draws" in said) == (command == "predict")
        assert " and " in said
    assert rankscope("trace", *small, "--json", "--yes").returncode == 0


def test_all_metrics_of_many_tokens_leave_out_the_cubic_ones(rankscope, monkeypatch) -> None:
    monkeypatch.setattr("rankscope.cli.inputs.MOST_TOKENS_CUBED", 8)
    small = ("--layers", "1", "--heads", "1", "--width", "8", "--samples", "1", "--length", "9")
    got = rankscope("trace", *small, "--metrics", "all", "--json", "--table")
    assert "'all' excludes metrics" in got.stderr
    measured = {row["metric"] for row in json.loads(got.stdout)["table"]}
    assert "attention_entropy" in measured
    assert not measured & {"dobrushin", "second_singular_value"}
    named = rankscope("trace", *small, "--metrics", "dobrushin", "--json", "--table")
    assert {row["metric"] for row in json.loads(named.stdout)["table"]} == {"dobrushin"}


SMALL = ["--layers=2", "--heads=2", "--width=16", "--samples=2", "--length=12"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("named", [True, False])
def test_networks_run_in_the_format_asked_for(rankscope, protein, tmp_path, dtype, named) -> None:
    (tmp_path / "acids.txt").write_text("M K T A Y I A K Q R\n\nG L S D G E W Q L V")
    subject = [protein, "--text=acids.txt"] if named else SMALL
    ends = {}
    for each in ("float32", dtype):
        got = rankscope("trace", *subject, f"--dtype={each}", "--json", "--table")
        assert got.returncode == 0, got.stderr
        told = json.loads(got.stdout)
        assert told["provenance"]["dtype"] == f"torch.{each}"
        ends[each] = [row["value"] for row in told["table"] if row["metric"] == "mean_cosine"]
    assert ends[dtype] != ends["float32"]
    assert ends[dtype] == pytest.approx(ends["float32"], abs=0.02)


def test_what_cannot_be_run_in_halves_says_so(refuses) -> None:
    assert "use float32 or float64" in refuses("paths", *SMALL, "--dtype=bfloat16")
    assert "choose auto, cpu" in refuses("trace", *SMALL, "--device=nowhere")
    assert "available: cpu" in refuses("trace", *SMALL, "--device=cuda:99")


def test_a_vocabulary_without_words_is_not_a_tokeniser(refuses, tmp_path) -> None:
    """Transformers makes one up from a vocabulary it cannot read; that is said, and what to do."""
    shape = {"vocab_size": 30, "hidden_size": 24, "num_hidden_layers": 2}
    more = {"num_attention_heads": 4, "intermediate_size": 40}
    hf.BertModel(hf.BertConfig(**shape, **more)).save_pretrained(tmp_path / "few")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "few" / "vocab.txt").write_text("\n".join(words))
    said = refuses("trace", "few")
    assert "one that knows no word" in said
    assert "--tokenizer" in said


def test_a_text_that_is_not_there_is_noticed_before_a_model_is_loaded(
    refuses, protein, monkeypatch
) -> None:
    monkeypatch.setattr("rankscope.models.families.load", lambda *_, **__: pytest.fail("loaded"))
    for option in ("--text", "--ids"):
        assert f"{option} nope.txt: the file does not exist" in refuses(
            "trace", protein, option, "nope.txt"
        )
