"""The four networks of the 2021 paper's figure 2, as variants of one."""

from rankscope.arguments import checked
from rankscope.ask import LEFT_OUT
from rankscope.ask import PARTS as PARTS
from rankscope.ask import Parts as Parts
from rankscope.core.network import Network

SAN, SAN_MLP, SAN_SKIP, TRANSFORMER = LEFT_OUT


@checked
def four_variants(network: Network, parts: Parts = "steps") -> dict[str, Network]:
    """SAN, SAN+MLP, SAN+skip and the whole transformer, sharing weights.

    >>> from rankscope import Network, Spec
    >>> variants = four_variants(Network.random(Spec(2, 2, 8)), "paper")
    >>> variants["SAN+MLP"].spec.skips
    (0.0, 1.0)

    ``parts`` selects what is removed, since the papers allow more than one interpretation (see
    ``PARTS``). A parallel block has one skip around both of its parts, which is removed as a whole.
    """
    if parts == "theorems":
        network = network.without("norm")
    no_mlp = network.with_identity_mlp() if parts == "identity" else network.without("mlp")
    skip = "skip"
    if parts == "paper":
        # Its code replaces AlbertLayer's two matrices by the identity; what is between them stays.
        no_mlp = network.without("mlp_weights") if network.spec.shared_layers else no_mlp
        skip = "skip" if network.spec.parallel else "attention_skip"
    return {
        SAN: no_mlp.without(skip),
        SAN_MLP: network.without(skip),
        SAN_SKIP: no_mlp,
        TRANSFORMER: network,
    }
