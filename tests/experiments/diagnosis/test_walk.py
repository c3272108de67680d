"""Stages of a block: the same states as a plain run, and changes that add up."""

import pytest
import torch

from rankscope.core.network import Network, Spec
from rankscope.errors import InputError
from rankscope.experiments.diagnosis._stages import walk

SPECS = {
    "pre": Spec(3, 2, 8, norm_place="pre", init="lecun"),
    "post": Spec(3, 2, 8, norm_place="post", init="lecun"),
    "both": Spec(2, 2, 8, norm_place="both", init="lecun"),
    "output": Spec(2, 2, 8, norm_place="output", init="lecun"),
    "parallel": Spec(3, 2, 8, parallel=True, init="lecun"),
    "no skip": Spec(3, 2, 8, skip=0.0, init="lecun"),
    "half a skip": Spec(3, 2, 8, skip=0.5, init="lecun"),
    "no MLP": Spec(3, 2, 8, mlp_ratio=0.0, init="lecun"),
    "causal, no norm": Spec(3, 2, 8, mask="causal", norm="none", init="lecun"),
    "centred": Spec(2, 2, 8, centered=True, init="lecun"),
}


def input_of(tokens: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(2, tokens, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mask = torch.ones(2, tokens, dtype=torch.bool)
    mask[1, -2:] = False
    return x, mask


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_states_are_those_of_a_plain_run(spec: Spec) -> None:
    network, (x, mask) = Network.random(spec, dtype=torch.float64), input_of()
    runs = list(walk(network, x, mask))
    for run, state in zip(runs, network.states(x, mask), strict=True):
        torch.testing.assert_close(run.state[mask], state[mask])
    assert [run.layer for run in runs] == list(range(1, spec.layers + 1))


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_each_stage_begins_where_the_one_before_ended(spec: Spec) -> None:
    network, (x, mask) = Network.random(spec, dtype=torch.float64), input_of()
    stages = [stage for run in walk(network, x, mask) for stage in run.stages]
    before = network.prepare(x, mask)[0]
    for stage in stages:
        assert torch.equal(stage.before, before)
        before = stage.after


def test_a_part_alone_is_its_output_without_the_skip() -> None:
    spec = SPECS["pre"]
    network, (x, mask) = Network.random(spec, dtype=torch.float64), input_of()
    first = next(walk(network, x, mask)).stages[0]
    alone = next(network.without("attention_skip", "mlp").states(x, mask))
    torch.testing.assert_close(first.alone[mask], alone[mask])
    torch.testing.assert_close(first.after - first.before, first.alone)


def test_parts_are_named_in_order_and_norms_after_the_sum_are_stages() -> None:
    x, mask = input_of()
    for name, parts in {
        "pre": ["attention", "MLP"],
        "post": ["attention", "norm", "MLP", "norm"],
        "parallel": ["attention", "MLP"],
        "no MLP": ["attention"],
    }.items():
        run = next(walk(Network.random(SPECS[name], dtype=torch.float64), x, mask))
        assert [stage.part for stage in run.stages] == parts


def test_attention_matrices_are_those_of_the_layer() -> None:
    network, (x, mask) = Network.random(SPECS["causal, no norm"], dtype=torch.float64), input_of()
    with torch.no_grad():
        run = next(walk(network, x, mask))
    assert run.pattern.shape == (2, 2, 6, 6)
    torch.testing.assert_close(run.pattern.sum(-1), torch.ones(2, 2, 6, dtype=torch.float64))
    assert float(run.pattern[0].triu(1).abs().max()) == 0.0


def test_overflow_names_the_layer() -> None:
    network, (x, mask) = Network.random(Spec(3, 2, 8, norm="none")), input_of()
    with torch.no_grad():
        network.blocks[1].attention.value.weight.fill_(1e38)
    with pytest.raises(InputError, match="output of layer 2 of sample 0 is not finite"):
        list(walk(network, x.float() * 1e3, mask))
