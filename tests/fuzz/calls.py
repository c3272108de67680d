"""One good call, at least, of every public name, small enough to be made thousands of times."""

from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import torch
import transformers
from rich.console import Console
from torch import nn

import rankscope as rs
from rankscope import (
    experiments,
    families,
    figures,
    masks,
    metric_catalogue,
    metrics,
    network,
    paths,
    records,
    report,
    reproduction,
    results,
    tables,
    text,
    theory,
    training,
)
from rankscope.journal import Run


class Row(NamedTuple):
    """A public name, the function behind it, and good arguments, made anew for every call.

    Names of arguments that begin with ``*`` are given by place.
    """

    name: str
    call: Callable[..., Any]
    good: Callable[[], dict[str, Any]]

    @property
    def area(self) -> str:
        """The room."""
        return self.name.partition(".")[0]

    @property
    def weight(self) -> float:
        """How often it is called: what takes long, less often."""
        return 0.1 if self.name in SLOW else 1.0


ROWS: list[Row] = []
SLOW = {f"experiments.run[{id_}]" for id_ in ("wu", "D3")}
SLOW |= {"report.write", "figures.save", "reproduction.reproduce"}


def add(name, call, /, **good):
    """A row whose arguments can be used again and again."""
    ROWS.append(Row(name, call, lambda: dict(good)))


def fresh(name, call, good):
    """A row whose arguments a call may change."""
    ROWS.append(Row(name, call, good))


# What the calls are about.

X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
MASK = torch.tensor([[True, True, True], [True, True, False]])
P = torch.softmax(torch.randn(2, 2, 3, 3, generator=torch.Generator().manual_seed(2)), -1)
SPEC = rs.Spec(2, 2, 4)
NET = rs.Network.random(SPEC)
PURE = rs.Network.random(rs.Spec(2, 1, 4, mlp_ratio=0, norm="none", skip=False, bias=False))
SPHERE = rs.Network.random(
    rs.Spec(1, 1, 2, mlp_ratio=0, norm="sphere", norm_place="post", skip=False, bias=False),
    dtype=torch.float64,
)
BLOCK = NET.blocks[0]
QUERY = torch.tensor([0, 1])
PATH = rs.Path.of(0, None)
TEXTS = ("one two three four", "a rose is a flower")


def _table(**columns):
    return tables.frame({"metric": ["residual"] * 4, "value": [1.0, 0.5, 0.9, 0.4], **columns})


LAYERS = _table(layer=[0, 1, 0, 1], sample=[0, 0, 1, 1])
VARIANTS = tables.joined({"SAN": LAYERS, "transformer": LAYERS})
RELATIVE = tables.stack(
    VARIANTS.with_columns(metric=tables.pl.lit(each))
    for each in ("relative_residual", "mean_cosine")
)
SUMMARY, BY_VARIANT = tables.summary(LAYERS), tables.summary(VARIANTS)
DRAWING = results.Drawing("by_depth", metric="residual")
RESULT = results.Result(
    "fuzz", "Title", "Question?", ("It falls.",), LAYERS, {"seed": 0}, drawings=(DRAWING,)
)
LENGTHS = tables.summary(tables.joined({"SAN": paths.path_lengths(NET, X).table}, column="variant"))
CHART = figures.by_depth(SUMMARY, metric="residual")
PAGE = report.Report("Title", "Lead.", sections=[report.Section("One", table=LAYERS)])
RUN = Run(
    "D1",
    "d1-0",
    0,
    "quick",
    "holds",
    {"verdict": "holds", "domain": "all", "on": ""},
    None,
    None,
    1.0,
    "2026-01-01T00:00:00+00:00",
)
WRITTEN = FilePath("written.parquet")
SENTENCES = FilePath("sentences.txt")
tables.write(LAYERS, WRITTEN, {"seed": 0})
RECORD = records.write(RESULT, "record.parquet")
SENTENCES.write_text("One sentence.\nAnother one.\n", encoding="utf-8")


# Metrics.

for one in (
    "deviations",
    "dispersion",
    "effective_rank",
    "participation_ratio",
    "singular_values",
    "spectra",
    "spectral_ratio",
    "stable_rank",
):
    add(f"metrics.{one}", getattr(metrics, one), x=X, token_mask=MASK)
for one in ("attention_entropy", "dobrushin", "high_pass_ratio", "second_singular_value"):
    add(f"metrics.{one}", getattr(metrics, one), attention=P, token_mask=None)
