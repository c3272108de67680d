"""Everything that goes by a name, kind by kind, read off the catalogues."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from rankscope.cli.application import app
from rankscope.cli.printing import print_json, print_list
from rankscope.experiments.catalogue import Kind as EntryKind
from rankscope.experiments.catalogue import entries

Kind = Literal["models", "metrics", "masks", "scores", "norms", "claims", "studies", "figures"]
Named = dict[str, Any]
"""What is listed: its ``name``, what it is in ``words``, and whatever else is known of it."""

_Json = Annotated[bool, typer.Option("--json", help="As JSON on standard output.")]


def _models() -> list[Named]:
    from rankscope.models.families import BUILTIN

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
    words = "{family}: {layers} layers, {heads} heads, width {width}"
    return [{**shape, "words": words.format_map(shape)} for shape in shapes]


def _metrics() -> list[Named]:
    from rankscope.metric_catalogue import METRICS

    traced = [each for each in METRICS.values() if each.compute]
    return [
        {
            "name": each.name,
            "words": f"{each.title}. {each.meaning}".rstrip(". "),
            "definition": each.definition,
            "of": each.of,
        }
        for each in traced
    ]


def _masks() -> list[Named]:
    from rankscope.core.masks import NAMES, as_mask

    examples = {name: form.usage.split(" ")[0] for name, form in NAMES.items()}
    return [
        {
            "name": name,
            "words": f"{form.usage}. {_first_line(type(as_mask(examples[name])))}",
            "usage": form.usage,
        }
        for name, form in NAMES.items()
    ]


def _scores() -> list[Named]:
    from rankscope.core.network import SCORES

    return [
        {
            "name": each.words,
            "words": _first_line(each.kind or each.module),
            "in_spec": each.kind and each.kind.__name__,
            "deep": each.deep,
            "bounds": each.bounds,
        }
        for each in SCORES.values()
    ]


def _norms() -> list[Named]:
    from rankscope.core.network import NORMS

    kinds = {name: each.module for name, each in NORMS.items()}
    ours = {kind for kind in kinds.values() if kind.__module__.startswith("rankscope")}
    return [
        {
            "name": name,
            "words": _first_line(kind) if kind in ours else f"torch.nn.{kind.__name__}",
        }
        for name, kind in kinds.items()
    ]


def _figures() -> list[Named]:
    from rankscope.show.figures import FIGURES

    return [
        {"name": name, "words": _first_line(each.function), "options": each.options}
        for name, each in FIGURES.items()
    ]


def _experiments(kind: EntryKind) -> list[Named]:
    return [
        {"name": each.id, "words": each.title.rstrip("."), "source": each.source or None}
        for each in entries(kind).values()
    ]


KINDS: dict[Kind, Callable[[], list[Named]]] = {
    "models": _models,
    "metrics": _metrics,
    "masks": _masks,
    "scores": _scores,
    "norms": _norms,
    "claims": lambda: _experiments("claim"),
    "studies": lambda: _experiments("study"),
    "figures": _figures,
}


@app.command("list")
def list_names(
    kind: Annotated[
        Kind | None, typer.Argument(help="What to list; all kinds, briefly, unless given.")
    ] = None,
    *,
    as_json: _Json = False,
) -> None:
    """List what goes by a name: models, metrics, masks, scores, norms, claims, studies, figures."""
    if kind is not None:
        _print_kind(kind, as_json=as_json)
    elif as_json:
        print_json({each: make() for each, make in KINDS.items()})
    else:
        print_list({each: ", ".join(one["name"] for one in KINDS[each]()) for each in KINDS})


@app.command()
def models(as_json: _Json = False) -> None:
    """List the architectures that are built in, for --at-init and --models: 'list models'."""
    _print_kind("models", as_json=as_json)


def _print_kind(kind: Kind, *, as_json: bool) -> None:
    listed = KINDS[kind]()
    if as_json:
        print_json(listed)
    else:
        print_list({each["name"]: each["words"] for each in listed})


def _first_line(described: Any) -> str:
    """The first sentence of a docstring, without its marks."""
    return str(described.__doc__).strip().splitlines()[0].rstrip(".").replace("``", "")
