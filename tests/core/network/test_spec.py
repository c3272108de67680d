"""The description of a network: a value that is equal, hashed and digested by what it means."""

import copy
import dataclasses
import inspect
import math
import pickle
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from rankscope.core.masks import Causal, Explicit, Full, Window
from rankscope.core.network import Init, Network, Scores, Spec
from rankscope.errors import KindError, SpecError

EYE, LOWER = torch.eye(3).bool(), torch.ones(3, 3).tril().bool()


@dataclass(frozen=True)
class Own:
    """A description of a score, as a user would write one."""

    strength: float = 1.0

    def build(self, heads, head_width):
        del heads, head_width
        return Scores()


def test_defaults():
    spec = Spec(12, 12, 768, norm_place="post")
    assert (spec.head_width, spec.kv_heads, spec.mlp_width) == (64, 12, 3072)
    assert spec.score_scale == 1 / 8
    assert spec.skips == (1.0, 1.0)
    assert spec.mask == Full()
    assert spec.init == Init("normal", 0.02)
    assert (spec.bias, spec.parallel, spec.gated, spec.shared_layers) == (True, False, False, False)


def test_options_are_keyword_only():
    kinds = {p.name: p.kind for p in inspect.signature(Spec).parameters.values()}
    positional = [
        name for name, kind in kinds.items() if kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    assert positional == ["layers", "heads", "width"]
    with pytest.raises(TypeError, match="positional"):
        Spec(1, 2, 8, 4)


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Spec(1, 2, 8).layers = 3


SAME = {
    "skip": [{}, {"skip": True}, {"skip": 1}, {"attention_skip": 1, "mlp_skip": 1.0},
             {"skip": False, "attention_skip": True, "mlp_skip": True}],
    "no skip": [{"skip": False}, {"skip": 0}, {"attention_skip": False, "mlp_skip": 0.0}],
    "two skips": [{"attention_skip": 0.5}, {"skip": 0.5, "mlp_skip": 1},
                  {"skip": 3.0, "attention_skip": 0.5, "mlp_skip": True}],
    "no mlp": [{"mlp_ratio": 0}, {"mlp_ratio": 0.0, "mlp_skip": 0.5}],
    "no mlp, half skip": [{"mlp_ratio": 0, "skip": 0.5}, {"mlp_ratio": 0, "attention_skip": 0.5}],
    "mask": [{"mask": "causal"}, {"mask": Causal()}],
    "explicit": [{"mask": LOWER}, {"mask": LOWER.clone()}, {"mask": Explicit.of(LOWER)}],
    "init": [{"init": "bert"}, {"init": 0.02}, {"init": Init("normal", 0.02)}],
    "whole init": [{"init": 1}, {"init": 1.0}, {"init": Init("normal", 1)},
                   {"init": Init("normal", 1.0)}],
    "heads": [{"head_width": 4}, {"kv_heads": 2}, {"score_scale": 0.5}, {"score_scale": None}],
    "ratio": [{"mlp_ratio": 2}, {"mlp_ratio": 2.0}],
    "scores": [{"scores": Own(2.0)}, {"scores": Own(2.0)}],
    "layer masks": [{"layer_masks": [Full(), Causal()]}, {"layer_masks": (Full(), Causal())},
                    {"layer_masks": ["full", "causal"]},
                    {"layer_masks": (Full(), Causal()), "mask": "causal"}],
    "one mask": [{"mask": "causal"}, {"layer_masks": (Causal(), Causal())}],
    "removed heads": [{"removed_heads": [(1, 0), (0, 1)]}, {"removed_heads": ((0, 1), (1, 0))},
                      {"removed_heads": {(1, 0), (0, 1)}},
                      {"removed_heads": iter([(0, 1), (1, 0), (0, 1)])}],
    "no mlp to replace": [{"mlp_ratio": 0}, {"mlp_ratio": 0, "mlp_as": "identity"}],
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_the_same_network_written_differently_is_one_value(name):
    specs = [Spec(2, 2, 8, **written) for written in SAME[name]]
    assert all(spec == specs[0] for spec in specs)
    assert len(set(specs)) == 1
    assert len({spec.digest(seed=1) for spec in specs}) == 1


CHANGED = {
    "layers": 3,
    "heads": 4,
    "width": 10,
    "head_width": 5,
    "kv_heads": 1,
    "mlp_ratio": 2.0,
    "activation": "relu",
    "gated": True,
    "mlp_as": "identity",
    "removed_heads": ((0, 1),),
    "norm": "rms",
    "norm_place": "post",
    "norm_eps": 1e-6,
    "parallel": True,
    "skip": 0.5,
    "attention_skip": 0.5,
    "mlp_skip": 0.5,
    "mask": Causal(),
    "layer_masks": (Full(), Causal()),
    "bias": False,
    "shared_layers": True,
    "centered": True,
    "scores": Own(),
    "score_scale": 0.25,
    "init": Init("lecun"),
    "embedding_scale": 0.5,
    "undescribed": ("a mixture of experts",),
}


def test_the_table_of_changes_is_complete():
    assert set(CHANGED) == {field.name for field in dataclasses.fields(Spec)}


@pytest.mark.parametrize("field", CHANGED)
def test_replace_changes_one_field(field):
    spec = Spec(2, 2, 8)
    changed = dataclasses.replace(spec, **{field: CHANGED[field]})
    assert changed != spec
    assert changed.digest() != spec.digest()
    if field == "mlp_skip":  # kept as skip, with the attention's own set apart
        assert changed.skips == (1.0, 0.5)
        return
    assert getattr(changed, field) == CHANGED[field]
    others = {name: getattr(changed, name) for name in CHANGED if name != field}
    assert others == {name: getattr(spec, name) for name in CHANGED if name != field}


def test_masks_of_each_layer():
    assert Spec(3, 2, 8, mask="causal").masks == (Causal(),) * 3
    assert Spec(2, 2, 8, layer_masks=(Full(), Causal())).masks == (Full(), Causal())


@pytest.mark.parametrize("field", CHANGED)
def test_replace_nothing_is_the_same_value(field):
    """Also for specs whose settled fields are unusual: every value is accepted back."""
    spec = dataclasses.replace(Spec(2, 2, 8), **{field: CHANGED[field]})
    assert dataclasses.replace(spec) == spec
    assert hash(dataclasses.replace(spec)) == hash(spec)


def test_digests_tell_everything_apart():
    variations = [{field: value} for field, value in CHANGED.items()]
    variations += [
        {},
        {"mask": EYE},
        {"mask": LOWER},
        {"mask": Window(before=1, after=0)},
        {"mask": Window(before=0, after=1)},
        {"layer_masks": (Causal(), Full())},
        {"layer_masks": (Explicit.of(EYE), Explicit.of(LOWER))},
        {"layer_masks": (Explicit.of(LOWER), Explicit.of(EYE))},
        {"removed_heads": ((1, 1),)},
        {"removed_heads": ((0, 1), (1, 1))},
        {"init": Init("lecun", 2.0)},
        {"init": "xavier"},
        {"scores": Own(2.0)},
        {"skip": 0.1},
        {"skip": 0.1 + 1e-12},
    ]
    specs = [dataclasses.replace(Spec(2, 2, 8), **change) for change in variations]
    digests = [spec.digest() for spec in specs] + [Spec(2, 2, 8).digest(seed=s) for s in (0, 1)]
    assert len(set(digests)) == len(variations) + 2
    assert all(len(d) == 12 and set(d) <= set("0123456789abcdef") for d in digests)


def test_digest_is_the_same_in_another_process():
    """It names files, so it may depend neither on addresses nor on Python's salted hash."""
    code = (
        "import torch; from rankscope.core.network import Spec; "
        "print(Spec(2, 2, 8, mask=torch.eye(3).bool(), skip=0.5).digest(seed=7))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == Spec(2, 2, 8, mask=EYE, skip=0.5).digest(seed=7)


class Terse(Own):
    def __str__(self):
        return "terse"


def test_digest_of_scores_that_print_short():
    """As with masks, what is printed for people is not what is digested."""
    assert Spec(1, 1, 2, scores=Terse(1.0)).digest() != Spec(1, 1, 2, scores=Terse(2.0)).digest()


NAN, INF = math.nan, math.inf
WRONG = [
    # field, value, error
    ("layers", 0, SpecError),
    ("layers", -1, SpecError),
    ("layers", 1.0, KindError),
    ("layers", True, KindError),
    ("layers", "2", KindError),
    ("layers", None, KindError),
    ("heads", 0, SpecError),
    ("heads", 3, SpecError),  # does not divide the width
    ("heads", 2.0, KindError),
    ("width", 0, SpecError),
    ("width", 7, SpecError),
    ("width", "8", KindError),
    ("head_width", 0, SpecError),
    ("head_width", 2.5, KindError),
    ("kv_heads", 0, SpecError),
    ("kv_heads", 3, SpecError),
    ("kv_heads", 4, SpecError),
    ("kv_heads", 1.0, KindError),
    ("mlp_ratio", -1, SpecError),
    ("mlp_ratio", NAN, SpecError),
    ("mlp_ratio", INF, SpecError),
    ("mlp_ratio", 0.01, SpecError),  # rounds to no hidden unit
    ("mlp_ratio", "4", KindError),
    ("mlp_ratio", None, KindError),
    ("activation", "tanh", SpecError),
    ("activation", None, SpecError),
    ("activation", ["gelu"], SpecError),
    ("gated", "yes", KindError),
    ("gated", None, KindError),
    ("gated", 1, KindError),
    ("mlp_as", "yes", SpecError),
    ("mlp_as", None, SpecError),
    ("mlp_as", True, SpecError),
    ("removed_heads", [(2, 0)], SpecError),
    ("removed_heads", [(0, 2)], SpecError),
    ("removed_heads", [(0, -1)], SpecError),
    ("removed_heads", [(-1, 0)], SpecError),
    ("removed_heads", [0], (SpecError, KindError)),
    ("removed_heads", [(0, 1, 0)], (SpecError, KindError)),
    ("removed_heads", [(0.5, 1)], (SpecError, KindError)),
    ("removed_heads", 1, (SpecError, KindError)),
    ("removed_heads", None, (SpecError, KindError)),
    ("layer_masks", [Full()], SpecError),
    ("layer_masks", [], SpecError),
    ("layer_masks", [Full(), 3], (SpecError, KindError)),
    ("layer_masks", ["full", "none"], (SpecError, KindError)),
    ("layer_masks", Full(), (SpecError, KindError)),
    ("layer_masks", "no", (SpecError, KindError)),
    ("norm", "batch", SpecError),
    ("norm", None, SpecError),
    ("norm", True, SpecError),
    ("norm_place", "middle", SpecError),
    ("norm_place", None, SpecError),
    ("norm_eps", -1e-5, SpecError),
    ("norm_eps", NAN, SpecError),
    ("norm_eps", "small", KindError),
    ("parallel", "no", KindError),
    ("parallel", None, KindError),
    ("skip", -0.5, SpecError),
    ("skip", NAN, SpecError),
    ("skip", INF, SpecError),
    ("skip", "yes", KindError),
    ("skip", None, KindError),
    ("attention_skip", -1, SpecError),
    ("attention_skip", "no", KindError),
    ("mlp_skip", INF, SpecError),
    ("mlp_skip", [1], KindError),
    ("mask", "triangular", SpecError),
    ("mask", 3, (SpecError, KindError)),
    ("mask", None, (SpecError, KindError)),
    ("mask", [[True]], (SpecError, KindError)),
    ("mask", EYE.numpy(), (SpecError, KindError)),
    ("mask", torch.ones(2, 2), KindError),
    ("bias", "none", KindError),
    ("bias", 0, KindError),
    ("shared_layers", "all", KindError),
    ("centered", "all", KindError),
    ("scores", "rotary", SpecError),
    ("scores", None, SpecError),
    ("scores", 1.0, SpecError),
    ("score_scale", -1.0, SpecError),
    ("score_scale", NAN, SpecError),
    ("score_scale", "1", KindError),
    ("init", "random", SpecError),
    ("init", -0.1, SpecError),
    ("init", [0.02], KindError),
    ("init", None, KindError),
    ("embedding_scale", -1.0, SpecError),
    ("embedding_scale", 0.0, SpecError),
    ("embedding_scale", NAN, SpecError),
    ("undescribed", "experts", KindError),
    ("undescribed", [3], KindError),
    ("undescribed", None, KindError),
]


def label(field, value):
    return f"{field}={''.join(repr(value).split()):.16}"


@pytest.mark.parametrize(
    ("field", "value", "error"), WRONG, ids=[label(field, value) for field, value, _ in WRONG]
)
def test_wrong_values_are_named(field, value, error):
    given = {"layers": 2, "heads": 2, "width": 8, field: value}
    with pytest.raises(error, match=field):
        Spec(**given)


def test_every_field_has_a_wrong_value():
    assert {field for field, _, _ in WRONG} == set(CHANGED)


@pytest.mark.parametrize(
    "skips",
    [
        {"attention_skip": 0.5},
        {"mlp_skip": False},
        {"attention_skip": 0.5, "mlp_skip": 0.25},
    ],
    ids=str,
)
def test_a_parallel_block_has_one_skip(skips):
    with pytest.raises(SpecError, match=r"attention_skip=.* and mlp_skip=.* differ"):
        Spec(2, 2, 8, parallel=True, **skips)
    assert Spec(2, 2, 8, parallel=True, attention_skip=0.5, mlp_skip=0.5).skips == (0.5, 0.5)


def test_advice_is_in_the_message():
    with pytest.raises(SpecError, match="choose a multiple, or set head_width"):
        Spec(2, 3, 8)
    with pytest.raises(SpecError, match=r"choose one of gelu, .*silu"):
        Spec(2, 2, 8, activation="swish")


def test_pure_attention_is_attention_alone():
    pure = Spec.pure_attention(4, 2, 8, mask="causal", init="lecun", bias=False)
    assert pure == Spec(
        4, 2, 8, mlp_ratio=0, norm="none", skip=False, mask="causal", init="lecun", bias=False
    )
    assert Spec.pure_attention(4, 2, 8).bias
    for given in ({"norm": "layer"}, {"skip": True}, {"mlp_ratio": 4}, {"attention_skip": 0.5}):
        with pytest.raises(SpecError, match=rf"{next(iter(given))}=.*; write Spec\(4, 2, 8"):
            Spec.pure_attention(4, 2, 8, **given)


def test_a_spec_in_words():
    assert Spec(1, 2, 8).describe() == (
        "1 layer, width 8, 2 heads of width 4, full mask, layer norm before each part, skips, "
        "MLPs of 32 gelu units, biases, weights of standard deviation 0.02, embeddings of scale "
        "0.02"
    )
    assert Spec.pure_attention(3, 1, 8, scores=Own(), score_scale=0.5, mask=EYE).describe() == (
        f"3 layers, width 8, 1 head of width 8, {Own()} scores, logits times 0.5, "
        "explicit(3 tokens) mask, no norm, no skips, no MLPs, biases, weights of standard "
        "deviation 0.02, embeddings of scale 1"
    )


def test_words_tell_every_field_apart():
    specs = [dataclasses.replace(Spec(2, 2, 8), **{f: value}) for f, value in CHANGED.items()]
    words = [spec.describe() for spec in (Spec(2, 2, 8), *specs)]
    assert len(set(words)) == len(words)
    assert not any("\n" in one for one in words)


@pytest.mark.parametrize("field", CHANGED)
def test_a_spec_prints_the_call_that_makes_it(field):
    spec = dataclasses.replace(Spec(2, 2, 8), **{field: CHANGED[field]})
    names = {one.__name__: one for one in (Spec, Own, Init, Causal, Full)}
    assert eval(repr(spec), names) == spec
    assert repr(Spec(2, 2, 8)) == "Spec(2, 2, 8)"


def test_fields_are_those_of_a_frozen_value():
    spec = Spec(2, 2, 8)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.layers = 3
    with pytest.raises(TypeError, match=r"missing .* 'width'"):
        Spec(2, 2)
    assert Spec.norm == "layer"  # what a field is if it is not given
    assert copy.deepcopy(spec) == pickle.loads(pickle.dumps(spec)) == spec


def test_libraries_initialise_as_they_do():
    assert Spec(3, 2, 8, init="bert").init == Init("normal", 0.02)
    gpt2 = Spec(8, 2, 8, init="gpt2").init  # sixteen branches
    assert gpt2 == Init("normal", 0.02, {"output": 0.25, "down": 0.25})
    assert Spec(8, 2, 8, init="gpt2", parallel=True).init.scales["down"] == pytest.approx(8**-0.5)
    t5 = Spec(2, 2, 8, init="t5")
    assert t5.init == Init("lecun", 1.0, {"query": 0.5})
    assert t5.score_scale == 1.0  # the queries' factor is in its place
    assert Spec(2, 2, 8, init="t5", score_scale=0.5).score_scale == 0.5


def test_embeddings_are_those_of_designs_like_this_one():
    assert Spec(2, 2, 8).embedding_scale == 0.02  # Llama
    assert Spec(2, 2, 8, init="gpt2").embedding_scale == pytest.approx(0.02 * 2**0.5)
    assert Spec(2, 2, 8, init=0.0).embedding_scale == 1.0
    assert Spec(2, 2, 8, norm_place="post").embedding_scale == 1.0  # BERT's have a norm
    assert Spec(2, 2, 8, init="t5").embedding_scale == 1.0
    assert Spec(2, 2, 8, norm="none").embedding_scale == 1.0
    assert Spec(2, 2, 8, norm_place="both", init=0.5).embedding_scale == 0.5
    kept = dataclasses.replace(Spec(2, 2, 8), norm_place="post")  # other blocks, same embeddings
    assert kept.embedding_scale == 0.02
    assert repr(kept) == "Spec(2, 2, 8, norm_place='post', embedding_scale=0.02)"


def test_factors_of_single_matrices():
    init = Init("normal", 2.0, {"down": 0.5, "query": 1.0, "key": 3})
    assert init.scales == {"key": 3.0, "down": 0.5}
    assert hash(init) == hash(Init("normal", 2, {"key": 3, "down": 0.5}))
    assert init.deviation("down", 4, 4) == 1.0
    assert init.times(2.0).deviation("key", 4, 4) == 12.0
    assert str(init) == "weights of standard deviation 2, key × 3, down × 0.5"
    assert eval(repr(init)) == init
    for wrong, message in (({"up": -1}, "up"), ({"side": 1}, "side"), ([1], "not a mapping")):
        with pytest.raises((SpecError, KindError), match=message):
            Init("normal", 1.0, wrong)


@pytest.mark.parametrize("kind", ["normal", "xavier", "lecun", "orthogonal"])
def test_matrices_are_drawn_with_the_deviation_told(kind):
    init = Init(kind, 0.5, {"output": 0.25})
    spec = Spec(1, 2, 64, init=init, head_width=48)
    block = Network.random(spec).blocks[0]
    for matrix, stored in {"output": block.attention.output, "up": block.mlp.up}.items():
        outputs, inputs = stored.weight.shape
        expected = init.deviation(matrix, inputs, outputs)
        assert float(stored.weight.detach().std()) == pytest.approx(expected, rel=0.05)


def test_a_spec_from_numpy_numbers_is_the_same_spec():
    given = Spec(
        np.int64(2),
        np.int32(2),
        np.uint8(8),
        mlp_ratio=np.float32(2),
        gated=np.bool_(True),
        skip=np.bool_(True),
        removed_heads=[(np.int64(0), np.int64(1))],
        init=Init("normal", np.float64(0.5), {"output": np.float32(0.25)}),
    )
    plain = Spec(
        2,
        2,
        8,
        mlp_ratio=2,
        gated=True,
        removed_heads=[(0, 1)],
        init=Init("normal", 0.5, {"output": 0.25}),
    )
    assert given == plain
    assert hash(given) == hash(plain)
    assert given.digest() == plain.digest()
    assert repr(given) == repr(plain)
    drawn, again = (
        Network.random(spec, seed=seed) for spec, seed in ((given, np.int64(3)), (plain, 3))
    )
    assert torch.equal(drawn.blocks[1].mlp.up.weight, again.blocks[1].mlp.up.weight)


def test_the_factors_of_an_init_cannot_be_changed():
    init = Init("normal", 0.02, {"down": 0.5})
    with pytest.raises(TypeError, match="item assignment"):
        init.scales["down"] = 2.0
    assert pickle.loads(pickle.dumps(init)) == init == copy.deepcopy(init)
    assert hash(init) == hash(Init("normal", 0.02, {"down": 0.5}))
    assert hash(init.scales) != hash(Init("normal", 0.02, {"down": 0.25}).scales)
