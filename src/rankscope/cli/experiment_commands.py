"""Claims and studies, run by their ids or listed."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from rankscope.cli.application import app
from rankscope.cli.options import (
    FIELDS,
    ExperimentOptions,
    ReproduceOptions,
    refuse,
    taken,
    takes,
)
from rankscope.cli.printing import print_json, print_list
from rankscope.errors import InputError
from rankscope.experiments import Entry, Kind, entries, entry
from rankscope.run import OUTPUT_FOLDER, ClaimRun, claim_runs

_LISTED = "Without an ID, all of them are listed."
_Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", show_default=False)]
_Id = Annotated[str | None, typer.Argument(metavar="ID", show_default=False)]


def _help(opening: str, kind: Kind) -> str:
    """What a command does, and everything it can be asked for."""
    told = [f"{each.id}: {each.title.rstrip('.')}." for each in entries(kind).values()]
    return "\n\n".join([opening, _LISTED, *told])


@app.command(
    help=_help("Re-check claims of both papers: verdicts from figures measured here.", "claim")
)
@takes(ReproduceOptions)
def reproduce(options: ReproduceOptions, *, ids: _Ids = None) -> None:
    """Claims by their ids, or all of them."""
    if not ids and not options.everything:
        only = "without an ID or --all it lists the claims and takes --json and --output alone."
        refuse("reproduce", sorted(options.given - {"as_json", "output"}), options, only)
        runs = claim_runs(options.output or OUTPUT_FOLDER)
        told = {each: _last(runs, each) for each in entries("claim").values()}
        list_entries(told.items(), as_json=options.as_json)
        return
    if ids and options.everything:
        raise InputError(f"--all runs every claim; leave out {' '.join(ids)}, or --all.")
    asked = [entry(id_, "claim") for id_ in ids] if ids else entries("claim").values()
    from rankscope.cli import inputs, outputs

    chosen = inputs.configurations("reproduce", list(dict.fromkeys(asked)), options)
    if not outputs.reproduce(chosen, options):
        raise typer.Exit(2)


@app.command(help=_help("Answer a question with many small networks, and charts.", "study"))
@takes(ExperimentOptions)
def study(options: ExperimentOptions, *, id_: _Id = None) -> None:
    """A study by its id."""
    if id_ is None:
        only = "without an ID it lists what there is and takes --json alone."
        refuse("study", sorted(options.given - {"as_json"}), options, only)
        list_entries([(each, {}) for each in entries("study").values()], as_json=options.as_json)
        return
    chosen = entry(id_, "study")
    from rankscope.cli import inputs, outputs

    fields = inputs.configurations("study", [chosen], options)[chosen]
    outputs.run(chosen, chosen.configuration(**fields), options)


def list_entries(listed: Iterable[tuple[Entry, Mapping[str, Any]]], *, as_json: bool) -> None:
    """Claims or studies, a line each, or as an array with what more there is to say of each."""
    if as_json:
        print_json([{**_fields(each), **more} for each, more in listed])
        return
    print_list({each.id: _words(each, more.get("last")) for each, more in listed})


def _last(runs: list[ClaimRun], claim: Entry) -> dict[str, Any]:
    """How the last run of a claim ended, if there was one."""
    run = next((run for run in reversed(runs) if run.id == claim.id), None)
    judged = run.judgement if run else None
    return {"verdict": judged and judged["verdict"], "last": run and asdict(run)}


def _fields(listed: Entry) -> dict[str, Any]:
    return {
        "id": listed.id,
        "kind": listed.kind,
        "title": listed.title,
        "source": listed.source,
        "domain": listed.domain,
        "options": [field for field in FIELDS if field in listed.options],
    }


def _words(listed: Entry, last: Mapping[str, Any] | None) -> str:
    """An entry in one line: its title, its source, the options it takes, how it last ended."""
    source = f" ({listed.source})" if listed.source else ""
    options = ", ".join(taken(listed)) or "no options"
    ended = f" Last: {last['failure'] or last['verdict']}" if last else ""
    return f"{listed.title.rstrip('.')}{source}. {options}{ended and '.'}{ended}"
