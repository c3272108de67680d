"""Options of the commands: of the model and its input, and of the output.

Nothing heavy is imported here, so that ``--help`` is fast.
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
"""Key under which the application stores the arguments of its command line."""


def option(help_text: str, *names: str, panel: str, **more: Any) -> Any:
    """An option in a panel of the help."""
    return typer.Option(*names, help=help_text, rich_help_panel=panel, **more)


in_output = functools.partial(option, panel="Output")
in_run = functools.partial(option, panel="Run")


@dataclass(frozen=True)
class Options:
    """Options of a command, and which of them were given."""

    specified: frozenset[str] = frozenset()
    command: str = ""  # the command line that reproduces the result


@dataclass(frozen=True)
class OutputOptions(Options):
    """Where the result is written."""

    output: Annotated[
        Path | None,
        in_output("Folder for files (default: rankscope-output; with --json: none)."),
    ] = None
    as_json: Annotated[bool, in_output("Print the result as JSON.", "--json")] = False
    table: Annotated[bool, in_output("Include the full table in the JSON.", "--table")] = False
    full: Annotated[bool, in_output("Print all details, not only the answer.", "--full")] = False
    charts: Annotated[bool, in_output("Also save each chart as PNG.", "--charts")] = False
    csv: Annotated[bool, in_output("Also save the full table as CSV.", "--csv")] = False


@dataclass(frozen=True)
class QuestionOptions(OutputOptions):
    """Output options of a question; ``asking`` adds those of the model and its input."""

    yes: Annotated[
        bool,
        in_output("Run even if the estimate exceeds a few minutes or available memory.", "--yes"),
    ] = False


@dataclass(frozen=True)
class PartsOptions(Options):
    """What the variants (SAN, ...) leave out."""

    parts: Annotated[
        Parts,
        option(
            "What the variants (SAN, SAN+MLP, SAN+skip) leave out. "
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
    """Options of a question: the fields of a setup, or ``only`` some, and ``more`` groups.

    ``helps`` replaces help texts of the setup.
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
    group: type[QuestionOptions] = make_dataclass(
        "Asking", listed, bases=(*more, QuestionOptions), frozen=True
    )
    return group


FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "seed": ("seed",),
    "models": ("models", "pretrained", "pickled"),
    "texts": ("text", "samples"),
    "sentences": ("text",),
    "length": ("length",),
    "parts": ("parts",),
}
"""Fields of a claim's or study's configuration that options can set, and those options."""


def taken(entry: Entry) -> list[str]:
    """The options of a claim or a study, as typed."""
    listed = [name for fields_ in FIELDS if fields_ in entry.options for name in FIELDS[fields_]]
    return list(map(COMMAND_LINE.name, listed))


def _experiment(help_text: str, fields_set: str, *names: str) -> Any:
    """An option of claims and studies; its help lists those that accept it."""
    known = [entry for entry in ENTRIES if entry.kind != "question"]
    settable = set(fields_set.split())
    taking = [entry.id for entry in known if settable & set(entry.options)]
    others = [entry.id for entry in known if not settable & set(entry.options)]
    few = f"All except {', '.join(others)}" if len(others) < len(taking) else ", ".join(taking)
    return option(f"{help_text} [{few}]", *names, panel="Choices", show_default=False)


@dataclass(frozen=True)
class ExperimentOptions(OutputOptions):
    """Options of claims and studies; each accepts some of them and has its own defaults."""

    seed: Annotated[int, _experiment("Random seed.", "seed")] = 0
    models: Annotated[
        str, _experiment("Comma-separated built-in models, used at initialisation.", "models")
    ] = ""
    pretrained: Annotated[
        list[str] | None,
        _experiment(
            "Folder or Hub id of a pretrained model, or LABEL=folder; repeatable.", "models"
        ),
    ] = None
    pickled: Annotated[
        bool, _experiment("Allow pickled weights (weights only).", "models", "--pickled")
    ] = False
    text: Annotated[
        Path | None,
        _experiment(
            "Text file with one paragraph per sample (D7: a TSV or text file of sentences); '-' "
            "reads standard input.",
            "texts sentences",
        ),
    ] = None
    samples: Annotated[int, _experiment("Maximum number of samples.", "texts")] = Asks.samples
    length: Annotated[int, _experiment("Maximum tokens per sample.", "length")] = Asks.length


@dataclass(frozen=True)
class ReproduceOptions(ExperimentOptions):
    """Options of ``reproduce``: also the variants, the scale and the seeds."""

    parts: Annotated[
        Parts,
        _experiment(
            "What the variants (SAN, SAN+MLP, SAN+skip) leave out; paper: as in the paper's code.",
            "parts",
        ),
    ] = "paper"

    output: Annotated[
        Path | None,
        in_output("Folder for results, which are reused (default: rankscope-output)."),
    ] = None
    as_json: Annotated[
        bool, in_output("Print a JSON array with one object per run of a claim.", "--json")
    ] = False
    everything: Annotated[bool, in_run("Run every claim.", "--all")] = False
    scale: Annotated[
        Literal["quick", "paper"],
        in_run("quick: minutes on a laptop; paper: the papers' sizes, on a GPU if available."),
    ] = "quick"
    seeds: Annotated[
        int, in_run("Number of seeds per claim; reports whether the verdict is stable.")
    ] = 1
    fresh: Annotated[bool, in_run("Recompute results that the folder already has.", "--fresh")] = (
        False
    )
    redraw: Annotated[
        bool, in_run("Regenerate charts and pages from saved results.", "--redraw")
    ] = False


OF_ANSWERS: Final = frozenset(slot.name for slot in fields(QuestionOptions))
"""Options about the output."""


def names(listed: str) -> list[str]:
    """The names in a comma-separated list."""
    return [name.strip() for name in listed.split(",") if name.strip()]


def refuse(command: str, unused: Iterable[str], options: Options, takes: str) -> None:
    """Raise if an option was given that the command does not accept."""
    for name in unused:
        if name in options.specified:
            raise InputError(f"{command} does not take {COMMAND_LINE.name(name)}; {takes}")


def takes(group: type[Options]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of a group to a command, which is called with an instance of the group.

    Typer reads options from a function's signature, so that signature is built here.
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
            specified = frozenset(
                name for name, source in sources.items() if source and source.name == "COMMANDLINE"
            )
            filled = {slot.name: values.pop(slot.name) for slot in shared}
            command(group(specified=specified, command=as_typed(context), **filled), **values)

        signature = [inspect.Parameter("context", keyword, annotation=typer.Context), *parameters]
        for slot in shared:
            kind = {"default": slot.default, "annotation": hints[slot.name]}
            signature.append(inspect.Parameter(slot.name, keyword, **kind))
        run.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in signature}
        return run

    return decorate


def as_typed(context: typer.Context) -> str:
    """The command line without output options, so that equal questions have equal commands."""
    shown = ("--json", "--table", "--full", "--charts")
    words = [word for word in context.meta.get(WORDS, ()) if word not in shown]
    words_kept = [
        word
        for previous, word in pairwise(["", *words])
        if "--output" not in (previous, word) and not word.startswith("--output=")
    ]
    return shlex.join(["rankscope", *words_kept]) if words else ""
