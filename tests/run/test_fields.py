"""Keys: what changes a number changes the key, and how it was written does not."""

import json
import subprocess
import sys
from dataclasses import fields, is_dataclass, replace

import pytest

from rankscope.ask import LEFT_OUT, run_key
from rankscope.core.network import SCORES, Network, Spec
from rankscope.errors import RankscopeError
from rankscope.experiments.catalogue import CATALOGUE, ENTRIES
from rankscope.experiments.variants import four_variants
from rankscope.run import Run, plan, read_grid

SMALL = {"layers": 2, "heads": 2, "width": 8}


def key(**content):
    (run,) = plan(read_grid({**SMALL, **content})).runs
    return run.key


@pytest.mark.parametrize(
    "written",
    [
        {"experiment": "trace"},
        {"kv_heads": 2},
        {"head_width": 4},
        {"mlp_ratio": 4},
        {"mlp_ratio": 4.0},
        {"norm": "layer", "norm_place": "post", "norm_eps": 1e-12},
        {"skip": True},
        {"skip": 1},
        {"attention_skip": 1, "mlp_skip": 1},
        {"mask": "full"},
        {"layer_masks": ["full", "full"]},
        {"init": "bert"},
        {"init": 0.02},
        {"init": {"kind": "normal", "scale": 0.02}},
        {"scores": "dot"},
        {"seed": 0, "samples": 32, "length": 128, "dtype": "float32", "device": "cpu"},
        {"metrics": ["relative_residual", "residual", "dispersion", "mean_cosine"]},
        {"variant": "transformer"},
        {"without": ""},
        {"without": []},
        {"special_tokens": True},
    ],
)
def test_what_comes_to_the_same_has_the_same_key(written):
    assert key(**written) == key()


def test_depth_is_layers():
    axes = [plan(read_grid({"axes": {name: [2, 3]}})).runs for name in ("depth", "layers")]
    assert [run.key for run in axes[0]] == [run.key for run in axes[1]]


CHANGES = [
    {},
    {"experiment": "paths"},
    {"experiment": "paths", "by_head": True},
    {"experiment": "paths", "count": "mlp"},
    {"experiment": "deep"},
    {"experiment": "deep", "in_norm": "fro"},
    {"experiment": "deep", "without": ""},
    {"experiment": "masks"},
    {"experiment": "masks", "depth": 5},
    {"experiment": "masks", "masks": ["random:2"]},
    {"experiment": "masks", "masks": ["random:2:1"]},
    {"experiment": "predict"},
    {"experiment": "predict", "draws": 3},
    {"experiment": "predict", "draw_seed": 3},
    {"experiment": "diagnose"},
    {"experiment": "diagnose", "parts": "theorems"},
    {"experiment": "bounds"},
    {"layers": 3},
    {"heads": 1},
    {"kv_heads": 1},
    {"width": 16},
    {"activation": "relu"},
    {"gated": True},
    {"mlp_as": "identity"},
    {"mlp_as": "activation"},
    {"removed_heads": [[0, 1]]},
    {"norm": "rms"},
    {"norm_place": "pre"},
    {"norm_eps": 1e-5},
    {"parallel": True},
    {"skip": 0.5},
    {"attention_skip": 0.5},
    {"mask": "causal"},
    {"mask": "random:2"},
    {"mask": "random:2", "seed": 1},
    {"layer_masks": ["full", "causal"]},
    {"bias": False},
    {"shared_layers": True},
    {"centered": True},
    {"scores": "rotary"},
    {"scores": {"kind": "rotary", "base": 100}},
    {"scores": "RelativeBias"},
    {"score_scale": 2},
    {"init": "lecun"},
    {"init": {"kind": "lecun", "scale": 2}},
    {"metrics": ["residual"]},
    {"metrics": ["mean_cosine", "residual"]},
    {"seed": 1},
    {"samples": 3},
    {"length": 7},
    {"dtype": "float64"},
    {"device": "cuda"},
    {"special_tokens": False},
    {"text": {"sentences": ["A rose is a rose."]}},
    {"text": {"sentences": ["A rose is no rose."]}},
    {"without": "mlp"},
    {"variant": "SAN"},
]  # fmt: skip


def test_every_change_of_a_number_is_another_key():
    keys = {key(**change): change for change in CHANGES}
    assert len(keys) == len(CHANGES)


