"""How the contraction constant moves with heads, widths, initialisation and sequence length."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import torch

from rankscope import tables
from rankscope.deep import deep_trace
from rankscope.errors import InputError
from rankscope.experiments.laws import power_of_ten
from rankscope.experiments.study import Drawing, Study
from rankscope.network import Init, Network, Spec
from rankscope.text import embed, passages
from rankscope.tracing import Provenance

BASE: Mapping[str, float] = {
    "tokens": 32,
    "width": 128,
    "heads": 4,
    "head_width": 32,
    "init_scale": 1.0,
}
"""What all others differ from in one number; the scale multiplies weights of variance 1/fan-in."""
SWEEPS: Mapping[str, Sequence[float]] = {
    "head_width": (4, 8, 16, 32, 64, 128),
    "heads": (1, 2, 4, 8, 16),
    "width": (32, 64, 128, 256, 512),
    "init_scale": (0.125, 0.25, 0.5, 1.0),  # above it three layers leave no small residual
    "tokens": (4, 8, 16, 32, 64, 128),
}
_LAYERS = 3
"""Enough for the last layer to be in the regime of small residuals."""
_METRIC = "log10_cubic_constant"


def width_study(
    *,
    sweeps: Mapping[str, Sequence[float]] = SWEEPS,
    seeds: int = 5,
    seed: int = 0,
    on_case: Callable[[], None] | None = None,
) -> Study:
    """The constant C of ``r' = C r³`` at the last of three layers of pure attention.

    Everything is in logarithms; each seed draws weights and reads another passage.
    """
    unknown = set(sweeps) - set(BASE)
    if unknown:
        raise InputError(f"there is no {unknown.pop()!r} to vary; choose among {', '.join(BASE)}.")
    if seeds < 1 or not sweeps:
        raise InputError(f"seeds={seeds} and {len(sweeps)} sweeps leave nothing to measure.")
    _check_settings(sweeps)
    columns: dict[str, list[object]] = {
        name: [] for name in ("parameter", "setting", "sample", "metric", "value")
    }
    for parameter, settings in sweeps.items():
        for setting in settings:
            for draw in range(seeds):
                value = _constant({**BASE, parameter: setting}, seed + draw)
                row = (parameter, float(setting), draw, _METRIC, value)
                for name, entry in zip(columns, row, strict=True):
                    columns[name].append(entry)
                if on_case is not None:
                    on_case()
    table = tables.frame(columns)
    summary = tables.summary(table)
    base = ", ".join(f"{name} {value:g}" for name, value in BASE.items())
    return Study(
        name="widths",
        title="What sets the speed of the collapse",
        question="How does the constant C of r' = C r^3 move with the shape of the network?",
        sentences=_sentences(columns),
        table=table,
        summary=summary,
        provenance=asdict(Provenance("pure attention")) | {"base": base, "seeds": str(seeds)},
        drawings=(
            Drawing(
                "by_setting",
                f"One number varied at a time, the others at {base}; samples are draws of the "
                "weights, each with a passage of its own.",
                _METRIC,
            ),
        ),
    )


def cases(sweeps: Mapping[str, Sequence[float]] = SWEEPS, seeds: int = 5) -> int:
    """How often ``on_case`` is called."""
    return seeds * sum(len(settings) for settings in sweeps.values())


def _check_settings(sweeps: Mapping[str, Sequence[float]]) -> None:
    """Raise unless every setting can be had: counts are whole, all are positive."""
    for name, settings in sweeps.items():
        for setting in settings:
            whole = name == "init_scale" or float(setting).is_integer()
            if not (setting > 0 and whole):
                raise InputError(f"{name}={setting} cannot be built; use positive whole numbers.")


def _constant(setting: Mapping[str, float], seed: int) -> float:
    spec = Spec(
        _LAYERS,
        int(setting["heads"]),
        int(setting["width"]),
        head_width=int(setting["head_width"]),
        mlp_ratio=0.0,
        norm="none",
        skip=False,
        bias=False,
        init=Init("lecun", setting["init_scale"]),
    )
    texts = passages()
    x, _ = embed(
        [texts[seed % len(texts)]],
        spec.width,
        length=int(setting["tokens"]),
        seed=seed,
        dtype=torch.float64,
    )
    found = deep_trace(Network.random(spec, seed=seed, dtype=torch.float64), x).columns
    rows = zip(found["layer"], found["metric"], found["value"], strict=True)
    return float(
        next(value for layer, metric, value in rows if (layer, metric) == (_LAYERS, _METRIC))
    )


def _sentences(columns: Mapping[str, Sequence[object]]) -> tuple[str, ...]:
    """By which power of each parameter the constant grows, by least squares."""
    told = []
    for parameter in dict.fromkeys(columns["parameter"]):
        points = [
            (math.log10(float(str(setting))), float(str(value)))
            for name, setting, value in zip(
                columns["parameter"], columns["setting"], columns["value"], strict=True
            )
            if name == parameter
        ]
        slope = _slope(points)
        low, high = (10 ** edge(p[0] for p in points) for edge in (min, max))
        words = str(parameter).replace("_", " ")
        told.append(
            f"{words.capitalize()} from {low:g} to {high:g}: C goes like the power {slope:+.2f} "
            f"of it, a factor of {power_of_ten(slope * math.log10(high / low))} in all."
        )
    return tuple(told)


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the least-squares line."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    across = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / across if across else 0.0
