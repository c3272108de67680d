"""One forward pass, measured layer by layer while it runs, and its numbers."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.network import Network
from rankscope.core.tabular import Tabular
from rankscope.core.tracing._attention import goes_through_interface
from rankscope.core.tracing._blocks import BlockStack, Named, find_stack
from rankscope.core.tracing._figures import Columns
from rankscope.core.tracing._hidden_states import Output, OutputChoice, Stream, StreamChoice
from rankscope.core.tracing._inputs import (
    BlockLocation,
    ModelArguments,
    ids_among,
    read_arguments,
)
from rankscope.core.tracing._layouts import Layout, LayoutChoice
from rankscope.core.tracing._masks import TokenChoice, choose_mask
from rankscope.core.tracing._provenance import Provenance
from rankscope.core.tracing._recorder import Recorder
from rankscope.core.tracing._temporary_changes import TemporaryChanges
from rankscope.errors import InputError
from rankscope.numerals import cut, list_words, mean, short, some, span

if TYPE_CHECKING:
    import polars

    from rankscope.results import Result


class ModelParts(NamedTuple):
    """What is known of a model before it runs: its modules, its blocks and where they are."""

    modules: Sequence[nn.Module]
    stack: BlockStack
    location: BlockLocation
    is_heard: bool
    """Whether all attention uses Transformers' interface."""
    verified: set[Any]
    """Kinds of attention calls whose reading agreed with their output in an earlier run."""

    @classmethod
    def of(
        cls,
        model: nn.Module,
        blocks: Named | None = None,
        modules: Sequence[nn.Module] | None = None,
    ) -> Self:
        """Find the blocks; ``modules`` are all modules, for callers that have them."""
        stack = find_stack(model, blocks)
        return cls(
            list(model.modules()) if modules is None else modules,
            stack,
            BlockLocation.of(model, stack.blocks[0]),
            goes_through_interface(stack.blocks),
            set(),
        )


class Pass(NamedTuple):
    """One forward pass of a model that a recorder observes."""

    model: nn.Module
    parts: ModelParts
    arguments: ModelArguments
    recorder: Recorder
    token_mask: Tensor | None

    @classmethod
    def planned(
        cls,
        model: nn.Module,
        inputs: Tensor | Mapping[str, Any] | Sequence[Any],
        figures: Callable[[int], Any],
        *,
        token_mask: Tensor | None = None,
        measured: Tensor | None = None,
        blocks: Named | None = None,
        layout: Layout | None = None,
        stream: Stream | None = None,
        output: Output | None = None,
        parts: ModelParts | None = None,
    ) -> Self:
        """Find the blocks and read the arguments, as ``trace`` documents them.

        ``figures`` makes, for a number of layers, what is given the states: a
        ``_figures.Figures`` or an object with its methods. ``parts`` are those
        of the model, if they were found before.
        """
        parts = ModelParts.of(model, blocks) if parts is None else parts
        stack, location = parts.stack, parts.location
        arguments = read_arguments(model, inputs)
        named = arguments.by_name
        mask = choose_mask(token_mask, named, location)
        ids = ids_among(named, decoder=location.is_decoder)
        recorder = Recorder(
            parts.modules,
            stack.blocks,
            figures(len(stack.blocks)),
            layout=LayoutChoice(model, stack.blocks, layout, location.model_type, ids, named),
            stream=StreamChoice(stream),
            output=OutputChoice(output),
            tokens=TokenChoice(mask, measured, ids, location.model_type),
            is_heard=parts.is_heard,
            verified=parts.verified,
        )
        return cls(model, parts, arguments, recorder, mask.mask)

    def run(
        self,
        settings: dict[str, str],
        hooks: Callable[[TemporaryChanges], None] | None = None,
    ) -> Columns:
        """Run the model and return all figures; ``settings`` is extended by what was inferred.

        ``hooks`` may register further hooks.
        """
        self.observe(settings, hooks)
        return self.recorder.columns()

    def observe(
        self,
        settings: dict[str, str],
        hooks: Callable[[TemporaryChanges], None] | None = None,
        *,
        training: bool = False,
    ) -> None:
        """As ``run``, without reading the figures, which raises if they are not finite.

        With ``training`` the modules keep their modes.
        """
        seen = {"token_mask": self.token_mask} if isinstance(self.model, Network) else {}
        with TemporaryChanges() as changes, changes, changes, changes:
            changes.without_gradients()
            changes.keep_buffers(self.parts.modules)
            changes.keep_shards(self.parts.modules)
            if training:
                changes.keep_random_states()
            else:
                changes.evaluate(self.parts.modules)
            self.recorder.listen(changes)
            if hooks is not None:
                hooks(changes)
            self.model(*self.arguments.args, **{**self.arguments.kwargs, **seen})
            self.recorder.stop()
            settings |= self.recorder.finish(elsewhere=changes.elsewhere)
        if changes.drawn:
            settings["random numbers"] = changes.drawn


