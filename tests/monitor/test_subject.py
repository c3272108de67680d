"""The models and probes that a monitor takes, what it finds out about them, and what it refuses."""

import math

import numpy as np
import pytest
import torch
import transformers as hf
from torch import nn

import rankscope
from rankscope import Monitor, Network, Spec
from rankscope.errors import InputError, RankscopeError

from .tiny import VOCABULARY, Written, fresh, ids, lively, padded


@pytest.fixture
def net():
    return Network.random(Spec(2, 2, 8), seed=0)


@pytest.fixture
def probe():
    return torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))


# Facts.


def test_facts_of_a_fresh_classifier(tmp_path):
    config = hf.BertConfig(
        vocab_size=VOCABULARY, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=40, num_labels=3, max_position_embeddings=64,
    )  # fmt: skip
    model = hf.BertForSequenceClassification(config)
    batch = padded()
    facts = Monitor(model, batch, folder=tmp_path / "run").history.facts
    lengths = batch["attention_mask"].sum(-1)
    assert facts["classes"] == 3
    assert facts["untrained"] == 1
    assert facts["tokens"] == int(lengths.float().quantile(0.5))
    assert (facts["samples"], facts["layers"], facts["experts"]) == (4, 2, None)
    assert facts["even_entropy"] == pytest.approx(float(np.median(np.log(lengths.numpy()))))
    assert (facts["mode"], facts["precision"]) == ("evaluation", "float32")
    assert facts["about pooled"] == "mean of its tokens"


def test_facts_of_a_causal_mixture(tmp_path):
    model = fresh("gpt-oss")
    facts = Monitor(model, ids(4, 8), folder=tmp_path / "run").history.facts
    assert (facts["classes"], facts["experts"], facts["untrained"]) == (VOCABULARY, 5, 1)
    # full layers see 1, 2, … tokens
    assert facts["even_entropy"] == pytest.approx(np.log(np.arange(1, 9)).mean())
    assert facts["about pooled"] == "last token"


def test_trained_weights_are_told_from_drawn_ones(tmp_path):
    model = fresh("llama")
    with torch.no_grad():
        model.model.layers[0].input_layernorm.weight[0] += 0.01
    assert Monitor(model, ids(), folder=tmp_path / "a").history.facts["untrained"] == 0
    assert Monitor(Written(), ids(), folder=tmp_path / "b").history.facts["untrained"] == 1
    named = Monitor(model, ids(), folder=tmp_path / "c", untrained=True, classes=7).history.facts
    assert (named["untrained"], named["classes"]) == (1, 7)


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2", "gemma3"])
def test_fresh_models_lie_near_their_prediction(name, tmp_path):
    monitor = Monitor(fresh(name), ids(6, 12), folder=tmp_path / "run", predict=True)
    ratios = {
        (row["metric"], row["layer"]): row["value"]
        for row in monitor.table.iter_rows(named=True)
        if row["metric"].endswith("/vs_predicted") and "cosine" not in row["metric"]
    }
    assert {metric for metric, _ in ratios} == {
        f"{metric}/vs_predicted"
        for metric in ("rank/residual", "rank/effective_rank", "attention/entropy")
    }
    assert ratios == pytest.approx(dict.fromkeys(ratios, 1.0), abs=0.1)
    assert not monitor.alarms


def test_a_design_that_is_not_known_says_so(tmp_path):
    monitor = Monitor(Written(), ids(), folder=tmp_path / "run")
    assert monitor.history.predicted == {}
    assert "known" in monitor.history.facts["about prediction"]


# Kinds of probes and models.


class Tokenizer:
    """Words of fixed ids, as a tokenizer of Transformers is called."""

    model_max_length = 6

    def __call__(self, texts, truncation, max_length):
        assert truncation
        return {
            "input_ids": [[3 + len(word) for word in text.split()][:max_length] for text in texts]
        }


