"""Training: several seeds at once, each exactly as if it were trained alone.

The models of several seeds run as one: their batches are concatenated along the batch axis, and
each linear map or norm applies a stack of weights. Attention has no weights besides its
projections. ``torch.func.vmap`` has no rule for the fused attention kernel, and was slower.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self, cast

import torch
from torch import Tensor, nn
from torch.func import stack_module_state
from torch.nn.functional import layer_norm

from rankscope.arguments import Count, Finite, Positive, Range, checked
from rankscope.core.checks import usable_device
from rankscope.core.network import MLP, Block, Network, Spec
from rankscope.core.tabular import Tabular, plot_along
from rankscope.errors import InputError, SpecError
from rankscope.models.training._model import SequenceModel, TokenEmbedding
from rankscope.models.training._tasks import Examples, Task
from rankscope.process import OnStep, silent
from rankscope.streams import stream

if TYPE_CHECKING:
    import polars

    from rankscope.show import figures

_REPORT_EVERY = 10  # steps between two reports of progress


@checked
@dataclass(frozen=True)
class Recipe:
    """AdamW with a linear warm-up, then a cosine decay to a tenth of the learning rate.

    >>> from rankscope.models.training import Recipe
    >>> recipe = Recipe(steps=1000, batch=32, learning_rate=1e-3, warmup=100)
    >>> recipe.rate(0), recipe.rate(99), round(recipe.rate(999), 6)
    (1e-05, 0.001, 0.0001)

    Training ends after ``steps`` steps, or when the score on the first ``scored`` training
    examples, computed every ``check_every`` steps, reaches ``goal``.
    """

    steps: Count
    batch: Count
    learning_rate: Positive = 1e-3
    warmup: Annotated[int, Range(0, 1_000_000)] = 100
    weight_decay: Annotated[float, Range(0)] = 0.01
    clip: Positive = 1.0  # maximum norm of the gradient of a seed
    goal: Finite | None = None
    check_every: Count = 100
    scored: Count = 1000

    def reached(self, score: float) -> bool:
        """Whether a score reaches the goal."""
        return self.goal is not None and score >= self.goal

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (0.55 + 0.45 * math.cos(math.pi * done))


@checked
@dataclass(frozen=True, repr=False)
class Trained(Tabular):
    """A trained model, its seed, its number of training steps, and its final score.

    >>> from rankscope import Spec
    >>> from rankscope.models.training import Classify, Recipe, SequenceModel, Sorting, train
    >>> model = SequenceModel.random(Spec(1, 1, 8), outputs=5, symbols=5, positions=4, seed=0)
    >>> examples = Sorting(symbols=5, tokens=4).draw(8, seed=0, purpose="training")
    >>> (trained,) = train([model], Classify(), [examples], Recipe(2, 4), seeds=[0])
    >>> trained.steps, 0 <= trained.score <= 1
    (2, True)
    """

    model: SequenceModel
    seed: int
    steps: int
    score: float
    checks: tuple[tuple[int, float], ...] = ()  # steps and the scores after them

    @property
    def table(self) -> "polars.DataFrame":
        """The score on training examples, by training step."""
        from rankscope import tables

        rows = [("training step", *check, "training_score") for check in self.checks]
        return tables.from_rows(("parameter", "setting", "value", "metric"), rows)

    def plot(self, metric: str | None = None) -> "figures.Figure":
        """The score against the training step."""
        return plot_along(self.table, "setting", "training step", metric)

    def _kept(self) -> dict[str, Any]:
        model = (self.model.network.spec, dict(self.model.state_dict()))
        return {**super()._kept(), "model": model}

    @classmethod
    def _restored(
        cls, kept: dict[str, Any], table: "polars.DataFrame", origin: Mapping[str, Any]
    ) -> Self:
        model = SequenceModel.of_weights(*kept["model"])
        return super()._restored({**kept, "model": model}, table, origin)

    def __repr__(self) -> str:
        words = self.model.network.spec.describe()
        return f"Trained(seed {self.seed}, {self.steps} steps, score {self.score:.4g}; {words})"


@checked
def train(
    models: Sequence[SequenceModel],
    task: Task,
    examples: Sequence[Examples],
    recipe: Recipe,
    *,
    seeds: Sequence[int],
    device: str = "cpu",
    on_step: OnStep | None = None,
) -> list[Trained]:
    """Train one model per seed, all in one batched model; ``models`` are not changed.

    >>> from rankscope import Spec
    >>> from rankscope.models.training import Classify, Recipe, SequenceModel, Sorting, train
    >>> model = SequenceModel.random(Spec(1, 1, 8), outputs=5, symbols=5, positions=4, seed=0)
    >>> examples = Sorting(symbols=5, tokens=4).draw(8, seed=0, purpose="training")
    >>> len(train([model, model], Classify(), [examples] * 2, Recipe(2, 4), seeds=[0, 1]))
    2

    Each seed has its model, its examples and its order of batches (a stream of the seed). A seed
    that reaches the goal keeps its weights from then on while others continue, so that it ends
    with the weights it would have alone, up to rounding.
    """
    if not len(models) == len(examples) == len(seeds) or not seeds:
        raise InputError(
            f"train takes a model and examples for each seed, got {len(models)} models and "
            f"{len(examples)} sets of examples for {len(seeds)} seeds."
        )
    usable_device("device", device)
    run = _Run(models, task, Examples.stack(examples).to(device), recipe)
    batches = _batches(seeds, run.examples.count, recipe.batch, torch.device(device))
    finished: dict[int, Trained] = {}
    report = on_step or silent
    checks: list[tuple[int, list[float]]] = []
    for step in range(recipe.steps):
        run.step(next(batches), recipe.rate(step))
        last = step + 1 == recipe.steps
        if step % _REPORT_EVERY == 0:
            report(step / recipe.steps)
        if last or (recipe.goal is not None and (step + 1) % recipe.check_every == 0):
            scores = run.scores()
            checks.append((step + 1, scores))
            for at, seed in enumerate(seeds):
                if seed not in finished and (last or recipe.reached(scores[at])):
                    model, course = run.unstack(at, models[at]), [(n, of[at]) for n, of in checks]
                    finished[seed] = Trained(model, seed, step + 1, scores[at], tuple(course))
            if len(finished) == len(seeds):
                break
    report(1.0)
    return [finished[seed] for seed in seeds]


class _Run:
    """Models with all weights in one tensor, one row per seed: one tensor for the optimiser."""

    def __init__(
        self, models: Sequence[SequenceModel], task: Task, examples: Examples, recipe: Recipe
    ) -> None:
        self.task, self.examples, self.recipe = task, examples, recipe
        self.seeds = len(models)
        # A single model runs as it is: a stack of one would only be slower.
        self.model = stack(models) if len(models) > 1 else copy.deepcopy(models[0])
        named = dict(self.model.named_parameters())
        rows = [weight.detach().reshape(self.seeds, -1) for weight in named.values()]
        self.weights = torch.cat(rows, 1).to(examples.inputs.device)
        self.sizes = [row.shape[1] for row in rows]
        parts = self.weights.split(self.sizes, 1)
        for (name, weight), part in zip(named.items(), parts, strict=True):
            put_parameter(self.model, name, part.view(weight.shape))
        self.parts = list(self.model.parameters())
        decay = recipe.weight_decay
        self.optimiser = torch.optim.AdamW([self.weights], weight_decay=decay, fused=True)

    def step(self, rows: Tensor, rate: float) -> None:
        """One step of every seed, on the examples of its row."""
        inputs, targets, token_mask = self.examples.pick(rows)
        outputs = self.model(inputs, token_mask).unflatten(0, (self.seeds, -1))
        # A sum over seeds: the gradient of each is independent of the others.
        gradients = torch.autograd.grad(self.task.loss(outputs, targets).sum(), self.parts)
        gradient = torch.cat([part.reshape(self.seeds, -1) for part in gradients], 1)
        norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        self.weights.grad = gradient.mul_((self.recipe.clip / norm).clamp(max=1.0))
        self.optimiser.param_groups[0]["lr"] = rate
        self.optimiser.step()

    @torch.no_grad()
    def scores(self) -> list[float]:
        """The score of each seed on its first training examples."""
        scored = min(self.recipe.scored, self.examples.count)
        every = torch.arange(scored, device=self.weights.device)
        right = torch.zeros(self.seeds, device=self.weights.device)
        total = torch.zeros_like(right)
        for some in every.split(256):
            inputs, targets, token_mask = self.examples.pick(some.expand(self.seeds, -1))
            outputs = self.model(inputs, token_mask).unflatten(0, (self.seeds, -1))
            hits, counted = self.task.score(outputs, targets)
            right, total = right + hits, total + counted
        scores: list[float] = (right / total).tolist()
        return scores

    def unstack(self, at: int, like: SequenceModel) -> SequenceModel:
        """The model of one seed, on the CPU."""
        alone = copy.deepcopy(like)
        parts = self.weights[at].cpu().split(self.sizes)
        for (name, weight), part in zip(like.named_parameters(), parts, strict=True):
            put_parameter(alone, name, part.view(weight.shape).clone())
        return alone.requires_grad_(False)


def _batches(seeds: Sequence[int], count: int, size: int, device: torch.device) -> Iterator[Tensor]:
    """Rows of examples ``(seed, batch)``: each epoch in a new order, without partial batches."""
    if not 0 < size <= count:
        raise InputError(f"batch={size} for {count} examples; use 1 to {count}.")
    generators = [stream(seed, "batches") for seed in seeds]
    while True:
        orders = [torch.randperm(count, generator=generator) for generator in generators]
        yield from torch.stack(orders)[:, : count // size * size].to(device).split(size, 1)


class StackedLinear(nn.Linear):
    """``x ↦ x Wₛᵀ + bₛ`` for the samples of each seed s."""

    def __init__(self, like: nn.Linear) -> None:
        nn.Module.__init__(self)  # it has weights already
        self.weight, self.bias = like.weight, like.bias

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(len(self.weight), -1, x.shape[-1])
        if self.bias is None:
            out = torch.bmm(rows, self.weight.mT)
        else:
            out = torch.baddbmm(self.bias.unsqueeze(1), rows, self.weight.mT)
        return out.view(*x.shape[:-1], -1)


class StackedNorm(nn.Module):
    """LayerNorm with the gain and bias of each seed."""

    def __init__(self, like: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = like.weight, like.bias, like.eps

    def forward(self, x: Tensor) -> Tensor:
        rows = layer_norm(x, x.shape[-1:], eps=self.eps).view(len(self.weight), -1, x.shape[-1])
        gain = self.weight.unsqueeze(1)
        if self.bias is None:
            return (rows * gain).view(x.shape)
        return torch.addcmul(self.bias.unsqueeze(1), rows, gain).view(x.shape)


class StackedEmbedding(nn.Module):
    """The embedding of each seed."""

    def __init__(self, like: TokenEmbedding) -> None:
        super().__init__()
        self.weight = like.weight

    def forward(self, ids: Tensor) -> Tensor:
        seeds, symbols, _ = self.weight.shape
        first = torch.arange(seeds, device=ids.device).mul(symbols).view(-1, 1, 1)
        rows = (ids.view(seeds, -1, ids.shape[-1]) + first).view(ids.shape)
        out: Tensor = self.weight.flatten(0, 1)[rows]
        return out


class StackedModel(SequenceModel):
    """The models of several seeds as one; their batches are concatenated."""

    def embed(self, inputs: Tensor) -> Tensor:
        x: Tensor = self.encoder(inputs)
        if self.positions is None:
            return x
        seeds = len(self.positions)
        shifted = x.view(seeds, -1, *x.shape[1:]) + self.positions[:, None, : x.shape[1]]
        return shifted.view(x.shape)


def stack(models: Sequence[SequenceModel]) -> StackedModel:
    """Stack models of equal shape; the stack has copies of their weights under the same names."""
    shape = models[0]
    spec = shape.network.spec
    if any(model.network.spec != spec for model in models):
        raise SpecError("models that are trained together must have the same spec.")
    if spec.norm not in ("layer", "none") or spec.scores != "dot" or spec.shared_layers:
        raise SpecError(
            "training supports LayerNorm or no norm, dot-product scores, and layers that do not "
            f"share weights; got {spec.describe()}."
        )
    blocks = [_block(spec, cast(Block, block)) for block in shape.network.blocks]
    stacked = StackedModel(
        _stacked(shape.encoder), shape.positions, Network(spec, blocks), _stacked(shape.readout)
    )
    weights, _ = stack_module_state(list(models))
    for name, weight in weights.items():
        put_parameter(stacked, name, weight.detach().clone())
    return stacked


def put_parameter(model: nn.Module, name: str, value: Tensor) -> None:
    """Make a tensor itself, not a copy of it, the parameter of this dotted name."""
    path, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(path), leaf, nn.Parameter(value))


def _block(spec: Spec, block: Block) -> Block:
    old, mlp = block.attention, cast(MLP | None, block.mlp)
    parts = {name: _stacked(getattr(old, name)) for name in ("query", "key", "value", "output")}
    if mlp is not None:
        gate = None if mlp.gate is None else _stacked(mlp.gate)
        up, down = _stacked(mlp.up), _stacked(mlp.down)
        mlp = MLP(up=up, down=down, gate=gate, activation=mlp.activation)
    norms = {name: _stacked(norm) for name, norm in block.norms.items()}
    return Block(spec, attention=old.replaced(**parts), mlp=mlp, norms=norms)


def _stacked(part: nn.Module) -> Any:
    """A part that applies stacked weights; it still has those of one model."""
    if isinstance(part, TokenEmbedding):
        return StackedEmbedding(part)
    if isinstance(part, nn.LayerNorm):
        return StackedNorm(part)
    return StackedLinear(cast(nn.Linear, part))
