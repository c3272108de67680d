"""Claims and studies, run by their ids or listed, and the models that are built in."""

from typing import Annotated

import typer

from rankscope.cli.application import app
from rankscope.cli.options import (
    FIELDS,
    ClaimOptions,
    ExperimentOptions,
    refuse,
    taken,
    takes,
)
from rankscope.cli.printing import print_json, print_list
from rankscope.experiments.catalogue import Entry, Kind, entries, entry

_LISTED = "Without an ID, all of them are listed."
_Id = Annotated[str | None, typer.Argument(metavar="ID", show_default=False)]


def _help(opening: str, kind: Kind) -> str:
    """What a command does, and everything it can be asked for."""
    told = [f"{each.id}: {each.title.rstrip('.')}." for each in entries(kind).values()]
    return "\n\n".join([opening, _LISTED, *told])


@app.command(help=_help("Re-check a claim: a verdict from figures measured here.", "claim"))
@takes(ClaimOptions)
def claim(options: ClaimOptions, *, id_: _Id = None) -> None:
    """A claim by its id."""
    _run_or_list("claim", id_, options)


@app.command(help=_help("Answer a question with many small networks, and charts.", "study"))
@takes(ExperimentOptions)
def study(options: ExperimentOptions, *, id_: _Id = None) -> None:
    """A study by its id."""
    _run_or_list("study", id_, options)


@app.command()
def models(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON on standard output.")] = False,
) -> None:
    """List the architectures that are built in, for --at-init and --models."""
    from rankscope.families import BUILTIN

    shapes = [
        {
            "name": name,
            "family": config.model_type,
            "layers": config.num_hidden_layers,
            "heads": config.num_attention_heads,
            "width": config.hidden_size,
        }
        for name, config in ((name, make()) for name, make in BUILTIN.items())
    ]
    if as_json:
        print_json(shapes)
        return
    words = "{family}: {layers} layers, {heads} heads, width {width}"
    print_list({shape["name"]: words.format_map(shape) for shape in shapes})


def _run_or_list(kind: Kind, id_: str | None, options: ExperimentOptions) -> None:
    """Run what was named; without a name, list everything there is of that kind."""
    if id_ is not None:
        chosen = entry(id_, kind)
        from rankscope.cli import inputs, outputs

        outputs.run(chosen, options, **inputs.configuration(chosen, options))
        return
    only = "without an ID it lists what there is and takes --json alone."
    refuse(kind, sorted(options.given - {"as_json"}), options, only)
    listed = entries(kind).values()
    if options.as_json:
        print_json([_entry(each) for each in listed])
    else:
        print_list({each.id: _words(each) for each in listed})


def _entry(listed: Entry) -> dict[str, str | list[str]]:
    return {
        "id": listed.id,
        "kind": listed.kind,
        "title": listed.title,
        "source": listed.source,
        "options": [field for field in FIELDS if field in listed.options],
    }


def _words(listed: Entry) -> str:
    """An entry in one line: its title, its source, the options it takes."""
    source = f" ({listed.source})" if listed.source else ""
    options = ", ".join(taken(listed)) or "no options"
    return f"{listed.title.rstrip('.')}{source}. {options}"
