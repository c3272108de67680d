"""How the contraction constant moves with heads, widths, initialisation and sequence length."""

import math
from dataclasses import dataclass
from statistics import linear_regression

import polars as pl
import torch

from rankscope import tables
from rankscope.core.deep import deep_trace
from rankscope.core.network import Init, Network, Spec
from rankscope.core.tracing import Trace
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.depths import doubts
from rankscope.models.text import embed, passages
from rankscope.numerals import MINUS, power_of_ten

ENTRY = kit.study(
    "widths",
    "What sets the speed of the collapse",
    question="How does the constant C of r' = C r³ depend on the shape of the network?",
    seconds=10,
)
SCALE = "init_scale"
"""What multiplies weights of variance 1/fan-in; all other settings are counts."""
_METRIC = "log10_cubic_constant"


@dataclass(frozen=True)
class Config(kit.Config):
    """``base`` is what all others differ from in one number, ``sweeps`` the numbers tried.

    ``layers`` are enough for the last one to be in the regime of small residuals, which it leaves
    for scales of the weights above one. Each of the ``draws`` has its weights and its passage.
    """

    base: tuple[tuple[str, float], ...] = (
        ("tokens", 32),
        ("width", 128),
        ("heads", 4),
        ("head_width", 32),
        (SCALE, 1.0),
    )
    sweeps: tuple[tuple[str, tuple[float, ...]], ...] = (
        ("head_width", (4, 8, 16, 32, 64, 128)),
        ("heads", (1, 2, 4, 8, 16)),
        ("width", (32, 64, 128, 256, 512)),
        (SCALE, (0.125, 0.25, 0.5, 1.0)),
        ("tokens", (4, 8, 16, 32, 64, 128)),
    )
    draws: int = 5
    layers: int = 3


def measure(config: Config, on_step: kit.OnStep) -> kit.Measured[None]:
    """The constant C of ``r' = C r³`` at the last of three layers of pure attention."""
    _check(config)
    cases = [
        (parameter, float(setting), draw)
        for parameter, settings in config.sweeps
        for setting in settings
        for draw in range(config.draws)
    ]
    traces = {case: _trace(config, *case) for case, _ in kit.tracked(cases, on_step)}
    rows = [
        (*case, _METRIC, traced.table.filter(metric=_METRIC).sort("layer")["value"][-1])
        for case, traced in traces.items()
    ]
    return kit.Measured(
        tables.from_rows(("parameter", "setting", "sample", "metric", "value"), rows),
        doubts({f"{name} {at:g}, draw {n}": traced for (name, at, n), traced in traces.items()}),
    )


def judge(config: Config, measured: kit.Measured[None]) -> kit.Answer:
    """What moves the constant most over the settings that were tried, and by which power."""
    decades, rows = {}, []
    for parameter, _ in config.sweeps:
        varied, words = measured.table.filter(parameter=parameter), parameter.replace("_", " ")
        low, high = min(varied["setting"]), max(varied["setting"])
        slope = _slope(varied)
        decades[words] = slope * math.log10(high / low)
        power = f"{slope:+.2f}".replace("-", MINUS)
        rows.append((words, low, high, power, power_of_ten(decades[words])))
    most = max(decades, key=lambda words: abs(decades[words]))
    base = ", ".join(f"{name} {value:g}" for name, value in config.base)
    chart = kit.Drawing(
        "by_setting",
        f"One number varied at a time, the others at {base}; samples are draws of the weights, "
        "each with its own passage.",
        _METRIC,
    )
    listing = kit.Listing(
        "How C depends on each number",
        ("number", "from", "to", "power", "factor in all"),
        tuple(rows),
        "C is proportional to this power of the number (least squares over all draws).",
    )
    return kit.Answer(
        [
            f"{most.capitalize()} moves C most: by a factor of {power_of_ten(decades[most])} over "
            "the settings tried."
        ],
        listings=(listing,),
        charts=(chart,),
        shown=(),
    )


def _check(config: Config) -> None:
    """Raise unless every setting is known and valid: positive, and a whole number if a count."""
    known = dict(config.base)
    if config.draws < 1 or not config.sweeps:
        raise InputError(f"{len(config.sweeps)} sweeps leave nothing to measure.")
    for name, settings in config.sweeps:
        if name not in known:
            raise InputError(f"there is no {name!r} to vary; choose among {', '.join(known)}.")
        for setting in settings:
            allowed = name == SCALE or float(setting).is_integer()
            if not (setting > 0 and allowed):
                raise InputError(f"{name}={setting} cannot be built; use positive whole numbers.")


def _trace(config: Config, parameter: str, value: float, draw: int) -> Trace:
    setting, seed = {**dict(config.base), parameter: value}, config.seed + draw
    spec = Spec.pure_attention(
        config.layers,
        int(setting["heads"]),
        int(setting["width"]),
        head_width=int(setting["head_width"]),
        bias=False,
        init=Init("lecun", setting[SCALE]),
    )
    texts = passages()
    x, _ = embed(
        [texts[seed % len(texts)]],
        spec.width,
        length=int(setting["tokens"]),
        seed=seed,
        dtype=torch.float64,
    )
    return deep_trace(Network.random(spec, seed=seed, dtype=torch.float64), x)


def _slope(rows: pl.DataFrame) -> float:
    """The power of a parameter by which the constant grows, by least squares."""
    logs = [math.log10(setting) for setting in rows["setting"]]
    return linear_regression(logs, rows["value"].to_list()).slope if len(set(logs)) > 1 else 0.0
