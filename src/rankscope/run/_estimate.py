"""What a sweep will take, reckoned before it is started."""

from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.arguments import checked
from rankscope.ask import Cost, Sources, ask
from rankscope.experiments.catalogue import entry
from rankscope.numerals import duration, plural
from rankscope.run._run import Run

_LEAST_SECONDS = 0.01
"""What the smallest run takes: a network is drawn, a text read, a table made."""
_MOST = 500
"""Runs that are looked at; of more, so many at even distances."""


@checked
@dataclass(frozen=True)
class Estimate:
    """Seconds of all runs one after the other and of the longest, bytes of the largest.

    ``unknown`` is how many runs of ``runs`` nothing is known about; they are in none of the sums.
    """

    runs: int
    seconds: float = 0.0
    longest: float = 0.0
    bytes: float = 0.0
    unknown: int = 0

    def in_words(self, workers: int) -> str:
        """How long the runs take with so many workers, as far as that is known."""
        unknown = f"nothing is known about {plural(self.unknown, 'run')}"
        if self.unknown == self.runs:
            return unknown
        wall = duration(max(self.longest, self.seconds / workers))
        said = f"about {duration(self.seconds)} of work, {wall} with {plural(workers, 'worker')}"
        return f"{said}; good to a factor of three" + f"; {unknown}" * bool(self.unknown)


@checked
def estimate(runs: Sequence[Run]) -> Estimate:
    """What these runs will take on this machine; no weight is drawn.

    >>> from rankscope.run import plan, read_grid
    >>> found = estimate(plan(read_grid({"width": 12, "axes": {"seed": [0, 1]}})).runs)
    >>> found.runs, found.unknown, 0 < found.longest <= found.seconds < 60
    (2, 0, True)
    """
    if not runs:
        return Estimate(0)
    count = min(len(runs), _MOST)
    looked_at = [runs[place * len(runs) // count] for place in range(count)]
    sources = {folder: Sources(folder) for folder in {run.folder for run in looked_at}}
    costs = [_cost(run, sources[run.folder]) for run in looked_at]
    known = [cost for cost in costs if cost is not None]
    seconds = [_LEAST_SECONDS + cost.seconds for cost in known]
    share = len(runs) / count
    return Estimate(
        len(runs),
        share * sum(seconds),
        max(seconds, default=0.0),
        max((cost.bytes for cost in known), default=0.0),
        round(share * (count - len(known))),
    )


def _cost(run: Run, sources: Sources) -> Cost | None:
    return ask(entry(run.experiment), run.fields, sources).cost()
