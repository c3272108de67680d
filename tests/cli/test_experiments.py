"""Claims, studies and built-in models: listed, run and refused."""

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from rankscope import tables
from rankscope.ask import Model, built_in
from rankscope.cli.options import FIELDS
from rankscope.experiments.catalogue import ENTRIES, Entry, entries
from rankscope.experiments.config import Config as _Config
from rankscope.experiments.variants import Parts
from rankscope.models.families import BUILTIN
from rankscope.models.text import passages
from rankscope.results import Drawing, Judgement, Result

from .test_cli import KEYS

RUN = [each for each in ENTRIES if each.kind != "question"]
COMMANDS = {"claim": "reproduce", "study": "study"}
OPTIONS = {
    "seed": "--seed=3",
    "models": "--models=bert-base",
    "pretrained": "--pretrained=/does/not/exist",
    "pickled": "--pickled",
    "text": "--text=x",
    "samples": "--samples=2",
    "length": "--length=5",
    "parts": "--parts=identity",
}


@dataclass(frozen=True)
class Config(_Config):
    """Every field there can be, with defaults unlike those of the command line."""

    models: tuple[Model, ...] = built_in("gpt2")
    texts: tuple[str, ...] | None = None
    sentences: tuple[str, ...] | None = None
    length: int = 17
    parts: Parts = "theorems"


@pytest.fixture
def ran(monkeypatch) -> list[Any]:
    """Instead of running an experiment, note its configuration and return a small result."""
    noted: list[Any] = []

    def module(entry: Entry) -> SimpleNamespace:
        def run(config: Config, on_step: Any) -> Result:
            noted.append(config)
            on_step(0.5)
            table = tables.frame({"layer": [0, 1], "metric": ["rank"] * 2, "value": [2.0, 1.0]})
            return Result(
                id=entry.id,
                title=entry.title,
                question="Is it so?",
                sentences=("It is so in " + "every " * 30 + "case.",),
                table=table,
                provenance=entry.provenance(config),
                source=entry.source,
                judgement=Judgement("holds", entry.domain) if entry.kind == "claim" else None,
                drawings=(Drawing("by_depth", "", "rank"),),
            )

        return SimpleNamespace(Config=Config, run=run)

    monkeypatch.setattr(Entry, "module", module)
    return noted


@pytest.mark.parametrize("kind", ["claim", "study"])
def test_without_an_id_all_there_is_is_listed(rankscope, kind) -> None:
    lines = rankscope(COMMANDS[kind]).stdout.splitlines()
    for line, (id_, entry) in zip(lines, entries(kind).items(), strict=True):
        assert line.split()[0] == id_
        assert entry.title.rstrip(".") in line
        assert entry.source in line
        for parameter in OPTIONS:
            taken = any(parameter in FIELDS[name] for name in entry.options)
            assert (f"--{parameter}" in line.replace(",", " ").split()) == taken


@pytest.mark.parametrize("kind", ["claim", "study"])
def test_the_list_as_json_is_the_catalogue(rankscope, kind) -> None:
    listed = json.loads(rankscope(COMMANDS[kind], "--json").stdout)
    assert [each["id"] for each in listed] == list(entries(kind))
    ended = {"verdict", "seeds", "last"} if kind == "claim" else set()
    for each in listed:
        assert set(each) == {"id", "kind", "title", "source", "domain", "options"} | ended
        assert not any(each[key] for key in ended)  # none was run here
        entry = entries(kind)[each["id"]]
        assert (each["title"], each["source"]) == (entry.title, entry.source)
        assert set(each["options"]) == set(filter(None, entry.options))


@pytest.mark.parametrize("kind", ["claim", "study"])
def test_the_help_names_every_one(rankscope, kind) -> None:
    words = rankscope(COMMANDS[kind], "--help").stdout.replace(",", " ").split()
    assert {*entries(kind)} <= {*words}


def test_a_list_takes_no_options(refuses) -> None:
    assert "reproduce does not take --seed; without an ID" in refuses("reproduce", "--seed=1")
    assert "study does not take --output; without an ID" in refuses("study", "--output=x")


def test_built_in_models_are_listed(rankscope) -> None:
    lines = rankscope("list", "models").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(BUILTIN)
    assert lines[1].split(maxsplit=1)[1] == "bert: 24 layers, 16 heads, width 1024"
    listed = json.loads(rankscope("list", "models", "--json").stdout)
    assert [each["name"] for each in listed] == list(BUILTIN)
    assert set(listed[0]) == {"name", "family", "layers", "heads", "width", "words"}