TEXTS = ["a bb ccc dddd", "ccc bb", "ccc a bb a bb a bb a"]
ROWS = [[4, 5, 6, 7], [6, 5], [6, 4, 5, 4, 5, 4]]


def test_texts_rows_and_batches_are_the_same_probe(tmp_path):
    model = lively("llama")
    mask = torch.tensor([[1] * len(row) + [0] * (6 - len(row)) for row in ROWS])
    batch = torch.tensor([row + [0] * (6 - len(row)) for row in ROWS])
    inputs = {"input_ids": batch, "attention_mask": mask}
    labels = torch.zeros_like(batch)
    probes = {
        "texts": TEXTS,
        "rows": ROWS,
        "batch": inputs,
        "labels": {**inputs, "labels": labels},
        "encoding": hf.BatchEncoding(inputs),
        "lists": {name: part.tolist() for name, part in inputs.items()},
        "tuple": (batch, mask),
    }
    values = {}
    for name, probe in probes.items():
        tokenizer = Tokenizer() if name == "texts" else None
        monitor = Monitor(model, probe, tokenizer=tokenizer, folder=tmp_path / name, predict=False)
        values[name] = dict(monitor.history.last.values)
        assert monitor.history.facts["tokens"] == 4
    for name in probes:
        assert values[name] == pytest.approx(values["batch"], rel=1e-5), name


def test_a_probe_of_one_text(tmp_path):
    monitor = Monitor(lively("llama"), TEXTS[0], tokenizer=Tokenizer(), folder=tmp_path / "run")
    assert monitor.history.facts["samples"] == 1
    assert not any(name.startswith("pooled/") for name, _ in monitor.history.last.values)


def test_a_loaded_model(tmp_path):
    model = fresh("bert")
    model.save_pretrained(tmp_path / "model")
    loaded = rankscope.load(str(tmp_path / "model"))
    monitor = Monitor(loaded, ROWS, folder=tmp_path / "run", predict=False)
    plain = Monitor(model, ROWS, folder=tmp_path / "plain", predict=False)
    assert monitor.history.last.values == pytest.approx(plain.history.last.values, rel=1e-5)


