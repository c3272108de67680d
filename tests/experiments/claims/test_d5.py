"""Skips mitigate rank collapse: the authors' own curves, rules tried by hand, and an oracle."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from rankscope import tables
from rankscope.ask import SMALL, Model
from rankscope.experiments import kit
from rankscope.experiments.claims import d5
from rankscope.process.progress import silent

from ..made import Made
from ..tiny import Fresh, Tiny
from .small import DEEP, TEXTS, TINY, tiny

NAMES = ("SAN", "SAN+MLP", "SAN+skip", "transformer")
STATED = (1e-5, 0.01, 0.1, 0.4)
"""Where the four end: just a tenth."""


def judged(models: dict[str, list[tuple[float, ...]]], **facts: d5.ModelFacts) -> kit.Result:
    """By model and draw of its weights, where the four variants end, in two samples."""
    rows = [
        (f"{model} (init)", name, layer, 2 * draw + sample, "relative_residual", value)
        for model, draws in models.items()
        for draw, ends in enumerate(draws)
        for name, end in zip(NAMES, ends, strict=True)
        for layer, mean in enumerate((0.6, end))
        for sample, value in enumerate((0.5 * mean, 1.5 * mean))
    ]
    names = ("model", "variant", "layer", "sample", "metric", "value")
    table = tables.stack([tables.from_rows(names, rows), d5.figure()])
    known = {
        f"{model} (init)": facts.get(model, d5.ModelFacts("BERT", "init", len(draws)))
        for model, draws in models.items()
    }
    config = d5.Config(models=tuple(Model(model, at_init=True) for model in models))
    return kit.conclude(d5.ENTRY, config, kit.Measured(table, facts=known))


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        (STATED, "holds"),
        ((0.01, 1e-5, 0.4, 0.1), "holds"),
        ((0.0, 0.0, 0.02, 0.02), "holds"),
        ((0.02, 1e-5, 0.1, 0.4), "fails"),  # SAN is a fifth of SAN+skip
        ((1e-5, 0.02, 0.1, 0.4), "fails"),
        ((1e-5, 0.01, 0.09, 0.4), "fails"),
        ((1e-5, 0.01, 0.4, 0.09), "fails"),
        ((0.0, 0.0, 1e-4, 0.5), "fails"),  # as pretrained ALBERT's SAN+skip
        ((0.4, 0.4, 0.4, 0.4), "fails"),
    ],
)
def test_far_below_is_a_tenth_at_the_last_layer(ends: tuple[float, ...], verdict: str) -> None:
    found = judged({"bert": [ends]})
    assert found.verdict == verdict
    assert found.beyond is None


def test_every_draw_of_the_weights_counts() -> None:
    assert judged({"bert": [STATED] * 3}).verdict == "holds"
    found = judged({"bert": [STATED, STATED, (0.0, 0.0, 0.0, 0.5)]})
    assert found.verdict == "fails"
    assert "bert (init) (SAN 0, SAN+MLP 0, SAN+skip 0, transformer 0.5)" in found.judgement.on
    (listing,) = found.listings
    row = next(row for row in listing.rows if row[0] == "bert (init)")
    assert row[1:] == ("0.6 → 0 to 1e−5", "0.6 → 0 to 0.01", "0.6 → 0 to 0.1", "0.6 → 0.4 to 0.5",
                       "2 of 3")  # fmt: skip


def test_what_was_not_tried_is_said() -> None:
    found = judged({"bert": [STATED] * 3})
    assert str(found.judgement) == (
        "Supported in each of 3 draws of random weights; not tested: ALBERT at initialisation, "
        "XLNet "
        "at initialisation, pretrained BERT, pretrained ALBERT, pretrained XLNet"
    )


def test_pretrained_models_are_their_own_case() -> None:
    trained = d5.ModelFacts("BERT", "pretrained")
    found = judged({"bert": [STATED], "learnt": [(0.4,) * 4]}, learnt=trained)
    assert found.verdict == "depends"
    assert "supported except for: learnt (init) (SAN 0.4" in found.judgement.on
    assert "not tested: ALBERT at initialisation" in found.judgement.on
    assert "BERT at initialisation," not in found.judgement.on.replace("ALBERT", "")


@pytest.mark.parametrize(
    "fact", [d5.ModelFacts("GPT-2", "init"), d5.ModelFacts("BERT", "trained here")]
)
def test_other_models_are_beyond_the_papers_domain(fact: d5.ModelFacts) -> None:
    found = judged({"other": [STATED]}, other=fact)
    assert found.verdict == "not tried"
    assert "--pretrained" in found.judgement.on
    assert found.beyond.verdict == "holds"
    assert judged({"other": [(0.4,) * 4]}, other=fact).beyond.verdict == "fails"


def test_the_authors_curves_are_there_and_pass_but_for_one_panel() -> None:
    curves = d5.figure()
    assert curves.group_by("model", "variant").len()["len"].to_list() == [13] * 24
    ends = {label: d5.ends(rows)[0] for (label,), rows in curves.group_by("model")}
    assert ends["BERT at initialisation, figure 2"].last["SAN+skip"] == 0.449
    assert ends["pretrained XLNet, figure 2"].last == dict(
        zip(NAMES, (0.009, 0.0, 0.103, 0.513), strict=True)
    )
    assert ends["pretrained ALBERT, figure 2"].first["transformer"] == 0.896
    assert [label for label, end in ends.items() if not end.far_below] == [
        "pretrained ALBERT, figure 2"
    ]
    (said,) = [each for each in judged({"bert": [STATED]}).sentences if "authors" in each]
    assert said == (
        "The authors' own curves do so in 5 of 6 panels, not for pretrained ALBERT, whose SAN+skip "
        "goes from 0.896 to below 0.001."
    )


def test_ours_and_theirs_stand_side_by_side() -> None:
    config = replace(TINY["d5"][1], models=(DEEP, Fresh("gpt2")), draws=2)
    found = d5.ENTRY.run(config, silent)
    assert found.verdict == "holds"
    assert found.beyond is not None
    labels = found.table["model"].unique(maintain_order=True).to_list()
    assert labels[:2] == ["bert (init)", "BERT at initialisation, figure 2"]
    assert (labels[2].startswith("gpt2"), len(labels)) == (True, 8)
    ours = found.table.filter(model=labels[2])
    assert ours["sample"].unique().sort().to_list() == [0, 1, 2, 3]  # two texts, twice
    by_draw = [ours.filter(variant="transformer", layer=1, sample=n)["value"][0] for n in (0, 2)]
    assert by_draw[0] != by_draw[1]
    assert ours["error"].null_count() == ours.height
    (listing,) = found.listings
    assert [row[0] for row in listing.rows] == labels


def test_it_fails_where_tokens_stay_apart_without_skips() -> None:
    found = d5.ENTRY.run(replace(TINY["d5"][1], models=(Tiny("bert"),)), silent)
    assert found.verdict == "fails"


def test_it_takes_away_what_it_is_asked_to() -> None:
    kept, _ = tiny("d5")
    found = d5.ENTRY.run(replace(TINY["d5"][1], parts="theorems"), silent)
    assert not found.table.equals(kept.table)
    assert found.provenance["variants"].startswith("theorems: ")
    assert "(theorems): as steps, and remove the norms" in found.drawings[0].caption


def test_pretrained_models_are_tried_where_they_are_at_hand(monkeypatch, tmp_path) -> None:
    assert d5.Config().models == tuple(
        Model(name, at_init=True) for name in ("bert-base", "albert-base-v2", "xlnet-base")
    )
    assert SMALL not in d5.Config().models
    monkeypatch.setattr("rankscope.experiments.models.cached_folder", lambda _: tmp_path)
    assert [case.at_init for case in d5.Config().models] == [True] * 3 + [False] * 3


def _small(kind: type[nn.Module], config: type, **more: object) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        shape = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 24}
        with torch.random.fork_rng():
            torch.manual_seed(3)
            sizes = {"vocab_size": 99, "max_position_embeddings": 16, "initializer_range": 0.3}
            return kind(config(num_hidden_layers=3, **shape, **sizes, **more)).eval()

    return make


BERT = _small(hf.BertModel, hf.BertConfig)
ALBERT = _small(hf.AlbertModel, hf.AlbertConfig, embedding_size=8)


def _bert(layer: nn.Module, x: Tensor, *, skip: bool, mlp: bool) -> Tensor:
    """A layer of BERT as the authors' notebook leaves it, from the parts of Transformers."""
    mixed = layer.attention.output.dense(layer.attention.self(x)[0])
    x = layer.attention.output.LayerNorm(mixed + x if skip else mixed)
    if not mlp:
        return x
    return layer.output.LayerNorm(layer.output.dense(layer.intermediate(x)) + x)


