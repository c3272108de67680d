"""Maps of designs over depth: where the boundary lies, and how measurements agree."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final

import polars as pl
import torch
from torch import Tensor

from rankscope import metric_catalogue, tables
from rankscope.core.network import Init, Network, Spec
from rankscope.core.prediction import Prediction, predict
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.counterparts import counterpart
from rankscope.models.text import embed, passages
from rankscope.numerals import plural, sentence_case, short
from rankscope.process import share_out
from rankscope.streams import stream_seed

ENTRY = kit.study(
    "phases",
    "Where designs collapse, and where not: maps over depth, predicted and measured",
    question="Where on the map of designs do tokens collapse, and where do they not?",
    seconds=65,
    small=True,
)
PREDICTED, MEASURED = "predicted", "measured"
COLLAPSE_LAYER: Final = "collapse_layer"
_PLACE: Final = ("model", "parameter", "setting", "layer", "metric")
# Figures below which a plain pass in float64 has lost its digits; they are not compared.
_FOLLOWED: Final = 1e-10
# Draws that differ by less are alike but for rounding, which a norm sees to; nothing is said.
_ROUNDING: Final = 1 + 1e-4
_FEW_LAYERS: Final = 400  # of all networks: a second of work, which is not worth more processes
BOUNDARY = 0.1
"""The relative dispersion below which tokens count as collapsed here: a tenth of their size."""
SCALE, SKIP, WINDOW, HEADS = "init_scale", "skip_scale", "window", "heads"
_SHARE, _GRADIENT = "entropy_share", "state_gradient"
_METRICS = ("relative_dispersion", _SHARE, "token_norm", _GRADIENT)
_PLACES = {
    "none": "no norm",
    "pre": "pre-norm",
    "post": "post-norm",
    "both": "sandwich norm",
    "output": "output norm",
}
_COLUMNS = ("model", "variant", "layer", "parameter", "setting", "sample", "metric", "value")
Label = tuple[str, str, float]
"""The design, what is varied, and its setting."""


@dataclass(frozen=True)
class Config(kit.Config):
    """``base`` is the norm place of all maps but those of the initialisation's scale.

    One prediction of all ``layers`` is a whole row of a map; each has so many ``draws``. At
    ``measured`` of the settings of a map a random network is measured, and marked every so many
    layers (``marked``). Windows are of a token and so many to either side.
    """

    layers: int = 20
    width: int = 256
    heads: int = 8
    tokens: int = 32
    draws: int = 4
    scales: tuple[float, ...] = tuple(round(2 ** (k / 4), 3) for k in range(-8, 12))
    skips: tuple[float, ...] = tuple(round(k / 5, 1) for k in range(20))
    windows: tuple[int, ...] = tuple(range(1, 21))
    head_counts: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    places: tuple[str, ...] = ("none", "pre", "post", "both", "output")
    base: str = "post"
    measured: int = 4
    marked: int = 5


@dataclass(frozen=True)
class Map:
    """What is varied in a design, and how far."""

    placement: str
    parameter: str
    settings: tuple[float, ...]

    @property
    def name(self) -> str:
        """What the design is called."""
        return _PLACES[self.placement]

    def spec(self, config: Config, setting: float) -> Spec:
        """The design at one setting."""
        placement: dict[str, Any] = (
            {"norm": "none"} if self.placement == "none" else {"norm_place": self.placement}
        )
        varied: dict[str, dict[str, Any]] = {
            SCALE: {"init": Init("lecun", setting)},
            SKIP: {"skip": setting},
            WINDOW: {"mask": f"window:{setting:.0f}"},
            HEADS: {},
        }
        heads = int(setting) if self.parameter == HEADS else config.heads
        return Spec(
            config.layers,
            heads,
            config.width,
            **{"init": "lecun", **placement, **varied[self.parameter]},
        )

    def chosen(self, count: int) -> tuple[float, ...]:
        """Some of the settings, evenly spread, neither end among them where others are enough."""
        few = min(count, len(self.settings))
        step = len(self.settings) / few
        return tuple(self.settings[int((k + 0.5) * step)] for k in range(few))


def maps(config: Config) -> list[Map]:
    """Every map of the study: the initialisation in each norm place, then the rest."""
    unknown = {*config.places, config.base} - set(_PLACES)
    if unknown:
        raise InputError(f"there is no norm place {min(unknown)!r}; choose {', '.join(_PLACES)}.")
    every = [
        *(Map(placement, SCALE, config.scales) for placement in config.places),
        Map(config.base, SKIP, config.skips),
        Map(config.base, WINDOW, tuple(map(float, config.windows))),
        Map(config.base, HEADS, tuple(map(float, config.head_counts))),
    ]
    return [map_ for map_ in every if map_.settings]


def measure(config: Config, on_step: kit.OnStep) -> kit.Measured[None]:
    """A prediction for every setting of every map, and some networks measured beside them."""
    texts, _ = embed(
        passages()[:1], config.width, length=config.tokens, seed=config.seed, dtype=torch.float64
    )
    places = [(map_, setting) for map_ in maps(config) for setting in map_.settings]
    share = share_out if len(places) * config.layers > _FEW_LAYERS else map
    by_place = iter(share(partial(_rows_at, config, texts), places))
    rows: list[tuple[Any, ...]] = []
    for _ in kit.tracked(places, on_step):
        rows += next(by_place)
    design = (
        f"{config.layers} layers of width {config.width}, {config.heads} heads, MLPs of four times "
        f"the width, skips, {_PLACES[config.base]}, full mask, weights of variance 1/fan-in, but "
        f"for what is varied; one passage of {config.tokens} tokens"
    )
    return kit.Measured(tables.from_rows(_COLUMNS, rows), about={"design": design})


def _rows_at(config: Config, texts: Tensor, place: tuple[Map, float]) -> list[tuple[Any, ...]]:
    """The rows of one setting of a map: its prediction, and a network if it is among the chosen."""
    map_, setting = place
    label = (map_.name, map_.parameter, setting)
    spec = map_.spec(config, setting)
    prediction = predict(
        spec,
        texts,
        draws=config.draws,
        seed=stream_seed(config.seed, "phases", *map(str, label)),
        gradients=map_.parameter == SCALE,
    )
    rows = list(_predicted(label, prediction))
    if setting in map_.chosen(config.measured):
        rows += _measured(config, label, spec, texts, prediction)
    return rows


def judge(config: Config, measured: kit.Measured[None]) -> kit.Answer:
    """Where the boundary of each map lies, and how measurements agree with predictions."""
    table = measured.table
    return kit.Answer(
        (
            *(boundary(table, m.name, m.parameter, BOUNDARY) for m in maps(config)),
            *agreement(table, config.draws),
        ),
        charts=_drawings(config),
        shown=(COLLAPSE_LAYER,),
    )


def _predicted(label: Label, prediction: Prediction) -> Iterator[tuple[Any, ...]]:
    """A row for every figure, layer and draw, and for the layer at which each draw collapses."""
    model, parameter, setting = label
    curves = {name: values.flatten(1) for name, values in prediction.values.items()}
    even = prediction.even_entropy
    assert even is not None  # predict tells it
    curves[_SHARE] = curves["attention_entropy"] / even[:, :1].clamp(min=1e-300)
    if _GRADIENT in curves:  # what is no number has been infinite on its way back
        curves[_GRADIENT] = curves[_GRADIENT].nan_to_num(math.inf, math.inf)
    for name in _METRICS:
        for layer, row in enumerate(curves.get(name, torch.zeros(0, 0)).tolist()):
            for draw, value in enumerate(row if layer else ()):
                yield (model, PREDICTED, layer, parameter, setting, draw, name, value)
    means = curves["relative_dispersion"].mean(1).tolist()
    yield (model, PREDICTED, None, parameter, setting, 0, COLLAPSE_LAYER, first_below(means))


def _measured(
    config: Config, label: Label, spec: Spec, texts: Tensor, prediction: Prediction
) -> Iterator[tuple[Any, ...]]:
    """The same of one random network, whose weights are from a stream of their own."""
    model, parameter, setting = label
    seed = stream_seed(config.seed, "phases", "measured", *map(str, label))
    network = Network.random(spec, seed=seed, dtype=torch.float64)
    gradients = _GRADIENT in prediction.metrics
    subject = kit.Subject(network, texts)
    rows = counterpart(subject, gradients=gradients, seed=seed).sort("layer")
    even = prediction.even_entropy
    assert even is not None  # predict tells it
    for layer, name, value in rows.select("layer", "metric", "value").iter_rows():
        if name == "attention_entropy":
            name, value = _SHARE, value / max(float(even[layer, 0]), 1e-300)
        if name in _METRICS and layer and layer % config.marked == 0:
            yield (model, MEASURED, layer, parameter, setting, 0, name, value)


def first_below(values: Sequence[float]) -> float:
    """The first layer at which a curve is below the boundary; NaN if none is.

    >>> first_below([1.0, 0.5, 0.09]), first_below([1.0, 0.1])
    (2.0, nan)
    """
    return float(next((at for at, value in enumerate(values) if value < BOUNDARY), math.nan))


def boundary(table: pl.DataFrame, model: str, parameter: str, threshold: float) -> str:
    """Where on one map the tokens collapse: at which settings, and how soon."""
    rows = table.filter(model=model, parameter=parameter, variant=PREDICTED)
    crossings = rows.filter(metric=COLLAPSE_LAYER).sort("setting")
    reached = dict(zip(crossings["setting"].to_list(), crossings["value"].to_list(), strict=True))
    layers = int(rows["layer"].max())  # type: ignore[arg-type]  # there are layers
    name = f"{sentence_case(parameter.replace('_', ' '))}, {model}"
    inside = [not math.isnan(layer) for layer in reached.values()]
    settings = list(reached)
    if not any(inside):
        least = rows.filter(metric="relative_dispersion").group_by("setting", "layer")
        lowest = float(least.agg(pl.col("value").mean())["value"].min())  # type: ignore[arg-type]
        return (
            f"{name}: no collapse at any setting from {short(settings[0])} to "
            f"{short(settings[-1])} within {plural(layers, 'layer')}; the relative dispersion "
            f"stays above {math.floor(100 * lowest) / 100:g}."
        )
    crossed = [setting for setting in settings if not math.isnan(reached[setting])]
    soonest, latest = (pick(crossed, key=reached.__getitem__) for pick in (min, max))
    ends = f"soonest at layer {reached[soonest]:.0f} ({short(soonest)})"
    if reached[latest] != reached[soonest]:
        ends += f", latest at layer {reached[latest]:.0f} ({short(latest)})"
    return (
        f"{name}: the relative dispersion falls below {threshold:g} within "
        f"{plural(layers, 'layer')} {_ranges(settings, inside)}, {ends}."
    )


def _ranges(settings: Sequence[float], inside: Sequence[bool]) -> str:
    """The settings that are inside, runs of neighbours as ranges.

    >>> _ranges([1.0, 2.0, 3.0, 4.0], [False, True, True, True]), _ranges([1.0, 2.0], [True] * 2)
    ('at settings 2 to 4', 'at every setting')
    """
    if all(inside):
        return "at every setting"
    runs = []
    for side, group in groupby(zip(settings, inside, strict=True), key=lambda pair: pair[1]):
        run = [short(setting) for setting, _ in group]
        if side:
            runs.append(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}")
    return f"at settings {', '.join(runs)}"


def agreement(table: pl.DataFrame, draws: int) -> Iterator[str]:
    """How measurements agree with the draws, and where they differ most from their mean."""
    rows = table.filter(pl.col("metric") != COLLAPSE_LAYER)
    value, low, high = pl.col("value"), pl.col("low"), pl.col("high")
    drawn = (
        rows.filter(variant=PREDICTED)
        .group_by(*_PLACE)
        .agg(
            value.log().mean().exp().alias("mean"),
            value.min().alias("low"),
            value.max().alias("high"),
        )
    )
    measured = (
        rows.filter(variant=MEASURED)
        .join(drawn, on=list(_PLACE), maintain_order="left")
        .filter((value > _FOLLOWED) & (low > _FOLLOWED) & (high > _ROUNDING * low))
        .with_columns(
            (value / pl.col("mean")).log().abs().alias("apart"),
            value.is_between(low, high).alias("inside"),
        )
    )
    if measured.is_empty():
        return
    share = measured["inside"].sum() / measured.height
    if draws > 1:
        expected = (draws - 1) / (draws + 1)
        yield (
            f"Of {measured.height:,} measured figures {share:.0%} lie between the smallest and the "
            f"largest of {plural(draws, 'draw')}, where {expected:.0%} are expected of networks "
            "from one law."
        )
    furthest = [_furthest(part) for _, part in measured.group_by("metric", maintain_order=True)]
    yield (
        "The largest differences between measurements and the geometric mean of the draws: "
        f"{'; '.join(furthest)}."
    )


def _furthest(part: pl.DataFrame) -> str:
    """Where a metric differs most from its mean prediction, and how it usually does."""
    row: dict[str, Any] = part.sort("apart").row(-1, named=True)
    title = metric_catalogue.metric(row["metric"]).title.lower()
    usual = math.expm1(float(part["apart"].median()))  # type: ignore[arg-type]  # not empty
    return (
        f"{title} {short(row['value'])} where {short(row['mean'])} is predicted "
        f"({row['parameter'].replace('_', ' ')} {short(row['setting'])}, {row['model']}, layer "
        f"{row['layer']}), in the median {short(100 * usual, digits=2)}% off"
    )


def _drawings(config: Config) -> tuple[kit.Drawing, ...]:
    means = (
        f"Samples are {plural(config.draws, 'draw')}; rings are single random networks that were "
        "measured, on the same scale"
    )
    at = f"the line is where the relative dispersion crosses {BOUNDARY:g}"
    return (
        kit.Drawing(
            "phase_map",
            f"{means}; {at}.",
            "relative_dispersion",
            {"boundary": BOUNDARY, "lowest": 1e-3, "highest": 1.0},
        ),
        kit.Drawing(
            "phase_map",
            f"{means}; the line is where attention has a quarter of the uniform entropy.",
            _SHARE,
            {"boundary": 0.25, "lowest": 0.0, "highest": 1.0},
        ),
        kit.Drawing(
            "phase_map",
            f"{means}. Sizes above 10,000 have the last shade.",
            "token_norm",
            {"lowest": 10.0, "highest": 1e4},
            {"parameter": (SCALE,)},
        ),
        kit.Drawing(
            "phase_map",
            f"{means}. All networks have {config.layers} layers here: what a random function of "
            "the last layer sends back to the layer.",
            _GRADIENT,
            {"lowest": 1.0, "highest": 1e4},
        ),
    )
