"""Folders of training runs: the latest checkpoint, or ``@step``."""

import json
from pathlib import Path

import pytest
import torch

from rankscope.ask import Model, Setup, ask
from rankscope.ask._sources import Sources
from rankscope.errors import SourceError
from rankscope.experiments import CATALOGUE
from rankscope.experiments.questions.compare import compare, compared_models
from rankscope.models.checkpoints import resolve_checkpoint, step_of
from rankscope.models.families import load

STEPS = (90, 500, 1000)


@pytest.fixture
def run(make, tmp_path: Path) -> Path:
    """The steps' weights differ by their seeds; by name, checkpoint-90 is the last."""
    for step in STEPS:
        make("bert", seed=step).save_pretrained(tmp_path / "run" / f"checkpoint-{step}")
    return tmp_path / "run"


def has_weights_of(model, other) -> bool:
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return all(torch.equal(one, two) for one, two in pairs)


def test_a_run_is_its_latest_checkpoint_and_a_step_is_chosen(run: Path, make) -> None:
    latest = load(run)
    assert latest.name == str(run / "checkpoint-1000")
    assert has_weights_of(latest.original, make("bert", seed=1000))
    for step in STEPS:
        assert has_weights_of(load(f"{run}@{step}").original, make("bert", seed=step))
    assert load(run, at_init=True).network.seed == 0


def test_a_folder_with_its_own_model_stands_for_that(run: Path, make) -> None:
    make("bert", seed=7).save_pretrained(run)
    assert has_weights_of(load(run).original, make("bert", seed=7))
    assert has_weights_of(load(f"{run}@90").original, make("bert", seed=90))


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("step_500", 500),
        ("step-500", 500),
        ("step500", 500),
        ("step500-tokens2B", 500),
        ("checkpoint-best", None),
        ("tmp-checkpoint-500", None),
        ("checkpoint-500-old", None),
        ("checkpoint-" + "9" * 5000, None),
    ],
)
def test_steps_are_read_from_names(name: str, step: int | None) -> None:
    assert step_of(Path("run", name)) == step


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("run@7", r"run has no step '7'; its steps are 90, 500, 1000\."),
        ("run@best", r"run has no step 'best'; its steps are 90, 500, 1000\."),
        ("run@", "run has no step ''"),
        ("run@-90", "has no step '-90'"),
        ("run@" + "9" * 100, "its steps are 90, 500, 1000"),
        ("run@init", "only compare reads @init; elsewhere give .*at_init=True"),
        ("run/checkpoint-90@5", "checkpoint-90 has no checkpoints"),
        ("a/b/nowhere@5", "there is no folder a/b/nowhere, so there is no step 5"),
    ],
)
def test_unknown_steps_are_one_sentence(
    run: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    monkeypatch.chdir(run.parent)
    for reads in (load, Sources().locate, resolve_checkpoint):
        with pytest.raises(SourceError, match=says) as caught:
            reads(name)
        assert len(str(caught.value).splitlines()) == 1


def test_other_names_are_left_as_they_are(run: Path, make, monkeypatch) -> None:
    monkeypatch.chdir(run.parent)
    for name in ("bert-base", "org/model", "org/model@500", "@5", "", "a" * 5000, "~nobody/x"):
        assert resolve_checkpoint(name) == name
    make("bert", seed=3).save_pretrained("run@90")  # a folder of that name comes first
    assert has_weights_of(load("run@90").original, make("bert", seed=3))
    with pytest.raises(SourceError, match="home directory"):
        load("~nobody-of-this-name/model")


def test_one_step_in_two_folders_is_ambiguous(run: Path) -> None:
    (run / "step_1000").mkdir()
    for name in (f"{run}@1000", str(run)):
        with pytest.raises(SourceError, match="has step 1000 twice, checkpoint-1000 and step_1000"):
            load(name)
    assert load(f"{run}@500").name.endswith("checkpoint-500")


def test_links_and_files_among_checkpoints(run: Path) -> None:
    (run / "checkpoint-7").write_text("a file")
    (run / "checkpoint-3000").symlink_to(run / "checkpoint-3000")  # a loop
    (run / "checkpoint-2000").symlink_to(run / "checkpoint-90")
    assert load(run).name == str(run / "checkpoint-2000")


def test_a_tokeniser_beside_the_checkpoints_is_theirs(minilm: Path, run: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (run / name).write_bytes((minilm / name).read_bytes())
    assert load(f"{run}@90").tokenizer is not None
    assert load(run, at_init=True).tokenizer is not None


def test_compare_takes_steps_as_it_takes_folders(run: Path) -> None:
    names = [f"{run}@1000", f"{run}@90", f"{run}@init"]
    found = compared_models(names)
    assert [(model.label, model.step, model.at_init) for model in found] == [
        ("checkpoint-90", 90, False),
        ("checkpoint-1000", 1000, False),
        ("run at initialisation", None, True),
    ]
    assert {model.training for model in found[:2]} == {str(run.resolve())}
    assert [model.step for model in compared_models([run])] == list(STEPS)
    result = compare(names, [[1, 2, 3, 4, 5]])
    assert "From checkpoint-90 to checkpoint-1000" in result.sentences[-1]


def test_sweeps_find_steps_relative_to_their_file(run: Path) -> None:
    sources = Sources(str(run.parent))
    assert sources.locate("run@90") == str(run / "checkpoint-90")
    assert sources.locate("run") == str(run / "checkpoint-1000")
    assert sources.locate("run", latest=False) == str(run)
    assert sources.locate("bert-base") == "bert-base"


def test_a_comparison_in_a_sweep_finds_steps(run: Path) -> None:
    names = ["run@90", "run@500", "run@init", "run@90@init"]
    compared = ask(CATALOGUE["compare"], {"models": names}, Sources(str(run.parent)))
    assert [(model.step, model.at_init) for model in compared.configure().models] == [
        (90, False),
        (500, False),
        (None, True),
        (None, True),
    ]


def test_a_tokeniser_in_the_folder_of_a_run_is_not_looked_for_in_a_checkpoint(run: Path) -> None:
    setup = Setup.of({"model": str(run), "tokenizer": str(run)})
    assert setup.location == str(run / "checkpoint-1000")
    assert setup._tokenizer == str(run)


def test_a_run_that_goes_on_is_another_model(run: Path, make) -> None:
    before = [Model(str(run)).describe(), Sources().contents(Sources().locate(str(run)))]
    make("bert", seed=4).save_pretrained(run / "checkpoint-2000")
    after = [Model(str(run)).describe(), Sources().contents(Sources().locate(str(run)))]
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert Model(f"{run}@90").describe() == Model(f"{run}@90").describe()


def test_a_checkpoint_without_configuration_is_one_sentence(run: Path) -> None:
    (run / "checkpoint-5000").mkdir()
    with pytest.raises(SourceError, match=r"checkpoint-5000 holds no config\.json"):
        load(run)
    (run / "checkpoint-5000" / "config.json").write_text(json.dumps({"a": "b"}))
    with pytest.raises(SourceError, match="names no model_type"):
        load(run)
