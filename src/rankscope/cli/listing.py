"""``rankscope list``: models, metrics, masks and so on, from their catalogues."""

import platform
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

import typer

from rankscope.cli.application import app
from rankscope.cli.printing import print_json, print_list
from rankscope.experiments import Kind as EntryKind
from rankscope.experiments import entries
from rankscope.process import DISTRIBUTIONS, installed_version
from rankscope.version import __version__

Kind = Literal[
    "models", "metrics", "masks", "scores", "norms", "claims", "studies", "figures", "versions"
]
Named = dict[str, Any]
"""An entry of a list: its ``name``, a description in ``words``, and further fields."""


def _models() -> Iterable[Named]:
    from rankscope.models.families import BUILTIN

    for name, make in BUILTIN.items():
        config = make()
        family, layers = config.model_type, config.num_hidden_layers
        heads, width = config.num_attention_heads, config.hidden_size
        words = f"{family}: {layers} layers, {heads} heads, width {width}"
        shape = {"family": family, "layers": layers, "heads": heads, "width": width}
        yield {"name": name, **shape, "words": words}


def _metrics() -> Iterable[Named]:
    from rankscope.metric_catalogue import METRICS

    for metric in METRICS.values():
        if metric.compute:
            words = f"{metric.title}. {metric.meaning}".rstrip(". ")
            more = {"definition": metric.definition, "of": metric.of}
            yield {"name": metric.name, "words": words, **more}


def _masks() -> Iterable[Named]:
    from rankscope.core.masks import NAMES, as_mask

    for name, form in NAMES.items():
        example = as_mask(form.usage.split(" ")[0])
        words = f"{form.usage}. {_first_line(type(example))}"
        yield {"name": name, "words": words, "usage": form.usage}


def _scores() -> Iterable[Named]:
    from rankscope.core.network import SCORES

    for score in SCORES.values():
        words = _first_line(score.kind or score.module)
        more = {"deep": score.deep, "bounds": score.bounds}
        in_spec = score.kind and score.kind.__name__
        yield {"name": score.words, "words": words, "in_spec": in_spec, **more}


def _norms() -> Iterable[Named]:
    from rankscope.core.network import NORMS

    for name, norm in NORMS.items():
        is_ours = norm.module.__module__.startswith("rankscope")
        torch_name = f"torch.nn.{norm.module.__name__}"
        yield {"name": name, "words": _first_line(norm.module) if is_ours else torch_name}


def _figures() -> Iterable[Named]:
    from rankscope.show.figures import FIGURES

    for name, figure in FIGURES.items():
        yield {"name": name, "words": _first_line(figure.function), "options": figure.options}


def _versions() -> Iterable[Named]:
    yield {"name": "rankscope", "words": __version__}
    yield {"name": "python", "words": platform.python_version()}
    yield {"name": "system", "words": platform.platform()}
    for name in DISTRIBUTIONS:
        yield {"name": name, "words": installed_version(name)}


def _experiments(kind: EntryKind) -> Iterable[Named]:
    for entry in entries(kind).values():
        words, source = entry.title.rstrip("."), entry.source or None
        yield {"name": entry.id, "words": words, "source": source}


KINDS: dict[Kind, tuple[str, Callable[[], Iterable[Named]]]] = {
    "models": ("Built-in model configurations", _models),
    "metrics": ("Metrics of hidden states and attention", _metrics),
    "masks": ("Attention masks", _masks),
    "scores": ("Attention scores", _scores),
    "norms": ("Normalisation layers", _norms),
    "claims": ("Claims of papers, for 'rankscope reproduce'", lambda: _experiments("claim")),
    "studies": ("Studies, for 'rankscope study'", lambda: _experiments("study")),
    "figures": ("Chart types of rankscope.show.figures", _figures),
    "versions": ("Versions of the software, for a report of a bug", _versions),
}


@app.command("list")
def list_names(
    kind: Annotated[
        Kind | None, typer.Argument(help="What to list; without it, the kinds are listed.")
    ] = None,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print as JSON; without KIND, all lists.")
    ] = False,
) -> None:
    """List models, metrics, masks, scores, norms, claims, studies, figures or versions."""
    if kind is None and not as_json:  # imports nothing, so that it is fast
        print_list(
            {name: f"{words} ('rankscope list {name}')" for name, (words, _) in KINDS.items()}
        )
        return
    listed = {name: list(make()) for name, (_, make) in KINDS.items() if kind in (None, name)}
    if as_json:
        print_json(listed if kind is None else listed[kind])
    elif kind is not None:
        print_list({named["name"]: named["words"] for named in listed[kind]})


def _first_line(described: Any) -> str:
    """The first sentence of a docstring, without markup."""
    return str(described.__doc__).strip().splitlines()[0].rstrip(".").replace("``", "")
