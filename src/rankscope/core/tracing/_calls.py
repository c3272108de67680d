"""Which block runs when: the layers' numbers rest on it, so what does not fit is refused."""

from collections import Counter
from collections.abc import Sequence

from torch import Tensor, nn

from rankscope.core.tracing._capture import NONE_RAN
from rankscope.core.tracing._tensors import is_same
from rankscope.errors import InputError

_ONE_PASS = "trace one plain forward pass (no generate(), no micro-batches)"


class Calls:
    """Counts the calls of the blocks and asks of each whether it is the next layer.

    A block may run as often as it is in the stack. Where it runs more often, as ALBERT's one block
    does, each run must start from what the run before made: then they are layers of one pass.
    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self._blocks = list(blocks)
        self._meant = Counter(map(id, blocks))
        self._ran: list[nn.Module] = []
        self._runs: Counter[int] = Counter()
        self._running: nn.Module | None = None
        self._last: Tensor | None = None
        self._samples: int | None = None

    @property
    def layer(self) -> int:
        """The number of the block that runs, or ran last; 0 before the first."""
        return len(self._ran)

    @property
    def is_running(self) -> bool:
        """Whether a block is running now."""
        return self._running is not None

    def handed_on(self, args: Sequence[object]) -> Tensor | None:
        """What the block before made, if the next one takes it first of all, as most do."""
        return self._last if args and args[0] is self._last else None

    def made(self, taken: Sequence[Tensor]) -> Tensor | None:
        """What the block before made, if it is itself among what the next one takes."""
        return next((each for each in taken if each is self._last), None)

    def enter(self, block: nn.Module, hidden: Tensor) -> None:
        """A block starts on these hidden states."""
        if self._running is not None:
            raise InputError(
                f"{self._name(block)} runs inside {self._name(self._running)}, so they are not one "
                "layer after another; name blocks that are: blocks=[...]."
            )
        again = self._runs[id(block)] >= self._meant[id(block)]
        if again and (self._last is None or not is_same(self._last, hidden)):
            raise InputError(
                f"{self._name(block)} ran again, on something else than what the blocks had made: "
                f"{_ONE_PASS}; or, if those are the model's layers, name every run: "
                "blocks=[first, second, first, second]."
            )
        self._last = None
        self._running = block
        self._ran.append(block)
        self._runs[id(block)] += 1

    def leave(self, hidden: Tensor) -> None:
        """The running block made these hidden states."""
        self._running, self._last = None, hidden

    def check_samples(self, samples: int) -> None:
        """Every layer must be about the same samples."""
        if self._samples is None:
            self._samples = samples
        if samples != self._samples:
            raise InputError(
                f"layer {self.layer} has {samples} samples, the layers before {self._samples}; "
                f"{_ONE_PASS}."
            )

    def finish(self, *, elsewhere: int) -> str:
        """Raise unless every block ran; else how often and in what order, where that is unusual."""
        self._last = None
        if not self._ran:
            if elsewhere:
                raise InputError(
                    "the blocks ran in other threads, as DataParallel's do on several devices; "
                    "trace the model inside: trace(model.module, ...)."
                )
            raise InputError(NONE_RAN)
        for block in self._blocks:
            if self._runs[id(block)] < self._meant[id(block)]:
                raise InputError(self._missing(block, self._runs[id(block)]))
        if len(self._ran) > len(self._blocks):
            return f"{len(self._blocks)} blocks ran {len(self._ran)} times, one after another"
        if [id(block) for block in self._ran] != [id(block) for block in self._blocks]:
            order = ", ".join(str(self._number(block)) for block in self._ran)
            return f"in the order they ran: {order}"
        return ""

    def _missing(self, block: nn.Module, runs: int) -> str:
        often = "did not run" if not runs else f"ran {runs} times, not {self._meant[id(block)]}"
        return (
            f"{self._name(block)} {often} in this forward pass: it is skipped, or another took its "
            "place, and the layers after it would be misnumbered; name those that run: "
            "blocks=[...]."
        )

    def _name(self, block: nn.Module) -> str:
        return f"block {self._number(block)} ({type(block).__name__}) of {len(self._blocks)}"

    def _number(self, block: nn.Module) -> int:
        return 1 + next(k for k, each in enumerate(self._blocks) if each is block)
