"""What a question is asked about: a network and what it reads, always passed as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from rankscope.batches import Batch, batches
from rankscope.network import Network
from rankscope.version import versions


@dataclass(frozen=True)
class Subject:
    """A network, its input, which tokens count in the figures, and what to call it all.

    ``measured`` leaves tokens out of the figures that the network still sees (CLS and the like).
    ``about`` says in words what was looked at and goes into the provenance.
    """

    network: Network
    x: Tensor
    token_mask: Tensor | None = None
    measured: Tensor | None = None
    title: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    batch_size: int = 8

    def batches(self) -> list[Batch]:
        """The samples, as many at a time as fit."""
        return list(batches(self.x, self.token_mask, self.measured, size=self.batch_size))

    def with_network(self, network: Network) -> "Subject":
        """The same input for another network."""
        return replace(self, network=network)

    def without(self, *parts: str) -> "Subject":
        """The network less some parts, and a title that says so."""
        if not parts:
            return self
        title = f"{self.title}; without {', '.join(parts)}"
        return replace(self, network=self.network.without(*parts), title=title)

    def provenance(self) -> dict[str, Any]:
        """Where figures about it come from."""
        network = self.network
        return {
            "model": network.name,
            "spec": network.spec.digest(seed=network.seed),
            "seed": network.seed,
            "versions": versions(),
            **self.about,
        }