add(
    "metrics.residual",
    metrics.residual,
    x=X,
    norm="fro",
    center="mean",
    relative=True,
    token_mask=MASK,
    certified=False,
    tolerance=1e-3,
)
add(
    "metrics.residual",
    metrics.residual,
    x=X,
    norm="spectral",
    center="optimal",
    relative=False,
    token_mask=None,
    certified=True,
    tolerance=1e-3,
)
add("metrics.residual", metrics.residual, x=X, norm="one", center="optimal")
add("metrics.mean_cosine", metrics.mean_cosine, x=X, exclude=(0,), token_mask=MASK)
add("metrics.numerical_rank", metrics.numerical_rank, x=X, rtol=1e-3, token_mask=MASK)
add("metrics.matrix_norm", metrics.matrix_norm, m=X, norm="composite")
add("metrics.Deviations", metrics.Deviations, tokens=X, rest=X)
add("metrics.Spectra", metrics.Spectra, sigma=X[0], scaled=X[0], noise=X[0, :, 0])
add("metrics.Spectra.numerical_rank", metrics.spectra(X).numerical_rank, rtol=0.1)

# Masks.

add("masks.BigBird", masks.BigBird, window=1, hubs=1, random=1, seed=0)
add("masks.BlockLocal", masks.BlockLocal, size=2)
add("masks.Columns", masks.Columns, stride=2)
add("masks.Dilated", masks.Dilated, reach=2, step=2, causal=True)
add("masks.EdgeList", masks.EdgeList, tokens=2, packed=masks.from_edges(2, [(0, 0), (1, 1)]).packed)
add("masks.Explicit", masks.Explicit, tokens=2, bits=masks.Explicit.of(torch.eye(2) > 0).bits)
add("masks.Explicit.of", masks.Explicit.of, matrix=torch.eye(3) > 0)
add("masks.Fixed", masks.Fixed, stride=2)
add("masks.Intersection", masks.Intersection, parts=(masks.Causal(), masks.window(1)))
add("masks.Union", masks.Union, parts=(masks.Causal(), masks.window(1)))
add("masks.Prefix", masks.Prefix, length=2)
add("masks.Random", masks.Random, count=2, seed=0)
add("masks.Star", masks.Star, hubs=(0, 1))
add("masks.Strided", masks.Strided, stride=2, causal=False)
add("masks.Window", masks.Window, before=1, after=0)
add("masks.as_mask", masks.as_mask, mask="window:2 & causal", seed=1)
add("masks.causal_window", masks.causal_window, reach=2)
add("masks.window", masks.window, reach=2)
add("masks.from_edges", masks.from_edges, tokens=3, edges=[(0, 0), (0, 1), (1, 2)])
add("masks.intersection", masks.intersection, **{"*0": masks.Causal(), "*1": masks.window(1)})
add("masks.union", masks.union, **{"*0": masks.Causal(), "*1": masks.window(1)})
for one in (
    masks.Full(),
    masks.Causal(),
    masks.window(1),
    masks.Random(1),
    masks.Dilated(2, 2),
    masks.BigBird(1, 1, 1),
    masks.Star(1),
    masks.Fixed(2),
    masks.Columns(2),
    masks.union(masks.Causal(), masks.Star(1)),
    masks.intersection(masks.Causal(), masks.window(1)),
):
    kind = f"masks.{type(one).__name__}"
    add(f"{kind}.matrix", one.matrix, tokens=4)
    add(f"{kind}.edges", one.edges, tokens=4)
    add(f"{kind}.missing_self_loops", one.missing_self_loops, tokens=4)
    add(f"{kind}.picture", one.picture, tokens=4)
    add(f"{kind}.allows_in", one.allows_in, query=QUERY, key=QUERY, tokens=torch.tensor(4))
add("masks.Mask.allows", masks.Causal().allows, query=QUERY, key=QUERY)
add("masks.OffsetMask.allows_offset", masks.Dilated(2, 2).allows_offset, offset=QUERY)
add(
    "masks.LengthMask.allows",
    masks.Random(1).allows_in,
    query=QUERY,
    key=QUERY,
    tokens=torch.tensor(4),
)

# Networks.

add(
    "network.Spec",
    network.Spec,
    layers=2,
    heads=2,
    width=8,
    head_width=4,
    kv_heads=1,
    mlp_ratio=2.0,
    activation="gelu",
    gated=False,
    norm="layer",
    norm_place="pre",
    norm_eps=1e-5,
    skip=True,
    bias=True,
    mask="causal",
    scores="dot",
    init="xavier",
    removed_heads=[(0, 1)],
)
add("network.Spec.pure_attention", network.Spec.pure_attention, layers=1, heads=1, width=4)
add("network.Spec.digest", SPEC.digest, seed=3)
add("network.ALiBi", network.ALiBi, slopes=(0.5, 1.0))
add("network.GaussianKernel", network.GaussianKernel, bandwidth=2.0)
add("network.Linformer", network.Linformer, segments=2)
add("network.RelativeBias", network.RelativeBias, buckets=8, farthest=16, seed=1)
add("network.Rotary", network.Rotary, base=100.0)
add("network.Sink", network.Sink, tokens=1, strength=2.0)
add("network.Described", network.Described, name="mine")
add("network.Init", network.Init, kind="lecun", scale=0.5)
for one in (
    network.ALiBi(),
    network.GaussianKernel(),
    network.LinearKernel(),
    network.Linformer(segments=2),
    network.RelativeBias(),
    network.Rotary(),
    network.Sink(),
    network.Sparsemax(),
):
    add(f"network.{type(one).__name__}.build", one.build, heads=2, head_width=2)
