"""A run → the long table of its result."""

from typing import TYPE_CHECKING

from rankscope.arguments import checked
from rankscope.ask import Sources, ask
from rankscope.errors import InputError
from rankscope.experiments.catalogue import entry
from rankscope.run._run import Run
from rankscope.version import __version__

if TYPE_CHECKING:
    import polars as pl


@checked
def execute(run: Run) -> "pl.DataFrame":
    """Run one run, here and now; its table is that of the experiment's result.

    What it reads must be what it was when the run was named: a text that was edited since, or
    another version of rankscope on the machine that runs it, would file numbers under a wrong key.
    """
    asked = ask(entry(run.experiment), run.fields, Sources(run.folder))
    if asked.key != run.key:
        raise InputError(
            f"{run} was named {run.key} and is {asked.key} now: a text, a model or rankscope "
            f"(here {__version__}) has changed since; start the sweep again."
        )
    return asked.run().table
