"""Figures of one pass against plain traces, hand-worked values and brute force."""

import math

import pytest
import torch

from rankscope.ask import Subject
from rankscope.core.masks import as_mask
from rankscope.core.network import Network, Spec, Visibility
from rankscope.core.tracing import trace
from rankscope.experiments.diagnosis._measure import head_figures, measure
from rankscope.experiments.diagnosis._tokens import (
    cosines,
    last_token,
    nearest,
    nearest_to_last,
    token_distances,
    turn,
)

SPEC = Spec(3, 2, 8, norm_place="post", init="lecun")


def subject_of(*, spec: Spec = SPEC, samples: int = 3, batch_size: int = 2) -> Subject:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(samples, 7, spec.width, generator=generator, dtype=torch.float64)
    mask = torch.ones(samples, 7, dtype=torch.bool)
    mask[1, 5:] = False
    network = Network.random(spec, seed=2, dtype=torch.float64)
    return Subject(network, x, mask, batch_size=batch_size)


@pytest.fixture(scope="module")
def measured():
    return measure(subject_of(), lambda _: None)


def test_states_equal_a_trace(measured) -> None:
    subject = subject_of()
    traced = [name for name in measured.states if name not in ("common_residual", "rank_share")]
    found = trace(subject.network, subject.x, metrics=traced, token_mask=subject.token_mask).table
    for name in traced:
        values = measured.states[name]
        rows = found.filter(metric=name).sort("layer", "sample")["value"].to_list()
        assert values.flatten().tolist() == pytest.approx(rows)


def test_steps_add_up_to_the_whole_way(measured) -> None:
    total = sum(measured.changes.values()).sum(0)
    expected = (measured.residual[-1] / measured.residual[0]).log10()
    torch.testing.assert_close(total, expected)
    assert all(bool((each != 0).any()) for each in measured.changes.values())


def test_steps_of_one_layer_add_up_to_that_layer(measured) -> None:
    by_layer = sum(measured.changes.values())
    torch.testing.assert_close(by_layer, measured.residual.log10().diff(dim=0))


def test_a_step_without_its_skip_is_that_of_the_ablated_network(measured) -> None:
    subject = subject_of()
    alone = subject.network.without("attention_skip", "mlp", "norm")
    one = trace(
        alone, subject.x, metrics=["relative_residual"], token_mask=subject.token_mask
    ).table.filter(layer=1)
    expected = torch.tensor(one.sort("sample")["value"].to_list()).double().log10()
    expected -= measured.residual[0].log10()
    torch.testing.assert_close(measured.alone["attention"][0], expected)
    assert bool(measured.alone["norm"].isnan().all())


def test_batches_change_nothing(measured) -> None:
    whole = measure(subject_of(batch_size=8), lambda _: None)
    torch.testing.assert_close(whole.residual, measured.residual)
    torch.testing.assert_close(whole.distances, measured.distances, equal_nan=True)
    assert torch.equal(whole.last_neighbour, measured.last_neighbour)


def test_tokens_that_do_not_count_are_left_out() -> None:
    subject = subject_of()
    counted = subject.token_mask.clone()
    counted[:, 0] = False
    some = Subject(subject.network, subject.x, subject.token_mask, counted)
    found = measure(some, lambda _: None)
    expected = trace(
        subject.network,
        subject.x,
        metrics=["relative_residual"],
        token_mask=subject.token_mask,
        measured=counted,
    ).table.sort("layer", "sample")["value"]
    assert found.residual.flatten().tolist() == pytest.approx(expected.to_list())


