"""How far a sweep is, and what failed: read from its folder, without torch."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rankscope import run as sweeping
from rankscope.cli.printing import print_error, print_json, print_list, without_controls
from rankscope.cli.sweep_options import StatusOptions
from rankscope.numerals import duration, plural

FIRST: Final = 5
"""Runs, or failures, that are told one by one."""
_LONGEST: Final = 1000
"""Characters of an error; all of it is in the folder."""


def status(folder: Path, options: StatusOptions) -> None:
    """How far the sweep in a folder is."""
    found = sweeping.status(folder)
    if options.as_json:
        print_json({**asdict(found), "failed": found.failed, "left": found.left})
        return
    said = [f"{found.done:,} done", f"{found.failed:,} failed", f"{found.left:,} left"]
    lines = {"runs": f"{plural(found.total, 'run')}: {', '.join(said)}"}
    lines["state"] = _state(found)
    if found.others:
        lines["kept"] = f"{plural(found.others, 'result')} of runs that are no longer in the grid"
    print_list({name: without_controls(words) for name, words in lines.items()})
    print_failures(found.failures)


def _state(found: sweeping.Status) -> str:
    if found.holder is None:
        return "not running" + ("; start it again for the rest" if found.left else "")
    speed = f", {found.runs_per_minute:.3g} runs a minute" if found.runs_per_minute else ""
    left = f", about {duration(found.seconds_left)} left" if found.seconds_left else ""
    return f"running for {duration(found.running_seconds or 0)} ({found.holder}){speed}{left}"


def print_failures(failures: Sequence[sweeping.Failure]) -> None:
    """The first few, a sentence each, on standard error."""
    for each in failures[:FIRST]:
        print_error(f"{_whose(each)} failed: {_short(each.error)}")
    if len(failures) > FIRST:
        print_error(f"{len(failures) - FIRST:,} more failed; the folder's failures/ says why.")


def _whose(failure: sweeping.Failure) -> str:
    return str(sweeping.Run(failure.key, failure.experiment, failure.axes, {}))


def _short(error: str) -> str:
    return error if len(error) <= _LONGEST else f"{error[:_LONGEST]}…"
