"""What a change costs, against networks that were built and masks that were counted."""

from dataclasses import replace

import pytest
from torch import nn

from rankscope.core.network import NORMS, Network, RelativeBias, Spec
from rankscope.experiments.advice import Price, context_share, parameter_count

SPECS = [
    Spec(3, 2, 8),
    Spec(3, 2, 8, bias=False),
    Spec(3, 2, 8, norm="rms", gated=True, norm_place="both"),
    Spec(3, 2, 8, norm="sphere", mlp_ratio=0.0),
    Spec(3, 4, 8, kv_heads=2, parallel=True),
    Spec(3, 4, 8, parallel=True, norm_place="both"),
    Spec(3, 4, 8, parallel=True, norm_place="post"),
    Spec(3, 4, 8, parallel=True, mlp_ratio=0.0),
    Spec(3, 2, 8, shared_layers=True),
    Spec(3, 2, 8, scores=RelativeBias(buckets=8)),
    Spec.pure_attention(3, 2, 8),
    Spec(3, 2, 8, head_width=3),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_parameters_are_those_of_a_network(spec) -> None:
    assert parameter_count(spec) == sum(p.numel() for p in Network.random(spec).parameters())


def test_a_new_norm_is_counted_as_it_is_built(monkeypatch) -> None:
    grouped = replace(NORMS["layer"], build=lambda width, _eps, _bias: nn.GroupNorm(1, width))
    monkeypatch.setitem(NORMS, "group", replace(grouped, module=nn.GroupNorm))
    assert parameter_count(replace(SPEC, norm="group")) == parameter_count(SPEC)


def test_the_context_is_the_share_of_pairs_over_the_layers() -> None:
    assert context_share(Spec(2, 1, 4), 5) == 1.0
    assert context_share(Spec(2, 1, 4, mask="causal"), 4) == 10 / 16
    both = Spec(2, 1, 4, layer_masks=["causal", "full"])
    assert context_share(both, 4) == (10 / 16 + 1) / 2


SPEC = Spec(2, 2, 8)


@pytest.mark.parametrize(
    ("changed", "level", "words"),
    [
        ({"init": "lecun"}, 0, "branches start 312 times as large"),
        ({"skip": 2.0}, 1, "nothing that is counted here"),
        ({"mlp_ratio": 8.0}, 2, "62 % more parameters"),
        ({"mlp_ratio": 0.0}, 2, "65 % fewer parameters"),
        ({"mask": "causal"}, 3, "a token attends to 62 % of the tokens instead of 100 %"),
    ],
)
def test_a_price_is_counted_and_told(changed, level, words) -> None:
    found = Price.of(SPEC, replace(SPEC, **changed), 4)
    assert found.level == level
    assert found.in_words() == words


def test_what_cannot_be_counted_is_told_beside_it() -> None:
    assert Price.of(SPEC, replace(SPEC, skip=2.0), 4).in_words("less of it") == "less of it"
