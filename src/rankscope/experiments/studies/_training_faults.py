"""Small training runs, healthy ones and with a fault, for the study of early warnings.

Every run has a twin: the same model, task, seed and batches without the fault. A fault changes a
model or its optimizer a little after every step, or its loss or scale from the start.
"""

import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rankscope.streams import global_stream, stream, stream_seed

WORDS: Final = 32
TOKENS: Final = 24
CLASSES: Final = 8
_WIDTH: Final = 32
_HEADS: Final = 2
_EXPERTS: Final = 8
_INNER: Final = 16
_BATCH: Final = 16
_PROBE: Final = 16
_HELD_OUT: Final = 64
_RATE: Final = 3e-3
_WARM_UP: Final = 30


class Attention(nn.Module):
    """Attention; ``normed`` queries and keys have norms of gain 1, ``rounds`` logits are bf16."""

    def __init__(self, *, causal: bool, normed: bool, scale: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (
            nn.Linear(_WIDTH, _WIDTH) for _ in range(4)
        )
        features = _WIDTH // _HEADS
        self.query_norm = nn.RMSNorm(features) if normed else nn.Identity()
        self.key_norm = nn.RMSNorm(features) if normed else nn.Identity()
        self.causal, self.scale, self.rounds = causal, scale, False

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            linear(x).unflatten(-1, (_HEADS, -1)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        q, k, mask = self.query_norm(q), self.key_norm(k), None
        if self.rounds:  # the gradient is that of exact logits
            logits = (self.scale * q @ k.mT).detach()
            mask = logits.bfloat16().float() - logits
            if self.causal:
                mask = mask + torch.full_like(mask, -math.inf).triu(1)
        y = functional.scaled_dot_product_attention(
            q, k, v, mask, is_causal=self.causal and mask is None, scale=self.scale
        )
        output: Tensor = self.output(y.transpose(1, 2).flatten(2))
        return output


class Mixture(nn.Module):
    """A mixture of experts, one for each token, with the usual balancing loss."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts, self.top_k = _EXPERTS, 1
        self.router = nn.Linear(_WIDTH, _EXPERTS)
        self.up = nn.Parameter(torch.randn(_EXPERTS, _WIDTH, _INNER) / math.sqrt(_WIDTH))
        self.down = nn.Parameter(torch.randn(_EXPERTS, _INNER, _WIDTH) / math.sqrt(_INNER))
        self.imbalance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).softmax(-1)
        chosen = functional.one_hot(shares.argmax(-1), _EXPERTS).to(x.dtype)
        self.imbalance = _EXPERTS * (shares.mean((0, 1)) * chosen.mean((0, 1))).sum()
        hidden = functional.gelu(torch.einsum("btf,efg->bteg", x, self.up))
        outputs = torch.einsum("bteg,egf->btef", hidden, self.down)
        return torch.einsum("btef,bte->btf", outputs, shares * chosen)


class Block(nn.Module):
    """Attention and an MLP, each with a skip connection of one scale, norms before or after."""

    def __init__(self, *, causal: bool, normed: bool, scale: float, mixture: bool, post: bool):
        super().__init__()
        self.attention = Attention(causal=causal, normed=normed, scale=scale)
        plain = nn.Sequential(
            nn.Linear(_WIDTH, 2 * _WIDTH), nn.GELU(), nn.Linear(2 * _WIDTH, _WIDTH)
        )
        self.mlp: nn.Module = Mixture() if mixture else plain
        self.norms = nn.ModuleList([nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)])
        self.post, self.skip = post, 1.0

    def forward(self, x: Tensor) -> Tensor:
        for norm, branch in zip(self.norms, (self.attention, self.mlp), strict=True):
            x = norm(self.skip * x + branch(x)) if self.post else self.skip * x + branch(norm(x))
        return x


class Model(nn.Module):
    """Token and position embeddings, blocks, and a readout of every token or of their mean."""

    def __init__(
        self,
        layers: int,
        outputs: int,
        *,
        causal: bool = True,
        normed: bool = False,
        scale: float = math.sqrt(_HEADS / _WIDTH),
        mixture: bool = False,
        post: bool = False,
        pooled: bool = False,
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, _WIDTH), nn.Embedding(TOKENS, _WIDTH)
        self.blocks = nn.ModuleList(
            Block(causal=causal, normed=normed, scale=scale, mixture=mixture, post=post)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(_WIDTH)
        self.readout = nn.Linear(_WIDTH, outputs)
        self.pooled = pooled

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        output: Tensor = self.readout(x.mean(1) if self.pooled else x)
        return output


class Text:
    """Sequences of a random language: chains of words, one for each class."""

    def __init__(self, seed: int) -> None:
        likely = torch.randint(WORDS, (CLASSES, WORDS, 3), generator=_stream(seed, "language"))
        self._next = torch.full((CLASSES, WORDS, WORDS), 0.1 / WORDS)
        self._next.scatter_add_(2, likely, torch.full(likely.shape, 0.3))

    def draw(
        self, samples: int, generator: torch.Generator, *, classes: int = CLASSES
    ) -> tuple[Tensor, Tensor]:
        """Word ids and the class of each sequence."""
        labels = torch.randint(classes, (samples,), generator=generator)
        words = [torch.randint(WORDS, (samples,), generator=generator)]
        for _ in range(TOKENS - 1):
            chances = self._next[labels, words[-1]]
            words.append(torch.multinomial(chances, 1, generator=generator)[:, 0])
        return torch.stack(words, 1), labels

    def repeated(self, samples: int, generator: torch.Generator) -> Tensor:
        """Sequences of one class whose second half repeats the first: attention predicts it."""
        ids, _ = self.draw(samples, generator, classes=1)
        return torch.cat([ids[:, : TOKENS // 2]] * 2, 1)


class Task:
    """A model, what it reads at each step, its loss, and a quality if the loss is none."""

    classes: int | None = None

    def __init__(self, model: Model, seed: int) -> None:
        self.model, self.text = model, Text(seed)
        self._batches, self._held_out = _stream(seed, "batches"), _stream(seed, "held out")
        self.probe = self.read(_PROBE, self._held_out)[0]

    def read(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        ids = self.text.repeated(samples, generator)
        return ids, ids[:, 1:]

    def loss(self) -> Tensor:
        """The loss of the next batch."""
        ids, targets = self.read(_BATCH, self._batches)
        logits = self.model(ids)[:, : targets.shape[1]]
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def quality(self) -> float | None:
        """A score of held-out sequences, higher is better; None if the loss is the score."""
        return None


class LanguageTask(Task):
    """Predict the next word."""

    classes = WORDS


class MixtureTask(LanguageTask):
    """The same with a mixture of experts and its balancing loss."""

    def loss(self) -> Tensor:
        """The loss of the next batch, with the weight of the balancing loss that is usual."""
        loss = super().loss()
        mixtures = (module for module in self.model.modules() if isinstance(module, Mixture))
        return loss + 0.01 * torch.stack([mixture.imbalance for mixture in mixtures]).sum()


class MaskedTask(LanguageTask):
    """Fill in words that were replaced."""

    def read(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A seventh of the words is replaced by word 0."""
        ids = self.text.repeated(samples, generator)
        hidden = torch.rand(ids.shape, generator=generator) < 0.15
        return torch.where(hidden, 0, ids), torch.where(hidden, ids, -100)


class ClassTask(Task):
    """Tell the class of a sequence."""

    classes: int | None = CLASSES

    def read(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Sequences and their classes."""
        return self.text.draw(samples, generator)

    def loss(self) -> Tensor:
        """The loss of the next batch."""
        ids, labels = self.read(_BATCH, self._batches)
        return functional.cross_entropy(self.model(ids), labels)


class TwoViewTask(ClassTask):
    """Equal embeddings of two views of a sequence, kept apart by variance and covariance terms."""

    classes = None

    def __init__(self, model: Model, seed: int) -> None:
        super().__init__(model, seed)
        self.keeps_apart = True
        self._known, self._asked = (self.read(_HELD_OUT, self._held_out) for _ in range(2))

    def loss(self) -> Tensor:
        """Squared distance of two views; a third of the words of each is replaced."""
        ids, _ = self.read(_BATCH, self._batches)
        views = []
        for _ in range(2):
            noise = torch.randint(WORDS, ids.shape, generator=self._batches)
            kept = torch.rand(ids.shape, generator=self._batches) > 1 / 3
            views.append(self.model(torch.where(kept, ids, noise)))
        loss = functional.mse_loss(*views)
        if self.keeps_apart:
            for view in views:
                spread = functional.relu(1 - (view.var(0) + 1e-4).sqrt()).mean()
                products = torch.cov(view.T)
                others = products.square().sum() - products.diagonal().square().sum()
                loss = loss + spread + 0.04 * others / view.shape[1]
        return loss

    def quality(self) -> float:
        """Accuracy of a ridge classifier, of penalty 1, on embeddings of length 1."""
        with torch.no_grad():
            known, asked = (
                functional.pad(
                    functional.normalize(self.model(ids), dim=1).double(), (0, 1), value=1
                )
                for ids, _ in (self._known, self._asked)
            )
        labels = functional.one_hot(self._known[1], CLASSES).double()
        penalty = torch.eye(known.shape[1], dtype=torch.float64)
        penalty[-1, -1] = 1e-9  # the constant is free
        weights = torch.linalg.solve(known.T @ known + penalty, known.T @ labels)
        return float(((asked @ weights).argmax(1) == self._asked[1]).double().mean())


def _stream(seed: int, *purpose: str) -> torch.Generator:
    return stream(seed, "early warning", *purpose)


class Kind(NamedTuple):
    """A healthy run: its task, how its model is made, and what the monitor knows."""

    task: type[Task]
    options: dict[str, bool]
    states_classes: bool = True
    """Whether the monitor gets the number of classes, if there is one."""
    pretrained: bool = False
    """Whether the model has learnt another language before, with the same loop."""
    layers: int = 4


KINDS: Final[dict[str, Kind]] = {
    "language model": Kind(LanguageTask, {}),
    "language model, K not stated": Kind(LanguageTask, {}, states_classes=False),
    "language model, norms on queries and keys": Kind(LanguageTask, {"normed": True}),
    "language model, fine-tuned": Kind(LanguageTask, {}, pretrained=True),
    "language model of 8 layers": Kind(LanguageTask, {}, layers=8),
    "mixture of experts": Kind(MixtureTask, {"mixture": True}),
    "masked language model": Kind(MaskedTask, {"causal": False, "post": True}),
    "classifier": Kind(ClassTask, {"causal": False, "pooled": True}),
    "two views": Kind(TwoViewTask, {"causal": False, "pooled": True}),
}


class Training:
    """A loop that can be run step by step."""

    def __init__(self, kind: str, seed: int, begin: int) -> None:
        self.kind, self.begin = KINDS[kind], begin
        outputs = WORDS if issubclass(self.kind.task, LanguageTask) else CLASSES
        outputs = _WIDTH if self.kind.task is TwoViewTask else outputs
        with global_stream(seed, "early warning", "weights", kind):
            model = Model(self.kind.layers, outputs, **self.kind.options)
        self.rate, self.count = _RATE, 0
        if self.kind.pretrained:
            self._learn(self.kind.task(model, stream_seed(seed, "early warning", "before")), begin)
        self.task = self.kind.task(model, seed)
        self.optimizer = _adam(model)

    @property
    def model(self) -> Model:
        """The model that is trained."""
        return self.task.model

    def step(self, change: "Change | None" = None) -> float:
        """One optimizer step, and then what the fault does; the loss of the batch."""
        self.count += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * min(1.0, self.count / _WARM_UP)
        loss = self.task.loss()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        if change is not None and self.count >= self.begin:
            with torch.no_grad():
                change(self)
        return float(loss.detach())

    def _learn(self, task: Task, steps: int) -> None:
        self.task = task
        self.optimizer = _adam(task.model)
        for _ in range(steps):
            self.step()
        self.rate, self.count = self.rate / 3, 0


def _adam(model: Model) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=_RATE, fused=True)


Change = Callable[[Training], None]


class Fault(NamedTuple):
    """What is done to which kind of run: once before it begins, or after every later step."""

    kind: str
    expected: tuple[str, ...]
    """Rules that should see it; written down before any run."""
    at_start: Change | None = None
    after_step: Change | None = None


def _attentions(training: Training) -> Iterator[Attention]:
    return (module for module in training.model.modules() if isinstance(module, Attention))


def _grow_queries(training: Training) -> None:
    for attention in _attentions(training):
        attention.query.weight.mul_(1.03)
        attention.query.bias.mul_(1.03)


def _raise_rate(training: Training) -> None:
    training.rate *= 30


def _shrink_skip(training: Training) -> None:
    for block in training.model.modules():
        if isinstance(block, Block):
            block.skip *= 0.97


def _round_logits(training: Training) -> None:
    """Keys get a common offset, which softmax ignores, and logits are rounded to bfloat16."""
    for attention in _attentions(training):
        attention.rounds = True
        attention.key.bias.add_(10.0)


def _tilt_router(training: Training) -> None:
    for module in training.model.modules():
        if isinstance(module, Mixture):
            module.router.bias[0].add_(0.1)


def _let_collapse(training: Training) -> None:
    assert isinstance(training.task, TwoViewTask)
    training.task.keeps_apart = False


def _as_gemma(training: Training) -> None:
    for attention in _attentions(training):
        attention.scale *= 16


FAULTS: Final[dict[str, Fault]] = {
    "logits drift up": Fault(
        "language model", ("logit-growth", "entropy-collapse"), after_step=_grow_queries
    ),
    "learning rate × 30": Fault(
        "language model", ("rank-collapse", "entropy-collapse"), at_start=_raise_rate
    ),
    "skip scale decays": Fault(
        "language model of 8 layers", ("rank-collapse", "hidden-collapse"), after_step=_shrink_skip
    ),
    "bf16 logits, common offset of keys": Fault(
        "language model", ("logit-growth",), after_step=_round_logits
    ),
    "router bias": Fault("mixture of experts", ("router-collapse",), after_step=_tilt_router),
    "two views, nothing keeps them apart": Fault(
        "two views", ("rank-falls-with-loss", "embedding-cone"), at_start=_let_collapse
    ),
    "Gemma 4's initialisation": Fault(
        "language model, norms on queries and keys", ("sharp-init",), at_start=_as_gemma
    ),
}
