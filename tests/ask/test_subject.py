"""A subject is passed whole, and says what it is."""

import torch

from rankscope.ask import Subject
from rankscope.core.network import Network, Spec

NETWORK = Network.random(Spec(2, 2, 8, init="lecun"))


def test_it_is_shown_in_a_line(tokens) -> None:
    subject = Subject(NETWORK, tokens(3, 5, 8), title="mine")
    assert repr(subject) == "Subject('mine', input (3, 5, 8))"
    assert Subject(NETWORK, tokens(3, 5, 8)).name == NETWORK.name


def test_parts_that_are_left_out_are_in_its_title(tokens) -> None:
    subject = Subject(NETWORK, tokens(1, 5, 8), title="mine")
    bare = subject.without("skip", "mlp")
    assert bare.title == "mine; without skip, mlp"
    assert bare.network.spec.skips == (0.0, 0.0)
    assert subject.without() is subject
    assert bare.provenance()["spec"] != subject.provenance()["spec"]


def test_batches_have_their_masks(tokens) -> None:
    mask = torch.ones(3, 5, dtype=torch.bool)
    everywhere = torch.tensor([False, True, True, True, True])
    batches = Subject(NETWORK, tokens(3, 5, 8), mask, everywhere, batch_size=2).batches()
    assert [(batch.start, len(batch.x), len(batch.token_mask)) for batch in batches] == [
        (0, 2, 2),
        (2, 1, 1),
    ]
    assert all(batch.measured is everywhere for batch in batches)


def test_another_format_leaves_the_subject_as_it_is(tokens) -> None:
    subject = Subject(NETWORK, tokens(1, 5, 8).float())
    double = subject.to(torch.float64)
    assert double.x.dtype == next(double.network.parameters()).dtype == torch.float64
    assert subject.x.dtype == next(subject.network.parameters()).dtype == torch.float32


def test_words_about_it_come_first_in_its_provenance(tokens) -> None:
    about = {"input": "a poem", "language": "Latin"}
    provenance = Subject(NETWORK, tokens(1, 5, 8), about=about).provenance()
    assert provenance["input"] == "a poem"
    assert provenance["language"] == "Latin"
    assert provenance["seed"] == 0
    assert "special tokens" not in provenance


def test_its_digest_names_weights_input_and_structure(tokens) -> None:
    x = tokens(2, 5, 8).float()
    causal = torch.ones(5, 5).tril().bool()
    other = causal.clone()
    other[4, 0] = False
    mask = torch.tensor([True, True, True, True, False])
    subjects = [
        Subject(NETWORK, x),
        Subject(NETWORK, x + 1e-3),
        Subject(NETWORK, x, mask),
        Subject(NETWORK, x, measured=~mask),
        Subject(NETWORK.without("skip"), x),
        Subject(NETWORK.with_mask(causal), x),
        Subject(NETWORK.with_mask(other), x),
        Subject(Network.random(NETWORK.spec, seed=1), x),
        Subject(NETWORK, x, batch_size=1),
        Subject(NETWORK.double(), x.double()),
    ]
    assert len({each.digest() for each in subjects}) == len(subjects)
    again = Network.random(NETWORK.spec, seed=0)
    assert Subject(again, x.clone()).digest() == subjects[0].digest()


def test_every_single_weight_is_in_its_digest_and_its_provenance(tokens) -> None:
    """Also in a network of which only a sample was looked at before."""
    x = tokens(1, 4, 64).float()
    subject = Subject(Network.random(Spec(2, 2, 64), seed=3), x)
    changed = Network.random(Spec(2, 2, 64), seed=3)
    with torch.no_grad():
        changed.blocks[1].mlp.down.weight[17, 101] += 1e-4
    other = Subject(changed, x)
    assert subject.digest() != other.digest()
    first, second = subject.provenance(), other.provenance()
    assert first["weights"] != second["weights"]
    assert (first["seed"], second["seed"]) == (3, None)


def test_its_provenance_states_what_was_measured(tokens) -> None:
    mask = torch.tensor([True, True, True, False])
    subject = Subject(NETWORK, tokens(2, 4, 8).float(), mask, ~mask, batch_size=2)
    said = subject.provenance()
    assert said["network"] == NETWORK.spec.describe()
    assert said["dtype"] == "torch.float32"
    assert said["batch size"] == "2"
    for name in ("weights", "input digest", "token mask digest", "measured digest"):
        assert len(said[name]) == 12
    assert "token mask digest" not in Subject(NETWORK, tokens(2, 4, 8).float()).provenance()
