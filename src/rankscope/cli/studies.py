"""Which study answers to which name; imported only once a command runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rankscope.errors import InputError
from rankscope.experiments import layernorm_study, pattern_study, widths, wu_figure
from rankscope.experiments.d5 import Case
from rankscope.experiments.study import Study

Advance = Callable[[], None]


@dataclass(frozen=True)
class Known:
    """How a study is run, on which models if any, and how often it reports progress."""

    run: Callable[[Sequence[Case], int, Advance], Study]
    steps: Callable[[Sequence[Case]], int]


STUDIES: Final[dict[str, Known]] = {
    "widths": Known(
        lambda _, seed, advance: widths.width_study(seed=seed, on_case=advance),
        lambda _: widths.cases(),
    ),
    "patterns": Known(
        lambda _, seed, advance: pattern_study.pattern_study(seed=seed, on_network=advance),
        lambda _: pattern_study.steps(),
    ),
    "layernorm": Known(
        lambda _, seed, advance: layernorm_study.layernorm_study(seed=seed, on_case=advance),
        lambda _: layernorm_study.cases(),
    ),
    "wu": Known(
        lambda cases, seed, advance: wu_figure.wu_figure(
            cases, shape=wu_figure.Shape(seed=seed), on_run=advance
        ),
        wu_figure.runs,
    ),
}


def known(name: str) -> Known:
    """A study by its name; a wrong one is found before any work is done."""
    if name not in STUDIES:
        raise InputError(f"there is no study {name!r}; choose {', '.join(STUDIES)}.")
    return STUDIES[name]
