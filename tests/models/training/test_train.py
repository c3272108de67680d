"""Training: seeds together as alone, the same numbers every time, and an end when it is learnt."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from rankscope import Spec
from rankscope.errors import InputError, SpecError
from rankscope.models.training import Approach, Classify, Examples, Recipe, SequenceModel, train
from rankscope.models.training._tasks import IGNORED
from rankscope.models.training._train import stack
from rankscope.streams import stream

SEEDS = (3, 0, 7)
SPECS = {
    "post-norm": Spec(2, 2, 8, norm_place="post", init="xavier"),
    "pre-norm, gated, no biases": Spec(2, 2, 8, gated=True, bias=False, init="xavier"),
    "attention alone, causal": Spec.pure_attention(2, 2, 8, init="xavier", mask="causal"),
    "parallel, grouped heads": Spec(2, 2, 8, parallel=True, kv_heads=1, init="xavier"),
}
RECIPE = Recipe(12, 4, warmup=3, check_every=5)


def model(spec, seed, **inputs):
    """In float64: biases of keys have no gradient but rounding, which AdamW makes steps of."""
    return SequenceModel.random(spec, outputs=3, seed=seed, **inputs).double()


def examples(seed, *, count=10, tokens=5, padded=False):
    generator = stream(seed, "examples")
    ids = torch.randint(6, (count, tokens), generator=generator)
    labels = torch.randint(3, (count, tokens), generator=generator)
    mask = None
    if padded:
        lengths = torch.randint(2, tokens + 1, (count, 1), generator=generator)
        mask = torch.arange(tokens) < lengths
        labels = torch.where(mask, labels, IGNORED)
    return Examples(ids, labels, mask)


def trained(spec, seeds, recipe=RECIPE, *, padded=False):
    models = [model(spec, seed, symbols=6, positions=5) for seed in seeds]
    data = [examples(seed, padded=padded) for seed in seeds]
    return train(models, Classify(), data, recipe, seeds=seeds)


def weights(found):
    return torch.cat([each.flatten() for each in found.model.parameters()])


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", SPECS)
def test_seeds_trained_together_end_where_each_ends_alone(kind, padded):
    together = trained(SPECS[kind], SEEDS, padded=padded)
    for at, seed in enumerate(SEEDS):
        (alone,) = trained(SPECS[kind], [seed], padded=padded)
        before = torch.cat(
            [p.flatten() for p in model(SPECS[kind], seed, symbols=6, positions=5).parameters()]
        )
        moved = (weights(alone) - before).abs().max()
        assert moved > 1e-3
        assert (weights(together[at]) - weights(alone)).abs().max() < 1e-6 * moved
        assert together[at].score == pytest.approx(alone.score)
        assert (together[at].seed, together[at].steps) == (seed, 12)


def test_a_run_is_repeatable_bit_for_bit():
    first, second = (trained(SPECS["post-norm"], SEEDS) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(weights(one), weights(other))
    assert not torch.equal(weights(first[0]), weights(first[1]))


def test_training_is_adamw_on_clipped_gradients():
    """The same steps with PyTorch's own loop, on the whole set at once so that order is nothing."""
    recipe = Recipe(4, 10, warmup=2, clip=0.05, weight_decay=0.1)
    (found,) = trained(SPECS["post-norm"], [0], recipe)
    plain = model(SPECS["post-norm"], 0, symbols=6, positions=5)
    data = examples(0)
    optimiser = torch.optim.AdamW(plain.parameters(), weight_decay=0.1)
    for step in range(4):
        optimiser.param_groups[0]["lr"] = recipe.rate(step)
        optimiser.zero_grad()
        out = plain(data.inputs)
        nn.functional.cross_entropy(out.flatten(0, 1), data.targets.flatten()).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
        optimiser.step()
    expected = torch.cat([each.detach().flatten() for each in plain.parameters()])
    assert torch.allclose(weights(found), expected, atol=1e-9)
    right = (plain(data.inputs).argmax(-1) == data.targets).double().mean()
    assert found.score == pytest.approx(float(right))


def test_a_seed_that_has_learnt_keeps_the_weights_it_had_then():
    recipe = replace(RECIPE, steps=300, learning_rate=0.01, goal=0.75, check_every=2)
    together = trained(SPECS["post-norm"], SEEDS, recipe)
    stopped = [each.steps for each in together]
    assert len(set(stopped)) > 1
    assert max(stopped) < 300
    for at, seed in enumerate(SEEDS):
        (alone,) = trained(SPECS["post-norm"], [seed], recipe)
        assert alone.steps == stopped[at]
        assert torch.allclose(weights(alone), weights(together[at]), atol=1e-6)


def test_points_are_led_to_where_they_should_go():
    spec = Spec.pure_attention(1, 2, 8, init="xavier")
    points = [torch.randn(6, 2, 2, generator=stream(seed, "points")) for seed in (0, 1)]
    data = [Examples(each, each.flip(1)) for each in points]
    models = [model_of_points(spec, seed) for seed in (0, 1)]
    recipe = Recipe(150, 6, learning_rate=0.02, goal=-1e-2, check_every=10, weight_decay=0.0)
    for found, each in zip(
        train(models, Approach(), data, recipe, seeds=(0, 1)), data, strict=True
    ):
        missed = (found.model(each.inputs) - each.targets).square().sum(-1).mean()
        assert found.score == pytest.approx(-float(missed), rel=1e-3)


def model_of_points(spec, seed):
    return SequenceModel.random(spec, outputs=2, coordinates=2, seed=seed)


def test_progress_is_told_to_the_end():
    seen: list[float] = []
    models = [model(SPECS["post-norm"], 0, symbols=6, positions=5)]
    train(
        models, Classify(), [examples(0)], replace(RECIPE, steps=30), seeds=[0], on_step=seen.append
    )
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(seen) > 2


def test_the_models_that_are_given_stay_as_they_are():
    given = model(SPECS["post-norm"], 0, symbols=6, positions=5)
    before = [each.clone() for each in given.parameters()]
    train([given], Classify(), [examples(0)], RECIPE, seeds=[0])
    assert all(map(torch.equal, before, given.parameters()))


def test_the_rate_warms_up_and_goes_down_to_a_tenth():
    recipe = Recipe(110, 1, learning_rate=1.0, warmup=10)
    rates = [recipe.rate(step) for step in range(110)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[10] == pytest.approx(1.0)
    assert rates[60] == pytest.approx(0.55)
    assert recipe.rate(110) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"seeds": (0, 1)}, InputError, "1 models and 1 sets of examples for 2 seeds"),
        ({"recipe": Recipe(1, 11)}, InputError, "batch=11 for 10 examples"),
    ],
)
def test_what_does_not_fit_is_refused(change, error, message):
    given = {"recipe": RECIPE, "seeds": (0,)} | change
    models = [model(SPECS["post-norm"], 0, symbols=6, positions=5)]
    with pytest.raises(error, match=message):
        train(models, Classify(), [examples(0)], given["recipe"], seeds=given["seeds"])


@pytest.mark.parametrize("spec", [Spec(1, 1, 4, norm="rms"), Spec(2, 1, 4, shared_layers=True)])
def test_what_cannot_be_stacked_is_refused(spec):
    with pytest.raises(SpecError, match="training supports LayerNorm or no norm"):
        stack([model(spec, seed, symbols=6) for seed in (0, 1)])
    with pytest.raises(SpecError, match="same spec"):
        stack([model(spec, 0, symbols=6), model(SPECS["post-norm"], 0, symbols=6)])