@pytest.mark.parametrize("entry", RUN, ids=lambda entry: entry.id)
def test_every_option_is_used_or_refused(rankscope, ran, entry, tmp_path) -> None:
    """What is not in the catalogue is refused in a sentence; what is changes the configuration."""
    (tmp_path / "x").write_text("A text.")
    command = COMMANDS[entry.kind]
    for parameter, written in OPTIONS.items():
        if entry.kind == "study" and parameter in FIELDS["parts"]:
            continue  # studies do not have the option
        names = [name for name in entry.options if parameter in FIELDS[name]]
        got = rankscope(command, entry.id, written, "--json")
        if not names:
            assert got.returncode == 2
            assert f"{command} {entry.id} does not take --{parameter}; it takes" in got.stderr
            assert "--output and --json." in got.stderr
        elif parameter != "pickled":  # it is about --pretrained
            assert got.returncode == 0, got.stderr
            assert getattr(ran[-1], names[0]) != getattr(Config(), names[0])
    assert rankscope(command, entry.id, "--json").returncode == 0
    assert ran[-1] == Config()


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["reproduce", "D8", "--text", "x"], "--text"),
        (["reproduce", "D1", "--pretrained", "/does/not/exist"], "--pretrained"),
        (["reproduce", "D2", "--length", "5"], "--length"),
        (["study", "widths", "--models", "bert-base"], "--models"),
    ],
)
def test_an_option_without_use_is_refused_with_what_there_is(refuses, arguments, option) -> None:
    said = refuses(*arguments)
    assert " ".join([*arguments[:2], "does not take", option]) in said
    assert "--output and --json." in said
    assert ("--seed" in said) == (arguments[1] != "D8")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ["trace", "--metrics=attention_entropy"],
            "attention is between all tokens (attention_entropy)",
        ),
        (["trace", "--metrics=all"], "second_singular_upper)"),
        (["bounds"], "bounds: the theorems' bounds are about all tokens"),
        (["masks"], "masks: graphs of masks are about all tokens"),
        (["predict"], "predict: predictions are about all tokens"),
    ],
)
def test_figures_about_all_tokens_leave_none_out(refuses, arguments, why) -> None:
    said = refuses(*arguments, "--no-special-tokens")
    assert "--no-special-tokens is not available for " in said
    assert why in said


def test_paths_leave_special_tokens_out_of_their_shares(rankscope) -> None:
    small = ["--layers=1", "--heads=1", "--width=8", "--samples=1", "--length=8"]
    every, kept = (
        json.loads(rankscope("paths", *small, *more, "--json").stdout)
        for more in ([], ["--no-special-tokens"])
    )
    assert kept["provenance"]["special tokens"] == "left out of the figures"
    assert kept["summary"] != every["summary"]


def test_options_become_fields(rankscope, ran, tmp_path) -> None:
    (tmp_path / "mine.txt").write_text("One.\n\nTwo.\n\nThree.")
    chosen = ["--text=mine.txt", "--samples=2", "--length=9", "--seed=7", "--parts=steps"]
    rankscope("reproduce", "d5", *chosen, "--json")
    assert ran == [Config(seed=7, texts=("One.", "Two."), length=9, parts="steps")]


def test_an_option_that_is_not_given_changes_nothing(rankscope, ran) -> None:
    rankscope("reproduce", "D5", "--json")
    assert ran[0].parts == "theorems"


def test_passages_alone_are_the_bundled_ones(rankscope, ran) -> None:
    rankscope("reproduce", "W5", "--samples=2", "--json")
    assert ran[0].texts == tuple(passages()[:2])


def test_pretrained_models_join_the_usual_ones(rankscope, ran, tmp_path) -> None:
    (tmp_path / "deep=er").mkdir()
    named = ["some/mini", "mine=some/mini", "mini", "deep=er"]
    rankscope("reproduce", "D9", *(f"--pretrained={each}" for each in named), "--pickled", "--json")
    usual, *trained = ran[0].models
    assert usual == Model("gpt2", at_init=True)
    assert [case.name for case in trained] == [
        "mini (pretrained)",
        "mine (pretrained)",
        "mini 2 (pretrained)",
        "deep=er (pretrained)",
    ]
    assert [case.source for case in trained] == ["some/mini", "some/mini", "mini", "deep=er"]
    assert all(case.pickled and not case.at_init for case in trained)