add("network.Explicit", network.Explicit.of, matrix=torch.eye(2) > 0)
add("network.Window", network.Window, before=1, after=1)
add("network.Network.random", network.Network.random, spec=SPEC, seed=1, dtype=torch.float64)
add("network.Network", network.Network, spec=rs.Spec(1, 2, 4), blocks=[BLOCK], seed=1, name="mine")
add(
    "network.Network.from_matrices",
    network.Network.from_matrices,
    query_key=torch.ones(1, 1, 4, 4),
    values=torch.ones(1, 1, 4, 4),
    head_width=4,
    skip=True,
    norm="none",
    mask="causal",
)
add("network.Network.forward", NET.forward, x=X, token_mask=MASK)
add("network.Network.states", NET.states, x=X, token_mask=MASK)
add("network.Network.prepare", NET.prepare, x=X, token_mask=MASK)
add("network.Network.check", NET.check, x=X)
add("network.Network.without", NET.without, **{"*0": "skip", "*1": "mlp"})
add("network.Network.with_mask", NET.with_mask, mask="causal")
add("network.Network.without_heads", NET.without_heads, **{"*0": (0, 1)})
add("network.Network.with_norm", NET.with_norm, norm="rms", place="post")
add("network.Network.repeat", NET.repeat, times=2)
add(
    "network.Activation",
    network.Activation,
    function=torch.relu,
    derivative=lambda x: x,
    limit_at_zero=None,
    slopes=(0.0, 1.0),
    scaled=None,
)
add(
    "network.Attention",
    network.Attention,
    query=BLOCK.attention.query,
    key=BLOCK.attention.key,
    value=BLOCK.attention.value,
    output=BLOCK.attention.output,
    scores=BLOCK.attention.scores,
    heads=2,
    kv_heads=2,
    scale=0.5,
    removed=frozenset({1}),
)
add("network.Attention.without_heads", BLOCK.attention.without_heads, removed=frozenset({0}))
add(
    "network.Block",
    network.Block,
    spec=SPEC,
    attention=BLOCK.attention,
    mlp=BLOCK.mlp,
    norms=dict(BLOCK.norms),
)
add("network.Branch", network.Branch, before=nn.Identity(), part=BLOCK.mlp, inside=nn.Identity())
add("network.Step", network.Step, branches=BLOCK.steps[0].branches, skip=1.0, after=nn.Identity())
add(
    "network.MLP",
    network.MLP,
    up=nn.Linear(4, 8),
    down=nn.Linear(8, 4),
    gate=None,
    activation="relu",
)
add(
    "network.NormRule",
    network.NormRule,
    centers=True,
    square="mean",
    eps=1e-5,
    gain=X[0, 0],
    bias=None,
    keeps_zero=False,
)
add("network.Visibility", network.Visibility, positions=torch.arange(3)[None], allowed=None)
add(
    "network.Visibility.of",
    network.Visibility.of,
    mask=masks.Causal(),
    tokens=3,
    token_mask=MASK,
    device=torch.device("cpu"),
)

# Paths.

for one in ("head_shares", "path_lengths"):
    add(f"paths.{one}", getattr(paths, one), network=NET, x=X, token_mask=MASK, measured=MASK)
