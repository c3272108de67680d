"""What is true of every claim: it holds on something small, can be shown, and hides no doubt."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankscope import results
from rankscope.ask import Model
from rankscope.core.deep import deep_trace
from rankscope.core.network import Network
from rankscope.core.tracing import Trace
from rankscope.errors import InputError
from rankscope.experiments import depths
from rankscope.process.progress import silent
from rankscope.show import figures

from ..tiny import Fresh, Tiny
from .small import TINY, tiny


@pytest.mark.parametrize("name", TINY)
def test_claims_hold_where_they_should(name: str) -> None:
    found, _ = tiny(name)
    assert found.verdict == "holds", found.sentences
    assert found.id.lower() == name
    assert found.title == TINY[name][0].ENTRY.title
    assert found.question.endswith("?")
    assert all(sentence.endswith(".") for sentence in found.sentences)


@pytest.mark.parametrize("name", TINY)
def test_claims_report_their_progress_to_the_end(name: str) -> None:
    _, seen = tiny(name)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


@pytest.mark.parametrize("name", TINY)
def test_a_result_can_be_named_written_and_drawn(name: str) -> None:
    found, _ = tiny(name)
    config = TINY[name][1]
    assert found.stem == f"{name}-{config.digest(found.id)[:8]}"
    json.dumps(found.provenance)
    assert set(found.shown) <= set(found.table["metric"])
    assert all(math.isfinite(value) for value in found.key_figures.values())
    assert found.key_figures
    assert found.drawings
    for drawing in found.drawings:
        figures.draw(drawing, found)


@pytest.mark.parametrize("name", TINY)
def test_a_result_that_is_read_back_is_the_same(name: str, tmp_path: Path) -> None:
    found, _ = tiny(name)
    again = results.read(results.write(found, tmp_path / "kept.parquet"))
    assert again.table.equals(found.table)
    assert json.dumps(again.provenance) == json.dumps(found.provenance)
    for each in ("id", "title", "question", "source", "sentences", "shown", "key_figures"):
        assert getattr(again, each) == getattr(found, each)
    assert (again.judgement, again.beyond) == (found.judgement, found.beyond)
    for one, other in zip(again.drawings, found.drawings, strict=True):
        assert figures.draw(one, again).to_dict() == figures.draw(other, found).to_dict()


@pytest.mark.parametrize(
    "name", [name for name in TINY if name not in ("d5", "d8", "d9", "n4", "w1")]
)
def test_a_seed_changes_the_figures(name: str) -> None:
    module, config = TINY[name]
    if name == "n1":
        config = replace(config, patterns=config.patterns[:1])
    found = module.ENTRY.run(replace(config, seed=1), silent)
    before = tiny(name)[0].table.head(found.table.height)
    assert not found.table.equals(before)


@pytest.mark.parametrize("name", ["d5", "d9"])
def test_the_texts_that_are_given_are_read(name: str) -> None:
    module, config = TINY[name]
    found, _ = tiny(name)
    other = module.ENTRY.run(replace(config, texts=("quite another text",)), silent)
    bundled = module.ENTRY.run(replace(config, texts=None, samples=1), silent)
    figures_of = [each.table["value"].to_list() for each in (found, other, bundled)]
    assert figures_of[0] != figures_of[1] != figures_of[2]


@pytest.mark.parametrize("name", ["d5", "d9"])
def test_models_called_alike_stay_apart_and_none_is_refused(name: str) -> None:
    module, config = TINY[name]
    found = module.ENTRY.run(replace(config, models=(Fresh("bert"), Tiny("bert"))), silent)
    tried = found.table["model"].unique(maintain_order=True).to_list()
    listed = [row[0] for row in found.listings[0].rows]
    for labels in (tried, listed):  # D5 has the paper's own curves, too
        ours = [label for label in labels if "figure" not in label]
        assert ours == ["bert (init)", "bert (init) 2"]
    with pytest.raises(InputError, match="no models are given"):
        module.ENTRY.run(replace(config, models=()), silent)


@pytest.mark.parametrize("name", ["d5", "d9"])
def test_the_papers_models_are_tried_unless_others_are_named(name: str) -> None:
    config = TINY[name][0].Config()
    assert config.models[:3] == (
        Model("bert-base", at_init=True),
        Model("albert-base-v2", at_init=True),
        Model("xlnet-base", at_init=True),
    )
    assert config.texts is None
    assert config.samples == {"d5": 4, "d9": 1}[name]


@pytest.mark.parametrize(
    ("name", "nothing", "message"),
    [
        ("d1", {"kinds": ("nonsense",)}, "unknown kind of network 'nonsense'; choose one of pure"),
        ("d1", {"kinds": ()}, "got no tables"),
        ("d2", {"heads": ()}, "at least one number of heads"),
        ("d3", {"gains": ()}, "at least one activation and one gain"),
        ("d3", {"activations": ()}, "at least one activation and one gain"),
        ("d8", {"architectures": ()}, "architectures is empty"),
        ("d9", {"paths": 0}, "paths=0"),
        ("n1", {"patterns": ()}, "got no tables"),
    ],
)
def test_a_claim_is_not_judged_by_nothing(name: str, nothing: Any, message: str) -> None:
    module, config = TINY[name]
    with pytest.raises(InputError, match=message):
        module.ENTRY.run(replace(config, **nothing), silent)


@pytest.mark.parametrize("name", ["d2", "d3", "d4", "n1"])
def test_doubts_reach_the_sentences_and_the_provenance(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = set()

    def doubtful(network: Network, *arguments: Any, **options: Any) -> Trace:
        seeds.add(network.seed)
        return deep_trace(network, *arguments, **options).noted({"doubt": "a digit was lost"})

    monkeypatch.setattr(depths, "deep_trace", doubtful)
    module, config = TINY[name]
    fewer = {
        "d2": {"heads": (1,)},
        "d3": {"activations": ("relu",), "gains": (1.0,)},
        "d4": {"betas": (0.1,), "random_scales": ()},
        "n1": {"patterns": config.patterns[:1] if name == "n1" else ()},
    }[name]
    found = module.ENTRY.run(replace(config, seed=5, **fewer), silent)
    # D4 is made of matrices of its own, and some weights of D3 are no longer those that were drawn.
    assert seeds == {"d3": {5, None}, "d4": {None}}.get(name, {5})
    noted = found.provenance["notes"]
    # N1 runs every variant twice, and says in which of its two panels.
    cases = {case.split(", hidden states")[0] for case in noted}
    # D2's table has heads and scales apart, and bounds beside them.
    wanted = {"1 head, LeCun × 0.25"} if name == "d2" else set(found.table["variant"])
    assert cases == wanted
    for variant in noted:
        assert f"Note on {variant}: a digit was lost." in found.sentences
