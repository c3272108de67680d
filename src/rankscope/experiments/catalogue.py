"""What there is to run: one entry each, light enough to be read before anything heavy is imported.

Help texts, listings, the README and the tests are made from these entries.
"""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args, runtime_checkable

from rankscope.arguments import checked
from rankscope.errors import InputError
from rankscope.process.fingerprints import stem
from rankscope.process.progress import OnStep, silent

if TYPE_CHECKING:
    import polars as pl

    from rankscope.results import Result

Kind = Literal["question", "claim", "study"]
Scale = Literal["quick", "paper"]
"""Sizes that a laptop has done in minutes, or those of the papers."""

DONG = "Dong et al. 2021"
WU = "Wu et al. 2024"
OURS = "derived for rankscope"
GIORLANDINO = "Giorlandino and Goldt 2026"
NOCI = "Noci et al. 2022"
SUN = "Sun et al. 2025"
KIM = "Kim et al. 2025"
KARAGODIN = "Karagodin et al. 2025"
ZHAI = "Zhai et al. 2023"
NAIT_SAADA = "Nait Saada et al. 2025"


@runtime_checkable
class Traceable(Protocol):
    """A configuration, which can say what would give the same numbers again."""

    def digest(self, experiment: str) -> str: ...

    def provenance(self, experiment: str) -> dict[str, Any]: ...

    def warnings(self) -> tuple[str, ...]: ...


@checked
@dataclass(frozen=True)
class Entry:
    """One experiment: what it is called, what it is about, where it is, what can be chosen.

    ``options`` are the fields of its configuration that a command line may set. The module has a
    frozen ``Config`` and ``run(config, on_step)``, which returns a ``Result``.
    """

    id: str
    kind: Kind
    title: str
    """A claim's statement; what a study or a question finds out."""
    where: str
    """The module, below ``rankscope.experiments``."""
    options: tuple[str, ...] = ("seed",)
    """None at all where nothing is drawn and nothing can be chosen."""
    source: str = ""
    domain: str = ""
    """What a claim was stated for, on which it is judged first."""
    small: bool = False
    """Whether its tensors are so small that threads would only get in each other's way."""

    def module(self) -> Any:
        """The module, imported now."""
        return import_module(f"rankscope.experiments.{self.where}")

    def configuration(self, scale: Scale = "quick", **fields: Any) -> Any:
        """Its configuration; what the papers did on another scale is in its module's ``PAPER``."""
        if scale not in get_args(Scale):
            known_scales = ", ".join(get_args(Scale))
            raise InputError(f"there is no scale {scale!r}; choose {known_scales}.")
        module = self.module()
        sizes = getattr(module, "PAPER", {}) if scale == "paper" else {}
        known = [each.name for each in dataclass_fields(module.Config)]
        for name in fields:
            if name not in known:
                raise InputError(f"{self.id} has no option {name!r}; it has {', '.join(known)}.")
        return module.Config(**{**sizes, **fields})

    def run(self, config: Traceable, on_step: OnStep = silent) -> "Result":
        """Run it under a configuration of its own."""
        from rankscope.process.threads import one_thread

        with one_thread() if self.small else nullcontext():
            result: Result = self.module().run(config, on_step)
        return result

    def stem(self, config: Traceable) -> str:
        """What the files of a run are called, before it has been run."""
        return stem(self.id, config.digest(self.id))

    def provenance(self, config: Traceable, **more: str | Mapping[str, str]) -> dict[str, Any]:
        """Where a result of this experiment came from; ``more`` is left out where it is empty."""
        return config.provenance(self.id) | {key: value for key, value in more.items() if value}

    def result(
        self,
        config: Traceable,
        *,
        question: str,
        sentences: Iterable[str],
        table: "pl.DataFrame",
        title: str = "",
        about: Mapping[str, str | Mapping[str, str]] | None = None,
        notes: Mapping[str, str] | None = None,
        **others: Any,
    ) -> "Result":
        """A result of this experiment; ``others`` are the remaining fields of a ``Result``.

        ``about`` is what its provenance says beside the configuration, ``notes`` what is in doubt
        about a case, which goes into the sentences and the provenance.
        """
        from rankscope.results import Result

        noted = notes or {}
        warnings = dict.fromkeys((*config.warnings(), *others.pop("warnings", ())))
        return Result(
            self.id,
            title or self.title,
            question,
            (*sentences, *(f"Note on {case}: {note}." for case, note in noted.items())),
            table,
            self.provenance(config, **(about or {}), notes=noted),
            self.source,
            warnings=tuple(warnings),
            **others,
        )


_SEED = ("seed",)
_MODELS = ("seed", "models", "texts", "length")


_LARGE = ("D5", "D7", "D9", "N2", "W2", "W5")
"""Claims with networks that are worth a second thread."""


def _claim(
    id_: str, title: str, source: str, *, domain: str, options: tuple[str, ...] = _SEED
) -> Entry:
    where, small = f"claims.{id_.lower()}", id_ not in _LARGE
    return Entry(id_, "claim", title, where, options, source, domain, small)