add("paths.path_lengths", paths.path_lengths, network=NET, x=X, count="both", max_length=1)
add("paths.chained_matrices", paths.chained_matrices, network=NET, x=X, path=PATH, token_mask=MASK)
add("paths.path_matrix", paths.path_matrix, network=NET, x=X, path=PATH, token_mask=MASK)
add(
    "paths.path_output",
    paths.path_output,
    network=PURE,
    x=X,
    path=rs.Path.of(0, 0),
    token_mask=MASK,
)
add(
    "paths.path_outputs",
    paths.path_outputs,
    network=PURE,
    x=X,
    paths=[rs.Path.of(0, 0)],
    token_mask=MASK,
)
add("paths.count_paths", paths.count_paths, layers=2, heads=2)
add("paths.enumerate_paths", paths.enumerate_paths, layers=2, heads=2, length=1)
fresh(
    "paths.sample_paths",
    paths.sample_paths,
    lambda: {"layers": 3, "heads": 2, "length": 2, "count": 3, "generator": torch.Generator()},
)
add("paths.top_paths", paths.top_paths, network=PURE, x=X, count=2, budget=8, token_mask=MASK)
add("paths.truncate", paths.truncate, network=NET, x=X, max_length=1, count="mlp", token_mask=MASK)
add(
    "paths.truncations",
    paths.truncations,
    network=NET,
    x=X,
    lengths=[0, 1],
    count="attention",
    token_mask=MASK,
)
add("paths.Path", paths.Path, choices=(0, None, 1))
add("paths.Path.of", paths.Path.of, **{"*0": 0, "*1": None})
add("paths.Path.check", PATH.check, layers=2, heads=2)
add("paths.PathCounts", paths.PathCounts, layers=2, heads=2)
add("paths.TopPaths", paths.TopPaths, paths=(PATH,), values=(1.0,), proven=True, missed_at_most=0.0)
add("paths.HeadShares", paths.HeadShares, contributions=X[None, None], output=X, columns={})
add(
    "paths.PathLengths",
    paths.PathLengths,
    contributions=X[None],
    bias=X,
    output=X,
    sums=(X,),
    complete=True,
    columns={},
    _question=paths.path_lengths(NET, X)._question,
)

# Theory.

add("theory.bounds", theory.bounds, network=PURE, x=X, token_mask=MASK)
add("theory.a_priori_log_decay", theory.a_priori_log_decay, epsilon=0.1, radius=2.0)
add("theory.a_priori_log_loss", theory.a_priori_log_loss, epsilon=0.1, radius=2.0)
add("theory.a_priori_rate", theory.a_priori_rate, epsilon=torch.tensor([0.1]), radius=2.0)
for one in ("class_weights", "perron_weights", "second_modulus"):
    add(f"theory.{one}", getattr(theory, one), attention=P[0, 0])
add(
    "theory.smallest_allowed_weight",
    theory.smallest_allowed_weight,
    attention=P,
    allowed=torch.ones(3, 3) > 0,
)
add("theory.ergodicity", theory.ergodicity, matrices=[P[:, 0], P[:, 1]], token_mask=None)
add("theory.limit_weights", theory.limit_weights, matrices=[P[0, 0].double()], classes=[[0, 1, 2]])
add("theory.graph_facts", theory.graph_facts, mask="causal", tokens=4)
add("theory.second_eigenvalue", theory.second_eigenvalue, mask="window:1", tokens=4)
add(
    "theory.design_values",
    theory.design_values,
    x=torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64),
    network=SPHERE.with_mask("causal"),
    c=1.5,
)
add(
    "theory.norm_preimage",
    theory.norm_preimage,
    norm=nn.LayerNorm(4),
    x=nn.LayerNorm(4)(X[0]),
    c=2.0,
)
add(
    "theory.equilibrium_at",
    theory.equilibrium_at,
    network=SPHERE,
    x=torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64),
    polish=False,
)
add(
    "theory.find_equilibria",
    theory.find_equilibria,
    network=SPHERE,
    tokens=2,
    starts=2,
    extra_starts=torch.eye(2, dtype=torch.float64)[None],
    seed=0,
    steps=3,
    tolerance=1e-8,
)
add(
    "theory.step_jacobian",
    theory.step_jacobian,
    network=SPHERE,
    x=torch.eye(2, dtype=torch.float64),
)
add("theory.stability_of", theory.stability_of, jacobian=torch.eye(4, dtype=torch.float64) / 2)
add("theory.every_rank", theory.every_rank, tokens=2, growth=4.0)
add("theory.stable_search", theory.stable_search, tokens=(2,), draws=2, descents=1, steps=2, seed=0)
for one in ("keeping_network", "residual_preserving_network"):
    add(
        f"theory.{one}",
        getattr(theory, one),
        layers=2,
        width=4,
        kept=1,
        heads=1,
        strength=1.0,
        values=0.5,
        seed=0,
    )
