"""Masks side by side: their graphs, their rates, and how long they take."""

import math
from itertools import pairwise

import polars as pl
import pytest
import torch

from rankscope.ask import Subject
from rankscope.core.masks import from_edges
from rankscope.core.network import Network, Spec
from rankscope.core.theory import Law, a_priori_rate
from rankscope.errors import InputError
from rankscope.experiments.depths import medians
from rankscope.experiments.questions.masks import BY_MASK, Config, layers_to, run
from rankscope.numerals import power_of_ten

from ..shown import can_be_shown, steps_of

PURE = Spec(6, 2, 8, mlp_ratio=0.0, norm="none", skip=False, init="lecun")
NETWORK = Network.random(PURE, seed=1, dtype=torch.float64)


@pytest.fixture
def found(tokens):
    config = Config(Subject(NETWORK, tokens(2, 16, 8)), ("full", "window:2", "block:8"), depth=9)
    return steps_of(run, config)[0]


def test_masks_side_by_side(found) -> None:
    can_be_shown(found)
    names = found.table["variant"].unique(maintain_order=True).to_list()
    assert names == found.provenance["config"]["masks"] == ["full", "window(-2, +2)", "block(8)"]
    depths = found.table.filter(metric="log10_relative_dispersion")
    assert depths["layer"].max() == found.provenance["config"]["depth"] == 9
    most, apart, beyond = found.sentences
    assert most.startswith("After 9 layers tokens are most alike under full, a relative dispersion")
    assert apart == "block(8) cannot collapse to one point: its graph has no center."
    assert beyond.endswith("does not cover this network: 2 heads.")
    measured, graphs = found.listings
    assert graphs.columns == ("mask", "edges", "centers", "radius", "diameter", "also")
    assert graphs.rows[0] == ("full", 256, 16, 1, 1, None)
    assert graphs.rows[1:] == (
        ("window(-2, +2)", 74, 16, 4, 8, None),
        ("block(8)", 128, 0, None, None, "2 closed classes"),
    )
    assert measured.columns[-1] == "layers to lose what full loses in 2"
    full, window, block = measured.rows
    assert (full[2], full[-1]) == ("doubly exponential", "2")
    assert window[-1] == "more than 9"  # less than three radii
    assert (block[2], block[-1]) == ("no collapse", None)
    last = medians(found.summary, "log10_relative_dispersion", variant="window(-2, +2)")[-1]
    assert window[1] == power_of_ten(last)
    # The product of the layers' matrices bounds what is left of any difference.
    product = medians(found.summary, "log10_product_ergodicity", variant="window(-2, +2)")
    assert all(a >= b - 1e-12 for a, b in pairwise(product))
    assert product[-1] < -0.01
    weights = found.table.filter(metric="perron_weight", variant="full")
    assert weights["value"].sum() == pytest.approx(1)


def test_every_mask_has_one_number_of_each_kind(found) -> None:
    numbers = {
        (variant, metric): value
        for variant, metric, value in found.table.filter(found.table["metric"].is_in(BY_MASK))
        .select("variant", "metric", "value")
        .iter_rows()
    }
    assert len(numbers) == 3 * len(BY_MASK)
    assert numbers["window(-2, +2)", "radius"] == 4
    assert numbers["block(8)", "radius"] == math.inf
    assert numbers["block(8)", "log10_promised_loss"] == -math.inf
    smallest = numbers["window(-2, +2)", "smallest_weight"]
    promised = 1 - float(a_priori_rate(smallest, 4))
    assert numbers["window(-2, +2)", "log10_promised_loss"] == pytest.approx(math.log10(promised))
    taus = found.table.filter(metric="dobrushin", variant="full")["value"]
    assert numbers["full", "mean_ergodicity"] == pytest.approx(taus.mean())
    rate = medians(found.summary, "log10_product_ergodicity", variant="window(-2, +2)")[-1] / 9
    assert numbers["window(-2, +2)", "product_ergodicity_rate"] == pytest.approx(10**rate)
    limits = found.table.filter(metric="limit_weight", variant="full")["value"]
    assert numbers["full", "largest_limit_weight"] == limits.max()


def test_masks_are_compared_on_real_tokens_only(tokens) -> None:
    x = tokens(1, 6, 8)
    mask = torch.tensor([[False, True, True, True, True, False]])
    one, other, third = (
        steps_of(run, Config(subject, ("causal",)))[0].listings
        for subject in (
            Subject(NETWORK, x, mask),
            Subject(NETWORK, x[:, 1:5]),
            Subject(NETWORK, x, mask[0]),
        )
    )
    assert one == other == third