def test_named_models_replace_the_usual_ones(rankscope, ran) -> None:
    rankscope("reproduce", "W5", "--models=bert-base, t5-base", "--json")
    assert ran[0].models == built_in("bert-base", "t5-base")
    rankscope("reproduce", "W5", "--models=", "--pretrained=a", "--json")
    assert [case.source for case in ran[1].models] == ["a"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["reproduce", "D17"], "there is no claim 'D17'"),
        (["study", "nonsense"], "there is no study 'nonsense'"),
        (["study", "D2"], "there is no study 'D2'"),
        (["reproduce", "D5", "--models=magic"], "magic"),
        (["study", "wu", "--models=nonsense"], "nonsense is not built in"),
        (["reproduce", "D5", "--models="], "no model"),
        (["reproduce", "D5", "--pickled"], "--pickled applies to --pretrained"),
        (["reproduce", "D5", "--seed=-1"], "--seed -1"),
        (["reproduce", "D5", "--samples=0"], "--samples 0"),
        (["reproduce", "D5", "--length=1"], "--length 1"),
        (["reproduce", "D5", "--text=nowhere"], "nowhere"),
        (["study", "wu", "--parts=paper"], "--parts"),
        (["reproduce", "D5", "--parts=all"], "'all' is not one of"),
    ],
)
def test_bad_input_gets_one_sentence(refuses, ran, arguments, says) -> None:
    assert says in refuses(*arguments)
    assert ran == []


@pytest.mark.usefixtures("ran")
def test_a_claim_says_id_statement_and_verdict_and_names_its_files(rankscope) -> None:
    got = rankscope("reproduce", "d2", "--seed=4")
    assert got.returncode == 0, got.stderr
    said = " ".join(got.stdout.split())
    d2 = entries("claim")["D2"]
    assert said.startswith(f"D2 {d2.title} Is it so? supported ({d2.domain}) • It is so in every")
    stem = f"d2-{Config(seed=4).digest('D2')[:8]}"
    listed = [line.split() for line in got.stdout.splitlines()[-3:]]
    assert listed == [
        *(
            [what, f"rankscope-output/{stem}.{ending}"]
            for what, ending in (("table", "parquet"), ("page", "html"))
        ),
        ["summary", "rankscope-output/reproduce.html"],
    ]


@pytest.mark.usefixtures("ran")
def test_every_json_has_the_same_keys(rankscope) -> None:
    study = json.loads(rankscope("study", "widths", "--json", "--output=out").stdout)
    (claim,) = json.loads(rankscope("reproduce", "D1", "--json", "--output=out").stdout)
    assert set(study) == KEYS
    assert set(claim) == KEYS | {"scale", "seconds", "failure", "from_before", "seeds"}
    assert (study["verdict"], claim["verdict"]) == (None, "holds")
    assert set(study["files"]) == set(claim["files"]) == {"table", "page"}


def test_a_real_claim(rankscope) -> None:
    (result,) = json.loads(rankscope("reproduce", "d8", "--json").stdout)
    assert (result["id"], result["verdict"]) == ("D8", "holds")
    assert result["provenance"]["digest"]


@pytest.mark.usefixtures("ran")
def test_several_claims_have_a_line_each_and_are_listed_with_their_verdicts(rankscope) -> None:
    got = rankscope("reproduce", "D4", "w2", "D4")
    assert got.returncode == 0, got.stderr
    first, d4, second, w2, _, summary = got.stdout.splitlines()
    assert first.startswith("D4   Supported; seed 0 only (")
    assert second.startswith("W2   Supported; seed 0 only (")
    claims = entries("claim")
    assert (d4.strip(), w2.strip()) == (claims["D4"].title, claims["W2"].title)
    assert summary == "summary  rankscope-output/reproduce.html"
    again = rankscope("reproduce", "D4").stdout  # what is there is read
    assert "supported" in again
    told = {line.split()[0]: line for line in rankscope("reproduce").stdout.splitlines()}
    assert told["D4"].endswith("Last: Supported; seed 0 only")
    assert "Last:" not in told["D1"]
    listed = {each["id"]: each for each in json.loads(rankscope("reproduce", "--json").stdout)}
    assert (listed["W2"]["verdict"], listed["W2"]["last"]["seed"]) == ("holds", 0)
    assert listed["D1"]["verdict"] is None


