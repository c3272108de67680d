"""Runs one after the other, in this process."""

from collections.abc import Iterable, Iterator

from rankscope.arguments import checked
from rankscope.run._engine import Outcome, carry_out
from rankscope.run._run import Run, Work


@checked
class Inline:
    """The simplest engine: good for a few runs, for a debugger, and where processes are not."""

    def outcomes(self, runs: Iterable[Run], work: Work) -> Iterator[Outcome]:
        """Each run's outcome, in the order of the runs."""
        for run in runs:
            yield carry_out(run, work, "this process")

    def close(self) -> None:
        """Nothing is left running."""
