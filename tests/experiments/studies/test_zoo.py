"""The zoo: faults are what they say, and a few of every kind are found, explained and mended."""

import re
from dataclasses import replace

import pytest
import torch

from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.diagnosis import examine, weights_of
from rankscope.experiments.diagnosis._answers import explain
from rankscope.experiments.studies import zoo

FEW = zoo.Config(
    families=("bert", "gpt2"),
    faults=("logits × 400", "MLP output zero", "equal word embeddings"),
    every=1,
    layers=4,
    texts=6,
)


def test_faults_are_found_explained_and_mended_and_healthy_models_left_alone() -> None:
    measured = zoo.measure(FEW, kit.silent)
    answer = zoo.judge(FEW, measured)
    figures = answer.key_figures
    assert [figures[name] for name in list(figures)[:3]] == [1.0, 1.0, 1.0]
    assert figures["false alarms"] == 0.0
    assert len(answer.listings[0].rows) == 6
    assert {*measured.table["metric"]} == {metric.name for metric in zoo.ENTRY.metrics}


def test_a_fault_changes_what_it_names_and_nothing_else() -> None:
    subject = zoo.subject_of(zoo.make_model("gpt2", 4, 0), FEW)
    before = {(w.layer, w.role): w.value.clone() for w in weights_of(subject.network)}
    changed = zoo.break_model(subject, zoo.FAULTS["values zero"], 2, 0)
    assert changed is not None
    assert changed[0][0] == "transformer.h.1.attn.c_attn.weight"
    after = {(w.layer, w.role): w.value for w in weights_of(subject.network)}
    differ = {key for key in before if not torch.equal(before[key], after[key])}
    assert differ == {(2, "value"), (2, "value bias"), (2, "output bias")}
    assert not after[2, "value"].any()


def sentences_of(text: str) -> list[str]:
    """The sentences of a text; paths of weights, in backticks, have points of their own."""
    return re.findall(r"[^ ].*?[.](?= |$)", re.sub(r"`[^`]*`", "path", text))


@pytest.mark.parametrize("fault", zoo.FAULTS)
def test_what_is_said_of_a_fault_is_at_most_three_sentences(fault: str) -> None:
    layer = 0 if zoo.FAULTS[fault].embeddings else 2
    cases = (zoo.look(replace(FEW, texts=4), family, fault, 0, layer) for family in FEW.families)
    case = next(case for case in cases if case is not None)
    for finding in case.mended.findings:
        explained = explain(finding, case.mended)
        assert 1 <= len(sentences_of(finding.sentence)) <= 3, finding.sentence
        for text in (finding.sentence, explained.cause, explained.remedy):
            assert len(sentences_of(text)) <= 3, text
            assert not re.search(r"tensor|\w\(\w+=|None|nan\b|10\^[^ ]*e", text), text


def test_a_wrong_place_or_cause_does_not_count() -> None:
    case = zoo.look(FEW, "bert", "MLP output zero", 0, 2)
    assert case is not None
    assert case.place_right
    assert case.cause_right
    assert not replace(case, layer=3).place_right
    assert not replace(case, parts=("attention",)).place_right
    assert not replace(case, paths=("encoder.layer.0.output.dense.weight",)).cause_right
    assert not replace(case, fault="common direction").cause_right
    assert case.lost is not None
    assert case.half_restored
    assert not replace(case, healthy=case.healthy + 100).half_restored
    assert not replace(case, lost=None).half_restored


def test_unknown_faults_and_families_are_refused() -> None:
    with pytest.raises(InputError, match="there is no fault 'rust'"):
        list(zoo.cases(zoo.Config(faults=("rust",))))
    with pytest.raises(InputError, match="there is no family 'gpt5'"):
        zoo.make_model("gpt5", 2, 0)


def _column_first(value: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    return value[:1].expand_as(value).clone()


def _head_large(value: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    changed = value.clone()
    changed[:, : value.shape[1] // 4] *= 300
    return changed


HELD_OUT = {
    "q × 100": zoo.Fault({"query": lambda value, _: 100 * value}, ("size",)),
    "one value row for all": zoo.Fault({"value": _column_first}, ("directions",)),
    "one head × 300": zoo.Fault({"output": _head_large}, ("directions", "size")),
    "down × 300": zoo.Fault({"down": lambda value, _: 300 * value}, ("size",)),
    "down faint": zoo.Fault({"down": lambda value, _: 5e-4 * value}, ("size",)),
    "MLP's norm zero": zoo.Fault({"mlp gain": lambda value, _: 0 * value}, ("gain",)),
    "constant bias": zoo.Fault(
        {"down bias": lambda value, _: torch.full_like(value, 25.0)}, ("bias",)
    ),
}
"""Faults that are not in the zoo; rules and thresholds were chosen on others."""


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2"])
def test_faults_that_are_not_in_the_zoo(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = []
    for number, (name, fault) in enumerate(HELD_OUT.items()):
        monkeypatch.setitem(zoo.FAULTS, name, fault)
        cases.append(zoo.look(FEW, family, name, 30 + number, 1 + number % FEW.layers))
    known = [case for case in cases if case is not None]
    assert len(known) >= 6
    for share in ("place_right", "cause_right", "half_restored"):
        right = [getattr(case, share) for case in known]
        assert sum(right) >= 0.85 * len(right), (share, right)


def test_a_fault_of_every_layer_is_named_as_one() -> None:
    config = replace(FEW, layers=3)
    subject = zoo.subject_of(zoo.make_model("bert", 3, 5), config)
    assert subject.origin is not None
    for layer in (1, 2, 3):
        zoo.break_model(subject, zoo.FAULTS["MLP norm's gain × 0.001"], layer, 5)
    mended = examine(zoo.subject_of(subject.origin.model, config))
    assert mended.causes[0].layer == -1
    assert mended.causes[0].part == "norm"
    assert len(mended.causes[0].paths) == 3
    assert all(path.endswith("output.LayerNorm.weight") for path in mended.causes[0].paths)
