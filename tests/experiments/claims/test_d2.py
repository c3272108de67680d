"""Cubic contraction below bounds, on the theorems' own domain and beyond it."""

from dataclasses import replace

import pytest

from rankscope.core.network import Network, Spec
from rankscope.core.theory import bounds
from rankscope.core.tracing import Provenance, Trace
from rankscope.experiments.claims import d2
from rankscope.experiments.claims.d2 import Checked
from rankscope.experiments.laws import Law
from rankscope.process.progress import silent

from .small import TINY

CUBIC = Law("doubly exponential", 3.0, -9.0, -99.0)
SLOW = Law("exponential", 1.0, -0.1, -0.5)
CONFIG = d2.Config(heads=(1,), scales=(0.1, 1.0, 2.0))


def checked(scale: float, *, met: bool, above: int = 0, compared: int = 4) -> Checked:
    return Checked(scale, met, 0.0, above, compared)


def judged(inside: Checked, law: Law, *outside: tuple[Checked, Law], layers: int = 10):
    cases = {"inside": (inside, law), **{f"outside {i}": each for i, each in enumerate(outside)}}
    return d2.judge(
        replace(CONFIG, layers=layers),
        {name: one for name, (one, _) in cases.items()},
        {name: law for name, (_, law) in cases.items()},
    )


def test_under_a_causal_mask_the_theorems_apply_to_nothing_and_nothing_is_cubic() -> None:
    found = d2.run(replace(TINY["d2"][1], mask="causal"), silent)
    assert found.verdict == "not tried"
    assert found.judgement.on == "no network meets the theorems' condition; try smaller scales"
    assert found.beyond.verdict == "fails"


def test_every_verdict_on_the_domain_can_be_reached() -> None:
    good = checked(0.1, met=True)
    judgement, beyond, _ = judged(good, CUBIC)
    assert str(judgement) == "holds, up to LeCun × 0.1"
    assert beyond.verdict == "not tried"
    assert judged(good, SLOW)[0].verdict == "fails"
    assert judged(checked(0.1, met=True, above=1), CUBIC)[0].verdict == "fails"
    assert judged(checked(0.1, met=True, compared=0), CUBIC)[0].verdict == "fails"
    both = (checked(0.1, met=True), SLOW)
    assert judged(good, CUBIC, both)[0].verdict == "depends"
    assert judged(good, CUBIC, layers=3)[0].verdict == "not tried"


def test_beyond_the_condition_the_verdict_names_the_scale_up_to_which_it_holds() -> None:
    good = checked(0.1, met=True)
    one, two = checked(1.0, met=False), checked(2.0, met=False)
    _, beyond, _ = judged(good, CUBIC, (one, CUBIC), (two, SLOW))
    assert str(beyond) == ("depends on the weights' scale: every network is cubic up to LeCun × 1")
    assert judged(good, CUBIC, (one, SLOW), (two, SLOW))[1].verdict == "fails"
    assert judged(good, CUBIC, (one, CUBIC), (two, CUBIC))[1].verdict == "holds"


@pytest.mark.parametrize(
    ("laws", "scale"),
    [((CUBIC, CUBIC, CUBIC), 2.0), ((CUBIC, CUBIC, SLOW), 1.0), ((SLOW, CUBIC, CUBIC), 0.0)],
)
def test_the_scale_up_to_which_all_are_cubic(laws: tuple[Law, ...], scale: float) -> None:
    named = {str(each): each for each in CONFIG.scales}
    held = {name: checked(each, met=True) for name, each in named.items()}
    assert d2.cubic_up_to(CONFIG, held, dict(zip(named, laws, strict=True))) == scale


def test_every_layer_is_compared_with_bounds_that_say_something() -> None:
    x, token_mask = TINY["d2"][1].texts()

    def bounded(scale: float):
        spec = Spec.pure_attention(3, 1, 16, init=scale / 4)
        return bounds(Network.random(spec).double(), x[:1], token_mask=token_mask[:1])

    small = bounded(0.01)
    none = d2.check(0.01, small)
    assert (none.met, none.above, none.promised) == (True, 0, True)
    raised = tuple(
        replace(layer, log10_residual=layer.log10_residual + 1e3) for layer in small.layers
    )
    lifted = d2.check(0.01, replace(small, layers=raised))
    assert lifted.above == lifted.compared == none.compared == 3 * 5  # layers and bounds
    columns = {"layer": [1, 2, 3], "sample": [0] * 3, "metric": ["log10_residual"] * 3}
    columns |= {"value": [0.0] * 3, "doubt": [False, True, True]}
    doubtful = replace(small, layers=raised, traced=Trace(columns, Provenance("net")))
    assert d2.check(0.01, doubtful).above == 5  # those of the first layer
    large = d2.check(8.0, bounded(8.0))
    assert (large.met, large.promised) == (False, False)
    assert large.compared < none.compared  # what promises nothing is not compared


def test_large_weights_do_not_collapse_within_ten_layers() -> None:
    """Eight heads of twice LeCun's scale keep more than a tenth of their size."""
    config = replace(TINY["d2"][1], layers=10, heads=(8,), scales=(0.25, 2.0), width=64, tokens=32)
    found = d2.run(config, silent)
    assert found.verdict == "holds"
    assert found.beyond.verdict == "fails"
    last = found.summary.filter(model="LeCun × 2", metric="log10_relative_residual", layer=10)
    assert -1.2 < last["median"].item() < -0.3


def test_nothing_to_try_is_refused() -> None:
    with pytest.raises(Exception, match="at least one number of heads"):
        d2.run(replace(CONFIG, heads=()), silent)
