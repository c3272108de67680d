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
    """How a study is run, and how often it reports progress."""

    run: Callable[[Sequence[Case], int, Advance], Study]
    steps: Callable[[Sequence[Case]], int]
