"""The options commands have in common: one frozen group each, defined once.

Nothing heavy is imported here, so that ``--help`` answers at once.
"""

import functools
import inspect
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from rankscope.core.names import NormName, NormPlace
from rankscope.errors import InputError
from rankscope.experiments import usual
from rankscope.experiments.catalogue import ENTRIES, Entry

WORDS = "rankscope.words"
"""Where the application keeps the words of its command line."""


def _option(help_text: str, *names: str, panel: str, **more: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, **more)


_network = functools.partial(_option, panel="Network")
_input = functools.partial(_option, panel="Input")
_output = functools.partial(_option, panel="Output")
_LONG_WORK = _output(
    "Also run what takes more than a few minutes, or all the memory there is.", "--yes"
)


@dataclass(frozen=True)
class Options:
    """What every command is given: its options, which of them were really written, and how."""

    given: frozenset[str] = frozenset()
    command: str = ""
    """The command line, as one would type it to get the same answer."""


@dataclass(frozen=True)
class LoadOptions(Options):
    """How real models are loaded, and what of them counts."""

    special_tokens: Annotated[
        bool, _option("Count CLS, BOS, SEP in the figures.", panel="Model")
    ] = True
    pickled: Annotated[
        bool, _option("Also read pickle files (weights only).", "--pickled", panel="Model")
    ] = False
    tokenizer: Annotated[
        str | None, _option("A folder or Hub id with another tokeniser.", panel="Model")
    ] = None
    ids: Annotated[
        Path | None,
        _option("Token ids instead of text: a line of numbers per sample.", panel="Model"),
    ] = None


@dataclass(frozen=True)
class ModelOptions(LoadOptions):
    """A real model instead of a random network."""

    model: Annotated[
        str | None,
        typer.Argument(
            help="A folder, a Hub id, or with --at-init a built-in name such as bert-base "
            "('rankscope models' lists them); without it, a random network of the shape below."
        ),
    ] = None
    at_init: Annotated[
        bool, _option("Random weights instead of pretrained ones.", "--at-init", panel="Model")
    ] = False


@dataclass(frozen=True)
class PlaceOptions(Options):
    """In which numbers and where a network runs."""

    dtype: Annotated[
        Literal["float32", "float64", "bfloat16", "float16"],
        _network("Number format the network runs in; figures are computed in float32 or more."),
    ] = "float32"
    device: Annotated[
        str | None, _network("Where it runs: cpu, cuda, cuda:1, mps; unless given, cpu.")
    ] = None
    precision: Annotated[str, typer.Option(hidden=True)] = ""


@dataclass(frozen=True)
class NetworkOptions(PlaceOptions):
    """The shape of a random network; by default that of BERT-base."""

    layers: Annotated[int, _network("Blocks.")] = usual.LAYERS
    heads: Annotated[int, _network("Attention heads per block.")] = usual.HEADS
    width: Annotated[int, _network("Features per token.")] = usual.WIDTH
    mlp_ratio: Annotated[float, _network("MLP width over token width; 0 for none.")] = 4.0
    norm: Annotated[NormName, _network("Normalisation.")] = "layer"
    norm_place: Annotated[NormPlace, _network("Where it stands.")] = usual.NORM_PLACE
    skip: Annotated[float, _network("Scale of the skips; 0 for none.")] = 1.0
    mask: Annotated[
        str | None,
        _network("Who attends to whom: full, causal, window:8, ...; unless given, as built."),
    ] = None
    init: Annotated[
        str, _network("bert, xavier, lecun, orthogonal, or a number: a standard deviation.")
    ] = "bert"
    seed: Annotated[int, _network("Seed of weights, embeddings and random masks.")] = 0


@dataclass(frozen=True)
class InputOptions(Options):
    """What the network reads; by default the bundled passages."""

    text: Annotated[
        Path | None, _input("Your own text, a paragraph per sample; '-' for standard input.")
    ] = None
    passages: Annotated[int, _input("Samples at most.")] = usual.Usual.passages
    length: Annotated[int, _input("Tokens per sample at most.")] = usual.Usual.length


@dataclass(frozen=True)
class OutputOptions(Options):
    """Where the result goes."""

    output: Annotated[
        Path | None,
        _output("Folder for files; rankscope-output unless given, with --json none."),
    ] = None
    as_json: Annotated[bool, _output("Result as JSON on standard output.", "--json")] = False
    csv: Annotated[
        bool, _output("Also the whole table as CSV, beside the Parquet file.", "--csv")
    ] = False


@dataclass(frozen=True)
class ReadingOptions(Options):
    """What is meant by SAN."""

    norms: Annotated[
        Literal["keep", "drop"], _option("Whether SAN and the others have norms.", panel="Reading")
    ] = "keep"
    mlp: Annotated[
        Literal["remove", "identity"], _option("What taking the MLP away means.", panel="Reading")
    ] = "remove"


@dataclass(frozen=True)
class QuestionOptions(OutputOptions, InputOptions, NetworkOptions, ModelOptions):
    """Everything that a question can be asked about, and where its answer goes."""

    yes: Annotated[bool, _LONG_WORK] = False


@dataclass(frozen=True)
class ComparisonOptions(OutputOptions, InputOptions, PlaceOptions, LoadOptions):
    """What is read by those that are compared, how they are loaded, and where the answer goes."""

    seed: Annotated[int, _network("Seed of weights at initialisation.")] = 0
    yes: Annotated[bool, _LONG_WORK] = False


@dataclass(frozen=True)
class DiagnosisOptions(ReadingOptions, QuestionOptions):
    """The same, and what is meant by SAN."""