def _albert(layer: nn.Module, x: Tensor, *, skip: bool, mlp: bool) -> Tensor:
    """The same of ALBERT: without its two matrices, the activation and the sum are left."""
    inner = layer.attention
    heads = [
        part(x).unflatten(-1, (3, 4)).transpose(1, 2)
        for part in (inner.query, inner.key, inner.value)
    ]
    weights = torch.softmax(heads[0] @ heads[1].mT / 2, -1)  # √4
    mixed = inner.dense((weights @ heads[2]).transpose(1, 2).flatten(2))
    x = inner.LayerNorm(mixed + x if skip else mixed)
    hidden = layer.ffn_output(layer.activation(layer.ffn(x))) if mlp else layer.activation(x)
    return layer.full_layer_layer_norm(hidden + x)


def _relative_residual(x: Tensor) -> float:
    """``√(‖·‖₁ ‖·‖∞)`` of what is left without the mean token, over that of all."""
    rows = x[0].numpy()

    def size(matrix: np.ndarray) -> float:
        return float(np.sqrt(abs(matrix).sum(0).max() * abs(matrix).sum(1).max()))

    return size(rows - rows.mean(0)) / size(rows)


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_the_curves_are_those_of_models_taken_apart_by_hand(family: str) -> None:
    make, run = {"bert": (BERT, _bert), "albert": (ALBERT, _albert)}[family]
    case, model = Made(family, make=make), make().double()
    config = d5.Config(models=(case,), texts=TEXTS[:1], length=8, draws=1)
    table = d5.measure(config, silent).table.filter(model=f"{family} (init)")
    layers = model.encoder.layer if family == "bert" else None
    layers = layers or [model.encoder.albert_layer_groups[0].albert_layers[0]] * 3
    kept = {"SAN": (False, False), "SAN+MLP": (False, True), "SAN+skip": (True, False),
            "transformer": (True, True)}  # fmt: skip
    for variant, (skip, mlp) in kept.items():
        x = case.subject(config).x
        with torch.no_grad():
            expected = [_relative_residual(x)]
            for layer in layers:
                x = run(layer, x, skip=skip, mlp=mlp)
                expected.append(_relative_residual(x))
        got = table.filter(variant=variant).sort("layer")["value"].to_list()
        assert got == pytest.approx(expected, rel=1e-6), variant
