"""What theory promises beside what happens."""

from dataclasses import replace

import pytest
import torch

from rankscope.ask import Subject
from rankscope.core.network import Network, Spec
from rankscope.core.theory import bounds
from rankscope.core.tracing import Provenance, Trace
from rankscope.errors import InputError
from rankscope.experiments.questions.bounds import (
    MEASURED,
    ROLES,
    Config,
    _as_residuals,
    _slack,
    run,
)

from ..shown import can_be_shown, steps_of

NETWORK = Network.random(
    Spec(3, 2, 8, mlp_ratio=0.0, norm="none", skip=False, init=0.1), dtype=torch.float64
)


def test_the_measured_is_below_its_bounds(tokens) -> None:
    found, _ = steps_of(run, Config(Subject(NETWORK, tokens(1, 5, 8))))
    can_be_shown(found)
    rows = found.table.filter(metric="log10_residual")
    measured = rows.filter(variant=MEASURED)
    assert measured["layer"].to_list() == [0, 1, 2, 3]
    assert set(rows["variant"]) == {MEASURED, *ROLES}
    assert set(ROLES) == {
        "sharp bound, layer by layer",
        "bound from the data, layer by layer",
        "a-priori bound, layer by layer",
        "bound from the data, all layers",
        "Dong et al. 2021, all layers",
        "bound from the input's norm, all layers",
    }
    for name in ROLES:
        both = measured.join(rows.filter(variant=name), on=["layer", "sample"])
        assert len(both) == 3
        assert (both["value"] <= both["value_right"]).all()
    drawn = [name for drawing in found.drawings for name in drawing.roles]
    assert set(drawn) == set(ROLES)
    assert set(ROLES.values()) == {"bound"}
    assert found.provenance["residuals"] == "composite norm, best center"


def test_batches_give_what_all_samples_at_once_give(tokens) -> None:
    x = tokens(3, 5, 8)
    x[1] *= 30  # beyond the condition of the theorem
    once, _ = steps_of(run, Config(Subject(NETWORK, x)))
    batched, seen = steps_of(run, Config(Subject(NETWORK, x, batch_size=1)))
    assert len(seen) == 3
    assert batched.sentences == once.sentences
    keys = ["variant", "layer", "sample", "metric"]
    one, other = once.table.sort(keys), batched.table.sort(keys)
    assert one.select(keys).equals(other.select(keys))
    assert one["value"].to_list() == pytest.approx(other["value"].to_list(), rel=1e-6, abs=1e-4)


def test_beyond_the_theory_only_the_measured_is_drawn(tokens) -> None:
    found, _ = steps_of(
        run, Config(Subject(Network.random(Spec(2, 2, 8)), tokens(1, 5, 8).float()))
    )
    can_be_shown(found)
    (drawing,) = found.drawings
    assert drawing.only == {"variant": (MEASURED,)}
    assert not drawing.roles
    assert "does not apply" in found.sentences[0]


def test_tokens_cannot_be_left_out(tokens) -> None:
    subject = Subject(NETWORK, tokens(1, 5, 8), measured=torch.ones(1, 5, dtype=torch.bool))
    with pytest.raises(InputError, match="bounds are about all tokens"):
        run(Config(subject), lambda _: None)


def test_samples_with_other_bounds_are_not_drawn_together(tokens) -> None:
    x = tokens(3, 5, 8)
    x[1] *= 30  # beyond the condition of the theorem
    found, _ = steps_of(run, Config(Subject(NETWORK, x)))
    can_be_shown(found)
    assert set(found.table["part"]) == {"samples 0, 2", "sample 1"}
    assert all(each.only["part"] == ("samples 0, 2",) for each in found.drawings)
    assert "charts show only samples 0, 2, to" in found.sentences[-1]
    # Medians that are drawn are of the same samples, so that a bound is above what it bounds.
    drawn = found.summary.filter(part="samples 0, 2", metric="log10_residual")
    measured = drawn.filter(variant=MEASURED).select("layer", "median", "count")
    for name in ROLES:
        both = measured.join(drawn.filter(variant=name), on="layer")
        assert len(both) == 3
        assert (both["median"] <= both["median_right"] + 1e-9).all()
        assert (both["count"] == both["count_right"]).all()


def test_samples_alike_are_one_run(tokens) -> None:
    found, _ = steps_of(run, Config(Subject(NETWORK, tokens(3, 5, 8))))
    assert "part" not in found.table.columns
    assert not any("charts show" in sentence for sentence in found.sentences)


def test_doubts_come_from_the_run_the_bounds_are_from(monkeypatch) -> None:
    """Tokens saturate on one of them: what is between them is not kept."""
    spec = Spec.pure_attention(4, 1, 4, init=2.0, mask="causal")
    network = Network.random(spec, seed=5, dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    stark = torch.randn(1, 3, 4, generator=generator, dtype=torch.float64)
    monkeypatch.delattr(Subject, "deep_trace")  # a second run
    found, _ = steps_of(
        run, Config(Subject(network, torch.cat((1e-3 * stark, stark)), batch_size=1))
    )
    can_be_shown(found)
    notes = [sentence for sentence in found.sentences if "in doubt" in sentence]
    assert len(notes) == len(found.provenance["notes"]) == 1
    assert "1 of 2 samples (1)" in notes[0]
    doubted = found.table.filter("doubt")
    assert set(doubted["sample"]) == {1}
    assert 0 not in set(doubted["layer"])
    residuals = doubted.filter(metric="log10_residual", variant=MEASURED)["layer"].to_list()
    assert residuals == list(range(residuals[0], 5))


def test_a_slack_is_in_doubt_where_either_side_is(tokens) -> None:
    found = bounds(NETWORK, tokens(1, 5, 8))
    columns = {"layer": [1, 2, 3], "sample": [0] * 3, "metric": ["log10_residual"] * 3}
    columns |= {"value": [0.0] * 3, "doubt": [False, True, True]}
    table = _as_residuals(replace(found, traced=Trace(columns, Provenance("net"))).table)
    sharp = _slack(table).filter(variant="sharp bound, layer by layer")
    assert dict(sharp.select("layer", "doubt").iter_rows()) == {1: False, 2: True, 3: True}
    bound = table.filter(variant="sharp bound, layer by layer")
    assert dict(bound.select("layer", "doubt").iter_rows()) == {1: False, 2: False, 3: True}
