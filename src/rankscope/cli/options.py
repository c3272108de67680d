"""The options commands have in common: one frozen group each, defined once."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer


def _option(help_text: str, *names: str, panel: str, **more: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, **more)


_network = functools.partial(_option, panel="Network")
_input = functools.partial(_option, panel="Input")
_output = functools.partial(_option, panel="Output")


@dataclass(frozen=True)
class ModelOptions:
    """A real model instead of a random network."""

    model: Annotated[
        str | None,
        typer.Argument(
            help="A folder, a Hub id, or with --at-init a built-in name such as bert-base; "
            "without it, a random network of the shape below."
        ),
    ] = None
    at_init: Annotated[
        bool, _option("Random weights instead of pretrained ones.", "--at-init", panel="Model")
    ] = False
    special_tokens: Annotated[
        bool, _option("Count CLS, BOS, SEP in the figures.", panel="Model")
    ] = True
    pickled: Annotated[
        bool, _option("Also read pickle files (weights only).", "--pickled", panel="Model")
    ] = False


@dataclass(frozen=True)
class NetworkOptions:
    """A random network; the defaults are BERT-base's shape and initialisation."""

    layers: Annotated[int, _network("Blocks in a row.")] = 12
    heads: Annotated[int, _network("Attention heads per block.")] = 12
    width: Annotated[int, _network("Features per token.")] = 768
    mlp_ratio: Annotated[float, _network("MLP width over token width; 0 for none.")] = 4.0
    norm: Annotated[Literal["layer", "rms", "sphere", "none"], _network("Normalisation.")] = "layer"
    norm_place: Annotated[Literal["pre", "post", "both"], _network("Where it stands.")] = "post"
    mask: Annotated[
        str | None,
        _network("Who attends to whom: full, causal, window:8, ...; unless given, as built."),
    ] = None
    init: Annotated[
        str, _network("bert, xavier, lecun, orthogonal, or a number: a standard deviation.")
    ] = "bert"
    seed: Annotated[int, _network("Seed of weights and embeddings.")] = 0
    precision: Annotated[Literal["float32", "float64"], _network("Number format.")] = "float32"


@dataclass(frozen=True)
class InputOptions:
    """What the network reads; by default the bundled passages."""

    text: Annotated[
        Path | None, _input("Your own text, a paragraph per sample; '-' for standard input.")
    ] = None
    passages: Annotated[int, _input("Samples at most.")] = 32
    length: Annotated[int, _input("Tokens per sample at most.")] = 128


@dataclass(frozen=True)
class FewTexts(InputOptions):
    """The same with fewer samples unless told otherwise: for commands in float64."""

    passages: Annotated[int, _input("Samples at most.")] = 4


@dataclass(frozen=True)
class OutputOptions:
    """Where the result goes."""

    output: Annotated[
        Path | None,
        _output("Folder for files; rankscope-output unless given, with --json none."),
    ] = None
    as_json: Annotated[bool, _output("Result as JSON on standard output.", "--json")] = False


@dataclass(frozen=True)
class ReadingOptions:
    """What is meant by SAN."""

    norms: Annotated[
        Literal["keep", "drop"], _option("Whether SAN and the others have norms.", panel="Reading")
    ] = "keep"
    mlp: Annotated[
        Literal["remove", "identity"], _option("What taking the MLP away means.", panel="Reading")
    ] = "remove"


def takes(*groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of some groups; it is called with one filled group each.

    Typer reads options off a function's signature, so that signature is put together here.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[len(groups) :]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            filled = [
                group(**{field.name: given.pop(field.name) for field in fields(group)})
                for group in groups
            ]
            command(*filled, **given)

        shared = [_parameter(group, field) for group in groups for field in fields(group)]
        parameters = [*own, *shared]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _parameter(group: type, field: Any) -> inspect.Parameter:
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=field.default,
        annotation=get_type_hints(group, include_extras=True)[field.name],
    )
