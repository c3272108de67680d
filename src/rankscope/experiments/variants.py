"""The four networks of the 2021 paper's figure 2, as variants of one."""

from dataclasses import dataclass
from typing import Literal

from rankscope.arguments import checked
from rankscope.ask import LEFT_OUT
from rankscope.core.network import Network

SAN, SAN_MLP, SAN_SKIP, TRANSFORMER = LEFT_OUT


@checked
@dataclass(frozen=True)
class Reading:
    """What "SAN" means: the papers leave room for more than one answer.

    ``norms``: the 2021 code keeps them; the theorems have none. ``mlp``: the 2021 code puts the
    identity in the MLP's place, its norm and skip kept; here the whole step goes unless said so.
    """

    norms: Literal["keep", "drop"] = "keep"
    mlp: Literal["remove", "identity"] = "remove"

    def __str__(self) -> str:
        norms = "norms kept" if self.norms == "keep" else "norms dropped"
        return f"{norms}, MLPs {'removed' if self.mlp == 'remove' else 'replaced by the identity'}"


@checked
def four_variants(network: Network, reading: Reading | None = None) -> dict[str, Network]:
    """SAN, SAN+MLP, SAN+skip and the whole transformer, sharing weights."""
    reading = reading or Reading()
    if reading.norms == "drop":
        network = network.without("norm")
    no_mlp = network.without("mlp") if reading.mlp == "remove" else network.with_identity_mlp()
    return {
        SAN: no_mlp.without("skip"),
        SAN_MLP: network.without("skip"),
        SAN_SKIP: no_mlp,
        TRANSFORMER: network,
    }
