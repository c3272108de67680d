"""A small report, and small results of every shape."""

import math
from dataclasses import replace

import polars as pl
import pytest

from rankscope import tables
from rankscope.results import Drawing, Finding, Headline, Judgement, Listing, Part, Result
from rankscope.show.figures import by_layer
from rankscope.show.report import Chart, Report, Section, Table

INF = math.inf
DEEP = "log10_relative_residual"


@pytest.fixture
def chart():
    rows = [
        {
            "variant": variant,
            "layer": layer,
            "metric": "relative_residual",
            "count": 4,
            "mean": base**layer,
            "low": 0.9 * base**layer,
            "median": base**layer,
            "high": 1.1 * base**layer,
        }
        for variant, base in (("SAN", 1e-3), ("transformer", 0.95))
        for layer in range(4)
    ]
    return by_layer(pl.DataFrame(rows))


@pytest.fixture
def report(chart):
    table = pl.DataFrame({"variant": ["SAN", "transformer"], "last_layer": [1.04e-9, 0.8573]})
    return Report(
        title="What keeps the tokens apart?",
        lead="Attention alone **loses** them.",
        sections=[
            Section(
                "Layer by layer",
                "How `SAN` falls.\n\nAnd the other does not.",
                [Chart(chart, "Residual by layer", "Read it so.", "From 1 to 1e-9.")],
            ),
            Section("In figures", blocks=[Table(table, "The last layer")]),
        ],
        provenance={"rankscope": "0.1.0", "seed": "7"},
    )


def table_of(*rows, names):
    """A table from its rows."""
    return tables.frame(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


@pytest.fixture(scope="session")
def study():
    """Two models with two masks by layer, and a sweep."""
    rows = [
        (model, mask, layer, None, None, k, DEEP, slope * (3**layer - 1) / 2 if layer < 9 else -INF)
        for model in ("BERT", "ViT")
        for mask, slope in (("full", -1.0), ("causal", -0.001))
        for layer in range(11)
        for k in range(2)
    ]
    rows += [
        (None, mask, None, "window", setting, 0, "rank", 7.0 * setting)
        for mask in ("full", "causal")
        for setting in (1.0, 2.5)
    ]
    names = ("model", "variant", "layer", "parameter", "setting", "sample", "metric", "value")
    return Result(
        id="Masks",
        title="How fast do masks collapse?",
        question="Which masks collapse, and how fast?",
        sentences=(
            "Full attention **triples** its power, to 10^-3,280.",
            "Causal [a] does not.",
        ),
        table=table_of(*rows, names=names),
        provenance={"seed": 3, "lowest": -INF, "masks": {"n": 2}, "spec": None, "notes": {}},
        drawings=(
            Drawing("by_depth", "By mask.", DEEP, {"lowest": -300.0}),
            Drawing(
                "by_depth", "One of them.", DEEP, {}, {"model": ("ViT",), "variant": ("full",)}
            ),
            Drawing("by_setting", "What was varied.", "rank"),
        ),
    )


@pytest.fixture(scope="session")
def claim(study):
    """A claim that is refuted, in a run that has a name of its own."""
    return Result(
        id="D9",
        title="Attention matrices chained along a path tend to rank one.",
        question="Do they, along every path tried?",
        sentences=("They do not.",),
        table=study.table.filter(pl.col("metric") == DEEP),
        provenance={"digest": "0123456789ab", "seed": 0, "config": {"seed": 0, "heads": [1, 2]}},
        source="Dong et al. 2021, section 2",
        judgement=Judgement("fails", "chains of attention"),
        beyond=Judgement("depends", "chains of masks", "the mask"),
        shown=(DEEP,),
    )


@pytest.fixture(scope="session")
def diagnosis():
    """Networks told apart one by one, and a sentence beside their findings."""
    rows = [
        (variant, layer, sample, "relative_residual", base**layer * (1 + sample))
        for variant, base in (("SAN", 0.1), ("transformer", 0.9))
        for layer in range(3)
        for sample in (0, 0, 3)  # the mean is twice the median
    ]
    return Result(
        id="diagnose",
        title="A tiny network",
        question="What keeps the tokens apart?",
        sentences=("SAN: It falls.", "Both were seen."),
        table=table_of(*rows, names=("variant", "layer", "sample", "metric", "value")),
        provenance={"model": "Network"},
        findings=(
            Finding("SAN", "collapse", "It falls.", "below 10^-3", math.nan, 2, "attention", 2, 3),
            Finding("transformer", "absent", "It stays.", "below 10^-3", 0.81, 2, "", 0, 3),
        ),
        key_figures={"paths": 10**20, "heads": 12, "share": 0.25, "error": math.nan},
        drawings=(Drawing("by_layer", "Curves.", options={"metrics": ["relative_residual"]}),),
    )


@pytest.fixture(scope="session")
def answer(diagnosis):
    """A long result: a headline, warnings, tables in words, and parts with charts of their own."""
    curves = Drawing("by_layer", "Curves.", metric="relative_residual")
    heads = Listing(
        "Heads that **mix**",
        ("head", "entropy", "seen", "note"),
        (
            ("layer 1, head 0", 2.1e-7, 3, "one-hot, 10^-3"),
            ("layer 2, head <1>", None, 1200, None),
        ),
        "Medians over the samples.",
    )
    return replace(
        diagnosis,
        sentences=("The tokens **stay apart**.", "It falls."),
        headline=Headline("No collapse", "holds"),
        warnings=("2 of 3 tokens are unknown.", "One `sample`."),
        listings=(replace(heads, title="In short"),),
        drawings=(curves,),
        parts=(
            Part("Heads", ("Head 0 mixes most.", "Head 1 does not."), (heads,)),
            Part("Charts", (), (), (curves, replace(curves, only={"variant": ("SAN",)}))),
        ),
    )


@pytest.fixture(scope="session")
def lengths():
    """Shares by the length of paths, biases last, and some by head in the same table."""
    rows = [
        (variant, layer, head, length, sample, metric, value)
        for layer in (0, 1)
        for variant, head, length, value in (
            ("by length", None, 0, 0.5 + layer),
            ("by length", None, 1, 0.125),
            ("by length", None, None, 0.0625),
            ("by head", 0, None, 9.0),
        )
        for metric in ("residual_share", "projection")
        for sample in (0, 1)
    ]
    names = ("variant", "layer", "head", "length", "sample", "metric", "value")
    return Result(
        id="paths",
        title="A tiny network",
        question="Which paths carry the differences?",
        sentences=("Short ones.",),
        table=table_of(*rows, names=names),
        provenance={},
    )
