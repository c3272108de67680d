"""Embeddings of texts: halves, figures beside references, and whether one direction explains."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rankscope.ask import Subject
from rankscope.ask._subject import Origin
from rankscope.core.network import Network, Spec
from rankscope.core.pooling import LAST, MEAN, Pooling
from rankscope.experiments.diagnosis import _chapters as chapters
from rankscope.experiments.diagnosis._diagnose import judge_few, measured_of
from rankscope.experiments.diagnosis._measure import VIEWS
from rankscope.experiments.diagnosis._references import untrained
from rankscope.experiments.diagnosis._repairs import health
from rankscope.experiments.diagnosis._texts import (
    VECTORS,
    CommonDirection,
    Embeddings,
    common_direction,
    embed_texts,
    embedding_figures,
    split_halves,
    text_figures,
)
from rankscope.results import Finding

SINGLE = torch.finfo(torch.float32).eps


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def direction_of(x: Tensor) -> CommonDirection:
    return common_direction(Embeddings(x, x[:0], x[:0]), SINGLE)


UNIT = torch.nn.functional.one_hot(torch.tensor(3), 16).double()
HEALTHY = random(20, 16)
SIZES = 1 + random(20, seed=1).abs().unsqueeze(-1)


class TestCommonDirection:
    def test_healthy_texts_have_none(self) -> None:
        direction = direction_of(HEALTHY)
        assert (direction.alike, direction.explained) == (False, "")
        assert direction.sentence().startswith("There is no common direction to remove")

    @pytest.mark.parametrize("size", [10.0, 1000.0])
    def test_an_offset_explains_it(self, size: float) -> None:
        direction = direction_of(HEALTHY + size * UNIT)
        before, after, _ = direction.stages
        assert before["mean_cosine"] > 0.8
        assert direction.alike
        assert direction.explained == "mean"
        # what is left is the healthy texts without their own mean
        healthy = Embeddings(HEALTHY - HEALTHY.mean(0), HEALTHY[:0], HEALTHY[:0]).figures()
        assert after["mean_cosine"] == pytest.approx(healthy["mean_cosine"], abs=1e-6)
        assert after["effective_rank"] == pytest.approx(healthy["effective_rank"], rel=1e-6)
        assert direction.sentence().startswith("One common direction explains it: the mean has ")
        assert "without it the mean cosine is −0.05" in direction.sentence()

    def test_shares_of_the_energy_by_hand(self) -> None:
        """Texts (3, ±1, 0) and (3, 0, ±2): the mean (3, 0, 0) has 36 of 46, and of the other 10
        the third feature has 8."""
        x = torch.tensor([[3, 1, 0], [3, -1, 0], [3, 0, 2], [3, 0, -2]], dtype=torch.float64)
        direction = direction_of(x)
        assert direction.share == pytest.approx(36 / 46)
        assert direction.first_share == pytest.approx(8 / 10)
        assert direction.left == pytest.approx((1, math.sqrt(10 / 46), math.sqrt(2 / 46)))
        # cosines: −1 and 8/√(10·10), 9/√(10·13) four times, 5/13
        cosines = (8 / 10 + 4 * 9 / math.sqrt(130) + 5 / 13) / 6
        assert direction.stages[0]["mean_cosine"] == pytest.approx(cosines)
        assert direction.stages[1]["mean_cosine"] == pytest.approx(-2 / 6)
        assert direction.explained == "mean"

    def test_a_direction_of_another_size_in_each_text(self) -> None:
        """The mean is not enough: what is left has nearly one direction."""
        direction = direction_of(1e-3 * HEALTHY + SIZES * UNIT)
        assert direction.explained == "direction"
        assert direction.stages[1]["effective_rank"] < 2 < 5 < direction.stages[2]["effective_rank"]
        assert "of another size in each text" in direction.sentence()

    def test_rank_one_is_not_explained(self) -> None:
        exact = SIZES * random(1, 16, seed=2)
        rounded = exact.float().double()  # the rest is rounding error, in many directions
        for x in (exact, rounded, exact[:1].expand(20, 16)):
            direction = direction_of(x)
            assert direction.stages[0]["mean_cosine"] == pytest.approx(1)
            assert (direction.alike, direction.explained) == (True, "")
            assert direction.sentence().startswith("A common direction does not explain it")
            assert "nothing but rounding error" in direction.sentence()

    def test_few_directions_are_not_explained(self) -> None:
        """Three directions and the mean of them: taking away one or two leaves too few."""
        direction = direction_of(random(20, 3, seed=3) @ random(3, 16, seed=4) + 30 * UNIT)
        assert direction.alike
        assert direction.explained == ""
        assert "an effective rank of " in direction.sentence()
        assert "rounding" not in direction.sentence()

    def test_halves_are_freed_of_the_same_direction(self) -> None:
        pairs = HEALTHY + 10 * UNIT
        direction = common_direction(Embeddings(pairs, pairs, pairs.flip(0)), SINGLE)
        before, after, _ = direction.stages
        assert before["alignment"] < 0.3
        assert after["alignment"] > 1.5  # other texts, unrelated without what they share


def test_halves_share_the_ends_and_nothing_else() -> None:
    real = torch.tensor([[0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]]).bool()
    first, second = split_halves(real)
    assert first.int().tolist() == [[0, 1, 1, 1, 0, 0, 1], [1, 1, 0, 0, 1, 0, 0]]
    assert second.int().tolist() == [[0, 1, 0, 0, 1, 1, 1], [1, 0, 1, 1, 1, 0, 0]]


def subject_of(*, mask: str = "full", texts: int = 6, tokens: int = 12) -> Subject:
    network = Network.random(Spec(3, 4, 32, init="lecun", mask=mask), seed=3)
    x = torch.randn(texts, tokens, 32, generator=torch.Generator().manual_seed(1))
    return Subject(network, x, batch_size=4)


@pytest.mark.parametrize(("mask", "mode"), [("full", MEAN), ("causal", LAST)])
def test_embeddings_of_a_network_without_a_model(mask: str, mode: str) -> None:
    subject = subject_of(mask=mask)
    assert subject.pooling.modes == (mode,)
    embeddings = embed_texts(subject)
    half = torch.arange(12) < 6
    half[-1] = True
    with torch.no_grad():
        states = subject.network(subject.x).double()
        first = subject.network(subject.x, half.expand(6, 12)).double()
    whole = states.mean(1) if mode == MEAN else states[:, -1]
    read = first[:, half].mean(1) if mode == MEAN else first[:, -1]
    assert torch.allclose(embeddings.whole, whole, atol=1e-5)
    assert torch.allclose(embeddings.first, read, atol=1e-5)
    assert not torch.allclose(embeddings.second, read, atol=1e-2)


def test_texts_too_short_for_halves_have_no_alignment() -> None:
    subject = replace(subject_of(), token_mask=torch.arange(12) < 3)
    figures = embed_texts(subject).figures()
    assert math.isnan(figures["alignment"])
    embedded = embedding_figures(subject, None)
    assert embedded is not None
    assert embedded.listings()[0].rows[0][-1] is None
    assert "alignment" not in embedded.rows().filter(variant="this model")["metric"].to_list()
    assert embedding_figures(subject_of(texts=3), None) is None


def test_texts_whose_embeddings_are_known_are_not_read_again() -> None:
    subject = replace(subject_of(), batch_size=2)
    plain = embed_texts(subject)
    known = torch.full_like(plain.whole[:3], 7.0)  # of one batch, and half of the next
    embeddings = embed_texts(subject, known)
    assert torch.equal(embeddings.whole[:2], known[:2])
    assert torch.equal(embeddings.whole[2:], plain.whole[2:])
    assert torch.equal(embeddings.first, plain.first)


def test_the_chapter_names_the_pooling_and_the_references() -> None:
    subject = subject_of()
    twin, measured = untrained(subject, 0)[0], measured_of(subject)
    assert twin is not None
    embedded = embedding_figures(subject, twin)
    part = chapters.text_part(measured, measured_of(twin), embedded)
    said = " ".join(part.sentences)
    assert "The embedding of a text: mean of its tokens, the usual choice for an encoder" in said
    assert part.listings[0].columns[1:] == (
        "mean cosine", "effective rank", "uniformity", "alignment",
    )  # fmt: skip
    names = [row[0] for row in part.listings[0].rows]
    assert names == ["this model", "untrained twin", "unrelated vectors"]
    null = dict(zip(part.listings[0].columns, part.listings[0].rows[2], strict=True))
    assert null["uniformity"] == pytest.approx(-4 + 8 / 32, abs=0.5)
    assert null["alignment"] == pytest.approx(2, abs=0.5)
    assert {"uniformity", "mean_cosine"} <= set(part.drawings[0].options["metrics"])


def with_pooling(subject: Subject, pooling: Pooling) -> Subject:
    """As if the network were of a model with this pooling, and its twin as well."""

    def fresh(seed: int) -> Subject:
        network = Network.random(subject.network.spec, seed=seed)
        plain = Pooling((MEAN,), "mean")
        return with_pooling(replace(subject, network=network, origin=None), plain)

    origin = Origin(
        subject.network,
        fresh,
        lambda: subject.x,
        lambda _: None,
        pooling=lambda: pooling,
    )
    return replace(subject, origin=origin)


def finding_of(subject: Subject) -> tuple[Finding, Subject]:
    twin = untrained(subject, 0)[0]
    assert twin is not None
    findings = judge_few(subject, measured_of(twin), measured_of(subject))
    (finding,) = (found for found in findings if found.kind == "collapse between texts")
    return finding, subject


def test_a_collapse_in_the_pooling_alone_is_found_and_explained() -> None:
    """The tokens and their mean differ from text to text; only the model's own head has an offset,
    or maps all texts to one line."""
    healthy, subject = finding_of(with_pooling(subject_of(), Pooling((MEAN,), "mean")))
    assert healthy.fate == "absent"
    measured = measured_of(subject)
    assert measured.embeddings is not None
    assert measured.embeddings.shape == (32, 6)
    assert measured.of_samples(torch.tensor([0, 2])).embeddings.shape == (32, 2)
    figures = text_figures(measured)["relative_dispersion"]
    assert figures.shape == (4, len(VECTORS))
    assert figures[:-1, len(VIEWS)].isnan().all()
    x = measured.embeddings.mT
    apart = (x - x.mean(0)).norm() / x.norm()
    assert float(figures[-1, len(VIEWS)]) == pytest.approx(float(apart))

    offset = Pooling((MEAN,), "mean", steps=(lambda pooled: pooled + 1e4,))
    found, moved = finding_of(with_pooling(subject_of(), offset))
    assert (found.fate, found.layer, found.part) == ("collapse", 3, "embedding")
    assert "each represented by its embedding" in found.sentence
    assert "One common direction explains it" in found.sentence
    assert health(found, measured_of(moved), None) < health(found, measured, None)

    line = Pooling((MEAN,), "mean", steps=(lambda pooled: 1e3 + 0 * pooled + pooled[:, :1],))
    found, _ = finding_of(with_pooling(subject_of(), line))
    assert (found.fate, found.part) == ("collapse", "embedding")
    assert "A common direction does not explain it" in found.sentence


def test_a_pooling_that_is_only_usual_is_not_judged() -> None:
    usual = Pooling((MEAN,), "mean", steps=(lambda pooled: pooled + 1e4,), own=False)
    found, subject = finding_of(with_pooling(subject_of(), usual))
    assert found.fate == "absent"
    assert measured_of(subject).embeddings is None
