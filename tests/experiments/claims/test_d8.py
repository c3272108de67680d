"""Path counts of well-known architectures, and wrong ones."""

from dataclasses import replace
from math import comb

import pytest
import transformers as hf

from rankscope.core.paths import PathCounts
from rankscope.experiments.claims import d8
from rankscope.process.progress import silent


def test_the_papers_architectures_are_counted() -> None:
    found = d8.ENTRY.run(d8.Config(), silent)
    gpt3 = found.table.filter(model="GPT-3 (96, 96)")
    assert len(gpt3) == 97
    assert gpt3["value"].sum() == pytest.approx(1.0)
    assert gpt3.sort("value")["length"][-1] == 95  # 96 · 96/97 on average
    assert found.listings[0].rows[-1] == ("GPT-3 (96, 96)", "5.4·10^190", 95.01, "37%")
    assert found.sentences[-1].startswith("At least 94.6% of the paths of each architecture")
    assert "MobileBERT as published (24, 4)" in set(found.table["model"])


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("DistilBERT", hf.DistilBertConfig()),
        ("MobileBERT", hf.MobileBertConfig()),
        ("BERT-base, ViT-B", hf.BertConfig()),
        ("BERT-base, ViT-B", hf.ViTConfig()),
    ],
)
def test_published_shapes_are_those_of_the_originals(name: str, config) -> None:
    published = {each: shape for each, _, shape in d8.Config().architectures}
    assert published[name] == (config.num_hidden_layers, config.num_attention_heads)


def test_every_verdict_can_be_reached() -> None:
    def judged(*architectures):
        found = d8.ENTRY.run(replace(d8.Config(), architectures=architectures), silent)
        return found.verdict, found.beyond.verdict

    assert judged(("a", (6, 12), (6, 12))) == ("holds", "holds")
    few = ("b", (12, 1), (12, 1))  # half of all layers are skipped
    assert judged(few) == ("fails", "fails")
    assert judged(few, ("a", (6, 12), (6, 12))) == ("depends", "depends")
    other = ("c", (12, 4), (24, 4))  # long paths, but of another architecture
    assert judged(other) == ("holds", "holds")
    assert judged(("d", (12, 4), (12, 1))) == ("holds", "fails")


def test_the_papers_mobilebert_is_named() -> None:
    found = d8.ENTRY.run(d8.Config(), silent)
    assert str(found.judgement) == (
        "Supported with an erratum: MobileBERT has 24 layers and 4 heads, not 12 and 4"
    )
    assert found.beyond.verdict == "holds"


def test_a_lost_path_and_a_wrong_law_are_noticed() -> None:
    class Lost(PathCounts):
        counts = property(lambda _: tuple(comb(6, k) * 12**k - (k == 6) for k in range(7)))  # type: ignore[assignment]

    class Short(PathCounts):
        counts = property(lambda _: tuple(comb(6, k) * 12 ** (6 - k) for k in range(7)))  # type: ignore[assignment]

    assert d8.as_stated(PathCounts(6, 12))
    assert not d8.as_stated(Lost(6, 12))
    assert not d8.as_stated(Short(6, 12))


def test_paths_longer_than_half_are_counted_by_hand() -> None:
    # Of two layers with three heads each: 1, 6 and 9 paths of length 0, 1 and 2.
    assert d8.longer_than_half(PathCounts(2, 3)) == pytest.approx(9 / 16)