def test_masks_written_alike_are_all_compared(tokens) -> None:
    network = NETWORK.without_heads((0, 1))
    alike = [from_edges(4, [(i, i) for i in range(4)]), from_edges(4, [(0, i) for i in range(4)])]
    found, _ = steps_of(run, Config(Subject(network, tokens(1, 4, 8)), (*alike, alike[0])))
    names = found.table["variant"].unique(maintain_order=True).to_list()
    assert names == ["edges(4 tokens, 4 edges)", "edges(4 tokens, 4 edges) (another)"]
    assert [row[-1] for row in found.listings[1].rows] == [
        "4 closed classes",
        "3 tokens without self-loop",
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"masks": ()}, "no list of masks"),
        ({"masks": ("full",), "depth": 0}, "depth=0"),
    ],
)
def test_masks_of_nothing_are_refused(options, words, tokens) -> None:
    with pytest.raises(InputError, match=words):
        run(Config(Subject(NETWORK, tokens(1, 4, 8)), **options), lambda _: None)


def test_tokens_cannot_be_left_out(tokens) -> None:
    subject = Subject(NETWORK, tokens(1, 4, 8), measured=torch.ones(1, 4, dtype=torch.bool))
    with pytest.raises(InputError, match="graphs of masks are about all tokens"):
        run(Config(subject, ("full",)), lambda _: None)


@pytest.mark.parametrize(
    ("target", "words"),
    [(-2.0, "2"), (-1.0, "1"), (0.0, "0"), (-9.0, "about 9")],
)
def test_layers_to_a_target(target, words) -> None:
    found = Law("exponential", 1.0, -1.0, -3.0)
    assert layers_to([0.0, -1.0, -2.0, -3.0], target, found) == words


def test_what_is_in_doubt_is_not_compared() -> None:
    """Under the causal mask tokens saturate on one of them; what is between them is not kept."""
    spec = Spec.pure_attention(4, 1, 4, init=2.0)
    network = Network.random(spec, seed=5, dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(1, 3, 4, generator=generator, dtype=torch.float64)
    found, _ = steps_of(run, Config(Subject(network, x), ("full", "causal")))
    first = found.table.filter("doubt", variant="causal")["layer"].min()
    (law,) = [row[2] for row in found.listings[0].rows if row[0] == "causal"]
    assert law.endswith(f" (to layer {first - 1})")


def test_layers_to_a_target_out_of_reach() -> None:
    found = Law("none", math.nan, 0.0, 0.0)
    assert layers_to([0.0, 0.0, 0.0], -1.0, found) == "more than 2"
    early = Law("exponential", 1.0, -0.1, -0.2)
    assert layers_to([0.0, -0.1, -0.2], -1.0, early, radius=1.0) == "more than 2"


def test_that_attention_alone_was_looked_at_is_said_first(tokens) -> None:
    network = Network.random(Spec(3, 2, 8), seed=1, dtype=torch.float64)
    subject = Subject(network, tokens(1, 6, 8))
    whole, reduced = (
        run(Config(each, ("full", "causal")), lambda _: None)
        for each in (subject, subject.without("skip", "mlp", "norm"))
    )
    assert reduced.title.endswith("; without skip, mlp, norm")
    assert reduced.sentences[0] == (
        "This is the network's attention alone, without skip, mlp, norm; --without='' keeps every "
        "part."
    )
    assert "--without" not in " ".join(whole.sentences)


def test_graphs_and_weights_are_those_of_the_first_samples_tokens(tokens) -> None:
    """Padding is no token: a padded sample has the numbers of the sample alone."""
    x = tokens(3, 9, 8)
    token_mask = torch.ones(3, 9, dtype=torch.bool)
    token_mask[0, 6:] = False

    def numbers(subject: Subject) -> dict[str, float]:
        table = steps_of(run, Config(subject, ("window:2",), depth=6))[0].table
        rows = table.filter(pl.col("metric").is_in(BY_MASK)).select("metric", "value").iter_rows()
        return dict(rows)

    padded = numbers(Subject(NETWORK, x, token_mask))
    assert padded == pytest.approx(numbers(Subject(NETWORK, x[:1, :6])))
    assert padded["radius"] == 2
    assert numbers(Subject(NETWORK, x, token_mask[0])) == pytest.approx(padded)


def test_what_is_cubic_in_many_tokens_is_left_out_and_said_so(tokens, monkeypatch) -> None:
    subject = Subject(NETWORK, tokens(1, 8, 8))
    whole, _ = steps_of(run, Config(subject, ("causal",)))
    monkeypatch.setattr("rankscope.experiments.questions.masks._MOST_TOKENS_BY_HEAD", 7)
    no_heads, _ = steps_of(run, Config(subject, ("causal",)))
    monkeypatch.setattr("rankscope.experiments.questions.masks.MOST_TOKENS_CUBED", 7)
    neither, _ = steps_of(run, Config(subject, ("causal",)))
    every, some, few = (set(each.table["metric"]) for each in (whole, no_heads, neither))
    assert every - some == {"dobrushin", "mean_ergodicity"}
    products = {"log10_product_ergodicity", "product_ergodicity_rate", "perron_weight"}
    assert some - few == products
    assert not any("Left out" in sentence for sentence in whole.sentences)
    assert "single heads (above 7 tokens)." in no_heads.sentences[-1]
    assert "products and Perron weights (above 7 tokens)." in neither.sentences[-1]
    assert {each.metric for each in neither.drawings} <= few
