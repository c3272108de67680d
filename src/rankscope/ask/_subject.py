"""The subject of a question: a network and its input, passed together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.ask._estimates import refuse_impossible
from rankscope.ask._traced import Traced
from rankscope.ask._words import LENGTH
from rankscope.core.batches import Batch, batches
from rankscope.core.checks import real
from rankscope.core.metrics import Center, Norm
from rankscope.core.network import Network, Spec
from rankscope.core.pooling import Pooling, usual_pooling
from rankscope.core.tracing import Metrics, Provenance, Trace, digest, trace
from rankscope.errors import InputError, ShapeError
from rankscope.models.text import InputCheck, check_texts, embed
from rankscope.numerals import plural
from rankscope.process import OnStep, fingerprint, silent, tracked, versions

_DIGESTS = ("spec", "seed", "weights", "input digest", "token mask digest", "measured digest")
_SAN = {"skip", "mlp", "norm"}
"""The parts to remove so that a transformer is attention alone."""
_PAIRS_AT_ONCE = 2**25
"""Maximum number of attention weights of a layer; scaled arithmetic keeps float64 copies."""


@dataclass(frozen=True)
class Origin:
    """The model from which a network was converted, whose weights it shares.

    ``model`` has the names of all weights. ``fresh`` is the same architecture, including
    embeddings, initialised as in its library, on the same input. ``read`` recomputes the input of
    the blocks with the current embeddings, and ``save`` writes a checkpoint of the current weights
    into a folder, if that is known. ``folder`` is the folder the model was loaded from, if any.
    """

    model: nn.Module
    fresh: Callable[[int], "Subject"]
    read: Callable[[], Tensor]
    save: Callable[[Path], None] | None
    folder: Path | None = None
    pooling: Callable[[], Pooling] | None = None
    """How the model makes one vector of the states after the last block; found when asked for."""


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Subject:
    """A network, its input, the tokens that are measured, and a title.

    >>> import torch
    >>> from rankscope import Network, Spec
    >>> from rankscope.ask import Subject
    >>> subject = Subject(Network.random(Spec(2, 2, 8), seed=0), torch.randn(1, 5, 8), title="Mine")
    >>> subject.name, subject.network.spec.layers
    ('Mine', 2)

    ``measured`` excludes tokens from the measurements that the network still sees (such as CLS).
    ``about`` describes the subject for the provenance.
    """

    network: Network
    x: Tensor
    token_mask: Tensor | None = None
    measured: Tensor | None = None
    title: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    batch_size: int = 8
    """Maximum number of samples per batch."""
    check: InputCheck | None = None
    """The tokens that were read, if known."""
    twin: Callable[[int], Network] | None = None
    """Draws a network of the same architecture by seed, initialised as in the model's library; by
    default as in the spec."""
    left_out: tuple[str, ...] = ()
    """Parts of the network that ``without`` removed."""
    origin: Origin | None = None
    """The model from which the network was converted, if any."""
    traced: Traced | None = None
    """A model that is not converted: it runs as it is, ``network`` raises the reason for whatever
    needs our network, and ``x`` are the states before the first block."""

    def __post_init__(self) -> None:
        real(self.x, name="x", axes="(batch, token, feature)", least=2)
        if self.x.ndim != 3:
            raise ShapeError(
                f"x has shape {tuple(self.x.shape)}, expected (batch, token, feature); a single "
                "sequence needs a batch axis: x[None]."
            )
        if self.check is not None and self.check.samples != len(self.x):
            raise InputError(
                f"the check is about {self.check.samples} samples, the input has {len(self.x)}."
            )

    @property
    def name(self) -> str:
        """The title, or the name of the network."""
        return self.title or self.network.name

    @property
    def pooling(self) -> Pooling:
        """How a text becomes one vector: the model's own way, or the usual one."""
        if self.origin is not None and self.origin.pooling is not None:
            return self.origin.pooling()
        return usual_pooling(causal=self.network.is_causal(self.x.shape[1], self.x.device))

    def batches(self) -> list[Batch]:
        """The samples in batches that fit into memory."""
        if self.traced is not None:
            every = Batch(0, self.x, self.token_mask, self.measured)
            return list(self.traced.batches(every, self.batch_size))
        pairs = self.network.spec.heads * self.x.shape[1] ** 2
        size = max(1, min(self.batch_size, _PAIRS_AT_ONCE // pairs))
        return list(batches(self.x, self.token_mask, self.measured, size=size))

    def trace(self, metrics: Metrics, on_step: OnStep = silent) -> Trace:
        """``rankscope.trace`` of every sample, on the measured tokens."""
        if self.traced is not None:
            runs = tracked(self.batches(), on_step)
            return Trace.joined([self.traced.trace(batch, metrics) for batch, _ in runs])
        return Trace.joined(self._each_batch(partial(trace, metrics=metrics), on_step))

    def deep_trace(
        self, on_step: OnStep = silent, *, norm: Norm = "composite", center: Center = "mean"
    ) -> Trace:
        """``rankscope.deep_trace`` of every sample, on the measured tokens."""
        from rankscope.core.deep import deep_trace  # nine files that few questions need

        exact = self.to(torch.float64)
        measure = partial(deep_trace, norm=norm, center=center)
        return join_deep(exact._each_batch(measure, on_step))

    def _each_batch(self, measure: Callable[..., Trace], on_step: OnStep) -> list[Trace]:
        return [
            measure(self.network, batch.x, token_mask=batch.token_mask, measured=batch.measured)
            for batch, _ in tracked(self.batches(), on_step)
        ]

    def of_samples(self, some: Tensor) -> "Subject":
        """The same question about some of the samples, by their numbers."""
        token_mask, measured = (
            mask if mask is None or mask.ndim < 2 or len(mask) == 1 else mask[some.to(mask.device)]
            for mask in (self.token_mask, self.measured)
        )
        return replace(
            self,
            x=self.x[some.to(self.x.device)],
            token_mask=token_mask,
            measured=measured,
            check=None if self.check is None else self.check.of_samples(some.tolist()),
            traced=None if self.traced is None else self.traced.of_samples(some),
        )

    def with_network(self, network: Network) -> "Subject":
        """The same input for another network."""
        return replace(self, network=network)

    def to(self, dtype: torch.dtype) -> "Subject":
        """The same subject in another number format."""
        if {dtype} == {self.x.dtype, *(p.dtype for p in self.network.parameters())}:
            return self
        network = self.network.double() if dtype == torch.float64 else self.network.float()
        return replace(self, network=network, x=self.x.to(dtype))

    def on_cpu(self) -> "Subject":
        """The same input on the CPU, where random networks are drawn, in float32 or float64; the
        network, of which only the spec is used then, is not moved."""
        masks = (self.token_mask, self.measured)
        token_mask, measured = (None if mask is None else mask.cpu() for mask in masks)
        wide = self.x.dtype if self.x.dtype.itemsize >= 4 else torch.float32
        x = self.x.to("cpu", wide)
        return replace(self, x=x, token_mask=token_mask, measured=measured)

    def without(self, *parts: str) -> "Subject":
        """The network without some parts, with a title that says so."""
        if not parts:
            return self
        title = f"{self.name}; without {', '.join(parts)}"
        return replace(
            self,
            network=self.network.without(*parts),
            title=title,
            left_out=(*self.left_out, *parts),
        )

    @property
    def reduced(self) -> tuple[str, ...]:
        """A sentence about the parts that were removed; empty for the whole network."""
        if not self.left_out:
            return ()
        kind = "model" if "origin" in self.about else "network"
        what = "attention alone" if {*self.left_out} >= _SAN else "remaining parts"
        return (
            f"This is the {kind}'s {what}, without {', '.join(self.left_out)}; --without='' "
            "keeps every part.",
        )

    def refuse_measured(self, why: str) -> None:
        """Raise if ``measured`` is given for measurements that need all tokens."""
        if self.measured is not None:
            raise InputError(
                f"measured leaves tokens out of the figures (--no-special-tokens), but {why}; "
                "leave it out."
            )

    def digest(self) -> str:
        """Twelve hex digits of the network, its weights and its input."""
        origin = self._origin()
        return fingerprint([origin.spec, origin.weights, origin.inputs, origin.settings])

    def provenance(self) -> dict[str, Any]:
        """The provenance of its measurements."""
        origin = self._origin()
        counted = {} if self.measured is None else {"special tokens": "left out of the figures"}
        known = {
            "model": origin.model,
            "spec": origin.spec,
            "network": origin.network,
            "seed": origin.seed,
            "weights": origin.weights,
            "input": f"{len(self.x)} samples of up to {self.x.shape[1]} tokens",
            "input digest": origin.inputs,
            **origin.settings,
            "dtype": str(self.x.dtype),
            **counted,
            "versions": versions(),
        }
        # What is said in words may say more of what is known, but takes the place of no digest.
        said = {key: words for key, words in self.about.items() if key not in _DIGESTS}
        return {**known, **said}

    def _origin(self) -> Provenance:
        masks = {"token mask digest": self.token_mask, "measured digest": self.measured}
        said = {name: digest(mask) for name, mask in masks.items() if mask is not None}
        # In batches of another size, sums are rounded in another order.
        settings = {**said, "batch size": str(self.batch_size)}
        if self.traced is not None:
            given = vars(self.traced.inputs)
            return Provenance.of(self.traced.model, {"x": self.x, **given}, settings=settings)
        return Provenance.of(self.network, {"x": self.x}, settings=settings)

    def __repr__(self) -> str:
        return f"Subject({self.name!r}, input {tuple(self.x.shape)})"


def join_deep(traces: Sequence[Trace]) -> Trace:
    """Concatenate deep traces of batches, with samples renumbered in doubts."""
    from rankscope.core.deep import describe_doubts

    joined = Trace.joined(traces)
    doubt = describe_doubts(joined.columns)
    return joined.noted({"doubt": doubt}) if doubt else joined


class _Design(Network):
    """A network without weights."""

    def __init__(self, spec: Spec) -> None:
        nn.Module.__init__(self)
        self.name, self.spec, self.blocks = "Network", spec, nn.ModuleList()
        self._seed = None

    def _variant(self, spec: Spec) -> "_Design":
        return _Design(spec)


def outline(spec: Spec, *, samples: int, tokens: int) -> Subject:
    """A subject with shapes only, for estimates and configurations.

    >>> subject = outline(Spec(96, 96, 12288), samples=32, tokens=2048)
    >>> subject.x.shape, sum(weight.numel() for weight in subject.network.parameters())
    (torch.Size([32, 2048, 12288]), 0)
    """
    return Subject(_Design(spec), _numbers(samples, tokens, spec.width))


@lru_cache(maxsize=64)
def _numbers(samples: int, tokens: int, width: int) -> Tensor:
    """Tokens that differ, as an expanded view that takes no memory."""
    return torch.arange(float(tokens))[None, :, None].expand(samples, tokens, width)


@checked
def random_subject(
    spec: Spec,
    texts: Sequence[str],
    *,
    length: int = LENGTH,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str | None = None,
    special_tokens: bool = True,
    read_from: str = "given texts",
) -> Subject:
    """A random network and its input; ``seed`` determines weights and embeddings.

    >>> from rankscope.core.network import Spec
    >>> random_subject(Spec(2, 2, 8), ["A rose is a rose."]).name
    'A random network: 2 layers, 2 heads, width 8'

    ``special_tokens=False`` leaves CLS and SEP out of the figures; the network still sees them.
    ``read_from`` names the source of the texts in the provenance.
    """
    refuse_impossible(spec, dtype)
    network = Network.random(spec, seed=seed, dtype=dtype).to(device)
    about = {
        "norm": "none" if spec.norm == "none" else f"{spec.norm}, {spec.norm_place}",
        "init": f"{spec.init.kind}, scale {spec.init.scale:g}",
        "embeddings": f"of scale {spec.embedding_scale:g}",
        "mask": str(spec.mask),
        "input": check_texts(texts, length=length).summary(read_from),
        "special tokens": "counted" if special_tokens else "left out of the figures",
        "dtype": str(dtype),
    }
    return network_subject(
        network,
        texts,
        length=length,
        seed=seed,
        special_tokens=special_tokens,
        called="A random network",
        about=about,
    )


def network_subject(
    network: Network,
    texts: Sequence[str],
    *,
    length: int = LENGTH,
    seed: int = 0,
    special_tokens: bool = True,
    called: str = "",
    about: Mapping[str, str] | None = None,
) -> Subject:
    """A network and texts in random embeddings, determined by ``seed``.

    >>> from rankscope import Network, Spec
    >>> from rankscope.ask import network_subject
    >>> subject = network_subject(Network.random(Spec(2, 2, 8), seed=0), ["It rains."], length=6)
    >>> subject.x.shape
    torch.Size([1, 6, 8])
    """
    first, width = next(network.parameters()), network.spec.width
    x, token_mask = embed(texts, width, length=length, seed=seed, dtype=first.dtype)
    x = x * network.spec.embedding_scale
    x, token_mask = x.to(first.device), token_mask.to(first.device)
    return Subject(
        network,
        x,
        token_mask,
        None if special_tokens else _between(token_mask),
        title_of(network, called),
        about or {},
        check=check_texts(texts, length=length),
    )


def title_of(network: Network, called: str = "") -> str:
    """A network's name and shape."""
    spec = network.spec
    shape = f"{plural(spec.layers, 'layer')}, {plural(spec.heads, 'head')}, width {spec.width}"
    return f"{called or network.name}: {shape}"


def _between(token_mask: Tensor) -> Tensor:
    """The tokens between CLS and SEP, the first and last token of bundled tokenisation."""
    position = token_mask.cumsum(-1)
    inner = token_mask & (position > 1) & (position < token_mask.sum(-1, keepdim=True))
    if not bool(inner.any(-1).all()):
        raise InputError("some sample has no token besides CLS and SEP; keep special tokens.")
    return inner


def refuse_unfit(name: str, check: InputCheck | None) -> None:
    """Raise if hardly any word of the text is in the vocabulary of the model."""
    if check is not None and not check.fits:
        raise InputError(
            f"{name}: {check.warnings()[0].rstrip('.')}; give text that fits (text, --text), or "
            "token ids (ids, --ids)."
        )
