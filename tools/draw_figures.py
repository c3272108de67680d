"""Draw the figures of the site: ``python tools/draw_figures.py skipless skipless.svg``.

Each is measured when it is drawn, in seconds. The suffix of the file chooses SVG, PNG or a page;
without a file all names are listed. The site draws them with the colours of the page, light or
dark.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn

import rankscope
from rankscope import figures, tables
from rankscope.metric_catalogue import METRICS
from rankscope.models import text
from rankscope.show.figures._theme import DARK
from rankscope.show.lab._compute import run_task

Maker = Callable[[], Any]
FIGURES: dict[str, Maker] = {}
"""Every figure by name: a function that returns a chart, or the text of an SVG or a page."""
TRACED = [metric.name for metric in METRICS.values() if metric.compute]


def figure(name: str) -> Callable[[Maker], Maker]:
    """Register a function under the name of its figure."""

    def register(make: Maker) -> Maker:
        FIGURES[name] = make
        return make

    return register


def draw(name: str, path: Path) -> None:
    """Measure and draw one figure into a file."""
    if name not in FIGURES:
        sys.exit(f"there is no figure {name!r}; choose from {', '.join(FIGURES)}.")
    torch.set_num_threads(1)  # tensors are small
    drawn = FIGURES[name]()
    if isinstance(drawn, str):
        path.write_text(drawn, encoding="utf-8")
    else:
        figures.save(drawn, path)


def style() -> str:
    """The colours of figures on a dark page, for the two ways in which the site becomes dark."""
    dark = figures.dark_variables()
    return (
        f'body[data-theme="dark"] {{ {dark} }}\n'
        f"@media (prefers-color-scheme: dark) {{ "
        f'body:not([data-theme="light"]) {{ {dark} }} }}\n'
        "@media print { body { color-scheme: light; } }\n"
    )


def inline(svg: str, alt_text: str) -> str:
    """An SVG for use inside a page: with a description, and colours that follow the page.

    >>> inline('<svg width="2" fill="#3566c8"></svg>', "A line")
    '<svg role="img" aria-label="A line" width="2" fill="var(--on-3566c8, #3566c8)"></svg>'
    """
    svg = compact(re.sub(r"^.*?(?=<svg)", "", svg, flags=re.DOTALL))
    svg = re.sub(
        r"#[0-9a-f]{6}\b",
        lambda match: f"var(--on-{match[0][1:]}, {match[0]})" if match[0] in DARK else match[0],
        svg,
    )
    label = alt_text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1).strip()


def compact(svg: str) -> str:
    """An SVG without what a still picture does not need: invisible marks, a text for each mark.

    >>> compact('<svg><path d="M0" opacity="0"/><path aria-label="a" d="M0.12345,1"/></svg>')
    '<svg><path d="M0.1,1"/></svg>'

    Paths keep a tenth of a pixel, everything else a hundredth.
    """
    svg = re.sub(r' (role|aria-\w+|pointer-events|class)="[^"]*"', "", svg)
    svg = re.sub(r' (opacity="1"|stroke-dasharray="1,0")(?=[ />])', "", svg)
    svg = re.sub(r'<path[^>]*(?: opacity="0"| display="none")[^>]*/>|<path\s*/>', "", svg)
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), svg)
    return re.sub(r"(\.\d\d)\d+", r"\1", svg)


def lab(query: str, chart: str) -> str:
    """A figure of the lab at a state of its permalink."""
    return run_task("picture", query, chart).decode()


def passages(samples: int, width: int, length: int = 32) -> tuple[Tensor, Tensor]:
    """Bundled text as random embeddings, and its mask."""
    return text.embed(text.passages()[:samples], width, length=length)


def curves(runs: Mapping[str, Any], metric: str, **options: Any) -> Any:
    """One metric by layer, a curve for each run."""
    table = tables.joined({name: run.table for name, run in runs.items()}, column="variant")
    return figures.by_layer(tables.summary(table), metrics=metric, **options)


# Concepts, from two tokens up.


@cache
def plane_runs(tokens: int) -> dict[str, list[Tensor]]:
    """Tokens in the plane after each of several equal layers, without and with a skip."""
    angle = torch.pi / 9
    spread = torch.linspace(0.1, 2.2, tokens, dtype=torch.float64)
    start = torch.stack([spread.cos(), spread.sin()], dim=-1)[None]
    runs = {}
    for name, skip, scale in (("attention alone", 0.0, 1.0), ("skip + 0.3 × attention", 1.0, 0.3)):
        layer = rankscope.Network.from_matrices(
            torch.eye(2, dtype=torch.float64)[None, None],
            scale * _turn(angle if not skip else 4 * angle)[None, None],
            head_width=1,
            skip=skip,
        )
        runs[name] = [start]
        for _ in range(5):
            runs[name].append(layer(runs[name][-1]).detach())
    return runs


def _turn(angle: float) -> Tensor:
    """A rotation of the plane."""
    cos, sin = torch.tensor(angle, dtype=torch.float64).cos(), torch.tensor(angle).sin()
    return torch.stack([torch.stack([cos, -sin]), torch.stack([sin, cos])]).double()


def plane(tokens: int) -> Any:
    """Where the tokens are, layer after layer."""
    rows: list[tuple[Any, ...]] = [
        (
            name,
            "tokens in the plane",
            layer,
            f"token {token + 1}",
            f"{axis}_coordinate",
            float(value),
        )
        for name, states in plane_runs(tokens).items()
        for layer, state in enumerate(states)
        for token, place in enumerate(state[0])
        for axis, value in zip("xy", place, strict=True)
    ]
    names = ("model", "variant", "layer", "parameter", "metric", "value")
    return figures.trajectories(tables.from_rows(names, rows))


FIGURES["two-tokens"] = lambda: plane(2)
FIGURES["six-tokens"] = lambda: plane(6)


@figure("two-tokens-residual")
def two_tokens_residual() -> Any:
    """How far apart the two tokens are, relative to their size."""
    rows = [
        (model, layer, "relative_residual", float(rankscope.residual(state, relative=True)[0]))
        for model, states in plane_runs(2).items()
        for layer, state in enumerate(states)
    ]
    table = tables.from_rows(("variant", "layer", "metric", "value"), rows)
    return figures.by_layer(tables.summary(table))


@figure("below-floats")
def below_floats() -> str:
    """The residual of attention alone in scaled arithmetic and in floats."""
    return lab("", "residual")


@figure("spectrum")
def spectrum() -> str:
    """Singular values of the tokens, layer by layer."""
    return lab("layers=8", "spectrum")


@figure("paths")
def path_shares() -> str:
    """What paths of each length contribute."""
    return lab("skip=1&layers=6&norm=layer", "paths")


@figure("variants")
def variants() -> Any:
    """The relative residual of a transformer and of what is left of it."""
    net = rankscope.Network.random(rankscope.Spec(12, 4, 64, norm_place="post"), seed=0)
    x, token_mask = passages(4, 64)
    runs = {
        name: rankscope.trace(part, x, token_mask=token_mask, metrics=["relative_residual"])
        for name, part in rankscope.experiments.four_variants(net).items()
    }
    return curves(runs, "relative_residual")


@figure("masks")
def masks() -> Any:
    """Attention alone under three masks, in scaled arithmetic."""
    net = rankscope.Network.random(rankscope.Spec.pure_attention(24, 1, 32), seed=0)
    x, token_mask = passages(2, 32, 24)
    runs = {
        mask: rankscope.deep_trace(net.with_mask(mask), x, token_mask=token_mask).table
        for mask in ("full", "causal", "window:4")
    }
    summary = tables.summary(tables.joined(runs, column="variant"))
    return figures.by_depth(summary, metric="log10_relative_residual", lowest=-60.0)


# One small picture for every metric of a trace.


@cache
def metric_runs() -> dict[str, Any]:
    """All metrics of a network with skip connections, and of its weights without them."""
    net = rankscope.Network.random(rankscope.Spec(12, 4, 64, norm_place="post"), seed=0)
    x, token_mask = passages(3, 64)
    parts = {"with skip connections": net, "without": net.without("skip", "mlp")}
    return {
        name: rankscope.trace(part, x, token_mask=token_mask, metrics=TRACED)
        for name, part in parts.items()
    }


for _name in TRACED:
    FIGURES[f"metric-{_name}"] = lambda name=_name: curves(metric_runs(), name)


# Failures that people met.


@figure("skipless")
def skipless() -> Any:
    """A deep network without skip connections: what is predicted, and what is measured."""
    x, token_mask = passages(2, 64)
    runs = {}
    for name, skip in (("with skip connections", True), ("without", False)):
        spec = rankscope.Spec(24, 4, 64, norm_place="pre", skip=skip, init="lecun")
        net = rankscope.Network.random(spec, seed=0)
        runs[name] = rankscope.trace(net, x, token_mask=token_mask, metrics=["relative_residual"])
    return curves(runs, "relative_residual")


@figure("gemma4-init")
def gemma4_init() -> Any:
    """Entropy of attention of a small Gemma 4 as initialised, and with the usual scale."""
    import transformers

    config = transformers.Gemma4TextConfig(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=6,
        num_attention_heads=2, num_key_value_heads=1, head_dim=256, global_head_dim=256,
        hidden_size_per_layer_input=0, vocab_size_per_layer_input=512,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Gemma4TextModel(config).eval()
    ids = torch.randint(2, 512, (2, 64), generator=torch.Generator().manual_seed(0))
    runs = {"logits as initialised (scale 1)": entropy_of(model, ids)}
    with torch.no_grad():
        for name, module in model.named_modules():
            if name.endswith("q_norm"):
                module.weight.mul_(config.head_dim**-0.5)
    runs["logits × 1/√d"] = entropy_of(model, ids)
    return curves(runs, "attention_entropy")


def entropy_of(model: nn.Module, ids: Tensor) -> Any:
    """The entropy of attention in every layer."""
    return rankscope.trace(model, {"input_ids": ids}, metrics=["attention_entropy"])


class Lookup(nn.Module):
    """One attention layer that answers with the token at a marked place."""

    def __init__(self, words: int, places: int, width: int, *, normalise: bool) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(places, width)
        self.mark = nn.Embedding(places, width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.head = nn.Linear(width, words)
        self.normalise = normalise

    def logits(self, ids: Tensor, marked: Tensor) -> Tensor:
        """The attention logits of the question over all places."""
        states = self.word(ids) + self.place.weight
        query, key = self.query(self.mark(marked)), self.key(states)
        if self.normalise:
            query = nn.functional.rms_norm(query, query.shape[-1:])
            key = nn.functional.rms_norm(key, key.shape[-1:])
        return torch.einsum("bd,bnd->bn", query, key) / query.shape[-1] ** 0.5

    def forward(self, ids: Tensor, marked: Tensor) -> Tensor:
        """Scores of every word."""
        weights = self.logits(ids, marked).softmax(-1)
        return self.head(torch.einsum("bn,bnd->bd", weights, self.value(self.word(ids))))


@figure("logit-growth")
def logit_growth() -> Any:
    """The largest attention logit during training, with and without norms on queries and keys."""
    rows = []
    for name, normalise in (("queries and keys as they are", False), ("normalised", True)):
        torch.manual_seed(0)
        model = Lookup(32, 16, 32, normalise=normalise)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
        for step in range(401):
            ids, marked = torch.randint(32, (64, 16)), torch.randint(16, (64,))
            if step % 20 == 0:
                largest = float(model.logits(ids, marked).detach().abs().max())
                rows.append((name, step, "largest_logit", largest))
            answer = ids.gather(1, marked[:, None])[:, 0]
            loss = nn.functional.cross_entropy(model(ids, marked), answer)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return by_step(rows, "largest_logit")


@figure("embedding-collapse")
def embedding_collapse() -> Any:
    """Cosine between unrelated sentences while an encoder is trained with two losses."""
    x, _ = passages(24, 48, 32)
    rows = []
    for name, contrast in (("pairs alone", False), ("pairs against the batch", True)):
        torch.manual_seed(0)
        block = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True)
        model = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for step in range(61):
            left, right = (embed(model, half) for half in (x[:, ::2], x[:, 1::2]))
            similar = left @ right.T
            if step % 4 == 0:
                unrelated = similar.detach()[~torch.eye(len(x), dtype=torch.bool)]
                rows.append((name, step, "mean_cosine", float(unrelated.mean())))
            loss = 1 - similar.diagonal().mean()
            if contrast:
                loss = nn.functional.cross_entropy(similar / 0.1, torch.arange(len(x)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return by_step(rows, "mean_cosine")


def embed(model: nn.Module, x: Tensor) -> Tensor:
    """The mean of the tokens after the last layer, at length 1."""
    return nn.functional.normalize(model(x).mean(1), dim=-1)


def by_step(rows: list[tuple[Any, ...]], metric: str) -> Any:
    """A figure against the step of training, a curve for each run."""
    table = tables.from_rows(("variant", "metric", "value"), [(r[0], *r[2:]) for r in rows])
    table = table.with_columns(step=pl.Series([r[1] for r in rows]), run=pl.lit("training"))
    return figures.by_axis(table, metric=metric, x="step", color="variant")


@figure("diagnosis")
def diagnosis() -> str:
    """The page of ``rankscope demo``: a model that was broken on purpose."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rankscope", "demo", "--output", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (page,) = Path(folder).glob("*.html")
        return page.read_text(encoding="utf-8")


def main() -> None:
    """Draw the figure that is named, or list all."""
    match sys.argv[1:]:
        case [name, path]:
            draw(name, Path(path))
        case _:
            print(*FIGURES, sep="\n")


if __name__ == "__main__":
    main()