def test_several_seeds_are_judged_together(rankscope, ran) -> None:
    got = rankscope("reproduce", "D4", "W2", "D8", "--seeds=2", "--seed=3")
    assert [line.rpartition(" (")[0] for line in got.stdout.splitlines()[:6:2]] == [
        "D4   Supported; seeds 3, 1003: stable",
        "W2   Supported; seeds 3, 1003: stable",
        "D8   Supported; no random numbers",
    ]
    assert [config.seed for config in ran] == [3, 1003, 3, 1003, 0]
    alone = rankscope("reproduce", "D4", "--seeds=2", "--seed=3").stdout
    assert "D4   Supported; seeds 3, 1003: stable (saved earlier)" in alone
    listed = json.loads(rankscope("reproduce", "D4", "--seeds=2", "--seed=3", "--json").stdout)
    assert [run["seeds"] for run in listed] == ["seeds 3, 1003: stable"] * 2
    assert "--seeds=0" in rankscope("reproduce", "D4", "--seeds=0").stderr


def test_all_claims_run_with_what_each_takes(rankscope, ran) -> None:
    got = rankscope("reproduce", "--all", "--seed=2", "--length=9", "--json")
    assert got.returncode == 0, got.stderr
    assert [each["id"] for each in json.loads(got.stdout)] == list(entries("claim"))
    chosen = dict(zip(entries("claim"), ran, strict=True))
    assert (chosen["D5"].seed, chosen["D5"].length) == (2, 9)
    assert (chosen["D1"].seed, chosen["D1"].length) == (2, 17)
    assert chosen["D8"] == Config()


def test_one_that_fails_to_run_is_reported_and_the_others_go_on(
    rankscope, ran, monkeypatch
) -> None:
    module = Entry.module

    def broken(entry: Entry) -> Any:
        found = module(entry)
        if entry.id == "D2":
            found.run = lambda *_: 1 / 0
        return found

    monkeypatch.setattr(Entry, "module", broken)
    got = rankscope("reproduce", "D2", "D3")
    assert got.returncode == 2
    assert got.stdout.splitlines()[:4:2] == [
        "D2   failed (0.0 s)",
        "D3   Supported; seed 0 only (0.0 s)",
    ]
    assert got.stderr == "rankscope: D2 failed: ZeroDivisionError: division by zero.\n"
    assert len(ran) == 1
    listed = json.loads(rankscope("reproduce", "D2", "--json").stdout)
    assert (listed[0]["verdict"], listed[0]["failure"][:4]) == (None, "Zero")


def test_an_interruption_says_what_is_kept(rankscope, ran, monkeypatch) -> None:
    module = Entry.module

    def stopped(entry: Entry) -> Any:
        found = module(entry)
        if entry.id == "D3":
            found.run = _interrupt
        return found

    monkeypatch.setattr(Entry, "module", stopped)
    got = rankscope("reproduce", "D2", "D3", "D4")
    assert got.returncode == 130
    assert "1 of 3 claims are done and saved in rankscope-output" in got.stderr
    monkeypatch.setattr(Entry, "module", module)
    again = rankscope("reproduce", "D2", "D3", "D4").stdout
    assert again.startswith("D2   Supported; seed 0 only (saved earlier)")
    assert len(ran) == 3


def _interrupt(*_: Any) -> Result:
    raise KeyboardInterrupt


def test_all_and_some_are_not_asked_for_at_once(refuses) -> None:
    assert "--all runs every claim; leave out D1" in refuses("reproduce", "D1", "--all")


def test_models_of_one_name_are_told_apart_in_a_real_claim(rankscope, wordy, tmp_path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / wordy).rename(tmp_path / "other" / wordy)
    models = [f"--pretrained={each}other/{wordy}" for each in ("", "mine=", "")]
    got = rankscope("reproduce", "D5", "--models=", *models, "--samples=1", "--length=8", "--json")
    told = {row["model"] for row in json.loads(got.stdout)[0]["summary"]}
    ours = {name for name in told if not name.endswith("figure 2")}
    assert ours == {"wordy (pretrained)", "mine (pretrained)", "wordy 2 (pretrained)"}
