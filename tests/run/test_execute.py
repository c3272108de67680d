"""A run's table is the one that the question, the claim or the command line itself gives."""

import json

import pytest
import torch
import transformers as hf
from polars.testing import assert_frame_equal

from rankscope import experiments, trace
from rankscope.cli import inputs
from rankscope.cli.options import (
    AdviceOptions,
    DepthOptions,
    DiagnosisOptions,
    PredictionOptions,
    QuestionOptions,
)
from rankscope.core.masks import as_mask
from rankscope.core.network import Init, Network, Spec
from rankscope.errors import RankscopeError
from rankscope.experiments.catalogue import CATALOGUE
from rankscope.experiments.variants import Reading
from rankscope.models.text import embed, passages
from rankscope.run import _plan, _sources, execute, plan, read_grid

SHAPE = {"layers": 2, "heads": 2, "width": 8}
READ = {"passages": 2, "length": 9}


def one(content):
    """The table of a grid's only run."""
    (run,) = plan(read_grid(content)).runs
    return execute(run)


def question(id_, options, *, without="", **fields):
    """The table that a command of the command line makes of its options."""
    subject = inputs.subject(options, without=without, unfit=True)
    entry = CATALOGUE[id_]
    return entry.run(entry.configuration(subject=subject, **fields)).table


def test_a_run_is_a_network_drawn_from_the_seed_on_bundled_passages():
    content = {**SHAPE, **READ, "seed": 3, "norm": "rms", "mask": "causal", "metrics": ["residual"]}
    spec = Spec(2, 2, 8, norm="rms", norm_place="post", norm_eps=1e-12, mask="causal")
    x, token_mask = embed(passages()[:2], 8, length=9, seed=3)
    found = trace(Network.random(spec, seed=3), x, token_mask=token_mask, metrics=["residual"])
    assert_frame_equal(one(content), found.table)


