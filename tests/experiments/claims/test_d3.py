"""MLPs and the collapse: as stated, and with the tokens' size held."""

from dataclasses import replace

import pytest
import torch

from rankscope import tables
from rankscope.core.theory import Law
from rankscope.experiments import kit
from rankscope.experiments.claims import d3
from rankscope.process.progress import silent

from .small import TINY, tiny

NOTHING = tables.frame({"metric": [], "value": []})
CONFIG = d3.Config(activations=("relu",), gains=(0.5, 2.0), draws=2)


def ends(relu: tuple[float, float], plain: tuple[float, float], kept: tuple[float, float]):
    """Laws by where each network ends: MLPs and none by gain, and two draws beside one at −100."""
    last = {
        "no MLP": -100.0,
        **{f"relu × {g:g}": value for g, value in zip((0.5, 2.0), relu, strict=True)},
        **{f"no MLP, output × {g:g}": value for g, value in zip((0.5, 2.0), plain, strict=True)},
        **{f"no MLP, draw {draw}": -100.0 for draw in range(2)},
        **{f"relu, size kept, draw {draw}": value for draw, value in enumerate(kept)},
    }
    return {name: Law("doubly exponential", 3.0, -9.0, value) for name, value in last.items()}


def judged(laws: dict[str, Law], config: d3.Config = CONFIG) -> kit.Result:
    return kit.conclude(d3.ENTRY, config, kit.Measured(NOTHING, facts=(laws, {})))


def drawn(laws: dict[str, Law], law: Law) -> kit.Result:
    """The same with MLPs as they are drawn, of a law of their own."""
    more = {"relu × 1": law, "no MLP, output × 1": laws["no MLP"]}
    return judged(laws | more, replace(CONFIG, gains=(0.5, 1.0, 2.0)))


def test_slower_the_steeper_is_one_thing_and_stopping_the_fall_another() -> None:
    laws = ends((-200.0, -100.0), (-190.0, -110.0), (-90.0, -90.0))
    assert judged(laws).verdict == "holds"  # nothing was tried as it is drawn
    found = drawn(laws, Law("doubly exponential", 3.0, -9.0, -150.0))
    assert found.judgement.on == (
        "as drawn, MLPs do not stop it: after 8 layers 10^−150 (relu), "
        "10^−100 without MLPs; steeper MLPs are slower (so is attention without MLPs when its own "
        "weights are scaled by the same factor, by 0.8 to 0.8 times as much)"
    )
    assert found.beyond.verdict == "holds"
    stopped = drawn(laws, Law("none", 1.0, 0.0, -150.0))
    assert stopped.verdict == "holds"


def test_from_which_slope_on_the_fall_is_another_is_said() -> None:
    laws = ends((-200.0, -100.0), (-190.0, -110.0), (-90.0, -90.0))
    laws["relu × 2"] = replace(laws["relu × 2"], kind="exponential")
    found = drawn(laws, Law("doubly exponential", 3.0, -9.0, -150.0))
    assert "; from × 2 on it is no longer doubly exponential; " in found.judgement.on
    assert found.key_figures == {  # by gains under which all fall doubly exponentially
        "relu, decades by doubling": pytest.approx(50.0),
        "no MLP, output, decades by doubling": pytest.approx(90.0),
    }


def test_every_other_verdict_can_be_reached() -> None:
    falling = ends((-100.0, -200.0), (-190.0, -110.0), (-120.0, -90.0))
    found = judged(falling)
    assert found.verdict == "fails"  # not slower the steeper
    stopped = drawn(falling, Law("none", 1.0, 0.0, -150.0))
    assert stopped.judgement.on == (
        "as drawn, MLPs stop it: after 8 layers 10^−150 (relu), 10^−100 "
        "without MLPs; from × 1 on it is no longer doubly exponential; steeper MLPs are not always "
        "slower"
    )
    assert found.beyond.on == "slower in 1 of 2 draws with relu"
    faster = ends((-200.0, -100.0), (-190.0, -110.0), (-110.0, -120.0))
    assert judged(faster).beyond.verdict == "fails"
    unseen = {name: replace(law, kind="undecided") for name, law in falling.items()}
    nothing = judged(unseen)
    assert (nothing.verdict, nothing.beyond.verdict) == ("not tried", "not tried")


def test_mlps_as_drawn_are_held_against_none() -> None:
    config = replace(CONFIG, gains=(0.5, 1.0, 2.0))
    laws = ends((-200.0, -100.0), (-190.0, -110.0), (-90.0, -90.0))
    laws["no MLP, output × 1"] = laws["no MLP"]
    laws["relu × 1"] = replace(laws["no MLP"], last=-150.0)
    faster = "As drawn, MLPs make the fall faster than none does: relu."
    assert faster in judged(laws, config).sentences
    laws["relu × 1"] = replace(laws["no MLP"], last=-50.0)
    slower = "As drawn, MLPs make the fall slower than none does: relu."
    assert slower in judged(laws, config).sentences


def test_too_few_layers_decide_nothing() -> None:
    found = d3.ENTRY.run(replace(TINY["d3"][1], layers=2), silent)
    assert found.verdict == "not tried"


def test_the_order_of_gains_does_not_matter() -> None:
    config = replace(TINY["d3"][1], gains=(2.0, 1.0, 0.5), activations=("relu",))
    found = d3.ENTRY.run(config, silent)
    assert found.judgement.on.startswith("as drawn, MLPs do not stop it")
    assert "; steeper MLPs are slower" in found.judgement.on


def test_a_factor_acts_like_that_of_an_mlp_without_any() -> None:
    """Both make logits of later layers larger by its square, so both shift the exponent alike."""
    figures = tiny("d3")[0].key_figures
    relu, gelu, control = figures.values()
    assert relu == pytest.approx(control, rel=0.15)
    assert gelu == pytest.approx(control, rel=0.15)
    assert control > 50


def test_scaled_mlps_leave_the_tokens_their_size() -> None:
    config = TINY["d3"][1]
    x, token_mask = config.texts()
    plain = d3._network(config, None)
    kept = d3._size_kept(plain, d3._network(config, "gelu"), x, token_mask)
    for one, other in zip(plain.states(x, token_mask), kept.states(x, token_mask), strict=True):
        sizes = [float(torch.linalg.vector_norm(each.detach())) for each in (one, other)]
        assert sizes[0] == pytest.approx(sizes[1], rel=1e-9)


def test_lipschitz_constants_go_with_the_gain() -> None:
    rows = {row[0]: row[1:] for row in tiny("d3")[0].listings[0].rows}
    assert rows["no MLP"][0] is rows["no MLP, output × 2"][0] is None
    for kind in ("relu", "gelu"):
        flat, steep = rows[f"{kind} × 0.5"], rows[f"{kind} × 2"]
        assert steep[0] == pytest.approx(4 * flat[0])
        assert flat[2] == steep[2] == "doubly exponential"
