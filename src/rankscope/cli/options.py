"""The options of commands: those of what is asked about, and of where the answer goes.

Nothing heavy is imported here, so that ``--help`` answers at once.
"""

import functools
import inspect
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_type_hints

import typer

from rankscope.ask import COMMAND_LINE, PARTS, Asks, Parts
from rankscope.ask import options as ask_options
from rankscope.errors import InputError
from rankscope.experiments import CATALOGUE, ENTRIES, Entry

WORDS: Final = "rankscope.words"
"""Where the application keeps the words of its command line."""


def option(help_text: str, *names: str, panel: str, **more: Any) -> Any:
    """An option in a panel of the help."""
    return typer.Option(*names, help=help_text, rich_help_panel=panel, **more)


in_output = functools.partial(option, panel="Output")
in_run = functools.partial(option, panel="Run")


@dataclass(frozen=True)
class Options:
    """What every command is given: its options, which of them were really written, and how."""

    given: frozenset[str] = frozenset()
    command: str = ""  # the command line, as one would type it to get the same answer


@dataclass(frozen=True)
class OutputOptions(Options):
    """Where the result goes."""

    output: Annotated[
        Path | None,
        in_output("Folder for files; rankscope-output unless given, with --json none."),
    ] = None
    as_json: Annotated[bool, in_output("Result as JSON on standard output.", "--json")] = False
    table: Annotated[
        bool, in_output("With --json also the whole table, every number of it.", "--table")
    ] = False
    full: Annotated[bool, in_output("Print everything, not only the answer.", "--full")] = False
    charts: Annotated[
        bool, in_output("Also each chart of the page as a picture (PNG).", "--charts")
    ] = False
    csv: Annotated[
        bool, in_output("Also the whole table as CSV, beside the Parquet file.", "--csv")
    ] = False


@dataclass(frozen=True)
class QuestionOptions(OutputOptions):
    """The same of what is estimated first; what is asked about is added by ``asking``."""

    yes: Annotated[
        bool,
        in_output("Run even if the estimate exceeds a few minutes or available memory.", "--yes"),
    ] = False


@dataclass(frozen=True)
class PartsOptions(Options):
    """What is meant by SAN."""

    parts: Annotated[
        Parts,
        option(
            "What SAN and the others lack. "
            + " ".join(f"{name}: {words}." for name, words in PARTS.items()),
            panel="Reading",
        ),
    ] = "steps"


def asking(
    question: str,
    *more: type[Options],
    only: Sequence[str] = (),
    but: Sequence[str] = (),
    **helps: str,
) -> type[QuestionOptions]:
    """Options of a question: the fields of a setup, or ``only`` some, and ``more`` of its own.

    ``helps`` are words that differ from those of the setup.
    """
    listed = []
    for name, (word, kind, default) in ask_options(CATALOGUE[question].asks).items():
        if name in but or (only and name not in only):
            continue
        if name == "model":
            shown = typer.Argument(help=word.help)
        else:
            flag = [COMMAND_LINE.name(name)] if default is False else []
            shown = option(helps.get(name, word.help), *flag, panel=word.panel)
        listed.append((name, Annotated[kind, shown], field(default=default)))
    made: type[QuestionOptions] = make_dataclass(
        "Asking", listed, bases=(*more, QuestionOptions), frozen=True
    )
    return made


FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "seed": ("seed",),
    "models": ("models", "pretrained", "pickled"),
    "texts": ("text", "samples"),
    "sentences": ("text",),
    "length": ("length",),
    "parts": ("parts",),
}
"""What of a claim's or study's configuration can be set, and by which options."""


def taken(entry: Entry) -> list[str]:
    """The options of a claim or a study, as they are written."""
    listed = [name for fields_ in FIELDS if fields_ in entry.options for name in FIELDS[fields_]]
    return list(map(COMMAND_LINE.name, listed))


def _experiment(help_text: str, fields_set: str, *names: str) -> Any:
    """An option of claims and studies, with the list of those that take it."""
    known = [entry for entry in ENTRIES if entry.kind != "question"]
    settable = set(fields_set.split())
    taking = [entry.id for entry in known if settable & set(entry.options)]
    others = [entry.id for entry in known if not settable & set(entry.options)]
    few = f"All but {', '.join(others)}" if len(others) < len(taking) else ", ".join(taking)
    return option(f"{help_text} [{few}]", *names, panel="Choices", show_default=False)