EVERY = theory.every_rank(2)
STABILITY = theory.Stability(0.5, 0.4, 0.6)
EQUILIBRIUM = EVERY.equilibria[0]
BOUNDS = theory.bounds(PURE, X)
add("theory.Stability", theory.Stability, radius=0.5, lower=0.4, upper=0.6)
add(
    "theory.Equilibrium",
    theory.Equilibrium,
    x=X[0],
    rank=1,
    collapsed=True,
    residual=0.0,
    distance=0.0,
    stability=STABILITY,
    basin=0.5,
    basin_error=0.1,
)
add("theory.EveryRank", theory.EveryRank, network=NET, equilibria=(EQUILIBRIUM,))
add(
    "theory.Equilibria",
    theory.Equilibria,
    found=(EQUILIBRIUM,),
    starts=1,
    settled=1,
    cycles=(),
    diverged=0,
    wandering=0,
)
add(
    "theory.Designs",
    theory.Designs,
    mask="causal",
    attention="uniform",
    tokens=2,
    drawn=1,
    drawn_stable=0,
    descended=1,
    descended_stable=0,
    radius=1.0,
    network=NET,
    best=EQUILIBRIUM,
)
add(
    "theory.StableSearch",
    theory.StableSearch,
    designs=theory.stable_search(tokens=(2,), draws=2, descents=1, steps=2).designs,
)
add("theory.Bounds", theory.Bounds, layers=BOUNDS.layers)
add("theory.LayerBounds", theory.LayerBounds, **vars(BOUNDS.layers[0]))
add("theory.Ergodicity", theory.Ergodicity, each=X[0], log_products=X[0])
add("theory.GraphFacts", theory.GraphFacts, **vars(theory.graph_facts("causal", 3)))

# Text and training.

add("text.embed", text.embed, texts=list(TEXTS), width=4, length=6, seed=0, dtype=torch.float32)
add("text.Tokenizer", text.Tokenizer, words=("a", "rose"))
add("text.Tokenizer.of", text.Tokenizer.of, texts=list(TEXTS))
add("text.Tokenizer.__call__", text.Tokenizer(("a", "rose")), text="a rose", length=4)
add("text.Tokenizer.pieces", text.Tokenizer(("a", "rose")).pieces, text="a rose")
MODEL = training.SequenceModel.random(rs.Spec(1, 1, 4), outputs=2, symbols=2000, positions=8)
IDS = torch.tensor([[1, 2, 3], [3, 2, 1]])
EXAMPLES = training.Examples(IDS, IDS % 2)
RECIPE = training.Recipe(2, 1, warmup=1, check_every=1)
TASKED = (X[None], (X[None, ..., 0] > 0).long())
add(
    "training.Recipe",
    training.Recipe,
    steps=2,
    batch=1,
    learning_rate=1e-3,
    warmup=1,
    weight_decay=0.0,
    clip=1.0,
    goal=0.5,
    check_every=1,
    scored=10,
)
add("training.Recipe.rate", RECIPE.rate, step=1)
add("training.Recipe.reached", training.Recipe(2, 1, goal=0.5).reached, score=0.1)
add("training.Hull", training.Hull, points=4)
add("training.Hull.draw", training.Hull(4).draw, count=2, seed=0, purpose="training")
add("training.Sorting", training.Sorting, symbols=3, tokens=4)
add("training.Sorting.draw", training.Sorting(3, 4).draw, count=2, seed=0, purpose="training")
add("training.Memorisation", training.Memorisation, sentences=TEXTS, tokens=6, labels=2)
add("training.Memorisation.draw", training.Memorisation(TEXTS).draw, seed=0)
add("training.Examples", training.Examples, inputs=IDS, targets=IDS, token_mask=IDS > 0, seeds=0)
add("training.Examples.stack", training.Examples.stack, each=[EXAMPLES, EXAMPLES])
add("training.Examples.to", EXAMPLES.to, device="cpu")
add("training.Examples.pick", training.Examples.stack([EXAMPLES]).pick, rows=torch.tensor([[0, 1]]))
add("training.Classify.loss", training.Classify().loss, outputs=TASKED[0], targets=TASKED[1])
add("training.Classify.score", training.Classify().score, outputs=TASKED[0], targets=TASKED[1])
add("training.Approach.loss", training.Approach().loss, outputs=TASKED[0], targets=TASKED[0])
add("training.Approach.score", training.Approach().score, outputs=TASKED[0], targets=TASKED[0])
add(
    "training.SequenceModel",
    training.SequenceModel,
    encoder=nn.Linear(4, 4),
    positions=X[0],
    network=NET,
    readout=nn.Linear(4, 2),
)
add(
    "training.SequenceModel.random",
    training.SequenceModel.random,
    spec=rs.Spec(1, 1, 4),
    outputs=2,
    symbols=5,
    coordinates=0,
    positions=4,
    seed=0,
)
add("training.SequenceModel.forward", MODEL.forward, inputs=IDS, token_mask=IDS > 0)
add("training.SequenceModel.embed", MODEL.embed, inputs=IDS)
add("training.Trained", training.Trained, model=MODEL, seed=0, steps=1, score=0.5)
add(
    "training.LanguageConfig",
    training.LanguageConfig,
    layers=1,
    heads=1,
    width=4,
    length=8,
    masked=0.5,
    copies=1,
    recipe=RECIPE,
)
LANGUAGE = training.LanguageModel(MODEL, 8, 0.5, 0.1, MODEL)
add(
    "training.LanguageModel",
    training.LanguageModel,
    model=MODEL,
    length=8,
    accuracy=0.5,
    chance=0.1,
    untrained=MODEL,
)
add("training.LanguageModel.read", LANGUAGE.read, texts=["a"], length=6)
add(
    "training.small_language_model",
    training.small_language_model,
    seed=0,
    on_step=None,
    config=training.LanguageConfig(1, 1, 4, 64, copies=1, recipe=RECIPE),
)
add(
    "training.train",
    training.train,
    models=[MODEL],
    task=training.Classify(),
    examples=[EXAMPLES],
    recipe=RECIPE,
    seeds=[0],
    device="cpu",
    on_step=None,
)
add("training.read_sentences", training.read_sentences, path=SENTENCES)

