"""How small a residual gets, in three formats."""

import math

import pytest
import torch

from rankscope.ask import Subject
from rankscope.core.metrics import residual
from rankscope.core.network import Network, Spec
from rankscope.experiments.depths import medians
from rankscope.experiments.questions.deep import Config, run
from rankscope.numerals import plural, power_of_ten
from rankscope.show.figures import draw

from ..shown import can_be_shown, steps_of

PURE = Spec(6, 2, 8, mlp_ratio=0.0, norm="none", skip=False, init="lecun")


def test_all_three_formats_are_shown(tokens) -> None:
    network = Network.random(PURE, seed=3)
    x = tokens(3, 5, 8).float()
    found, seen = steps_of(run, Config(Subject(network, x, batch_size=2)))
    assert len(seen) == 3 * 2 + 3
    can_be_shown(found)
    curves = {
        name: medians(found.summary, "log10_residual", variant=name)
        for name in ("scaled", "float64", "float32")
    }
    plain = [
        residual(state).log10().median().item() for state in network.double().states(x.double())
    ]
    assert curves["float64"][1:] == pytest.approx(plain)
    assert curves["scaled"][:3] == pytest.approx(curves["float64"][:3], abs=1e-6)
    assert curves["scaled"][-1] < -100
    assert curves["float64"][-1] > -40 or curves["float64"][-1] == -math.inf  # bit for bit equal
    assert "doubly exponential" in found.sentences[0]
    assert any(sentence.startswith("In float32") for sentence in found.sentences)
    assert found.drawings[0].roles == {"float64": "floor", "float32": "floor"}


def test_with_skips_nothing_collapses(lively, tokens) -> None:
    found, _ = steps_of(run, Config(Subject(lively(Spec(8, 2, 8)), tokens(2, 5, 8))))
    assert "no collapse" in found.sentences[0]
    assert "to the last layer" in found.sentences[1]


@pytest.mark.parametrize(("norm", "center"), [("fro", "mean"), ("inf", "median")])
def test_norm_and_center_are_honoured_and_noted(norm, center, tokens) -> None:
    network = Network.random(PURE, seed=3, dtype=torch.float64)
    x = tokens(2, 5, 8)
    measured = torch.tensor([False, True, True, True, True])
    found, _ = steps_of(run, Config(Subject(network, x, measured=measured), norm, center))
    assert found.provenance["config"] == {"in_norm": norm, "center": center}
    expected = residual(x[:, 1:], norm=norm, center=center).log10().tolist()
    for form in ("scaled", "float64"):
        first = found.table.filter(variant=form, layer=0, metric="log10_residual").sort("sample")
        assert first["value"].to_list() == pytest.approx(expected, abs=1e-6)


def test_a_doubt_in_any_batch_is_told() -> None:
    """Tokens saturate on one of them: what is between them is not kept."""
    spec = Spec.pure_attention(4, 1, 4, init=2.0, mask="causal")
    network = Network.random(spec, seed=5, dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    stark = torch.randn(1, 3, 4, generator=generator, dtype=torch.float64)
    calm = 1e-3 * stark
    found, _ = steps_of(run, Config(Subject(network, torch.cat((calm, stark)), batch_size=1)))
    notes = [sentence for sentence in found.sentences if sentence.startswith("Note on ")]
    assert len(notes) == len(found.provenance["notes"]) == 1
    assert "1 of 2 samples (1)" in notes[0]
    first = found.table.filter("doubt")["layer"].min()
    sure = medians(found.summary, "log10_relative_residual", variant="scaled")[first - 1]
    assert found.sentences[0].startswith(
        f"After {plural(first - 1, 'layer')} the relative residual is {power_of_ten(sure)} (median"
    )
    assert found.sentences[0].endswith(f", up to layer {first - 1}; later figures are in doubt.")
    doubted = found.table.filter("doubt")
    assert set(doubted["variant"]) == {"scaled"}
    assert set(doubted["sample"]) == {1}
    chart = draw(found.drawings[0], found).to_json()
    assert "dotted where in doubt" in chart
    assert not any("truly" in sentence for sentence in found.sentences)


def test_samples_that_follow_other_laws_are_not_averaged_away(tokens) -> None:
    network = Network.random(PURE, seed=3, dtype=torch.float64)
    x = tokens(3, 5, 8)
    alike, _ = steps_of(run, Config(Subject(network, x)))
    assert "disagree" not in alike.sentences[0]
    x[1] *= 1e6  # attention of one query to one key, and residuals that grow
    found, _ = steps_of(run, Config(Subject(network, x)))
    assert found.sentences[0].startswith(
        "After 6 layers the samples disagree: 2 of 3 doubly exponential"
    )
    assert "median" not in found.sentences[0]