@dataclass(frozen=True)
class ExperimentOptions(OutputOptions):
    """What can be chosen about a claim or a study; each takes some of it and has its defaults."""

    seed: Annotated[int, _experiment("Seed of whatever is random.", "seed")] = 0
    models: Annotated[
        str, _experiment("Built-in names, tried at initialisation, comma-separated.", "models")
    ] = ""
    pretrained: Annotated[
        list[str] | None,
        _experiment("A folder or Hub id with weights, or LABEL=one; may be repeated.", "models"),
    ] = None
    pickled: Annotated[
        bool, _experiment("Also read pickle files (weights only).", "models", "--pickled")
    ] = False
    text: Annotated[
        Path | None,
        _experiment(
            "Your own text, a paragraph per sample, or for D7 a TSV or text file of sentences; '-' "
            "for standard input.",
            "texts sentences",
        ),
    ] = None
    samples: Annotated[int, _experiment("Samples at most.", "texts")] = Asks.samples
    length: Annotated[int, _experiment("Tokens per sample at most.", "length")] = Asks.length


@dataclass(frozen=True)
class ReproduceOptions(ExperimentOptions):
    """The same, what is meant by SAN, and how much is to be run."""

    parts: Annotated[
        Parts, _experiment("What SAN and the others lack; paper: as its code.", "parts")
    ] = "paper"

    output: Annotated[
        Path | None,
        in_output(
            "Folder for results, which are not computed twice; rankscope-output unless given."
        ),
    ] = None
    as_json: Annotated[
        bool, in_output("An array on standard output, an object for each run of a claim.", "--json")
    ] = False
    everything: Annotated[bool, in_run("Run every claim.", "--all")] = False
    scale: Annotated[
        Literal["quick", "paper"],
        in_run(
            "quick: minutes on a laptop; paper: the papers' own sizes, on a GPU if there is one."
        ),
    ] = "quick"
    seeds: Annotated[
        int, in_run("Run each claim with so many seeds, and say if its verdict is stable.")
    ] = 1
    fresh: Annotated[bool, in_run("Compute anew what the folder already holds.", "--fresh")] = False
    redraw: Annotated[
        bool, in_run("Draw pictures and pages anew, without computing.", "--redraw")
    ] = False


OF_ANSWERS: Final = frozenset(slot.name for slot in fields(QuestionOptions))
"""Options about where an answer goes."""


def names(listed: str) -> list[str]:
    """The names in a comma-separated list."""
    return [name.strip() for name in listed.split(",") if name.strip()]


def refuse(command: str, unused: Iterable[str], options: Options, takes: str) -> None:
    """Raise if an option was written that a command has no use for."""
    for name in unused:
        if name in options.given:
            raise InputError(f"{command} takes no {COMMAND_LINE.name(name)}; {takes}")


def takes(group: type[Options]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a group; it is called with the group, filled.

    Typer reads options off a function's signature, so that signature is put together here.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = list(inspect.signature(command).parameters.values())[1:]
        beside = [slot.name for slot in fields(Options)]
        shared = [slot for slot in fields(group) if slot.name not in beside]
        shared.sort(key=lambda slot: slot.name in OF_ANSWERS)  # help shows them last
        hints = get_type_hints(group, include_extras=True)
        keyword = inspect.Parameter.KEYWORD_ONLY

        @functools.wraps(command)
        def run(context: typer.Context, **values: Any) -> None:
            sources = {name: context.get_parameter_source(name) for name in values}
            given = frozenset(
                name for name, source in sources.items() if source and source.name == "COMMANDLINE"
            )
            filled = {slot.name: values.pop(slot.name) for slot in shared}
            command(group(given=given, command=as_typed(context), **filled), **values)

        signature = [inspect.Parameter("context", keyword, annotation=typer.Context), *parameters]
        for slot in shared:
            kind = {"default": slot.default, "annotation": hints[slot.name]}
            signature.append(inspect.Parameter(slot.name, keyword, **kind))
        run.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in signature}
        return run

    return decorate


def as_typed(context: typer.Context) -> str:
    """The command line, less where the answer goes: equal questions are asked in equal words."""
    shown = ("--json", "--table", "--full", "--charts")
    words = [word for word in context.meta.get(WORDS, ()) if word not in shown]
    kept = [
        word
        for previous, word in pairwise(["", *words])
        if "--output" not in (previous, word) and not word.startswith("--output=")
    ]
    return shlex.join(["rankscope", *kept]) if words else ""