@checked
@dataclass(frozen=True, repr=False)
class Trace(Tabular):
    """Numbers by layer, sample and metric, and their provenance.

    >>> import torch
    >>> from rankscope import Network, Spec, trace
    >>> trace(Network.random(Spec(2, 2, 8)), torch.eye(4, 8)[None]).table["layer"].max()
    2

    ``provenance`` is computed when it is first read; see ``Provenance``.
    """

    columns: Columns
    provenance: Provenance

    @classmethod
    def _of(cls, columns: Columns, finish: Callable[[], Provenance]) -> Self:
        """A trace whose provenance is computed later."""
        unread = object.__new__(cls)
        vars(unread).update(columns=columns, _finish=finish)
        return unread

    def __getattr__(self, name: str) -> Any:
        finish: Callable[[], Provenance] | None = vars(self).get("_finish")
        if name != "provenance" or finish is None:
            raise AttributeError(f"a Trace has no {name!r}")
        vars(self)["provenance"] = provenance = finish()
        del vars(self)["_finish"]
        return provenance

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.columns, self.provenance)

    @property
    def table(self) -> "polars.DataFrame":
        """The numbers as a polars frame: layer, sample, metric, value (and head, if it applies)."""
        from rankscope import tables

        return tables.frame(self.columns)

    @property
    def result(self) -> "Result":
        """The trace as a ``Result``, which can be written, drawn and printed."""
        from rankscope.results import Drawing, Result

        metrics = list(dict.fromkeys(self.columns["metric"]))
        return Result(
            id="trace",
            title=self.provenance.model,
            question="What do the tokens look like after each layer?",
            sentences=(),
            table=self.table,
            provenance=asdict(self.provenance),
            drawings=(Drawing("by_layer", options={"metrics": metrics}),),
        )

    def __repr__(self) -> str:
        seed = "" if self.provenance.seed is None else f", seed {self.provenance.seed}"
        doubt = f"; {self._doubt}" if self._doubt else ""
        metrics = list_words(list(dict.fromkeys(map(str, self.columns["metric"]))))
        return (
            f"Trace of {cut(self.provenance.model)}{seed}: layers {span(self.columns['layer'])}, "
            f"samples {span(self.columns['sample'])}; {metrics}{doubt}"
        )

    @property
    def _doubt(self) -> str:
        """The first layer and the samples whose figures are in doubt; empty if there are none."""
        doubts = self.columns.get("doubt", ())
        if not any(doubts):
            return ""
        layers, samples = (
            [at for at, doubt in zip(self.columns[name], doubts, strict=True) if doubt]
            for name in ("layer", "sample")
        )
        named = list_words([str(sample) for sample in sorted(set(samples))])
        return f"in doubt from layer {min(layers)} on (samples {named})"

    def _repr_html_(self) -> str:
        """The mean of each metric over samples and heads, layer by layer."""
        from rankscope.show.display import card, paragraph, table

        values: dict[tuple[int, str], list[float]] = defaultdict(list)
        for layer, metric, value in zip(
            *(self.columns[name] for name in ("layer", "metric", "value")), strict=True
        ):
            values[layer, metric].append(value)
        layers = sorted({layer for layer, _ in values})
        metrics = list(dict.fromkeys(metric for _, metric in values))
        rows = [
            [str(layer), *(short(mean(values.get((layer, name), []))) for name in metrics)]
            for layer in some(layers)
        ]
        title = f"Trace of {self.provenance.model}"
        about = [paragraph(self.provenance.network)] if self.provenance.network else []
        doubt = [paragraph(f"Figures are {self._doubt}.")] if self._doubt else []
        return card(title, *about, table(["layer", *metrics], rows), *doubt)

    def noted(self, notes: Mapping[str, str]) -> "Trace":
        """The same trace with notes added to its provenance."""
        origin = replace(self.provenance, notes={**self.provenance.notes, **notes})
        return replace(self, provenance=origin)

    def _origin(self) -> dict[str, Any]:
        return asdict(self.provenance)

    @classmethod
    def _restored(
        cls, values: dict[str, Any], table: "polars.DataFrame", origin: Mapping[str, Any]
    ) -> Self:
        return super()._restored(values, table, Provenance(**origin))  # type: ignore[arg-type]

    @classmethod
    def joined(cls, traces: Sequence[Self], *, of_draws: bool = False) -> Self:
        """Traces of one model on several batches as one, with consecutive sample numbers.

        Differing notes are all kept. ``of_draws`` joins traces of several random networks of one
        distribution, each with its own samples.
        """
        if not traces:
            raise InputError("there is no trace to join; pass at least one.")
        every = [part.columns for part in traces]
        if any("doubt" in part for part in every):  # a trace without the column has no doubts
            every = [
                {**part, "doubt": part.get("doubt", [False] * len(part["value"]))} for part in every
            ]
        columns: Columns = {name: [] for name in every[0]}
        first = 0
        for part in every:
            if part.keys() != columns.keys():
                raise InputError("traces with and without attention metrics cannot be joined.")
            for name, values in part.items():
                columns[name] += [first + s for s in values] if name == "sample" else values
            first = max(columns["sample"]) + 1
        origins = [part.provenance for part in traces]
        return cls(columns, Provenance.joined(origins, of_draws=of_draws))