@dataclass(frozen=True)
class DepthOptions(QuestionOptions):
    """The same with fewer samples unless told otherwise, for questions asked in float64."""

    passages: Annotated[int, _input("Samples at most.")] = usual.DEPTH.passages
    without: Annotated[
        str, _network("Parts to leave out: skip, attention_skip, mlp_skip, mlp, norm; '' for none.")
    ] = usual.DEPTH.without


@dataclass(frozen=True)
class AdviceOptions(QuestionOptions):
    """The same with few tokens unless told otherwise, since gradients are predicted, too."""

    passages: Annotated[int, _input("Samples at most.")] = usual.ADVICE.passages
    length: Annotated[int, _input("Tokens per sample at most.")] = usual.ADVICE.length
    without: Annotated[
        str, _network("Parts to leave out: skip, attention_skip, mlp_skip, mlp, norm.")
    ] = ""


@dataclass(frozen=True)
class PredictionOptions(QuestionOptions):
    """The same with one sample unless told otherwise: every draw reads every sample."""

    passages: Annotated[int, _input("Samples at most.")] = usual.PREDICTION.passages


FIELDS = {
    "seed": ("seed",),
    "models": ("models", "pretrained", "pickled"),
    "texts": ("text", "passages"),
    "sentences": ("text",),
    "length": ("length",),
    "reading": ("norms", "mlp"),
}
"""What of a claim's or study's configuration can be set, and by which options."""


def written(parameter: str) -> str:
    """A parameter as it is written on a command line."""
    negative = {"special_tokens": "--no-special-tokens"}
    return negative.get(parameter, f"--{parameter.replace('_', '-')}")


def names(listed: str) -> list[str]:
    """The names in a comma-separated list."""
    return [name.strip() for name in listed.split(",") if name.strip()]


def refuse(command: str, unused: Iterable[str], options: Options, takes: str) -> None:
    """Raise if an option was written that a command has no use for."""
    for name in unused:
        if name in options.given:
            raise InputError(f"{command} takes no {written(name)}; {takes}")


def taken(entry: Entry) -> list[str]:
    """The options of a claim or a study, as they are written."""
    return [written(each) for field in FIELDS if field in entry.options for each in FIELDS[field]]


def unused(chosen: Iterable[Entry]) -> list[str]:
    """The options of claims and studies that none of these takes."""
    fields_taken = {field for entry in chosen for field in entry.options}
    taken_by_some = {name for field in fields_taken for name in FIELDS[field]}
    return sorted({name for names in FIELDS.values() for name in names} - taken_by_some)


def _experiment(help_text: str, fields_set: str, *names: str) -> Any:
    """An option of claims and studies, with the list of those that take it."""
    known = [each for each in ENTRIES if each.kind != "question"]
    settable = set(fields_set.split())
    taking = [each.id for each in known if settable & set(each.options)]
    others = [each.id for each in known if not settable & set(each.options)]
    few = f"All but {', '.join(others)}" if len(others) < len(taking) else ", ".join(taking)
    return typer.Option(
        *names, help=f"{help_text} [{few}]", show_default=False, rich_help_panel="Choices"
    )


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
    passages: Annotated[int, _experiment("Samples at most.", "texts")] = 32
    length: Annotated[int, _experiment("Tokens per sample at most.", "length")] = 128


_run = functools.partial(_option, panel="Run")


@dataclass(frozen=True)
class ReproduceOptions(ReadingOptions, ExperimentOptions):
    """The same, what is meant by SAN, and how much is to be run."""

    output: Annotated[
        Path | None,
        _output("Folder for results, which are not computed twice; rankscope-output unless given."),
    ] = None
    as_json: Annotated[
        bool, _output("An array on standard output, an object for each claim.", "--json")
    ] = False

    everything: Annotated[bool, _run("Run every claim.", "--all")] = False
    scale: Annotated[
        Literal["quick", "paper"],
        _run("quick: minutes on a laptop; paper: the papers' own sizes, on a GPU if there is one."),
    ] = "quick"
    fresh: Annotated[bool, _run("Compute anew what the folder already holds.", "--fresh")] = False
    redraw: Annotated[
        bool, _run("Draw pictures and pages anew, without computing.", "--redraw")
    ] = False


def takes(group: type[Options]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a group; it is called with the group, filled.

    Typer reads options off a function's signature, so that signature is put together here.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[1:]
        beside = [field.name for field in fields(Options)]
        shared = [field for field in fields(group) if field.name not in beside]

        @functools.wraps(command)
        def run(context: typer.Context, **values: Any) -> None:
            given = frozenset(name for name in values if _is_given(context, name))
            filled = {field.name: values.pop(field.name) for field in shared}
            command(group(given=given, command=as_typed(context), **filled), **values)

        keyword = inspect.Parameter.KEYWORD_ONLY
        first = inspect.Parameter("context", keyword, annotation=typer.Context)
        parameters = [first, *own, *(_parameter(group, field) for field in shared)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def as_typed(context: typer.Context) -> str:
    """The command line, less where the answer goes: equal questions are asked in equal words."""
    words = [word for word in context.meta.get(WORDS, ()) if word != "--json"]
    kept, skip = [], False
    for word in words:
        if not skip and word != "--output" and not word.startswith("--output="):
            kept.append(word)
        skip = word == "--output"
    return shlex.join(["rankscope", *kept]) if words else ""


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _parameter(group: type, field: Any) -> inspect.Parameter:
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=field.default,
        annotation=get_type_hints(group, include_extras=True)[field.name],
    )