def test_a_key_is_the_same_in_another_process_and_order():
    content = {"axes": {"seed": [0, 1], "heads": [1, 2]}, "width": 8, "layers": 1, "skip": 0.5}
    other = {"skip": 0.5, "layers": 1, "axes": {"heads": [2, 1], "seed": [1, 0]}, "width": 8}
    here = {run.key for run in plan(read_grid(content)).runs}
    code = (
        "import json, sys; from rankscope.run import plan, read_grid\n"
        "print(json.dumps([vars(r) for r in plan(read_grid(json.loads(sys.argv[1]))).runs]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(other)],
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    there = [Run(**each) for each in json.loads(done.stdout)]
    assert {run.key for run in there} == here
    assert there[0].axes == {"heads": 2, "seed": 1}


def test_the_version_is_in_the_key(monkeypatch):
    before = key()
    monkeypatch.setattr("rankscope.ask._asked.__version__", "99.0")
    assert key() != before


def test_a_key_follows_the_words_of_a_text_and_not_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("A rose.\n\nIs a rose.")
    (tmp_path / "b.txt").write_text("A\nrose.\n\n\nIs a rose.\n")
    assert key(text="a.txt") == key(text="b.txt")
    assert key(text="a.txt", samples=1) != key(text="a.txt")
    before = key(text="a.txt")
    (tmp_path / "a.txt").write_text("A rose.\n\nIs no rose.")
    assert key(text="a.txt") != before
    with pytest.raises(RankscopeError, match=r"c\.txt: the file does not exist"):
        key(text="c.txt")


def test_a_key_follows_the_files_of_a_tokeniser_and_what_is_said_of_an_unknown_network(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.txt").write_text(name)
    folders = [str(tmp_path / name) for name in ("one", "two")]
    grid = {"model": "someone/something", "axes": {"tokenizer": folders}}
    assert plan(read_grid(grid)).merged == 0
    grid = {"model": "someone/something", "experiment": "masks"}
    keys = {run.key for more in ({}, {"depth": 1}, {"depth": 2}, {"model": "someone/other"})
            for run in plan(read_grid({**grid, **more})).runs}  # fmt: skip
    assert len(keys) == 4


def test_a_key_follows_the_files_of_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one/m", "two/m"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "weights").write_text("1")
    grid = {"axes": {"model": ["one/m", "two/m"]}, "seed": 0}
    assert plan(read_grid(grid)).merged == 1
    (tmp_path / "two/m/weights").write_text("2")
    assert plan(read_grid(grid)).merged == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"variant": "SAN", "without": "mlp"}, "give one of them"),
        ({"variant": "BERT"}, "choose one of SAN, SAN+MLP, SAN+skip, transformer"),
        ({"without": "head"}, "'head' is not a part of a network"),
        ({"at_init": True}, "at_init needs a model"),
        ({"model": "./none"}, "the folder ./none does not exist"),
        ({"model": "bert-base", "at_init": True}, "layers describes a random network"),
        ({"device": "warp"}, "device='warp' is unknown; choose auto, cpu"),
        ({"length": 2}, "length=2 is out of range"),
        ({"samples": 0}, "samples=0 is out of range"),
        ({"dtype": "int8"}, "expected one of float32"),
        ({"text": {"sentences": []}}, "text.sentences: got []"),
        ({"text": {"sentence": []}}, "text.sentence is unknown"),
        ({"experiment": "deep", "norm": "rms"}, 'add without = "" to keep every part'),
        ({"experiment": "bounds", "special_tokens": False}, "special_tokens=False is not avail"),
        ({"metrics": ["dobrushin"], "special_tokens": False}, "between all tokens (dobrushin)"),
        ({"experiment": "paths", "dtype": "float16"}, "sums over many paths mean nothing"),
        ({"experiment": "masks", "mask": "causal"}, "this question compares those in masks"),
        ({"experiment": "predict", "draws": 0}, "draws=0 is out of range"),
        ({"experiment": "D2", "heads": [0.5]}, "heads[0]=0.5 is a float"),
        ({"experiment": "D2", "heads": [1], "scale": "tiny"}, "expected one of quick, paper"),
        ({"experiment": "advise", "draws": 1001}, "draws=1001 is out of range"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_before_anything_runs(content, said):
    with pytest.raises(RankscopeError) as found:
        key(**content)
    assert said in str(found.value)


def test_a_built_in_model_needs_weights():
    grid = {"axes": {"model": ["bert-base"], "at_init": [True, False]}}
    with pytest.raises(RankscopeError, match=r"at_init=False\): .*add at_init = true"):
        plan(read_grid(grid))


def as_written(value):
    """A value of a configuration as one would write it in a grid."""
    names = {entry.kind: entry.words for entry in SCORES.values() if entry.kind}
    if isinstance(value, tuple):
        return [as_written(each) for each in value]
    if is_dataclass(value):
        kind = {"kind": names[type(value)]} if type(value) in names else {}
        held = {each.name: getattr(value, each.name) for each in fields(value)}
        return {**kind, **{n: as_written(v) for n, v in held.items() if v is not None}}
    return value


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.kind != "question"], ids=lambda e: e.id)
def test_every_field_of_every_claim_and_study_can_be_written(entry):
    config = entry.configuration()
    said = {each.name: getattr(config, each.name) for each in fields(config)}
    trained = any(case.trained_here for case in said.get("models", ()))
    written = {
        name: as_written(value)
        for name, value in said.items()
        if value is not None and not (trained and name == "models")
    }
    (plain_run,) = plan(read_grid({"experiment": entry.id})).runs
    (run,) = plan(read_grid({"experiment": entry.id.lower(), **written})).runs
    assert run.key == plain_run.key
    assert run.experiment == entry.id
    changed = {"seed": 7} if "seed" in said else {}
    (other,) = plan(read_grid({"experiment": entry.id, **changed})).runs
    assert other.key != run.key


def test_a_table_changes_one_field_of_a_record_and_keeps_the_others():
    usual = CATALOGUE["D7"].configuration()
    wider = CATALOGUE["D7"].configuration(sorting=replace(usual.sorting, width=24))
    (run,) = plan(read_grid({"experiment": "D7", "sorting": {"width": 24}})).runs
    assert run.key == run_key("D7", wider.describe()) != run_key("D7", usual.describe())


def test_a_variant_lacks_what_the_2021_paper_takes_away():
    net = Network.random(Spec(2, 2, 8))
    for name, found in four_variants(net).items():
        assert net.without(*LEFT_OUT[name]).spec == found.spec