# Tables, results, figures, reports.

add("tables.frame", tables.frame, columns={"metric": ["a"], "value": [1.0], "layer": [0]})
add("tables.from_rows", tables.from_rows, names=("metric", "value"), rows=[("a", 1.0)])
add("tables.stack", tables.stack, tables=[LAYERS, VARIANTS])
add("tables.joined", tables.joined, tables={"a": LAYERS}, column="variant")
add("tables.summary", tables.summary, table=VARIANTS)
add(
    "tables.write",
    tables.write,
    table=LAYERS,
    path="table.parquet",
    provenance={"seed": 0},
    more={"a": "b"},
)
add("tables.read", tables.read, path=WRITTEN)
add("tables.metadata", tables.metadata, path=WRITTEN)
add("records.write", records.write, result=RESULT, path="again.parquet")
add("records.read", records.read, path=RECORD)
add("metric_catalogue.metric", metric_catalogue.metric, name="residual")
add("figures.metric_words", figures.metric_words, name="residual")
for one in ("figures.MetricWords", "metric_catalogue.Metric"):
    add(
        one,
        metric_catalogue.Metric,
        name="mine",
        title="Mine",
        symbol="m",
        scale="log",
        meaning="",
        definition="",
        collapse="down",
        includes=(0.0,),
        marks=((1.0, "one"),),
        of="",
        compute="",
    )
for one in (
    "results.Result",
    "experiments.Claim",
    "experiments.Diagnosis",
    "experiments.PathStudy",
    "rankscope.Result",
):
    add(
        one,
        results.Result,
        id="a",
        title="b",
        question="c",
        sentences=("d",),
        table=LAYERS,
        provenance={"seed": 0},
        source="e",
        judgement=results.Judgement("holds", "all"),
        beyond=None,
        findings=(),
        key_figures={"a": 1.0},
        drawings=(DRAWING,),
        shown=("residual",),
    )
for one in ("results.Finding", "experiments.Finding"):
    add(
        one,
        results.Finding,
        variant="a",
        fate="holds",
        sentence="b",
        first=1.0,
        last=0.5,
        layers=2,
        collapsed_at=None,
    )
add("results.Judgement", results.Judgement, verdict="holds", domain="all", on="")
add(
    "results.Drawing",
    results.Drawing,
    figure="by_depth",
    caption="",
    metric="residual",
    options={"log_depth": True},
    only={"variant": ("SAN",)},
    roles={"SAN": "bound"},
)
add(
    "figures.FigureKind",
    figures.FigureKind,
    function=figures.by_depth,
    draws="summary",
    reading="a",
    against="b",
    metric="",
)
add(
    "figures.by_depth",
    figures.by_depth,
    summary=BY_VARIANT,
    metric="residual",
    log_depth=True,
    lowest=-3.0,
    highest=None,
    roles={"SAN": "bound"},
    title="a",
)
add("figures.by_layer", figures.by_layer, summary=SUMMARY, metrics=["residual"], title="a")
add(
    "figures.by_model",
    figures.by_model,
    summary=tables.summary(tables.joined({"m": VARIANTS}, column="model")),
    metric="residual",
    title="a",
)
add(
    "figures.by_setting",
    figures.by_setting,
    summary=tables.summary(
        _table(parameter=["width"] * 4, setting=[1.0, 2.0, 1.0, 2.0], sample=[0, 0, 1, 1])
    ),
    metric="residual",
    roles={},
    title="a",
)
add("figures.by_length", figures.by_length, summary=LENGTHS, title="a")
add(
    "figures.head_map",
    figures.head_map,
    table=_table(layer=[1, 1, 2, 2], head=[0, 1, 0, 1], sample=[0] * 4).with_columns(
        metric=tables.pl.lit("residual_share")
    ),
    title="a",
)
add(
    "figures.length_distributions",
    figures.length_distributions,
    table=_table(model=["m"] * 4, length=[0, 1, 2, 3]).with_columns(
        metric=tables.pl.lit("proportion")
    ),
    title="a",
)
add(
    "figures.trajectories",
    figures.trajectories,
    table=tables.from_rows(
        ("model", "variant", "layer", "parameter", "metric", "value"),
        [
            ("a", "pure", step, "first", f"{axis}_coordinate", 0.1 * step)
            for step in range(3)
            for axis in "xy"
        ],
    ),
    title="a",
)
add("figures.draw", figures.draw, drawing=DRAWING, result=RESULT)
add("figures.heading", figures.heading, drawing=DRAWING)
add("figures.headings", figures.headings, drawings=[DRAWING, DRAWING])
add("figures.reading", figures.reading, drawing=DRAWING)
add("figures.power_text", figures.power_text, exponent=-3.0)
add("figures.printable", figures.printable, value={"a": [1.0]})
add("figures.adaptive", figures.adaptive, spec={"config": {"a": "#000000"}})
add("figures.save", figures.save, chart=CHART, path="chart.html")
add("figures.ScriptSafe.encode", figures.ScriptSafe().encode, o={"a": "</script>"})
add("report.page", report.page, result=RESULT)
add("report.show", report.show, result=RESULT, console=Console(file=open("shown.txt", "w")))  # noqa: SIM115, PTH123
add("report.to_json", report.to_json, result=RESULT, files={"page": "a.html"}, with_table=True)
add("report.write", report.write, result=RESULT, folder="pages", on_step=lambda _: None)
add("report.write_html", report.write_html, report=PAGE, path="page.html")
add(
    "report.write_overview",
    report.write_overview,
    claims=[experiments.CATALOGUE["D1"]],
    runs=[RUN],
    path="overview.html",
)
add("report.Section", report.Section, title="a", text="b", chart=None, table=LAYERS, html="")
add(
    "report.Report",
    report.Report,
    title="a",
    lead="b",
    verdicts=[("a", "b", "holds")],
    sections=[report.Section("a")],
    provenance={"a": "b"},
    overline="",
    key_figures={"a": 1.0},
    answers={"a": results.Judgement("holds", "all")},
)

