"""W's figure: dispersion against depth, four masks × four sets of parts, far down."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import polars as pl
from torch import Tensor

from rankscope import tables
from rankscope.deep import deep_trace
from rankscope.errors import InputError
from rankscope.experiments.d5 import Case
from rankscope.experiments.depths import DISPERSION, RELATIVE, dispersions
from rankscope.experiments.laws import medians, power_of_ten
from rankscope.experiments.long_laws import long_law
from rankscope.experiments.study import Drawing, Study
from rankscope.network import Network, Spec
from rankscope.text import embed, passages
from rankscope.tracing import Provenance

DEPTH = 128
PARTS: Mapping[str, tuple[str, ...]] = {
    "pure attention": ("skip", "mlp", "norm"),
    "+ LayerNorm": ("skip", "mlp"),
    "+ LayerNorm + skip": ("mlp",),
    "everything": (),
}
"""Under each name what is left out."""
_BERT_WIDTH, _BERT_STD = 768, 0.02
_LOWEST = -20.0
"""Where charts are cut: beyond what float64 can tell from equal tokens."""


@dataclass(frozen=True)
class Shape:
    """A network drawn at random in the shape of BERT, small enough for a laptop.

    ``width`` other than BERT's 768 changes the standard deviation of the weights, so that products
    of them are as large as in BERT.
    """

    width: int = 128
    heads: int = 4
    tokens: int = 64
    samples: int = 2
    seed: int = 0

    def __str__(self) -> str:
        return (
            f"{self.heads} heads, width {self.width}, post-layer norm, MLP of four times the "
            f"width, normal init of standard deviation {self._deviation:.3g}; "
            f"{self.samples} passages of {self.tokens} tokens"
        )

    @property
    def _deviation(self) -> float:
        return _BERT_STD * math.sqrt(_BERT_WIDTH / self.width)

    def network(self, depth: int) -> Network:
        """As many fresh layers as are asked for."""
        spec = Spec(
            depth,
            self.heads,
            self.width,
            norm_place="post",
            norm_eps=1e-12,
            init=self._deviation,
        )
        return Network.random(spec, seed=self.seed)

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Bundled passages."""
        return embed(passages()[: self.samples], self.width, length=self.tokens, seed=self.seed)


@dataclass(frozen=True)
class _Subject:
    """A network of the depth asked for and its input."""

    name: str
    network: Network = field(repr=False)
    x: Tensor = field(repr=False)
    token_mask: Tensor = field(repr=False)


def wu_figure(
    cases: Sequence[Case] = (),
    *,
    depth: int = DEPTH,
    shape: Shape | None = None,
    window: int = 4,
    texts: Sequence[str] | None = None,
    length: int = 32,
    on_run: Callable[[], None] | None = None,
) -> Study:
    """μ of every layer in scaled arithmetic, for a random BERT shape and for loaded models.

    >>> wu_figure(depth=16, shape=Shape(width=32, tokens=8)).name
    'wu'

    A loaded model is run again and again with the same weights, as many whole times as fit into
    ``depth``; ``texts`` (one unless given) and ``length`` are for those.
    """
    if depth < 1:
        raise InputError(f"depth={depth} is out of range; expected 1 or more layers.")
    texts = passages()[:1] if texts is None else texts
    shape = shape or Shape()
    makers = [partial(_random, shape, depth)]
    makers += [partial(_repeated, case, depth, texts, length) for case in cases]
    parts = {}
    for make in makers:
        subject = make()
        for name, left_out in PARTS.items():
            label = f"{subject.name}: {name}"
            parts[label] = _by_mask(subject, left_out, window, on_run)
    table = tables.joined(parts, column="model")
    summary = tables.summary(table)
    return Study(
        name="wu",
        title="Masks and LayerNorm, layer by layer",
        question="Which masks and which parts keep the tokens apart, and for how long?",
        sentences=_sentences(summary),
        table=table,
        summary=summary,
        provenance=asdict(
            Provenance("BERT shape", spec=f"{shape}, {depth} layers", seed=shape.seed)
        )
        | {"norm": "fro", "window": str(window)},
        drawings=_drawings(),
        shown=(DISPERSION,),
    )


def _drawings() -> tuple[Drawing, ...]:
    caption = "Layers on a logarithmic axis."
    return (
        Drawing(
            "by_depth",
            f"{caption} Where a curve leaves the panel, the tokens go on growing alike.",
            DISPERSION,
            {"log_depth": True, "lowest": _LOWEST},
        ),
        Drawing("by_depth", f"{caption} Each panel whole.", DISPERSION, {"log_depth": True}),
        Drawing(
            "by_depth",
            f"{caption} As a part of the tokens' own size.",
            RELATIVE,
            {"log_depth": True, "lowest": _LOWEST},
        ),
    )


def runs(cases: Sequence[Case] = ()) -> int:
    """How often ``on_run`` is called."""
    return (1 + len(cases)) * len(PARTS) * len(masks(1))


def masks(window: int) -> dict[str, str]:
    """W's four masks under their names."""
    return {
        "full": "full",
        "causal": "causal",
        "sliding window": f"window:{window}",
        "causal sliding window": f"causal-window:{window}",
    }


def _random(shape: Shape, depth: int) -> _Subject:
    return _Subject("BERT shape (init)", shape.network(depth), *shape.inputs())


def _repeated(case: Case, depth: int, texts: Sequence[str], length: int) -> _Subject:
    loaded = case.model()
    x, token_mask, _ = loaded.inputs(texts, length=length)
    network = loaded.network
    return _Subject(case.name, network.repeat(max(1, depth // network.spec.layers)), x, token_mask)


def _by_mask(
    subject: _Subject,
    left_out: Sequence[str],
    window: int,
    on_run: Callable[[], None] | None,
) -> pl.DataFrame:
    network = subject.network.without(*left_out)
    found = {}
    for name, mask in masks(window).items():
        table = deep_trace(
            network.with_mask(mask), subject.x, norm="fro", token_mask=subject.token_mask
        ).table.filter(pl.col("metric").is_in(["log10_residual", RELATIVE]))
        found[name] = dispersions(table)
        if on_run is not None:
            on_run()
    return tables.joined(found)


def _sentences(summary: pl.DataFrame) -> tuple[str, ...]:
    told = []
    for model in summary["model"].unique(maintain_order=True).to_list():
        ends = []
        for mask in masks(1):
            curve = medians(summary, DISPERSION, model=model, variant=mask)
            relative = medians(summary, RELATIVE, model=model, variant=mask)
            ends.append(
                f"{mask} {power_of_ten(curve[-1])} ({power_of_ten(relative[-1])} of the tokens' "
                f"size, {_course(relative)})"
            )
        told.append(f"{model}: μ after {len(curve) - 1} layers: {'; '.join(ends)}.")
    return tuple(told)


def _course(log10: list[float]) -> str:
    """The law where it is beyond doubt; otherwise the factor alone, for one network's residual goes
    up and down too much to tell a slow collapse from none."""
    found = long_law(log10)
    if found.kind in ("doubly exponential", "equal"):
        return found.kind
    if found.kind == "undecided":
        return "too few layers to tell how it goes on"
    return f"× {10**found.rate:.3g} a layer over the second half"
