"""Everything that goes by a name, kind by kind, read off the catalogues."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from rankscope.cli.application import app
from rankscope.cli.printing import print_json, print_list
from rankscope.experiments import Kind as EntryKind
from rankscope.experiments import entries

Kind = Literal["models", "metrics", "masks", "scores", "norms", "claims", "studies", "figures"]
Named = dict[str, Any]
"""What is listed: its ``name``, what it is in ``words``, and whatever else is known of it."""


def _models() -> list[Named]:
    from rankscope.models.families import BUILTIN

    listed = []
    for name, make in BUILTIN.items():
        config = make()
        family, layers = config.model_type, config.num_hidden_layers
        heads, width = config.num_attention_heads, config.hidden_size
        words = f"{family}: {layers} layers, {heads} heads, width {width}"
        shape = {"family": family, "layers": layers, "heads": heads, "width": width}
        listed.append({"name": name, **shape, "words": words})
    return listed


def _metrics() -> list[Named]:
    from rankscope.metric_catalogue import METRICS

    return [
        {
            "name": metric.name,
            "words": f"{metric.title}. {metric.meaning}".rstrip(". "),
            "definition": metric.definition,
            "of": metric.of,
        }
        for metric in METRICS.values()
        if metric.compute
    ]


def _masks() -> list[Named]:
    from rankscope.core.masks import NAMES, as_mask

    listed = []
    for name, form in NAMES.items():
        example = as_mask(form.usage.split(" ")[0])
        words = f"{form.usage}. {_first_line(type(example))}"
        listed.append({"name": name, "words": words, "usage": form.usage})
    return listed


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
    as_json: Annotated[bool, typer.Option("--json", help="As JSON on standard output.")] = False,
) -> None:
    """List what goes by a name: models, metrics, masks, scores, norms, claims, studies, figures."""
    if kind is not None and as_json:
        print_json(KINDS[kind]())
    elif kind is not None:
        print_list({named["name"]: named["words"] for named in KINDS[kind]()})
    elif as_json:
        print_json({name: make() for name, make in KINDS.items()})
    else:
        listed = {name: [named["name"] for named in make()] for name, make in KINDS.items()}
        print_list({name: ", ".join(known) for name, known in listed.items()})


def _first_line(described: Any) -> str:
    """The first sentence of a docstring, without its marks."""
    return str(described.__doc__).strip().splitlines()[0].rstrip(".").replace("``", "")