# Families.

BERT = families.BUILTIN["bert-base"]()
SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 600,
}
for each, value in SIZES.items():
    setattr(BERT, each, value)
ORIGINAL = transformers.BertModel(BERT).eval()
ORIGINAL.save_pretrained("checkpoint")
LOADED = families.load(ORIGINAL)
VIT = families.BUILTIN["vit-base"]()
for each, value in {**SIZES, "image_size": 8, "patch_size": 4}.items():
    setattr(VIT, each, value)
IMAGES = families.load(transformers.ViTModel(VIT).eval())
FAMILY = families.family_of(ORIGINAL)
ROW_IDS = torch.tensor([[1, 5, 9]])
add(
    "families.load",
    families.load,
    source=ORIGINAL,
    device="cpu",
    dtype=torch.float64,
    revision=None,
    init=False,
    seed=0,
    pickled=False,
    trust_remote_code=False,
    device_map=None,
)
add(
    "families.load",
    families.load,
    source="checkpoint",
    device="cpu",
    dtype=torch.float32,
    revision=None,
    pickled=True,
)
add("families.verify", families.verify, model=LOADED)
add("families.family_of", families.family_of, model=ORIGINAL)
add("families.cached_folder", families.cached_folder, hub_id="google-bert/bert-base-uncased")
add("families.Verification", families.Verification, family="bert", errors=(0.0,), tolerance=1e-5)
add(
    "families.Loaded",
    families.Loaded,
    network=LOADED.network,
    original=ORIGINAL,
    family=FAMILY,
    verification=LOADED.verification,
    name="mine",
    tokenizer=None,
    processor=None,
)
add("families.Loaded.inputs", LOADED.inputs, source=ROW_IDS, token_mask=ROW_IDS > 0)
add("families.Loaded.arguments", LOADED.arguments, source=ROW_IDS, token_mask=ROW_IDS > 0)
add("families.Loaded.noise_images", IMAGES.noise_images, count=1, seed=0)
add("families.Loaded.reinitialised", LOADED.reinitialised, seed=1)
add("families.Family.batch_first", FAMILY.batch_first, hidden=X)

# Experiments.

