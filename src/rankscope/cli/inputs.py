"""From options to configurations; imported only once a command runs."""

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
    """The configuration of a question: what was written about its subject, and ``chosen``."""
    said = _said(options) | {name: chosen[name] for name in chosen if name in options.given}
    return ask(CATALOGUE[id_], said, Sources(dialect=COMMAND_LINE)).configure()


def comparison(options: QuestionOptions, models: Sequence[str]) -> Any:
    """The configuration of a comparison: those that are compared, and what all of them read."""
    compare = CATALOGUE["compare"]
    setup = Setup.of(
        _said(options), compare.asks, Sources(dialect=COMMAND_LINE), several_models=True
    )
    usable_device("--device", setup.device)
    compared = compare.module().compared_models(list(models))
    drawn = [model for model in compared if model.at_init]
    if "seed" in options.given and not drawn:
        raise InputError(f"--seed {setup.seed} changes nothing: no model has @init behind it.")
    if setup.pickled and len(drawn) == len(compared):
        raise InputError("--pickled is about pretrained weights, and @init draws new ones.")
    same = ("special_tokens", "tokenizer", "pickled", "device", "dtype", "seed")
    return compare.configuration(
        models=compared,
        texts=None if setup.text is None else setup.texts.samples,
        ids=setup.token_ids,
        samples=setup.samples,
        length=setup.length if "length" in options.given else None,
        limited=not options.yes,
        **{name: getattr(setup, name) for name in same},
    )


def _said(options: Options) -> dict[str, Any]:
    """What was written about a setup; files by their names."""
    written = {name: getattr(options, name, None) for name in options.given - OF_ANSWERS}
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in written.items()
        if value is not None
    }


def affordable(metrics: Sequence[str], *, tokens: int) -> tuple[str, ...]:
    """The metrics less those of every head that are cubic in many tokens; it is said which."""
    if tokens <= MOST_TOKENS_CUBED:
        return tuple(metrics)
    left_out = [name for name in metrics if name in CUBIC_METRICS]
    print_error(
        f"left out of 'all', because {tokens} tokens make them slow: {', '.join(left_out)}; "
        "--metrics takes them by name."
    )
    return tuple(name for name in metrics if name not in left_out)


def configurations(
    command: str, chosen: Sequence[Entry], options: ExperimentOptions
) -> dict[Entry, dict[str, Any]]:
    """For each claim or study the fields that were chosen and that it has.

    An option that none of them takes is refused; one that only some take is for those.
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
    return {name: make(name) for name in fields if options.given & {*FIELDS[name]}}


def _models(options: ExperimentOptions, usual: "Sequence[Model]") -> "tuple[Model, ...]":
    """Models to try: built-in ones at initialisation, and real ones with their weights."""
    from rankscope.ask import Model, built_in  # imports Transformers

    if options.pickled and not options.pretrained:
        raise InputError("--pickled is about --pretrained models, and none was named.")
    fresh = built_in(*names(options.models)) if "models" in options.given else tuple(usual)
    if options.pretrained:  # nothing has to stand in for a trained model then
        fresh = tuple(model for model in fresh if not model.trained_here)
    trained: dict[str, Model] = {}
    for written in options.pretrained or []:
        label, _, source = ("", "", written) if Path(written).is_dir() else written.rpartition("=")
        label = label or Path(source).name
        alike = sum(known == label or known.startswith(f"{label} ") for known in trained)
        label = f"{label} {alike + 1}" if alike else label
        trained[label] = Model(source, label=label, pickled=options.pickled)
    if not fresh and not trained:
        raise InputError("there is no model to try; name some with --models or --pretrained.")
    return (*fresh, *trained.values())
