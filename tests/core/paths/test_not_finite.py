"""Sums over paths of what is not finite are refused, and the layer is named."""

import math

import pytest
import torch
from torch import nn

from rankscope import diagnose
from rankscope.core.network import Network, Spec
from rankscope.core.paths import (
    Path,
    head_shares,
    path_lengths,
    path_matrix,
    path_output,
    top_paths,
    truncate,
)
from rankscope.errors import InputError, UnsupportedModelError
from rankscope.experiments import path_study

from .conftest import batch

FUNCTIONS = {
    "path_lengths": path_lengths,
    "path_lengths, cut": lambda net, x: path_lengths(net, x, max_length=1),
    "head_shares": head_shares,
    "truncate": lambda net, x: truncate(net, x, max_length=1),
    "path_output": lambda net, x: path_output(net, x, Path.of(0, 1, 0)),
    "path_matrix": lambda net, x: path_matrix(net, x, Path.of(0, 1, 0)),
    "top_paths": lambda net, x: top_paths(net, x, count=2),
    "path_study": path_study,
}


def network(**options):
    return Network.random(Spec(3, 2, 8, init=0.5, **options), dtype=torch.float64)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_broken_input(name, bad):
    x = batch()
    x[1, 2, 3] = bad
    with pytest.raises(InputError, match=rf"x is {bad} at \[1, 2, 3\]"):
        FUNCTIONS[name](network(), x)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("part", ["attention.query", "attention.value", "mlp.down"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_broken_weight(name, part, bad):
    net = network()
    with torch.no_grad():
        net.blocks[1].get_submodule(part).weight[0, 0] = bad
    with pytest.raises(InputError, match=rf"layer 2: the weight {part}\.weight holds NaN"):
        FUNCTIONS[name](net, batch())


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "path_matrix"])
def test_an_overflow(name):
    net = network(norm="none", mlp_ratio=0.0)
    with torch.no_grad():
        net.blocks[1].attention.output.weight.fill_(1e308)
    with pytest.raises(InputError, match=r"layer 2.*(overflow|scale the input down)"):
        FUNCTIONS[name](net, batch() * 1e3)


@pytest.mark.parametrize("name", ["path_lengths", "truncate", "head_shares", "path_output"])
def test_paths_that_overflow_though_the_network_does_not(name):
    """Equal tokens: the first layer takes them away, the next two multiply what is left, nothing;
    the path past the first layer is multiplied as well."""
    gains = torch.tensor([-1.0, 1e200, 1e200], dtype=torch.float64)
    values = gains[:, None, None, None] * torch.eye(8, dtype=torch.float64)
    net = Network.from_matrices(torch.zeros_like(values), values, head_width=8, skip=True)
    x = torch.ones(1, 4, 8, dtype=torch.float64)
    assert not net(x).any()
    functions = FUNCTIONS | {"path_output": lambda *at: path_output(*at, Path.of(None, 0, 0))}
    with pytest.raises(InputError, match=r"layer [23].*overflow"):
        functions[name](net, x)


@pytest.mark.parametrize("name", ["path_lengths", "head_shares", "path_study"])
def test_shares_that_overflow(name):
    """States of 1e200 are numbers; their squares are not."""
    net = network(norm="none", mlp_ratio=0.0)
    with torch.no_grad():  # or the logits overflow first
        for block in net.blocks:
            block.attention.query.weight.zero_()
    with pytest.raises(InputError, match=r"layer \d: the (norm share|projection) of .* overflows"):
        FUNCTIONS[name](net, batch() * 1e200)


def test_padding_may_hold_anything():
    x, token_mask = batch(), torch.ones(2, 5).bool()
    token_mask[0, 3:] = False
    noise = torch.where(token_mask[..., None], x, math.nan)
    found, expected = (
        path_lengths(network(), each, token_mask=token_mask).columns for each in (noise, x)
    )
    assert found == expected


def test_a_norm_of_another_class_is_refused():
    """What it does is not known, so nothing can be frozen."""

    class Doubled(nn.LayerNorm):
        def forward(self, x):
            return 2 * super().forward(x)

    net = network(norm_place="post")
    net.blocks[0].norms["attention"] = Doubled(8, dtype=torch.float64)
    net = net.without("mlp_skip")  # steps are made anew, with the norm that is there now
    with pytest.raises(UnsupportedModelError, match="Doubled"):
        path_lengths(net, batch())


def test_diagnose_refuses_a_broken_input():
    x = batch()
    x[0, 0, 0] = math.nan
    with pytest.raises(InputError, match="x is nan at"):
        diagnose(network(), x)


def test_tokens_that_are_not_measured_may_not_overflow_either():
    """Under a causal mask nothing of the last token reaches others, nor any share of theirs."""
    net, x = network(norm="none", mlp_ratio=0.0, mask="causal"), batch()
    measured = torch.tensor([True, True, True, True, False])
    path_lengths(net, x, measured=measured)
    x[:, -1] *= 1e200
    with pytest.raises(InputError, match=r"layer 1 is nan at \[0, 4, 0\].*scale the input down"):
        path_lengths(net, x, measured=measured)
