"""A run's table is the one that the question, the claim or the command line itself gives."""

import json
from dataclasses import asdict

import pytest
import torch
import transformers as hf
from polars.testing import assert_frame_equal

from rankscope import experiments, trace
from rankscope.ask import Sources, ask, model_subject, random_subject
from rankscope.cli import app
from rankscope.core.masks import as_mask
from rankscope.core.network import Init, Network, Spec
from rankscope.errors import RankscopeError
from rankscope.experiments.catalogue import CATALOGUE
from rankscope.models.text import embed, passages
from rankscope.run import execute, plan, read_grid

SHAPE = {"layers": 2, "heads": 2, "width": 8}
READ = {"samples": 2, "length": 9}


def one(content):
    """The table of a grid's only run."""
    (run,) = plan(read_grid(content)).runs
    return execute(run)


def subject(*parts, length=9, **spec):
    """A random network of SHAPE as its commands draw it, less some parts, on two passages."""
    described = Spec(**{**SHAPE, "norm_place": "post", "norm_eps": 1e-12, **spec})
    drawn = random_subject(described, passages()[:2], length=length, seed=1)
    return drawn.without(*parts)


def answer(id_, **fields):
    """The table of a question under a configuration of its own."""
    entry = CATALOGUE[id_]
    return entry.run(entry.configuration(**fields)).table


def test_a_run_is_a_network_drawn_from_the_seed_on_bundled_passages():
    content = {**SHAPE, **READ, "seed": 3, "norm": "rms", "mask": "causal", "metrics": ["residual"]}
    spec = Spec(2, 2, 8, norm="rms", norm_place="post", norm_eps=1e-12, mask="causal")
    x, token_mask = embed(passages()[:2], 8, length=9, seed=3)
    found = trace(Network.random(spec, seed=3), x, token_mask=token_mask, metrics=["residual"])
    assert_frame_equal(one(content), found.table)


SAN = ("skip", "mlp", "norm")
MASKS = ("full", "causal", "window:8", "causal-window:8", "strided:8", "bigbird:2:1:2")
FEW = {"draws": 1, "first_draws": 1, "candidates": 1, "confirmed": 1, "networks": 1}


def half_measured():
    """In float64, CLS and SEP left out, under a mask that is drawn."""
    spec = Spec(
        **SHAPE, norm_place="post", norm_eps=1e-12, init=0.1, mask=as_mask("random:2", seed=1)
    )
    read = {"length": 9, "seed": 1, "dtype": torch.float64, "special_tokens": False}
    return {"subject": random_subject(spec, passages()[:2], **read)}


CASES = {
    "trace": ({}, lambda: {"subject": subject()}),
    "trace, SAN": ({"variant": "SAN"}, lambda: {"subject": subject("mlp", "skip")}),
    "trace, float64": (
        {"dtype": "float64", "special_tokens": False, "init": 0.1, "mask": "random:2"},
        half_measured,
    ),
    "paths": ({"by_head": True}, lambda: {"subject": subject(), "by_head": True}),
    "deep": ({"in_norm": "fro"}, lambda: {"subject": subject(*SAN), "in_norm": "fro"}),
    "bounds": ({}, lambda: {"subject": subject(*SAN)}),
    "masks": (
        {"masks": ["full", "random:1"], "depth": 3},
        lambda: {
            "subject": subject(*SAN),
            "masks": (as_mask("full"), as_mask("random:1", seed=1)),
            "depth": 3,
        },
    ),
    "masks, as usual": (
        {},
        lambda: {
            "subject": subject(*SAN),
            "masks": tuple(as_mask(name, seed=1) for name in MASKS),
        },
    ),
    "predict": ({"draws": 2}, lambda: {"subject": subject(), "draws": 2}),
    "diagnose": (
        {"parts": "theorems", "layers": 1, "length": 5},
        lambda: {"subject": subject(layers=1, length=5), "parts": "theorems"},
    ),
    "advise": (
        {**FEW, "layers": 1, "length": 5},
        lambda: {"subject": subject(layers=1, length=5), **FEW, "draw_seed": 1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_of_a_question_is_what_the_question_gives(case):
    said, fields = CASES[case]
    id_ = case.partition(",")[0]
    expected = answer(id_, **fields())
    assert expected.height > 0
    assert_frame_equal(one({"experiment": id_, **READ, **SHAPE, "seed": 1, **said}), expected)


@pytest.mark.parametrize("id_", ["trace", "bounds", "predict", "advise"])
def test_what_is_not_said_is_as_on_the_command_line(id_, monkeypatch):
    """Of the subject alone: the network of BERT-base's shape would take long."""
    (run,) = plan(read_grid({"experiment": id_, **SHAPE})).runs
    asked = ask(CATALOGUE[id_], run.fields, Sources(run.folder)).configure().subject
    seen = []
    monkeypatch.setattr(
        "rankscope.cli.outputs.run", lambda _, config, *_more, **_options: seen.append(config)
    )
    shape = [f"--{name}={value}" for name, value in SHAPE.items()]
    app([id_, *shape], standalone_mode=False)
    (config,) = seen
    assert config.subject.digest() == asked.digest()
    assert config.subject.name == asked.name
    assert config.subject.about == asked.about


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
def test_a_run_of_a_model_is_what_the_question_gives(model, at_init):
    content = {"model": model, "at_init": at_init, **READ, "mask": "causal"}
    loaded = model_subject(model, at_init=at_init, samples=2, length=9)
    masked = loaded.with_network(loaded.network.with_mask("causal"))
    assert_frame_equal(one(content), answer("trace", subject=masked))


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
    with pytest.raises(RankscopeError, match="has changed; start the sweep again"):
        execute(run)


def test_a_run_comes_back_from_json_and_is_the_same():
    grid = {"heads": 2, "width": 8, "layers": 1, "init": {"kind": "lecun", "scale": "{scale}"}}
    (run,) = plan(read_grid({**grid, **READ, "axes": {"scale": [2]}})).runs
    back = type(run)(**json.loads(json.dumps(asdict(run))))
    assert back == run
    spec = Spec(1, 2, 8, norm_place="post", norm_eps=1e-12, init=Init("lecun", 2.0))
    x, token_mask = embed(passages()[:2], 8, length=9)
    found = trace(Network.random(spec), x, token_mask=token_mask)
    expected = found.table.filter(metric="residual")["value"]
    assert execute(back).filter(metric="residual")["value"].to_list() == expected.to_list()
