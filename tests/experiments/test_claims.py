"""Claims are judged by figures: they hold where they should and fail where they do not."""

import pytest
import torch

from rankscope.experiments import d1, d5, d8, d9
from rankscope.experiments.claims import overall
from rankscope.families import load

from ..families.conftest import lively


def case(name: str, label: str | None = None) -> d5.Case:
    return d5.Case(label or name, lambda: load(lively(name), dtype=torch.float64))


@pytest.mark.parametrize(
    ("borne_out", "verdict"),
    [((True, True), "holds"), ((True, False), "depends"), ((False, False), "fails")],
)
def test_overall(borne_out: tuple[bool, ...], verdict: str) -> None:
    assert overall(dict(enumerate(borne_out))) == verdict


def test_d1_holds_and_notices_a_lost_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert d1.d1().verdict == "holds"
    complete = d1.enumerate_paths
    monkeypatch.setattr(d1, "enumerate_paths", lambda *a: list(complete(*a))[:-1])
    assert d1.d1().verdict == "fails"


def test_d8_counts_the_papers_architectures() -> None:
    claim = d8.d8()
    assert claim.verdict == "holds"
    gpt3 = claim.table.filter(model="GPT-3 (96, 96)")
    assert len(gpt3) == 97
    assert gpt3["value"].sum() == pytest.approx(1.0)
    assert gpt3.sort("value")["length"][-1] == 95  # 96 · 96/97 on average
    assert len(claim.reasons) == 9


def test_d8_notices_a_wrong_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(d8.PathCounts, "total", property(lambda _: 5))
    assert d8.d8().verdict == "fails"


def test_d9_holds_for_mixing_attention_and_fails_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = torch.tensor([[5, 17, 42, 8, 66, 23]])

    def mixing():
        model = lively("bert").double()
        with torch.no_grad():
            for layer in model.encoder.layer:
                layer.attention.self.query.weight.mul_(1e-3)
                layer.attention.self.query.bias.zero_()
        return load(model)

    claim = d9.d9([d5.Case("mixing", mixing)], texts=ids)
    assert claim.verdict == "holds"
    assert len(claim.table) == d9.PATHS * 3 * 2
    identity = torch.eye(6, dtype=torch.float64).unsqueeze(0)
    monkeypatch.setattr(d9, "chained_matrices", lambda *_, **__: iter([identity] * 3))
    assert d9.d9([d5.Case("mixing", mixing)], texts=ids).verdict == "fails"


def test_d5_tells_every_model_and_variant() -> None:
    ids = torch.tensor([[5, 17, 42, 8, 66, 23], [1, 2, 3, 4, 5, 6]])
    claim = d5.d5([case("bert"), case("gpt2")], texts=ids)
    assert claim.verdict in ("holds", "fails", "depends")
    assert claim.table.columns == ["model", "variant", "layer", "sample", "metric", "value"]
    assert claim.table["model"].unique(maintain_order=True).to_list() == ["bert", "gpt2"]
    assert len(claim.reasons) == 2
    fates = {"collapse": 0, "holds": 0, "slow": 0}
    for reason in claim.reasons:
        for fate in fates:
            fates[fate] += reason.count(f"({fate})")
    assert sum(fates.values()) == 8
