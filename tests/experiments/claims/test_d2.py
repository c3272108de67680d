"""Cubic contraction below bounds, on the theorems' own domain and beyond it."""

from dataclasses import replace

import pytest

from rankscope import tables
from rankscope.core.network import Network, Spec
from rankscope.core.theory import Law, bounds
from rankscope.core.tracing import Provenance, Trace
from rankscope.experiments import kit
from rankscope.experiments.claims import d2
from rankscope.experiments.claims.d2 import Checked
from rankscope.process.progress import silent

from .small import TINY

CUBIC = Law("doubly exponential", 3.0, -9.0, -99.0)
SLOW = Law("exponential", 1.0, -0.1, -0.5)
CONFIG = d2.Config(heads=(1,), scales=(0.1, 1.0, 2.0))


PANEL = tables.from_rows(
    ("model", "variant", "metric", "value"),
    [("inside: one sample beside its bounds", "measured", "log10_residual", -1.0)],
)


def checked(scale: float, law: Law, *, met: bool, above: int = 0, compared: int = 4) -> Checked:
    return Checked(law, scale, met, 0.0, above, compared, single=4, promised=4)


def judged(inside: Checked, *outside: Checked, layers: int = 10) -> kit.Result:
    cases = {"inside": inside, **{f"outside {i}": each for i, each in enumerate(outside)}}
    config = replace(CONFIG, layers=layers)
    return kit.conclude(d2.ENTRY, config, kit.Measured(PANEL, facts=cases))


def test_under_a_causal_mask_the_theorems_apply_to_nothing_and_nothing_is_cubic() -> None:
    found = d2.ENTRY.run(replace(TINY["d2"][1], mask="causal"), silent)
    assert found.verdict == "not tried"
    assert found.judgement.on == "no network meets the theorems' condition; try smaller scales"
    assert found.beyond.verdict == "fails"


def test_every_verdict_on_the_domain_can_be_reached() -> None:
    good, slow = checked(0.1, CUBIC, met=True), checked(0.1, SLOW, met=True)
    found = judged(good)
    assert str(found.judgement) == (
        "Supported up to LeCun × 0.1 for single layers and up to LeCun × 0.1 over all layers, "
        "above "
        "which that bound is vacuous"
    )
    assert found.beyond.verdict == "not tried"
    assert judged(slow).verdict == "fails"
    assert judged(checked(0.1, CUBIC, met=True, above=1)).verdict == "fails"
    assert judged(checked(0.1, CUBIC, met=True, compared=0)).verdict == "fails"
    assert judged(good, slow).verdict == "depends"
    assert judged(good, layers=3).verdict == "not tried"


def test_beyond_the_condition_the_verdict_names_the_scale_up_to_which_it_holds() -> None:
    good = checked(0.1, CUBIC, met=True)

    def beyond(one: Law, two: Law) -> kit.Judgement:
        return judged(good, checked(1.0, one, met=False), checked(2.0, two, met=False)).beyond

    told = "Supported in part: every network is cubic up to LeCun × 1"
    assert str(beyond(CUBIC, SLOW)) == told
    assert beyond(SLOW, SLOW).verdict == "fails"
    assert beyond(CUBIC, CUBIC).verdict == "holds"


@pytest.mark.parametrize(
    ("laws", "scale"),
    [((CUBIC, CUBIC, CUBIC), 2.0), ((CUBIC, CUBIC, SLOW), 1.0), ((SLOW, CUBIC, CUBIC), 0.0)],
)
def test_the_scale_up_to_which_all_are_cubic(laws: tuple[Law, ...], scale: float) -> None:
    held = {
        str(each): checked(each, law, met=True)
        for each, law in zip(CONFIG.scales, laws, strict=True)
    }
    assert d2.cubic_up_to(CONFIG, held) == scale


def test_every_layer_is_compared_with_bounds_that_say_something() -> None:
    x, token_mask = TINY["d2"][1].texts()

    def bounded(scale: float):
        spec = Spec.pure_attention(3, 1, 16, init=scale / 4)
        return bounds(Network.random(spec).double(), x[:1], token_mask=token_mask[:1])

    small = bounded(0.01)
    none = d2.check(0.01, small, CUBIC)
    assert (none.met, none.above, none.single, none.promised) == (True, 0, 3, 3)
    raised = tuple(
        replace(layer, log10_residual=layer.log10_residual + 1e3) for layer in small.layers
    )
    lifted = d2.check(0.01, replace(small, layers=raised), CUBIC)
    assert lifted.above == lifted.compared == none.compared == 3 * 7  # layers and bounds
    columns = {"layer": [1, 2, 3], "sample": [0] * 3, "metric": ["log10_residual"] * 3}
    columns |= {"value": [0.0] * 3, "doubt": [False, True, True]}
    doubtful = replace(small, layers=raised, traced=Trace(columns, Provenance("net")))
    assert d2.check(0.01, doubtful, CUBIC).above == 7  # those of the first layer
    large = d2.check(8.0, bounded(8.0), CUBIC)
    assert (large.met, large.promised) == (False, 0)
    assert large.compared < none.compared  # what promises nothing is not compared


def test_large_weights_do_not_collapse_within_ten_layers() -> None:
    """Eight heads of twice LeCun's scale keep more than a tenth of their size."""
    config = replace(TINY["d2"][1], layers=10, heads=(8,), scales=(0.25, 2.0), width=64, tokens=32)
    found = d2.ENTRY.run(config, silent)
    assert found.verdict == "holds"
    assert found.beyond.verdict == "fails"
    last = found.summary.filter(model="LeCun × 2", metric="log10_relative_residual", layer=10)
    assert -1.2 < last["median"].item() < -0.3


def test_nothing_to_try_is_refused() -> None:
    with pytest.raises(Exception, match="at least one number of heads"):
        d2.ENTRY.run(replace(CONFIG, heads=()), silent)


def test_theorem_2_3_is_chained_with_the_papers_own_constant() -> None:
    """By hand: κ = 4γβH/√d_qk at its largest, to the power (3^l − 1)/2, times res^(3^l)."""
    x, token_mask = TINY["d2"][1].texts()
    spec = Spec.pure_attention(3, 2, 16, init=0.0025)
    promised = bounds(Network.random(spec).double(), x[:1], token_mask=token_mask[:1])
    kappas = [4 * layer.gamma * layer.paper_beta / 8**0.5 for layer in promised.layers]
    start = promised.layers[0].log10_input_residual
    last = max(kappas).log10() * 13 + 27 * start
    layer = promised.layers[-1]
    between = replace(layer, log10_residual=last + 0.01), replace(layer, log10_residual=last - 0.01)
    above = [
        d2.check(0.01, replace(promised, layers=(*promised.layers[:2], moved)), CUBIC).above
        for moved in between
    ]
    assert above[0] == above[1] + 1
