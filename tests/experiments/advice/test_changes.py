"""Every alternative makes the spec it says, and none comes to the design itself."""

import math
from dataclasses import replace

import pytest
from torch import nn

from rankscope.core.masks import causal_window, window
from rankscope.core.network import NORMS, ALiBi, Init, Network, RelativeBias, Rotary, Spec
from rankscope.experiments.advice import Price, changes, context_share, parameter_count

PLAIN = Spec(6, 4, 16, init="lecun")
POST = replace(PLAIN, norm_place="post")
PURE = Spec.pure_attention(6, 4, 16, init=0.3)


def made(spec: Spec, words: str, tokens: int = 16) -> Spec | None:
    """The spec of the change that begins with these words; None if there is none."""
    found = [each.spec for each in changes(spec, tokens) if each.words.startswith(words)]
    assert len(found) <= 1, words
    return found[0] if found else None


@pytest.mark.parametrize(
    ("spec", "words", "expected"),
    [
        (PURE, "skips added", replace(PURE, skip=1.0)),
        (replace(PLAIN, mlp_skip=0.0), "skips added", PLAIN),
        (POST, "skip × 3.46 (branches × 1/√12)", replace(POST, skip=math.sqrt(12))),
        (POST, "skip × 1.86 (branches × 1/12^¼)", replace(POST, skip=12**0.25)),
        (PLAIN, "skip × 1.41", replace(PLAIN, skip=math.sqrt(2))),
        (PLAIN, "skip × 0.707", replace(PLAIN, skip=math.sqrt(0.5))),
        (PURE, "weights × 0.5", replace(PURE, init=0.15)),
        (PURE, "weights × 2", replace(PURE, init=0.6)),
        (PURE, "weights × 0.639", replace(PURE, init=0.3 * 6**-0.25)),
        (PLAIN, "weights × 0.537", replace(PLAIN, init=Init("lecun", 12**-0.25))),
        (PURE, "LeCun weights", replace(PURE, init="lecun")),
        (PURE, "Xavier weights", replace(PURE, init="xavier")),
        (PURE, "weights of deviation 0.02", replace(PURE, init="bert")),
        (PURE, "orthogonal values and outputs", replace(PURE, init="orthogonal")),
        (POST, "norms before each part", PLAIN),
        (PLAIN, "norms after each sum", POST),
        (PURE, "norms after each sum", replace(PURE, norm="layer", norm_place="post")),
        (PLAIN, "norms before and after", replace(PLAIN, norm_place="both")),
        (PLAIN, "no norms", replace(PLAIN, norm="none")),
        (PLAIN, "causal mask", replace(PLAIN, mask="causal")),
        (PLAIN, "window of 4", replace(PLAIN, mask=window(4))),
        (replace(PLAIN, mask="causal"), "window of 1", replace(PLAIN, mask=causal_window(1))),
        (PLAIN, "rotary positions", replace(PLAIN, scores=Rotary())),
        (PLAIN, "ALiBi", replace(PLAIN, scores=ALiBi())),
        (PLAIN, "relative biases", replace(PLAIN, scores=RelativeBias())),
        (PLAIN, "2 heads of width 8", Spec(6, 2, 16, init="lecun")),
        (PLAIN, "8 heads of width 2", Spec(6, 8, 16, init="lecun")),
        (
            replace(PLAIN, kv_heads=2, score_scale=1.0),
            "2 heads of width 8",
            Spec(6, 2, 16, kv_heads=1, score_scale=1.0, init="lecun"),
        ),
        (PURE, "MLPs added", replace(PURE, mlp_ratio=4.0)),
        (PLAIN, "MLPs removed", replace(PLAIN, mlp_ratio=0.0)),
        (PLAIN, "MLP parallel to attention", replace(PLAIN, parallel=True)),
        (replace(PLAIN, parallel=True), "MLP after attention", PLAIN),
    ],
)
def test_a_change_makes_the_spec_it_says(spec, words, expected) -> None:
    assert made(spec, words) == expected


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (PLAIN, "skips added"),
        (PLAIN, "skip × 3.46"),  # before the sum a scale does not stand for a scaled branch
        (PURE, "skip × "),
        (PLAIN, "LeCun weights"),
        (PLAIN, "norms before each part"),
        (PURE, "no norms"),
        (replace(PLAIN, mask="causal"), "causal mask"),
        (replace(PLAIN, mask=window(3)), "window of 4"),
        (replace(PLAIN, scores=Rotary()), "rotary positions"),
        (Spec(2, 1, 5), "rotary positions"),  # an odd width has no pairs
        (replace(PLAIN, kv_heads=1), "2 heads"),
        (replace(PLAIN, removed_heads=[(0, 1)]), "2 heads"),
        (replace(PLAIN, scores=ALiBi(slopes=(1.0, 0.5, 0.2, 0.1))), "2 heads"),
        (Spec(2, 3, 9), "1 head "),
        (PURE, "MLPs removed"),
        (PURE, "MLP parallel to attention"),
        (replace(PLAIN, attention_skip=0.5), "MLP parallel to attention"),
        (replace(PLAIN, mlp_as="identity"), "MLP parallel to attention"),
    ],
)
def test_a_change_that_does_not_apply_is_not_offered(spec, words) -> None:
    assert made(spec, words) is None


def test_a_change_knows_its_kind() -> None:
    kinds = {each.words: each.kind for each in changes(PLAIN, 16)}
    assert (kinds["skip × 1.41"], kinds["causal mask"]) == ("skips", "masks")
    assert len(set(kinds.values())) == 10


def test_windows_are_for_sequences_that_are_longer() -> None:
    assert made(PLAIN, "window", tokens=3) is None


@pytest.mark.parametrize(
    "spec",
    [PLAIN, POST, PURE, Spec(2, 1, 5), replace(PLAIN, gated=True, norm="rms", parallel=True),
     replace(PLAIN, shared_layers=True), replace(PLAIN, mlp_ratio=0.1, skip=0.3)],
)  # fmt: skip
def test_every_change_is_another_design_once_and_can_be_built(spec) -> None:
    found = changes(spec, 16)
    specs = [each.spec for each in found]
    assert len(found) > 12
    assert spec not in specs
    assert len(set(specs)) == len(specs)
    assert len({each.words for each in found}) == len(found)
    for each in specs:
        Network.random(each)


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
        ({"skip": 2.0}, 1, "none of those counted here"),
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
