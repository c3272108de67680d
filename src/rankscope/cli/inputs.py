"""From options to configurations; imported only when a command runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.ask import (
    COMMAND_LINE,
    CUBIC_METRICS,
    MOST_TOKENS_CUBED,
    Setup,
    Sources,
    ask,
    read_setup,
)
from rankscope.cli.options import (
    FIELDS,
    OF_ANSWERS,
    ExperimentOptions,
    Options,
    QuestionOptions,
    names,
    refuse,
    taken,
)
from rankscope.cli.printing import print_error
from rankscope.core.checks import usable_device
from rankscope.errors import InputError
from rankscope.experiments import CATALOGUE, Entry

if TYPE_CHECKING:
    from rankscope.ask import Model


def question(id_: str, options: QuestionOptions, **chosen: Any) -> Any:
    """The configuration of a question, from the options given and ``chosen``."""
    fields = _given(options) | {name: chosen[name] for name in chosen if name in options.specified}
    return ask(CATALOGUE[id_], fields, Sources(dialect=COMMAND_LINE)).configure()


def comparison(options: QuestionOptions, models: Sequence[str]) -> Any:
    """The configuration of a comparison: the models and the input they share."""
    compare = CATALOGUE["compare"]
    setup = Setup.of(
        _given(options), compare.asks, Sources(dialect=COMMAND_LINE), several_models=True
    )
    usable_device("--device", setup.device)
    compared = compare.module().compared_models(list(models))
    drawn = [model for model in compared if model.at_init]
    if "seed" in options.specified and not drawn:
        raise InputError(f"--seed {setup.seed} has no effect: no model is followed by @init.")
    if setup.pickled and len(drawn) == len(compared):
        raise InputError(
            "--pickled applies to pretrained weights, but every model is followed by @init."
        )
    same = ("special_tokens", "tokenizer", "pickled", "device", "dtype", "seed")
    return compare.configuration(
        models=compared,
        texts=None if setup.text is None else setup.texts.samples,
        ids=setup.token_ids,
        samples=setup.samples,
        length=setup.length if "length" in options.specified else None,
        limited=not options.yes,
        **{name: getattr(setup, name) for name in same},
    )


def _given(options: Options) -> dict[str, Any]:
    """The options given about a setup; paths as strings."""
    values = {name: getattr(options, name, None) for name in options.specified - OF_ANSWERS}
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in values.items()
        if value is not None
    }


def affordable(metrics: Sequence[str], *, tokens: int) -> tuple[str, ...]:
    """The metrics without those whose cost is cubic in a long sequence; prints which ones."""
    if tokens <= MOST_TOKENS_CUBED:
        return tuple(metrics)
    left_out = [name for name in metrics if name in CUBIC_METRICS]
    print_error(
        f"'all' excludes metrics that are slow at {tokens} tokens: {', '.join(left_out)}; name "
        "them in --metrics to include them."
    )
    return tuple(name for name in metrics if name not in left_out)


def configurations(
    command: str, chosen: Sequence[Entry], options: ExperimentOptions
) -> dict[Entry, dict[str, Any]]:
    """The fields given by options, for each claim or study.

    An option that none of them accepts is an error; one that only some accept applies to those.
    """
    asked = " ".join([command, *(entry.id for entry in chosen)])
    written = dict.fromkeys(name for entry in chosen for name in taken(entry))
    used = {name for entry in chosen for field in entry.options for name in FIELDS[field]}
    unused = {name for names_ in FIELDS.values() for name in names_} - used
    takes = f"it takes {', '.join([*written, '--output'])} and --json."
    refuse(asked, sorted(unused), options, takes)
    return {entry: _fields(entry, options) for entry in chosen}


def _fields(entry: Entry, options: ExperimentOptions) -> dict[str, Any]:
    module, sources = entry.module(), Sources(dialect=COMMAND_LINE)
    text = None if options.text is None else str(options.text)

    def read(name: str) -> Any:
        return read_setup(name, getattr(options, name), COMMAND_LINE)

    def make(field: str) -> Any:
        match field:
            case "models":
                return _models(options, module.Config().models)
            case "texts":
                return sources.texts(text, read("samples")).samples
            case "sentences":
                return sources.sentences(str(text))
            case "parts":
                return getattr(options, field)
        return read(field)

    fields = [name for name in FIELDS if name in entry.options]
    return {name: make(name) for name in fields if options.specified & {*FIELDS[name]}}


def _models(options: ExperimentOptions, usual: "Sequence[Model]") -> "tuple[Model, ...]":
    """Models to run: built-in ones at initialisation, and pretrained ones."""
    from rankscope.ask import Model, built_in  # imports Transformers

    if options.pickled and not options.pretrained:
        raise InputError("--pickled applies to --pretrained models, but none is given.")
    fresh = built_in(*names(options.models)) if "models" in options.specified else tuple(usual)
    if options.pretrained:  # no substitute for a trained model is needed then
        fresh = tuple(model for model in fresh if not model.trained_here)
    trained: dict[str, Model] = {}
    for written in options.pretrained or []:
        label, _, source = ("", "", written) if Path(written).is_dir() else written.rpartition("=")
        label = label or Path(source).name
        alike = sum(known == label or known.startswith(f"{label} ") for known in trained)
        label = f"{label} {alike + 1}" if alike else label
        trained[label] = Model(source, label=label, pickled=options.pickled)
    if not fresh and not trained:
        raise InputError("no model is given; name some with --models or --pretrained.")
    return (*fresh, *trained.values())
