"""What theory promises beside what happens."""

import pytest
import torch

from rankscope.errors import InputError
from rankscope.experiments import Subject
from rankscope.experiments.questions.bounds import MEASURED, ROLES, Config, run
from rankscope.network import Network, Spec

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
    assert set(found.table["run"]) == {"samples 0, 2", "sample 1"}
    assert all(each.only["run"] == ("samples 0, 2",) for each in found.drawings)
    assert "charts show samples 0, 2 alone" in found.sentences[-1]
    # Medians that are drawn are of the same samples, so that a bound is above what it bounds.
    drawn = found.summary.filter(run="samples 0, 2", metric="log10_residual")
    measured = drawn.filter(variant=MEASURED).select("layer", "median", "count")
    for name in ROLES:
        both = measured.join(drawn.filter(variant=name), on="layer")
        assert len(both) == 3
        assert (both["median"] <= both["median_right"] + 1e-9).all()
        assert (both["count"] == both["count_right"]).all()


def test_samples_alike_are_one_run(tokens) -> None:
    found, _ = steps_of(run, Config(Subject(NETWORK, tokens(3, 5, 8))))
    assert "run" not in found.table.columns
    assert not any("charts show" in sentence for sentence in found.sentences)