CASES = {
    "trace": ({}, {}, QuestionOptions, {}),
    "trace, SAN": ({"variant": "SAN"}, {}, QuestionOptions, {"without": "mlp,skip"}),
    "trace, float64": (
        {"dtype": "float64", "special_tokens": False, "init": 0.1, "mask": "random:2"},
        {"dtype": "float64", "special_tokens": False, "init": "0.1", "mask": "random:2"},
        QuestionOptions,
        {},
    ),
    "paths": ({"by_head": True}, {}, QuestionOptions, {"heads": True}),
    "deep": ({"in_norm": "fro"}, {}, DepthOptions, {"without": "skip,mlp,norm", "norm": "fro"}),
    "bounds": ({}, {}, DepthOptions, {"without": "skip,mlp,norm"}),
    "masks": (
        {"masks": ["full", "random:1"], "depth": 3},
        {},
        DepthOptions,
        {
            "without": "skip,mlp,norm",
            "masks": (as_mask("full"), as_mask("random:1", seed=1)),
            "depth": 3,
        },
    ),
    "masks, as usual": (
        {},
        {},
        DepthOptions,
        {
            "without": "skip,mlp,norm",
            "masks": inputs.masks(
                ["full", "causal", "window:8", "causal-window:8", "strided:8", "bigbird:2:1:2"], 1
            ),
        },
    ),
    "predict": ({"draws": 2}, {}, PredictionOptions, {"draws": 2}),
    "diagnose": (
        {"reading": {"norms": "drop"}},
        {},
        DiagnosisOptions,
        {"reading": Reading(norms="drop")},
    ),
    "advise": (
        {"draws": 1, "first_draws": 1, "candidates": 1, "confirmed": 1, "networks": 1},
        {},
        AdviceOptions,
        {"draws": 1, "first_draws": 1, "candidates": 1, "confirmed": 1, "networks": 1, "seed": 1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_of_a_question_is_what_its_command_gives(case):
    said, chosen, group, fields = CASES[case]
    id_ = case.partition(",")[0]
    shape = {**SHAPE, "layers": 1, "length": 5} if id_ in ("diagnose", "advise") else SHAPE
    content = {"experiment": id_, **READ, **shape, "seed": 1, **said}
    expected = question(id_, group(**{**READ, **shape}, seed=1, **chosen), **fields)
    assert expected.height > 0
    assert_frame_equal(one(content), expected)


@pytest.mark.parametrize(
    ("id_", "group"),
    [("trace", QuestionOptions), ("bounds", DepthOptions), ("predict", PredictionOptions)],
)
def test_what_is_not_said_is_as_on_the_command_line(id_, group):
    """Of the subject alone: the network of BERT-base's shape would take long."""
    (run,) = plan(read_grid({"experiment": id_, **SHAPE})).runs
    options = group(**SHAPE)
    without = getattr(options, "without", "")
    subject = inputs.subject(options, without=without)
    asked = _plan.ask(CATALOGUE[id_], run.fields, _sources.Sources(run.folder)).configure().subject
    assert asked.digest() == subject.digest()
    assert asked.name == subject.name
    said = {name: words for name, words in subject.about.items() if name != "without"}
    assert {name: asked.about[name] for name in said} == {**said, "init": asked.about["init"]}


def test_a_claim_is_run_under_its_configuration():
    sizes = {"layers": 2, "width": 8, "tokens": 4, "samples": 1, "heads": [1], "scales": [2]}
    expected = experiments.run("D2", **{**sizes, "heads": (1,), "scales": (2.0,)})
    assert_frame_equal(one({"experiment": "D2", **sizes}), expected.table)


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A folder with a tiny model and its tokeniser, beside the grid."""
    monkeypatch.chdir(tmp_path)
    words = sorted({word for text in passages() for word in text.lower().split()})
    (tmp_path / "words.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]))
    config = hf.BertConfig(
        vocab_size=len(words) + 4,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=20,
    )
    torch.manual_seed(0)
    hf.BertModel(config).save_pretrained(tmp_path / "mini")
    hf.BertTokenizer(str(tmp_path / "words.txt")).save_pretrained(tmp_path / "mini")
    return "mini"


@pytest.mark.parametrize("at_init", [False, True])
def test_a_run_of_a_model_is_what_the_command_gives(model, at_init):
    content = {"model": model, "at_init": at_init, **READ, "mask": "causal"}
    given = frozenset({"length"})
    options = QuestionOptions(model=model, at_init=at_init, **READ, mask="causal", given=given)
    assert_frame_equal(one(content), question("trace", options))


def test_a_comparison_is_of_the_models_beside_the_grid(model, tmp_path, monkeypatch):
    content = {"experiment": "compare", "models": [model, "mini@init"], "samples": 2, "length": 9}
    (run,) = plan(read_grid(content)).runs
    monkeypatch.chdir(tmp_path.parent)
    folder = str(tmp_path / model)
    expected = experiments.compare([folder, f"{folder}@init"], samples=2, length=9)
    assert_frame_equal(execute(run), expected.table)


def test_a_text_that_was_edited_since_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rose.txt").write_text("A rose is a rose.")
    (run,) = plan(read_grid({**SHAPE, "text": "rose.txt"})).runs
    other = tmp_path / "elsewhere"
    other.mkdir()
    monkeypatch.chdir(other)  # a run knows what its paths are relative to
    assert execute(run).height > 0
    (tmp_path / "rose.txt").write_text("A rose is no rose.")
    with pytest.raises(RankscopeError, match="has changed since; start the sweep again"):
        execute(run)


def test_a_run_comes_back_from_json_and_is_the_same():
    grid = {"heads": 2, "width": 8, "layers": 1, "init": {"kind": "lecun", "scale": "{scale}"}}
    (run,) = plan(read_grid({**grid, **READ, "axes": {"scale": [2]}})).runs
    back = type(run).from_json(json.loads(json.dumps(run.to_json())))
    assert back == run
    spec = Spec(1, 2, 8, norm_place="post", norm_eps=1e-12, init=Init("lecun", 2.0))
    x, token_mask = embed(passages()[:2], 8, length=9)
    found = trace(Network.random(spec), x, token_mask=token_mask)
    expected = found.table.filter(metric="residual")["value"]
    assert execute(back).filter(metric="residual")["value"].to_list() == expected.to_list()