CASE = experiments.Case("missing", label="Mini")
SUBJECT = experiments.Subject(NET, X, MASK)
D8 = experiments.CATALOGUE["D8"]
add(
    "experiments.Case", experiments.Case, source="bert-base", trained=False, label="", pickled=False
)
add("experiments.Case.load", experiments.Case("checkpoint", trained=True).load, seed=0)
add(
    "experiments.Entry",
    experiments.Entry,
    id="a",
    kind="claim",
    title="b",
    where="claims.d1",
    options=("seed",),
    source="",
    domain="",
    small=True,
)
add("experiments.Entry.configuration", D8.configuration, scale="quick", seed=1)
add("experiments.Entry.stem", D8.stem, config=D8.configuration())
add("experiments.Entry.provenance", D8.provenance, config=D8.configuration(), about="b")
add(
    "experiments.Entry.result",
    D8.result,
    config=D8.configuration(),
    question="a",
    sentences=["b"],
    table=LAYERS,
    title="c",
    about={"a": "b"},
    notes={"a": "b"},
)
add("experiments.Reading", experiments.Reading, norms="keep", mlp="remove")
add(
    "experiments.Subject",
    experiments.Subject,
    network=NET,
    x=X,
    token_mask=MASK,
    measured=MASK,
    title="a",
    about={"a": "b"},
    batch_size=1,
)
add("experiments.Subject.without", SUBJECT.without, **{"*0": "skip"})
add("experiments.Subject.to", SUBJECT.to, dtype=torch.float64)
add("experiments.Subject.with_network", SUBJECT.with_network, network=NET)
add("experiments.Subject.trace", SUBJECT.trace, metrics=("residual",))
add(
    "experiments.diagnose",
    experiments.diagnose,
    network=NET,
    x=X,
    token_mask=MASK,
    measured=MASK,
    reading=experiments.Reading(),
    batch_size=2,
    on_step=None,
)
add(
    "experiments.path_study",
    experiments.path_study,
    network=NET,
    x=X,
    token_mask=MASK,
    measured=None,
    count="attention",
    max_length=2,
    heads=True,
    batch_size=2,
    on_step=None,
)
add(
    "experiments.four_variants",
    experiments.four_variants,
    network=NET,
    reading=experiments.Reading("drop", "identity"),
)
add("experiments.findings", experiments.findings, summary=tables.summary(RELATIVE), epsilon=1e-3)
add("experiments.run", experiments.run, id_="D8", scale="quick", on_step=None, seed=3)
for one, options in {
    "D1": {
        "kinds": ("pure attention",),
        "layers": 2,
        "heads": 2,
        "width": 4,
        "init": 0.5,
        "tokens": 3,
        "samples": 1,
        "tolerance": 1e-9,
    },
    "D2": {"layers": 3, "heads": (1,), "scales": (0.25,), "width": 4, "tokens": 4, "samples": 1},
    "D3": {
        "layers": 3,
        "heads": 1,
        "gains": (1.0,),
        "draws": 1,
        "width": 4,
        "tokens": 4,
        "samples": 1,
        "activations": ("relu",),
        "init": "lecun",
        "mlp_ratio": 2.0,
    },
    "D4": {
        "layers": 3,
        "betas": (0.1,),
        "controls": (0.1,),
        "random_scales": (1.0,),
        "width": 4,
        "tokens": 4,
        "samples": 1,
        "strength": 1.0,
        "random_heads": 2,
    },
    "D11": {
        "spreads": (0.1,),
        "wider": (2.0,),
        "layers": 1,
        "masks": ("causal",),
        "tokens": (2,),
        "heads": (1,),
        "width": 4,
        "tails": (0.0,),
        "preference": 40.0,
    },
    "N1": {
        "layers": 6,
        "width": 4,
        "tokens": 4,
        "samples": 1,
        "init": "orthogonal",
        "shrinking": "bert",
    },
    "W4": {
        "tokens": (2,),
        "searched": (2,),
        "draws": 2,
        "descents": 1,
        "starts": 2,
        "steps": 2,
        "equal": 1e-12,
    },
    "D7": {
        "tasks": ("sorting",),
        "seeds": 1,
        "layers": 1,
        "mlp_ratio": 0.0,
        "drawn": (1,),
        "repeats": 1,
        "margin": 0.05,
        "rise": 0.03,
        "kept": 0.5,
        "sentences": TEXTS,
        "device": "cpu",
    },
    "widths": {"draws": 1, "layers": 2},
    "W3": {"layers": 4, "tokens": 6, "samples": 1, "draws": 1, "waver": 0.1},
    "W6": {"starts": 2, "layers": 4, "every": 2, "draws": 1},
    "wu": {
        "depth": 2,
        "width": 8,
        "heads": 2,
        "tokens": 8,
        "samples": 1,
        "window": 2,
        "models": (),
        "texts": TEXTS,
        "length": 8,
    },
}.items():
    entry = experiments.CATALOGUE[one]
    add(f"experiments.Entry.configuration[{one}]", entry.configuration, **options)
    if one not in ("D7", "N1", "W4", "widths", "W3", "W6"):  # these take longer
        add(
            f"experiments.run[{one}]",
            lambda one=one, **more: experiments.run(one, **more),
            **options,
        )
add(
    "reproduction.reproduce",
    reproduction.reproduce,
    ids=["D8"],
    folder="reproduced",
    scale="quick",
    fresh=False,
)
add("reproduction.write_summary", reproduction.write_summary, folder=FilePath("reproduced"))