def test_lora(tmp_path):
    import peft

    model = fresh("llama")
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "v_proj"]))
    optimizer = torch.optim.SGD(adapted.parameters(), lr=1.0)
    batch = ids()
    with Monitor(adapted, batch, every=1, folder=tmp_path / "run") as monitor:
        adapted(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step()
        adapted(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        monitor.step()
    assert monitor.history.facts["classes"] == VOCABULARY
    values = monitor.history.last.values
    assert values["rank/residual", 2] != monitor.history.baseline.values["rank/residual", 2]
    assert any(name == "update/ratio" for name, _ in values)
    assert "are known alone" in monitor.history.facts["about prediction"]


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*[Qq]uantiz:UserWarning")
def test_quantised_weights(tmp_path):
    model = fresh("llama")
    plain = Monitor(model, ids(), folder=tmp_path / "plain", predict=False).history.last.values
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    assert type(quantised.model.layers[0].mlp.up_proj) is not nn.Linear
    with Monitor(quantised, ids(), every=1, folder=tmp_path / "run") as monitor:
        monitor.step()
    values = dict(monitor.history.last.values)
    for place in (("rank/residual", 2), ("rank/effective_rank", 2), ("attention/entropy", 2)):
        assert values[place] == pytest.approx(plain[place], rel=0.05)
    assert "about prediction" in monitor.history.facts or monitor.history.predicted


def test_a_compiled_and_wrapped_model_is_the_same(tmp_path):
    model = lively("llama")
    values = [
        Monitor(form, padded(), folder=tmp_path / str(number), predict=False).history.last.values
        for number, form in enumerate(
            (model, torch.compile(model, backend="eager"), nn.DataParallel(model))
        )
    ]
    assert values[0] == values[1] == values[2]


# What is refused.


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x)


REFUSED = {
    "no module": (lambda: ("gpt2", ROWS), "got str, expected a torch.nn.Module"),
    "no model": (lambda: (None, ROWS), "expected a torch.nn.Module"),
    "no blocks": (lambda: (Bare(), torch.ones(2, 3, 8)), "blocks"),
    "no texts": (lambda: (lively("llama"), []), "got list, expected texts, token ids"),
    "no samples": (lambda: (lively("llama"), torch.ones(0, 4).long()), "it has no tokens"),
    "no tokens": (lambda: (lively("llama"), torch.ones(4, 0).long()), "it has no tokens"),
    "empty mapping": (lambda: (lively("llama"), {}), "the probe has nothing and no inputs"),
    "labels alone": (lambda: (lively("llama"), {"labels": ids()}), "has labels and no inputs"),
    "a number": (lambda: (lively("llama"), 7), "probe: got int"),
    "texts": (lambda: (lively("llama"), TEXTS), "need the tokenizer"),
    "an empty text": (lambda: (lively("llama"), [[3, 4], []]), "no token in sample .1."),
    "uneven lists": (lambda: (lively("llama"), {"input_ids": ROWS}), "different lengths"),
    "uneven rows": (lambda: (Written(), ROWS), "how this model takes padding"),
    "wrong width": (
        lambda: (Network.random(Spec(2, 2, 8), seed=0), torch.ones(2, 3, 9)),
        "feature=8.*got .1, 3, 9.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_monitored_is_refused(case, tmp_path):
    make, words = REFUSED[case]
    model, probe = make()
    with pytest.raises(RankscopeError, match=words):
        Monitor(model, probe, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_errors_of_the_model_are_explained(tmp_path):
    with pytest.raises(InputError, match=r"cannot run the probe: IndexError.*out of range"):
        Monitor(lively("llama"), torch.full((2, 4), 10_000), folder=tmp_path / "run")
    with pytest.raises(InputError, match=r"cannot run the probe: RuntimeError.*scalar types"):
        Monitor(lively("llama"), torch.ones(2, 3), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_sample_without_tokens_is_refused(tmp_path):
    batch = padded()
    batch["attention_mask"][2] = 0
    with pytest.raises(InputError, match=r"no token in sample .2."):
        Monitor(lively("bert"), batch, folder=tmp_path / "run")


def test_a_probe_on_which_blocks_do_not_run(tmp_path):
    model = Written()
    model.forward = lambda ids: torch.zeros(*ids.shape, VOCABULARY)
    with pytest.raises(RankscopeError, match="block"):
        Monitor(model, ids(), folder=tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every"),
        ({"every": 2.5}, "every"),
        ({"rules": ["no-such-rule"]}, "no-such-rule"),
        ({"rules": "rank-collapse"}, "rules"),
        ({"mode": "eval"}, "mode"),
        ({"pooling": "cls"}, "pooling"),
        ({"on_alarm": "panic"}, "on_alarm"),
        ({"log": 3}, "log"),
        ({"names": "rank/*"}, "names"),
        ({"step": -1}, "step"),
        ({"classes": 0}, "classes"),
        ({"autocast": "bfloat16"}, "autocast"),
        ({"blocks": "no.such.path"}, "no.such.path"),
        ({"token_mask": torch.ones(2, 2, dtype=torch.bool)}, "token_mask"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_wrong_options_are_refused(options, words, net, probe, tmp_path):
    with pytest.raises((RankscopeError, TypeError), match=words):
        Monitor(net, probe, folder=tmp_path / "run", **options)


def test_a_folder_that_is_a_file_is_refused(net, probe, tmp_path):
    (tmp_path / "run").write_text("something")
    with pytest.raises(InputError, match="run"):
        Monitor(net, probe, folder=tmp_path / "run")


def test_weights_that_are_broken_at_the_start_are_refused_or_an_alarm(tmp_path):
    model = lively("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = math.nan
    with pytest.raises(RankscopeError, match="finite"):
        Monitor(model, ids(), folder=tmp_path / "run")
