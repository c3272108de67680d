"""Ablations of real models against originals patched by hand."""

import pytest
import torch
from torch import Tensor, nn

from rankscope.experiments import four_variants
from rankscope.models.families import Loaded, load
from rankscope.models.families._verification import states as original_states

from .conftest import lively

IDS = torch.tensor([[5, 17, 42, 8, 66, 23, 9], [1, 2, 3, 4, 5, 6, 7]])


class NoSum(nn.Module):
    """Stands where BERT adds its skip: the dense map and the norm, and no sum."""

    def __init__(self, inner: nn.Module, *, skip: bool, dense: bool, norm: bool) -> None:
        super().__init__()
        self.inner, self.skip, self.dense, self.norm = inner, skip, dense, norm

    def forward(self, hidden: Tensor, before: Tensor) -> Tensor:
        out = self.inner.dense(hidden) if self.dense else hidden
        out = out + before if self.skip else out
        return self.inner.LayerNorm(out) if self.norm else out


def bert_by_hand(*, attention_skip: bool, mlp_skip: bool, mlp: str, norm: bool) -> nn.Module:
    model = lively("bert").double()
    for layer in model.encoder.layer:
        layer.attention.output = NoSum(
            layer.attention.output, skip=attention_skip, dense=True, norm=norm
        )
        if mlp == "full":
            layer.output = NoSum(layer.output, skip=mlp_skip, dense=True, norm=norm)
        else:
            layer.intermediate = nn.Identity()
            keep = mlp == "identity"
            layer.output = NoSum(
                layer.output, skip=keep and mlp_skip, dense=False, norm=keep and norm
            )
    return model


def states(loaded: Loaded, model: nn.Module) -> tuple[Tensor, list[Tensor]]:
    arguments = loaded.arguments(IDS)
    x, *outputs = original_states(loaded.family, loaded.family.body_of(model), arguments)
    return x, outputs


@pytest.mark.parametrize(
    ("variant", "by_hand"),
    [
        (lambda n: n, {}),
        (lambda n: n.without("skip"), {"attention_skip": False, "mlp_skip": False}),
        (lambda n: n.without("attention_skip"), {"attention_skip": False}),
        (lambda n: n.without("mlp_skip"), {"mlp_skip": False}),
        (lambda n: n.without("norm"), {"norm": False}),
        (lambda n: n.without("mlp"), {"mlp": "gone"}),
        (lambda n: n.with_identity_mlp(), {"mlp": "identity"}),
        (
            lambda n: n.with_identity_mlp().without("skip"),
            {"mlp": "identity", "attention_skip": False, "mlp_skip": False},
        ),
        (
            lambda n: n.without("skip", "mlp", "norm"),
            {"mlp": "gone", "attention_skip": False, "norm": False},
        ),
    ],
)
def test_bert(variant, by_hand: dict) -> None:
    loaded = load(lively("bert"), dtype=torch.float64)
    whole = {"attention_skip": True, "mlp_skip": True, "mlp": "full", "norm": True}
    x, expected = states(loaded, bert_by_hand(**{**whole, **by_hand}))
    with torch.no_grad():
        got = list(variant(loaded.network).states(x))
    for mine, theirs in zip(got, expected, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-10, atol=1e-12)


