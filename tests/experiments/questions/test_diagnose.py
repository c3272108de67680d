"""The main question on a small network."""

import pytest
import torch

from rankscope.experiments import DIAGNOSTIC_METRICS, Reading, Subject, diagnose, four_variants
from rankscope.experiments.questions.diagnose import Config, run
from rankscope.network import Network, Spec
from rankscope.text import embed, passages
from rankscope.tracing import trace

from ..shown import can_be_shown, steps_of

SPEC = Spec(8, 2, 16, norm_place="post", norm_eps=1e-12, init=0.1)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return embed(passages()[:3], 16, length=20, dtype=torch.float64)


@pytest.fixture(scope="module")
def found():
    return diagnose(Network.random(SPEC, dtype=torch.float64), *inputs(), batch_size=2)


def test_variants_are_those_of_the_paper() -> None:
    specs = {name: net.spec for name, net in four_variants(Network.random(SPEC)).items()}
    got = {name: (spec.skips[0] > 0, spec.mlp_width > 0) for name, spec in specs.items()}
    assert got == {
        "SAN": (False, False),
        "SAN+MLP": (False, True),
        "SAN+skip": (True, False),
        "transformer": (True, True),
    }
    assert {spec.norm for spec in specs.values()} == {"layer"}


def test_table_holds_every_variant_layer_and_sample(found) -> None:
    assert found.table.columns == ["variant", "layer", "sample", "metric", "value"]
    assert len(found.table) == 4 * 9 * 3 * len(DIAGNOSTIC_METRICS)
    assert found.table["sample"].unique().sort().to_list() == [0, 1, 2]


def test_figures_equal_a_plain_trace(found) -> None:
    x, mask = inputs()
    san = Network.random(SPEC, dtype=torch.float64).without("skip", "mlp")
    expected = trace(san, x, metrics=["effective_rank"], token_mask=mask).table
    got = found.table.filter(variant="SAN", metric="effective_rank").drop("variant")
    in_order = [each.sort("layer", "sample")["value"].to_list() for each in (got, expected)]
    assert in_order[0] == pytest.approx(in_order[1])


def test_attention_alone_collapses_and_skips_prevent_it(found) -> None:
    fates = {finding.variant: finding.fate for finding in found.findings}
    assert fates["SAN"] == "collapse"
    assert fates["SAN+skip"] == fates["transformer"] == "holds"


def test_every_finding_is_a_sentence_and_the_diagnosis_can_be_shown(found) -> None:
    can_be_shown(found)
    variants = ["SAN", "SAN+MLP", "SAN+skip", "transformer"]
    assert [finding.variant for finding in found.findings] == variants
    assert found.sentences == tuple(f"{f.variant}: {f.sentence}" for f in found.findings)
    assert found.stem.startswith("diagnose-")
    assert found.provenance["config"] == {"reading": "norms kept, MLPs removed"}
    assert found.provenance["input"] == "3 samples of up to 20 tokens"


def test_the_reading_of_san_is_honoured(found) -> None:
    network = Network.random(SPEC, dtype=torch.float64)
    other = diagnose(network, *inputs(), reading=Reading(norms="drop"), batch_size=2)
    assert other.provenance["config"] == {"reading": "norms dropped, MLPs removed"}
    assert other.findings[2].last != found.findings[2].last


def test_all_of_the_subject_is_honoured() -> None:
    x, token_mask = inputs()
    network = Network.random(SPEC, dtype=torch.float64)
    measured = token_mask.clone()
    measured[:, 0] = False
    subject = Subject(
        network, x, token_mask, measured, title="mine", about={"text": "a poem"}, batch_size=2
    )
    found, seen = steps_of(run, Config(subject))
    assert len(seen) == 4 * 2 + 4
    assert found.title == "mine"
    assert found.provenance["text"] == "a poem"
    assert found.provenance["special tokens"] == "left out of the figures"
    expected = trace(
        network, x, metrics=["relative_residual"], token_mask=token_mask, measured=measured
    ).table.sort("layer", "sample")["value"]
    rows = found.table.filter(variant="transformer", metric="relative_residual")
    got = rows.sort("layer", "sample")["value"]
    assert got.to_list() == pytest.approx(expected.to_list())
