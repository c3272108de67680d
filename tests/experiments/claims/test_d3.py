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


def test_rising_ends_bear_it_out_and_the_control_is_named() -> None:
    found = judged(ends((-200.0, -100.0), (-190.0, -110.0), (-90.0, -90.0)))
    assert found.verdict == "holds"
    assert "without any MLP where attention's own weights are scaled alike" in found.judgement.on
    assert "by 0.8 to 0.8 times as much" in found.judgement.on  # 80 decades of 100
    assert found.beyond.verdict == "holds"


def test_every_other_verdict_can_be_reached() -> None:
    falling = ends((-100.0, -200.0), (-190.0, -110.0), (-120.0, -90.0))
    found = judged(falling)
    assert found.verdict == "depends"  # doubly exponential, but not slower the steeper
    assert found.judgement.on == (
        "the case: relu stays doubly exponential bears it out, relu is slower the steeper does not"
    )
    level = ends((-100.0, -100.0), (-100.0, -100.0), (-120.0, -90.0))
    assert judged(level).judgement.on == ""  # nothing is slowed, with MLPs or without
    assert found.beyond.on == "the weights drawn: slower in 1 of 2 draws with relu"
    slow = {name: replace(law, kind="exponential") for name, law in falling.items()}
    assert judged(slow).verdict == "fails"
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
    config = replace(TINY["d3"][1], gains=(2.0, 0.5), activations=("relu",))
    assert d3.ENTRY.run(config, silent).verdict == "holds"


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