class LessSkip(nn.Module):
    """Stands where attention's sum is normalised, and takes its skip out of the sum again."""

    def __init__(self, attention: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.before = norm, torch.empty(0)
        attention.register_forward_pre_hook(self._remember, with_kwargs=True)

    def _remember(self, _: nn.Module, given: tuple, named: dict) -> None:
        self.before = given[0] if given else named.get("hidden_states", named.get("h"))

    def forward(self, total: Tensor) -> Tensor:
        return self.norm(total - self.before)


def as_the_authors(family: str, *, attention_skip: bool, mlp: bool) -> nn.Module:
    """What the notebook of Dong et al. 2021 leaves of a model of its figure 2."""
    model = lively(family).double()
    if family == "bert":
        layers, attention, norm = model.encoder.layer, "attention", "output.LayerNorm"
    elif family == "albert":
        layers = model.encoder.albert_layer_groups[0].albert_layers
        attention, norm = "attention", "LayerNorm"
    else:
        layers, attention, norm = model.layer, "rel_attn", "layer_norm"
    for layer in layers:
        if not attention_skip:
            part = layer.get_submodule(attention)
            part.set_submodule(norm, LessSkip(part, part.get_submodule(norm)))
        if mlp:
            continue
        if family == "bert":
            layer.intermediate = nn.Identity()
            layer.output = NoSum(layer.output, skip=False, dense=False, norm=False)
        elif family == "albert":
            layer.ffn, layer.ffn_output = nn.Identity(), nn.Identity()
        else:
            layer.ff = nn.Identity()
    return model


@pytest.mark.parametrize("family", ["bert", "albert", "xlnet"])
def test_parts_go_as_in_the_code_of_the_2021_paper(family: str) -> None:
    loaded = load(lively(family), dtype=torch.float64)
    variants = four_variants(loaded.network, "paper")
    kept = {"SAN": (False, False), "SAN+MLP": (False, True), "SAN+skip": (True, False)}
    ends = {}
    for name, (attention_skip, mlp) in kept.items():
        by_hand = as_the_authors(family, attention_skip=attention_skip, mlp=mlp)
        x, expected = states(loaded, by_hand)
        with torch.no_grad():
            got = list(variants[name].states(x))
        for mine, theirs in zip(got, expected, strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-9, atol=1e-10), name
        ends[name] = got[-1]
    assert not torch.allclose(ends["SAN"], ends["SAN+skip"], rtol=1e-3)
    steps = four_variants(loaded.network)  # another reading, which this one is not
    with torch.no_grad():
        assert not torch.allclose(steps["SAN+MLP"](x), ends["SAN+MLP"], rtol=1e-3)
        assert torch.allclose(steps["SAN+skip"](x), ends["SAN+skip"]) == (family != "albert")


class Silent(nn.Module):
    """A part of a GPT-2 block that adds nothing."""

    def forward(self, hidden: Tensor, **_: object) -> object:
        return torch.zeros_like(hidden)


def gpt2_skipless(layer: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    attended, _ = layer.attn(layer.ln_1(x), attention_mask=mask)
    return layer.mlp(layer.ln_2(attended))


def test_gpt2_without_skips() -> None:
    loaded = load(lively("gpt2"), dtype=torch.float64)
    x, _ = states(loaded, loaded.original)
    mask = torch.zeros(7, 7, dtype=torch.float64).masked_fill(
        torch.ones(7, 7, dtype=torch.bool).triu(1), float("-inf")
    )[None, None]
    with torch.no_grad():
        expected = x
        for layer in loaded.body.h:
            expected = gpt2_skipless(layer, expected, mask)
        got = loaded.network.without("skip")(x)
    assert torch.allclose(got, expected, rtol=1e-10, atol=1e-12)


def test_gpt2_without_mlps() -> None:
    loaded = load(lively("gpt2"), dtype=torch.float64)
    patched = lively("gpt2").double()
    for layer in patched.h:
        layer.mlp = Silent()
    x, expected = states(loaded, patched)
    with torch.no_grad():
        assert torch.allclose(loaded.network.without("mlp")(x), expected[-1], rtol=1e-10)


def test_gpt2_under_another_mask() -> None:
    """Full attention: the originals' causal mask replaced by none."""
    loaded = load(lively("gpt2"), dtype=torch.float64)
    x, _ = states(loaded, loaded.original)
    mask = torch.zeros(1, 1, 7, 7, dtype=torch.float64)
    with torch.no_grad():
        expected = x
        for layer in loaded.body.h:
            expected = layer(expected, None, mask)
        got = loaded.network.with_mask("full")(x)
    assert torch.allclose(got, expected, rtol=1e-10, atol=1e-12)


def test_removed_heads_are_silent() -> None:
    """BERT: zero what the output projection reads from those heads."""
    loaded = load(lively("bert"), dtype=torch.float64)
    patched = lively("bert").double()
    with torch.no_grad():
        patched.encoder.layer[0].attention.output.dense.weight[:, 6:12] = 0.0  # head 1 of width 6
        patched.encoder.layer[2].attention.output.dense.weight[:, 18:24] = 0.0
    x, expected = states(loaded, patched)
    cut = loaded.network.without_heads((0, 1)).without_heads((2, 3))
    with torch.no_grad():
        assert torch.allclose(cut(x), expected[-1], rtol=1e-10)
        assert not torch.allclose(loaded.network(x), expected[-1], rtol=1e-3)
    assert cut.spec.removed_heads == ((0, 1), (2, 3))


def test_removing_heads_of_a_shared_block_touches_one_layer() -> None:
    loaded = load(lively("albert"), dtype=torch.float64)
    x, _ = states(loaded, loaded.original)
    cut = loaded.network.without_heads((1, 0))
    with torch.no_grad():
        before, after = list(loaded.network.states(x)), list(cut.states(x))
    assert torch.equal(before[0], after[0])
    assert not torch.allclose(before[1], after[1], rtol=1e-6)


def test_parallel_blocks_have_one_skip() -> None:
    from rankscope.errors import SpecError

    network = load(lively("neox")).network
    with pytest.raises(SpecError, match="one skip"):
        network.without("attention_skip")
    assert network.without("skip").spec.skips == (0.0, 0.0)


def test_reinitialised_has_the_architecture_and_other_weights() -> None:
    loaded = load(lively("gpt2"))
    fresh, again = loaded.reinitialised(seed=1), loaded.reinitialised(seed=1)
    assert fresh.network.spec == loaded.network.spec
    first = [next(each.network.parameters()) for each in (loaded, fresh, again)]
    assert torch.equal(first[1], first[2])
    assert not torch.equal(first[0], first[1])
