"""What is named, and which models it stands for in a comparison."""

from pathlib import Path

import pytest
import torch

from rankscope import Network, Spec
from rankscope.ask import Subject
from rankscope.errors import InputError
from rankscope.experiments.questions.compare import compared_models


def made(folder: Path, *steps: int) -> str:
    for step in steps:
        (folder / f"checkpoint-{step}").mkdir(parents=True)
    return str(folder)


def test_a_training_stands_for_its_checkpoints_in_order(tmp_path: Path) -> None:
    run = made(tmp_path / "run", 1000, 200, 30)
    (tmp_path / "run" / "checkpoint-best").mkdir()
    (tmp_path / "run" / "checkpoint-7").write_text("a file")
    found = compared_models([run])
    assert [each.label for each in found] == ["checkpoint-30", "checkpoint-200", "checkpoint-1000"]
    assert [each.step for each in found] == [30, 200, 1000]
    (tmp_path / "run" / "config.json").write_text("{}")
    assert compared_models([run])[-1].label == "run, final"
    assert compared_models([run])[-1].source == run


def test_what_a_shell_sorts_by_name_is_sorted_by_step(tmp_path: Path) -> None:
    run = made(tmp_path / "run", 9, 10, 100)
    written = ["else", *(f"{run}/checkpoint-{step}" for step in (10, 100, 9))]
    assert [each.label for each in compared_models(written)] == [
        "else",
        "checkpoint-9",
        "checkpoint-10",
        "checkpoint-100",
    ]


def test_two_trainings_are_told_apart(tmp_path: Path) -> None:
    runs = [made(tmp_path / name, 1, 2) for name in ("a", "b")]
    names = [each.label for each in compared_models(runs)]
    assert names == ["a/checkpoint-1", "a/checkpoint-2", "b/checkpoint-1", "b/checkpoint-2"]


def test_built_in() -> None:
    first, second = compared_models(["org/mini", "org/mini@init"])
    assert (first.source, first.at_init) == ("org/mini", False)
    assert (second.source, second.at_init) == ("org/mini", True)
    assert second.label == "mini at initialisation"


def test_labels() -> None:
    assert [each.label for each in compared_models(["a/m", "b/m", "c/m"])] == ["m", "m 2", "m 3"]
    assert [each.label for each in compared_models({"mine": "a/m", "yours": "b/m@init"})] == [
        "mine",
        "yours",
    ]


def test_other_weights_are_another_model() -> None:
    x = torch.ones(1, 2, 8)
    nets = [Network.random(Spec(1, 2, 8), seed=seed) for seed in (0, 0, 1)]
    same, again, other = (compared_models([net, Subject(net, x)]) for net in nets)
    for place in (0, 1):
        assert same[place].describe() == again[place].describe() != other[place].describe()


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ([], "nothing to compare"),
        (["a"], "cannot be compared"),
        (["a", "b.parquet"], "does not exist"),
    ],
)
def test_what_cannot_be_compared_is_refused(named: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        compared_models(named)