def test_turn_is_the_angle_of_the_median_token() -> None:
    a = torch.tensor([[[1.0, 0.0]], [[2.0, 2.0]], [[0.0, 3.0]]])
    b = torch.tensor([[[0.0, 5.0]], [[1.0, 1.0]], [[0.0, 3.0 + 1e-3]]])
    every = torch.ones(3, 1, dtype=torch.bool)
    assert turn(a, b, every).tolist() == pytest.approx([math.pi / 2, 0.0, 0.0], abs=1e-12)
    tilted = torch.tensor([[[1.0, 1e-5]] * 3 + [[0.0, 9.0]]], dtype=torch.float64)
    straight = torch.tensor([[[1.0, 0.0]] * 3 + [[9.0, 0.0]]], dtype=torch.float64)
    counted = torch.tensor([[True, True, True, True]])
    assert turn(straight, tilted, counted).item() == pytest.approx(1e-5, rel=1e-9)


def test_distances_from_the_center_make_up_the_dispersion(measured) -> None:
    squares = measured.distances.square().nanmean(1)
    torch.testing.assert_close(squares.sqrt(), measured.states["relative_dispersion"])
    assert bool(measured.distances[:, 7:].isnan().all())


def test_distances_of_two_tokens_by_hand() -> None:
    x = torch.tensor([[[9.0, 9.0], [3.0, 0.0], [1.0, 0.0]]])
    counted = torch.tensor([[False, True, True]])
    found = token_distances(x, counted, most=3)[:, 0]
    assert found[:2].tolist() == pytest.approx([1 / math.sqrt(5), 1 / math.sqrt(5)])
    assert math.isnan(found[2])


def test_nearest_fellows_by_brute_force() -> None:
    x = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    counted = torch.ones(2, 6, dtype=torch.bool)
    counted[0, 4:] = False
    distance, neighbour = nearest(x, counted)
    last, last_neighbour = nearest_to_last(x, counted)
    for sample in range(2):
        tokens = counted[sample].nonzero().squeeze(-1).tolist()
        for i in tokens:
            options = {
                j: float((x[sample, i] - x[sample, j]).norm())
                / max(float(x[sample, i].norm()), float(x[sample, j].norm()))
                for j in tokens
                if j != i
            }
            best = min(options, key=options.__getitem__)
            assert int(neighbour[sample, i]) == best
            assert float(distance[sample, i]) == pytest.approx(options[best])
        place = int(last_token(counted)[sample])
        assert place == tokens[-1]
        assert float(last[sample]) == pytest.approx(float(distance[sample, place]))
        assert int(last_neighbour[sample]) == int(neighbour[sample, place])
    assert bool(distance[0, 4:].isinf().all())


def test_cosines_of_equal_and_opposite_tokens() -> None:
    found = cosines(torch.tensor([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]))
    assert found[0].tolist() == pytest.approx([1.0, 1.0, -1.0, 0.0])


def figures(pattern: list[list[float]], mask: str = "full", token_mask=None) -> dict[str, float]:
    p = torch.tensor([[pattern]], dtype=torch.float64)
    visibility = Visibility.of(as_mask(mask), len(pattern), token_mask, torch.device("cpu"))
    return {name: float(each) for name, each in head_figures(p, visibility, token_mask).items()}


def test_even_one_hot_and_sink_heads_by_hand() -> None:
    even = figures([[1 / 3] * 3] * 3)
    assert even == pytest.approx({"entropy_share": 1.0, "dobrushin": 0.0, "sink_share": 1 / 3})
    identity = figures([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert identity == pytest.approx({"entropy_share": 0.0, "dobrushin": 1.0, "sink_share": 0.0})
    sink = figures([[1.0, 0.0, 0.0]] * 3)
    assert sink == pytest.approx({"entropy_share": 0.0, "dobrushin": 0.0, "sink_share": 1.0})


def test_entropy_is_held_against_what_the_mask_allows() -> None:
    causal = figures([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1 / 3] * 3], "causal")
    assert causal["entropy_share"] == pytest.approx(1.0)
    assert causal["sink_share"] == pytest.approx((1 / 2 + 1 / 3) / 2)


def test_padding_is_no_first_token() -> None:
    mask = torch.tensor([[False, True, True]])
    left = figures([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.25, 0.75]], token_mask=mask)
    assert left["sink_share"] == pytest.approx(0.25)
