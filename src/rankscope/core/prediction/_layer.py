"""What a layer does, for any arithmetic: steps of branches between norms, as in a block."""

from typing import NamedTuple, Protocol, TypeVar

from rankscope.core.network import Spec
from rankscope.core.shapes import PerSample

State = TypeVar("State")


class Arithmetic(Protocol[State]):
    """Parts of a block on states of some kind, each sample with weights of its own."""

    def columns(self, state: State) -> int:
        """The coordinates the stream is known in."""
        ...

    def norm(self, state: State) -> State: ...

    def attention(self, state: State) -> tuple[State, PerSample]:
        """The heads side by side, and the mean entropy of their weights."""
        ...

    def hidden(self, state: State) -> State:
        """The MLP's hidden units."""
        ...

    def into_stream(self, rows: State, known: int, *, value: bool) -> State:
        """What leaves the heads or hidden units, in the known coordinates and new ones."""
        ...

    def add(self, skip: float, state: State, branches: list[State]) -> State: ...

    def compress(self, state: State) -> State: ...


class Layer(NamedTuple):
    """What the steps of a layer are made of."""

    steps: tuple[tuple[tuple[str, ...], float], ...]
    before: bool
    inside: bool
    after: bool
    identity: bool

    @classmethod
    def of(cls, spec: Spec) -> "Layer":
        parts = ("attention", "mlp") if spec.mlp_width else ("attention",)
        alone = tuple(((part,), skip) for part, skip in zip(parts, spec.skips, strict=False))
        return cls(
            steps=((parts, spec.skips[0]),) if spec.parallel else alone,
            before=spec.norm_place in ("pre", "both"),
            inside=spec.norm_place in ("both", "output"),
            after=spec.norm_place == "post",
            identity=spec.mlp_identity,
        )

    def apply(self, arithmetic: Arithmetic[State], state: State) -> tuple[State, PerSample]:
        """The state after the layer, and the entropy of its attention."""
        entropy: PerSample | None = None
        for parts, skip in self.steps:
            known, branches = arithmetic.columns(state), []
            for part in parts:
                out = arithmetic.norm(state) if self.before else state
                if part == "attention":
                    out, entropy = arithmetic.attention(out)
                elif not self.identity:
                    out = arithmetic.hidden(out)
                if part == "attention" or not self.identity:
                    out = arithmetic.into_stream(out, known, value=part == "attention")
                    known = arithmetic.columns(out)
                branches.append(arithmetic.norm(out) if self.inside else out)
            state = arithmetic.add(skip, state, branches)
            state = arithmetic.compress(arithmetic.norm(state) if self.after else state)
        assert entropy is not None  # every layer attends
        return state, entropy
