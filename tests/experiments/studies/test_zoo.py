"""The zoo: faults are what they say, and a few of every kind are found, explained and mended."""

from dataclasses import replace

import pytest
import torch

from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.diagnosis import weights_of
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


def test_a_wrong_place_or_cause_does_not_count() -> None:
    case = zoo.look(FEW, "bert", "MLP output zero", 0, 2)
    assert case is not None
    assert case.place_right
    assert case.cause_right
    assert not replace(case, layer=3).place_right
    assert not replace(case, parts=("attention",)).place_right
    assert not replace(case, paths=("encoder.layer.0.output.dense.weight",)).cause_right
    assert not replace(case, fault="common direction").cause_right
    assert case.healthy is not None
    assert not replace(case, healthy=case.healthy + 100).half_restored


def test_unknown_faults_and_families_are_refused() -> None:
    with pytest.raises(InputError, match="there is no fault 'rust'"):
        list(zoo.cases(zoo.Config(faults=("rust",))))
    with pytest.raises(InputError, match="there is no family 'gpt5'"):
        zoo.make_model("gpt5", 2, 0)