def _study(
    id_: str,
    title: str,
    source: str = "",
    options: tuple[str, ...] = _SEED,
    *,
    small: bool = False,
) -> Entry:
    return Entry(id_, "study", title, f"studies.{id_}", options, source, small=small)


def _question(id_: str, title: str) -> Entry:
    return Entry(id_, "question", title, f"questions.{id_}")


ENTRIES: Final = (
    _claim(
        "D1",
        "The output of a network is the sum of its paths, of every length, and of its biases.",
        f"{DONG}, theorem 2.1",
        domain="pure attention, with and without skips",
    ),
    _claim(
        "D2",
        "Pure attention with one or many heads contracts the residual like its cube in every "
        "layer, so doubly exponentially with depth, and never above the theorem's bounds.",
        f"{DONG}, theorems 2.2 and 2.3",
        domain="pure attention that meets the theorems' own condition",
    ),
    _claim(
        "D3",
        "MLPs between the layers leave the collapse of pure attention doubly exponential; the "
        "larger their Lipschitz constant, the slower it is.",
        f"{DONG}, corollary 3.2",
        domain="attention and MLPs, without skips and norms",
    ),
    _claim(
        "D4",
        "Skips stop the collapse: there are infinitely many parameterisations whose residual does "
        "not shrink at any depth, however small the weights.",
        f"{DONG}, claim 3.1",
        domain="attention and skips, without MLPs and norms",
    ),
    _claim(
        "D5",
        "BERT, ALBERT and XLNet lose rank with depth as attention alone (SAN) and with MLPs "
        "(SAN+MLP), and keep it with skip connections.",
        f"{DONG}, figure 2",
        domain="BERT, ALBERT and XLNet, pretrained and at initialisation",
        options=(*_MODELS, "reading"),
    ),
    _claim(
        "D6",
        "One trained attention layer, applied again and again, moves two points together; a larger "
        "width, an MLP or a skip slows that down or stops it.",
        f"{DONG}, figure 3",
        domain="two heads trained on two arcs of a circle, widths 32, 64 and 128",
    ),
    _claim(
        "D7",
        "On trained tasks, paths do less of the work the longer they are.",
        f"{DONG}, figure 4",
        domain="memorisation, sorting and convex hull, six layers, after training",
        options=("seed", "sentences"),
    ),
    _claim(
        "D8",
        "Most paths of well-known transformers are long: about L·H/(H+1) of L layers.",
        f"{DONG}, figure 5",
        domain="the architectures that the paper plots",
        options=(),
    ),
    _claim(
        "D9",
        "Attention matrices chained along a single path tend to rank one with its depth.",
        f"{DONG}, section 2 and notebook",
        domain="BERT, ALBERT and XLNet",
        options=_MODELS,
    ),
    _claim(
        "D10",
        "LayerNorm plays no role in the rank collapse of attention.",
        f"{DONG}, remark on LayerNorm",
        domain="random attention under the full mask and LayerNorm, without skips and MLPs",
    ),
    _claim(
        "D11",
        "Where logits spread by at most 1.256, attention differs from rank one by no more than "
        "twice that spread, entry by entry: |P − 1qᵀ| ≤ 2D·1qᵀ.",
        f"{DONG}, appendix",
        domain="one layer of softmax attention, spread at most 1.256",
    ),
    _claim(
        "N1",
        "Pure attention collapses doubly exponentially where its rows agree once the tokens do, "
        "and only exponentially where scores or a mask depend on the pair of positions, as long as "
        "the logits of the collapsed state do not vanish.",
        OURS,
        domain="pure attention whose hidden states keep their size",
    ),
    _claim(
        "N2",
        "The constant βH of the 2021 theorem for several heads is too small in general; it is safe "
        "up to 125 features.",
        OURS,
        domain="one layer of two heads that meets the theorem's condition",
    ),
    _claim(
        "W1",
        "Masked attention collapses exponentially if its graph has a center, more slowly the "
        "larger the radius, and does not collapse to one point without a center.",
        f"{WU}, masked attention",
        domain="one head, bounded products of values, weights of attention at least ε",
    ),
    _claim(
        "W2",
        "LayerNorm alone stops μ → 0 in randomly initialised models.",
        f"{WU}, figure 2",
        domain="BERT-base's shape with LayerNorm only, under four masks",
    ),
    _claim(
        "W3",
        "Attention with one head, orthogonal values and a norm collapses at least exponentially "
        "if the tokens start in one open half-space and the mask has a center.",
        f"{WU}, on LayerNorm",
        domain="one head, orthogonal values, tokens on the sphere in one open half-space",
    ),
    _claim(
        "W4",
        "Attention and normalisation with suitable values have equilibria of every rank from one "
        "to full.",
        f"{WU}, LayerNorm",
        domain="one head on the sphere, causal mask",
    ),
    _claim(
        "W5",
        "The hidden states of real models keep full rank at every layer, and yet point into a "
        "narrow cone: full rank, high mean cosine.",
        f"{WU}, experiments",
        domain="trained models",
        options=_MODELS,
    ),
    _claim(
        "W6",
        "With suitable values a general class of sequences does not converge to rank one under "
        "attention and LayerNorm.",
        f"{WU}, abstract",
        domain="one head on the sphere, causal mask, suitable values, tokens in general position",
    ),
    _claim(
        "P1",
        "Softmax attention is spread out for logits of deviation below √(2/(1−p))·√(log T), p the "
        "tokens' overlap, and condensed on a few tokens above, Σ P² → 1 − β_c/β.",
        f"{GIORLANDINO}, random energies",
        domain="one layer of random attention, tokens of one overlap p, their number T → ∞",
    ),
    _claim(
        "P2",
        "Branches scaled by 1/√L hold off rank collapse at any depth L; without the scale tokens "
        "become alike, and the gradients of queries and keys vanish beside those of values.",
        f"{NOCI}, residual scaling",
        domain="random networks without norms under uniform attention, and post-norm ones",
    ),
    _claim(
        "P3",
        "The variance of pre-norm networks grows at least linearly with depth, so that deep layers "
        "tend to the identity; norms scaled by 1/√ℓ tame it and let deep layers change more.",
        f"{SUN}, curse of depth",
        domain="random pre-norm networks with LeCun's weights, at initialisation",
    ),
    _claim(
        "P4",
        "The stream is bounded with norms after the sum, grows with norms before it, and grows "
        "linearly with norms on both sides of each branch (sandwich); tokens collapse "
        "exponentially in the first, polynomially in the others, most slowly in the sandwich.",
        f"{KIM}, Peri-LN; {KARAGODIN}, speed of collapse",
        domain="random transformers with RMSNorm and LeCun's weights",
    ),
    _claim(
        "P5",
        "No row of attention over T tokens has less entropy than the worst logits of norm "
        "‖W_K W_Qᵀ‖·‖XXᵀ‖ have, and some layer has as little.",
        f"{ZHAI}, theorem on entropy",
        domain="one softmax over any tokens and weights, without mask and biases",
    ),
    _claim(
        "P6",
        "At initialisation attention has one singular value near 1 and all others of order 1/√T, "
        "so that one layer's output tends to rank one as the context T grows, unless the outlier "
        "is removed.",
        f"{NAIT_SAADA}, rank collapse in width",
        domain="one head as wide as the context, orthogonal tokens",
    ),
    _claim(
        "P7",
        "Two exponents known before training, that of the angles between tokens and that of the "
        "gradients, forecast the loss a network reaches.",
        "Cowsik et al. 2024",
        domain="networks that learn to sort: depth, norm place, skips and scale of weights varied",
    ),
    _study("widths", "What sets the speed of the collapse"),
    _study("patterns", "Attention patterns side by side"),
    _study("layernorm", "Attention and LayerNorm, without skips and MLPs"),
    _study(
        "phases",
        "Where designs collapse, and where not: maps over depth, predicted and measured",
        small=True,
    ),
    _study("wu", "Masks and LayerNorm, layer by layer", f"{WU}, figure 2", _MODELS),
    _question("diagnose", "Is it collapsing, where, why, and what now?"),
    _question("trace", "Every layer of one network"),
    _question("paths", "Which paths carry the differences?"),
    _question("deep", "How small does the residual get?"),
    _question("bounds", "What does theory promise?"),
    _question("masks", "Which mask keeps the tokens apart?"),
    _question("predict", "What will this design do, before it has weights?"),
    _question("advise", "Which change of the design would help?"),
    _question("compare", "Which of these keeps its tokens apart?"),
)
CATALOGUE: Final[dict[str, Entry]] = {entry.id: entry for entry in ENTRIES}


def entries(kind: Kind) -> dict[str, Entry]:
    """All entries of one kind, by id."""
    return {entry.id: entry for entry in ENTRIES if entry.kind == kind}


def entry(id_: str, kind: Kind | None = None) -> Entry:
    """An entry by its id, in capitals or not; a wrong one is found before any work is done."""
    known = CATALOGUE if kind is None else entries(kind)
    if not isinstance(id_, str):
        raise InputError(f"an id is a word such as {next(iter(known))}, got {id_!r}.")
    by_lower = {each.lower(): each for each in known}
    if id_.lower() not in by_lower:
        raise InputError(f"there is no {kind or 'experiment'} {id_!r}; choose {', '.join(known)}.")
    return known[by_lower[id_.lower()]]


@checked
def run(
    id_: str, *, scale: Scale = "quick", on_step: OnStep | None = None, **options: Any
) -> "Result":
    """Run an experiment by its id; ``options`` are fields of its configuration.

    >>> run("D8").verdict
    'depends'
    """
    found = entry(id_)
    return found.run(found.configuration(scale, **options), on_step or silent)
