"""What is to blame, and what mends it, on networks broken by hand: the oracle is what was done."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rankscope.ask import Subject, model_subject
from rankscope.core.network import Network, Spec
from rankscope.core.weights import named_tensors, tensor_digests
from rankscope.errors import InputError
from rankscope.experiments.diagnosis import examine, health, measured_of, weights_of
from rankscope.experiments.diagnosis._causes import suspects
from rankscope.experiments.diagnosis._measure import VIEWS
from rankscope.experiments.diagnosis._repairs import check_folder, exchanged, write_repaired
from rankscope.experiments.diagnosis._texts import between_texts
from rankscope.experiments.diagnosis._weights import (
    directions,
    figures_of,
    products,
    read_weights,
)
from rankscope.experiments.questions.diagnose import ENTRY, Config
from rankscope.experiments.studies import zoo
from rankscope.models.families import load


def subject_of(*, place: str = "pre", texts: int = 6) -> Subject:
    network = Network.random(Spec(5, 4, 32, norm_place=place, init="lecun"), seed=3)
    x = torch.randn(texts, 24, 32, generator=torch.Generator().manual_seed(1))
    return Subject(network, x)


def weight_of(subject: Subject, layer: int, role: str) -> torch.nn.Parameter:
    (found,) = (
        each for each in weights_of(subject.network) if (each.layer, each.role) == (layer, role)
    )
    return found.stored


def multiply(subject: Subject, layer: int, role: str, factor: float) -> None:
    with torch.no_grad():
        weight_of(subject, layer, role).mul_(factor)


def test_nothing_is_blamed_in_a_healthy_network() -> None:
    mended = examine(subject_of())
    assert not mended.causes
    assert not mended.changes
    assert all(each.fate not in ("collapse", "slow") for each in mended.findings)


@pytest.mark.parametrize(
    ("role", "factor", "kind", "part", "path"),
    [
        ("output", 0.0, "dead sublayer", "attention", "blocks.2.attention.output.weight"),
        ("value", 0.0, "dead sublayer", "attention", "blocks.2.attention.value.weight"),
        ("down", 0.0, "dead sublayer", "MLP", "blocks.2.mlp.down.weight"),
        ("mlp gain", 1e-4, "dead sublayer", "MLP", "blocks.2.norms.mlp.weight"),
        ("down", 60.0, "dominating sublayer", "MLP", "blocks.2.mlp.down.weight"),
        ("query", 400.0, "entropy collapse", "attention", "blocks.2.attention.query.weight"),
    ],
)
def test_the_weight_that_was_changed_is_named_and_mended(
    role: str, factor: float, kind: str, part: str, path: str
) -> None:
    subject = subject_of()
    healthy = measured_of(subject)
    multiply(subject, 3, role, factor)
    mended = examine(subject)
    (finding,) = (each for each in mended.findings if each.kind == kind)
    assert (finding.fate, finding.layer, finding.part) == ("collapse", 3, part)
    assert (mended.causes[0].paths, mended.causes[0].layer) == ((path,), 3)
    lost, back = (
        health(finding, each) - health(finding, mended.before) for each in (healthy, mended.after)
    )
    assert back > 0.5 * lost > 0


def test_a_part_of_which_nothing_is_left_is_drawn_anew_and_others_are_scaled() -> None:
    for factor, drawn in ((0.0, True), (60.0, False)):
        subject = subject_of()
        before = weight_of(subject, 2, "down").detach().clone()
        multiply(subject, 2, "down", factor)
        mended = examine(subject)
        assert mended.causes[0].drawn is drawn
        ((_, repaired),) = mended.changes.values()
        size = repaired.square().mean() / before.square().mean()
        assert 0.5 < float(size) < 2.0
        if not drawn:  # the same weights, up to a factor
            torch.testing.assert_close(repaired / repaired.norm(), before / before.norm())


def test_the_model_stays_as_it_is() -> None:
    subject = subject_of()
    multiply(subject, 3, "down", 60.0)
    before = tensor_digests(named_tensors(subject.network))
    assert examine(subject).causes
    assert tensor_digests(named_tensors(subject.network)) == before
    parameter = weight_of(subject, 1, "up")
    changes = {id(parameter): (parameter, torch.zeros_like(parameter))}
    with exchanged(changes, subject.network):
        assert not weight_of(subject, 1, "up").any()
    with pytest.raises(KeyError), exchanged(changes, subject.network):
        raise KeyError
    assert weight_of(subject, 1, "up") is parameter


def test_directions_are_counted_as_by_singular_values() -> None:
    for shape in ((20, 30), (300, 200)):  # exactly, and by random vectors
        matrix = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).double()
        square = torch.linalg.svdvals(matrix).square()
        expected = float(square.sum().square() / square.square().sum())
        assert directions(matrix) == pytest.approx(expected, rel=0.1)
    assert directions(torch.outer(torch.arange(200.0), torch.ones(300))) == pytest.approx(
        1, rel=0.3
    )


def test_a_suspect_differs_from_other_layers_and_from_the_twin() -> None:
    subject = subject_of()
    twin = read_weights(replace(subject, network=Network.random(subject.network.spec, seed=9)))
    assert suspects(read_weights(subject), twin) == []
    for layer in range(1, 6):  # all alike, as training may leave them: unlike the twin alone
        multiply(subject, layer, "up", 5.0)
    assert suspects(read_weights(subject), twin) == []
    multiply(subject, 4, "up", 5.0)
    (suspect,) = suspects(read_weights(subject), twin)
    assert (suspect.weight.layer, suspect.weight.role, suspect.figure) == (4, "up", "size")
    assert suspect.path == "blocks.3.mlp.up.weight"
    assert suspect.value == pytest.approx(25 * suspect.fresh, rel=0.1)
    assert suspect.value == pytest.approx(5 * suspect.usual, rel=0.1)
    assert not suspect.is_unusual
    multiply(subject, 4, "up", 3.0)
    (suspect,) = suspects(read_weights(subject), twin)
    assert suspect.is_unusual


def test_all_layers_are_suspects_together_if_they_differ_alike() -> None:
    subject = subject_of()
    twin = read_weights(replace(subject, network=Network.random(subject.network.spec, seed=9)))
    for layer in range(1, 6):
        multiply(subject, layer, "up", 200.0)
    suspected = suspects(read_weights(subject), twin)
    assert [suspect.location for suspect in suspected] == [(-1, "MLP")] * 5
    assert all(suspect.elsewhere is None and suspect.is_unusual for suspect in suspected)


def test_a_matrix_as_drawn_is_a_suspect_where_others_are_trained() -> None:
    subject = subject_of()
    twin = read_weights(replace(subject, network=Network.random(subject.network.spec, seed=9)))
    for layer in (1, 2, 4, 5):
        multiply(subject, layer, "up", 5.0)
    (suspect,) = suspects(read_weights(subject), twin)
    assert (suspect.weight.layer, suspect.weight.role) == (3, "up")


def test_weights_that_have_not_changed_are_not_read_again() -> None:
    subject = subject_of()
    before = read_weights(subject)
    parameter = weight_of(subject, 2, "up")
    changes = {id(parameter): (parameter, torch.zeros_like(parameter))}
    with exchanged(changes, subject.network):
        after = read_weights(subject, before)
    different = [
        old.path for old, new in zip(before, after, strict=True) if old.figures != new.figures
    ]
    assert different == ["blocks.1.mlp.up.weight"]
    (zero,) = (each for each in after if each.path == "blocks.1.mlp.up.weight")
    assert zero.figures == {"size": 0.0}
    kept = [new is old for old, new in zip(before, after, strict=True) if old.weight.matrix is None]
    assert kept.count(False) == 1


def test_a_large_gain_is_known_by_the_features_it_lets_through() -> None:
    subject = subject_of()
    with torch.no_grad():
        weight_of(subject, 2, "mlp gain")[3] = 1000.0
    gain = next(w for w in weights_of(subject.network) if (w.layer, w.role) == (2, "mlp gain"))
    # 31 ones and one 1000: (31 + 10⁶)²/(31 + 10¹²).
    expected = (31 + 1e6) ** 2 / (31 + 1e12)
    assert figures_of(gain) == {"gain": 1.0, "directions": pytest.approx(expected)}
    mended = examine(subject)
    assert mended.causes[0].paths == ("blocks.1.norms.mlp.weight",)
    ((_, repaired),) = mended.changes.values()
    assert float(repaired.max()) == 3.0


def test_a_bias_is_told_beside_what_its_matrix_gives() -> None:
    (bias,) = (
        each
        for each in weights_of(subject_of().network)
        if (each.layer, each.role) == (1, "down bias")
    )
    with torch.no_grad():
        bias.stored.fill_(0.5)
    assert bias.matrix is not None
    size = bias.matrix.value.double().square().mean().sqrt() * bias.matrix.value.shape[1] ** 0.5
    assert figures_of(bias) == {"bias": pytest.approx(0.5 / float(size))}


def test_texts_are_compared_as_tokens_of_one_sample_are() -> None:
    generator = torch.Generator().manual_seed(0)
    views = torch.randn(2, len(VIEWS), 8, 5, generator=generator)
    views[1, 0] = views[1, 0, :, :1]  # the second layer has one mean for all texts
    found = between_texts(views)
    x = views[0, 1].mT.double()
    apart = (x - x.mean(0)).norm() / x.norm()
    assert float(found["relative_dispersion"][0, 1]) == pytest.approx(float(apart))
    assert float(found["relative_dispersion"][1, 0]) == pytest.approx(0, abs=1e-6)
    assert float(found["mean_cosine"][1, 0]) == pytest.approx(1)
    assert float(found["effective_rank"][1, 0]) == pytest.approx(1, abs=1e-3)


def test_texts_that_come_in_alike_collapse_only_beside_a_twin_that_tells_them_apart() -> None:
    for texts, fate in ((6, "collapse"), (3, "unknown")):
        subject = subject_of(texts=texts, place="post")
        with torch.no_grad():  # the last norm gives every token the same
            weight_of(subject, 4, "mlp gain").mul_(1e-4)
            weight_of(subject, 4, "mlp norm bias").normal_(
                generator=torch.Generator().manual_seed(0)
            )
        mended = examine(subject)
        (found,) = (each for each in mended.findings if each.kind == "collapse between texts")
        assert found.fate == fate
        assert mended.causes[0].paths[0].startswith("blocks.3.norms.mlp.")


def broken_bert(folder: Path) -> Path:
    subject = zoo.subject_of(zoo.make_model("bert", 3, 0), zoo.Config())
    assert zoo.break_model(subject, zoo.FAULTS["MLP output zero"], 2, 0)
    assert subject.origin is not None
    subject.origin.save(folder)
    return folder


def test_the_repaired_checkpoint_is_written_beside_the_model_and_is_sound(tmp_path: Path) -> None:
    model, fixed = broken_bert(tmp_path / "model"), tmp_path / "fixed"
    kept = (model / "model.safetensors").read_bytes()
    ids = [[3 + (7 * row + place) % 500 for place in range(24)] for row in range(6)]
    found = ENTRY.run(Config(model_subject(model, ids=ids), fix=str(fixed)), lambda _: None)
    (dead,) = (each for each in found.findings if each.kind == "dead sublayer")
    assert (dead.fate, dead.layer, dead.part) == ("collapse", 2, "MLP")
    assert dead.module == "encoder.layer.1.output.dense.weight"
    assert f"`{dead.module}`" in dead.cause
    assert "reinitialised" in dead.remedy
    assert "the problem lies in this model's weights" in dead.remedy
    assert str(fixed) in found.sentences[-1]
    assert (model / "model.safetensors").read_bytes() == kept
    again = examine(model_subject(fixed, ids=ids))
    assert not [each for each in again.findings if each.kind == "dead sublayer" and each.layer]
    old, new = (load(each).original.state_dict() for each in (model, fixed))
    assert [name for name in old if not torch.equal(old[name], new[name])] == [dead.module]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    model = broken_bert(tmp_path / "model")
    (tmp_path / "file").write_text("mine")
    subject = model_subject(model, ids=[[5, 6, 7]] * 4)
    for folder, why in ((model, "the model's own"), (tmp_path, "not empty"), ("file", "is a file")):
        with pytest.raises(InputError, match=why):
            check_folder(tmp_path / folder, subject)
    with pytest.raises(InputError, match="which a network does not have"):
        check_folder(tmp_path / "new", subject_of())
    healthy = examine(zoo.subject_of(zoo.make_model("bert", 3, 0), zoo.Config()))
    assert "Nothing was written" in write_repaired(healthy, subject, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_maps_of_attention_are_those_of_the_whole_matrices() -> None:
    network = Network.random(Spec(2, 4, 32, kv_heads=2, init="lecun"), seed=3)
    network.requires_grad_(False)
    attention = network.blocks[1].attention
    found = products(network)[1]
    sizes, counts = [], []
    for head in range(4):
        group = slice(8 * (head // 2), 8 * (head // 2) + 8)
        rows = slice(8 * head, 8 * head + 8)
        pairs = (
            attention.query.weight[rows].mT @ attention.key.weight[group],
            attention.value.weight[group].mT @ attention.output.weight[:, rows].mT,
        )
        sizes.append([float(each.square().mean().sqrt()) for each in pairs])
        counts.append([directions(each.detach().double()) for each in pairs])
    expected = [sum(each[at] for each in sizes) / 4 for at in range(2)]
    assert [found.query_key, found.value_output] == pytest.approx(expected, rel=1e-4)
    expected = [sum(each[at] for each in counts) / 4 for at in range(2)]
    told = [found.query_key_directions, found.value_output_directions]
    assert told == pytest.approx(expected, rel=1e-4)
