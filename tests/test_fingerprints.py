"""Names for what a figure was made from."""

import torch

from rankscope.fingerprints import fingerprint
from rankscope.network import Network, Spec


def test_equal_content_has_one_name_and_any_change_another():
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    name = fingerprint({"a": 1, "b": [2.0]}, [x])
    assert name == fingerprint({"b": [2.0], "a": 1}, [x.clone()])
    assert len(name) == 12
    others = [
        fingerprint({"a": 2, "b": [2.0]}, [x]),
        fingerprint({"a": 1, "b": [2.0]}, [x.T.contiguous()]),
        fingerprint({"a": 1, "b": [2.0]}, [x.double()]),
        fingerprint({"a": 1, "b": [2.0]}, [x + 1e-6]),
        fingerprint({"a": 1, "b": [2.0]}, [x.bfloat16()]),
        fingerprint({"a": 1, "b": [2.0]}, []),
    ]
    assert len({name, *others}) == 7


def test_large_networks_are_told_apart_by_some_of_their_entries():
    one, other = (Network.random(Spec(2, 2, 64), seed=seed) for seed in (0, 1))
    names = {fingerprint("", net.state_dict().values()) for net in (one, one, other)}
    assert len(names) == 2
