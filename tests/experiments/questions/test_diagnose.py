"""The main question on small networks: one answer, its chapters, and what they rest on."""

import json

import polars as pl
import pytest
import torch

from rankscope import results, tables
from rankscope.ask import PARTS, Subject
from rankscope.core.network import Network, Spec
from rankscope.core.tracing import trace
from rankscope.errors import InputError
from rankscope.experiments import diagnose, four_variants
from rankscope.experiments.diagnosis import RULES
from rankscope.experiments.diagnosis._chapters import trace_ablations
from rankscope.experiments.diagnosis._diagnose import _answers
from rankscope.experiments.questions.diagnose import ENTRY, Config
from rankscope.models.text import InputCheck, embed, passages
from rankscope.results import Finding
from rankscope.show import report

from ..shown import can_be_shown, steps_of

SPEC = Spec(4, 2, 16, norm_place="post", norm_eps=1e-12, init=0.1)
CHAPTERS = [
    "Between texts",
    "Layer by layer",
    "Heads and tokens",
    "Spectrum, angles and sizes",
    "Path lengths",
    "The pure-attention core",
    "Bounds against measurement",
    "The design",
    "What the model read",
]


def inputs() -> dict[str, torch.Tensor]:
    x, token_mask = embed(passages()[:3], 16, length=40, dtype=torch.float64)
    return {"inputs": x, "token_mask": token_mask}


@pytest.fixture(scope="module")
def found():
    network = Network.random(SPEC, dtype=torch.float64)
    return diagnose(network, **inputs(), batch_size=2, chapters="all")


@pytest.fixture(scope="module")
def collapsed():
    network = Network.random(SPEC, dtype=torch.float64).without("skip", "mlp")
    return diagnose(network, **inputs())


def test_the_answer_is_known_before_any_chapter_runs(found, monkeypatch) -> None:
    x, token_mask = inputs().values()
    network = Network.random(SPEC, dtype=torch.float64)
    subject = Subject(network, x, token_mask, batch_size=2, title=found.title)
    runs = ENTRY.results(Config(subject, chapters=("all",)))
    with monkeypatch.context() as patched:
        for name in ("embedding_figures", "text_rows"):
            patched.delattr(f"rankscope.experiments.diagnosis._diagnose.{name}")
        patched.delattr("rankscope.experiments.diagnosis._chapters.trace_ablations")
        patched.delattr("rankscope.experiments.diagnosis._asked.answer")
        answer = next(runs)
    (whole,) = runs
    assert (answer.headline, answer.answers) == (found.headline, found.answers)
    assert (whole.headline, whole.answers) == (found.headline, found.answers)
    assert answer.parts == ()
    assert whole.table.equals(found.table)


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


def test_every_kind_is_judged_and_every_chapter_there(found) -> None:
    assert [each.kind for each in found.findings] == [rule.name for rule in RULES]
    assert [each.rule for each in found.findings] == [rule.text for rule in RULES]
    assert [part.title for part in found.parts] == CHAPTERS
    assert all(each.sentence.endswith(".") for each in found.findings)


@pytest.mark.parametrize(
    ("asked", "missing"),
    [
        ({}, CHAPTERS[4:7]),
        ({"chapters": ("paths", "design")}, CHAPTERS[5:7]),
        ({"chapters": ()}, CHAPTERS[4:8]),
    ],
)
def test_chapters_are_those_asked_for_and_the_answer_is_the_same(found, asked, missing) -> None:
    network = Network.random(SPEC, dtype=torch.float64)
    fewer = diagnose(network, **inputs(), batch_size=2, **asked)
    assert [part.title for part in fewer.parts] == [
        title for title in CHAPTERS if title not in missing
    ]
    assert fewer.answers == found.answers
    assert fewer.findings == found.findings
    assert fewer.stem != found.stem
    note = fewer.parts[-1].sentences[-1]
    assert "--chapters all" in note
    assert all(title in note for title in missing)
    assert "--chapters all" not in " ".join(found.parts[-1].sentences)
    with_part = found.table.filter(pl.col("part").is_in(fewer.table["part"].unique().to_list()))
    assert fewer.table.equals(with_part.select(fewer.table.columns))


def test_an_unknown_chapter_is_refused() -> None:
    with pytest.raises(InputError, match=r"chapters.*paths, core, bounds, design, all"):
        diagnose(Network.random(SPEC), torch.randn(1, 4, 16), chapters="path")


def test_the_answer_has_its_figures(found) -> None:
    assert found.headline.text.startswith("No collapse")
    residuals = tables.summary(found.table.filter(part="states", variant="this model"))
    curve = residuals.filter(metric="relative_residual").sort("layer")["median"].to_list()
    layer, depth = curve.index(min(curve)), found.findings[0]
    assert found.key_figures["lowest_relative_residual"] == pytest.approx(curve[layer])
    assert found.key_figures["lowest_at_layer"] == layer
    assert (depth.figure, depth.layer) == (pytest.approx(curve[layer]), layer)
    assert f"{curve[layer]:.2g} at its lowest (layer {layer})" in depth.sentence
    assert list(found.answers) == ["where", "why", "untrained", "what now"]
    assert "With random weights in its blocks the relative residual" in found.answers["untrained"]
    assert "The relative dispersion predicted for random weights is" in found.answers["untrained"]


def test_it_can_be_shown_written_and_read_back(found, tmp_path) -> None:
    can_be_shown(found)
    assert results.read(results.write(found, tmp_path / "d.parquet")).parts == found.parts
    written = json.loads(json.dumps(report.to_json(found)))
    assert written["headline"] == {"text": found.headline.text, "tone": found.headline.tone}
    assert [each["kind"] for each in written["findings"]] == [rule.name for rule in RULES]


def test_figures_equal_a_plain_trace(found) -> None:
    x, mask = inputs().values()
    san = Network.random(SPEC, dtype=torch.float64).without("skip", "mlp")
    for variant, network in (("SAN", san), ("this model", Network.random(SPEC, dtype=x.dtype))):
        expected = trace(network, x, metrics=["relative_residual"], token_mask=mask).table
        got = found.table.filter(variant=variant, metric="relative_residual")
        in_order = [each.sort("layer", "sample")["value"].to_list() for each in (got, expected)]
        assert in_order[0] == pytest.approx(in_order[1])


def test_the_reference_is_another_network_than_the_one_asked_about(found) -> None:
    own, other = (
        found.table.filter(variant=each, metric="relative_residual").sort("layer", "sample")
        for each in ("this model", "random weights")
    )
    assert own.height == other.height
    ends = [each.filter(pl.col("layer") == 4)["value"].to_list() for each in (own, other)]
    assert ends[0] != pytest.approx(ends[1])


def test_a_collapse_is_the_headline_with_its_layer_and_part(collapsed) -> None:
    depth = collapsed.findings[0]
    assert (depth.fate, depth.part) == ("collapse", "attention")
    assert collapsed.headline.tone == "collapse"
    assert collapsed.headline.text.startswith(f"Depth collapse, layer {depth.layer} (attention)")
    assert collapsed.sentences[0] == depth.sentence


def test_what_helps_is_tried_on_the_very_weights(collapsed) -> None:
    advice = next(part for part in collapsed.parts if part.title == "The design")
    rows = {row[0]: row[1:] for row in advice.listings[0].rows}
    assert rows["unchanged"][0] < 1e-3
    assert rows["skips added"][0] > 0.1
    x, mask = inputs().values()
    whole = Network.random(SPEC, dtype=torch.float64).without("mlp")
    expected = tables.summary(trace(whole, x, metrics=["relative_residual"], token_mask=mask).table)
    assert rows["skips added"][1] == pytest.approx(expected.sort("layer")["median"][-1])


def test_nothing_is_tried_where_nothing_is_wrong(found) -> None:
    advice = next(part for part in found.parts if part.title == "The design")
    assert advice.listings == ()


def test_samples_that_disagree_are_said_in_the_headline() -> None:
    x = torch.randn(2, 40, 16, generator=torch.Generator().manual_seed(0))
    x[1, -1] = x[1, 7]
    told = diagnose(Network.random(Spec(3, 2, 16, init=0.1)), x)
    assert told.headline.text == "Merged last token in 1 of 2 samples"


def test_text_that_does_not_fit_gets_no_verdict() -> None:
    x, mask = inputs().values()
    lengths = mask.sum(-1).tolist()
    unknown = InputCheck(
        "text",
        tuple(("[UNK]",) * length for length in lengths),
        unknown=tuple(tuple(range(length)) for length in lengths),
    )
    subject = Subject(Network.random(SPEC, dtype=x.dtype), x, mask, check=unknown)
    told = ENTRY.run(Config(subject), lambda _: None)
    assert told.headline.text == "No verdict: the text does not fit the model"
    assert (told.headline.tone, told.findings) == ("neutral", ())
    assert "are unknown to the tokeniser" in told.warnings[0]
    assert [part.title for part in told.parts] == ["What the model read"]


def test_the_reading_of_san_is_honoured() -> None:
    x, mask = inputs().values()
    subject = Subject(Network.random(SPEC, dtype=x.dtype), x, mask)
    last = []
    for parts in PARTS:
        table = trace_ablations(subject, parts, lambda _: None).filter(layer=4)
        last.append(tuple(table.filter(pl.col("variant").is_in(["SAN+MLP", "SAN+skip"]))["value"]))
    assert len(set(last)) == len(PARTS) == 4


def test_all_of_the_subject_is_honoured() -> None:
    x, token_mask = inputs().values()
    network = Network.random(SPEC, dtype=torch.float64)
    measured = token_mask.clone()
    measured[:, 0] = False
    subject = Subject(
        network, x, token_mask, measured, title="mine", about={"text": "a poem"}, batch_size=2
    )
    told, _ = steps_of(ENTRY.run, Config(subject, chapters=("all",)))
    assert told.title == "mine"
    assert told.provenance["text"] == "a poem"
    assert told.provenance["special tokens"] == "left out of the figures"
    left_out = [part.title for part in told.parts if "Left out:" in " ".join(part.sentences)]
    assert left_out == ["Bounds against measurement", "The design"]
    can_be_shown(told)


def test_the_same_seed_gives_the_same_answer(found) -> None:
    network = Network.random(SPEC, dtype=torch.float64)
    again = diagnose(network, **inputs(), batch_size=2, chapters="all")
    assert again.table.equals(found.table)
    assert again.parts == found.parts
    assert again.stem == found.stem


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda net, _: diagnose(net, [[1, 2]]), "reads hidden states"),
        (lambda net, x: diagnose(net, token_mask=x[..., 0] > 0), "give them, too"),
        (lambda net, x: diagnose(net, x, pickled=True), "pickled applies to loading"),
        (lambda _, x: diagnose("bert-base", x, at_init=True), "are for a Network"),
    ],
)
def test_calls_that_mean_nothing_are_refused(call, says: str) -> None:
    with pytest.raises(InputError, match=says):
        call(Network.random(SPEC), inputs()["inputs"].float())


@pytest.mark.parametrize("tokens", [2, 5])
def test_few_tokens_are_diagnosed_as_far_as_they_go(tokens: int) -> None:
    x = torch.randn(1, tokens, 16, generator=torch.Generator().manual_seed(0))
    told = diagnose(Network.random(Spec(1, 2, 16)), x)
    assert told.findings[1].fate == "unknown"
    can_be_shown(told)


def test_samples_with_one_token_are_left_out_and_said() -> None:
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, 1:] = False
    network = Network.random(Spec(2, 2, 16, init="lecun"))
    told = diagnose(network, x, token_mask=mask)
    assert told.warnings == ("Left out: 1 of 2 samples, with fewer than two tokens that count.",)
    assert told.findings[0].samples == 1
    with pytest.raises(InputError, match="no sample has two tokens that count"):
        diagnose(network, x[:, :1])


def test_attention_to_oneself_alone_has_no_entropy_and_no_chart_of_it() -> None:
    x = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(0))
    told = diagnose(Network.random(Spec(1, 2, 16, mask=torch.eye(6).bool())), x)
    assert told.findings[2].fate == "unknown"
    assert "entropy_share" not in {each.metric for each in told.all_drawings}
    can_be_shown(told)


def test_broken_weights_are_named_before_anything_is_run() -> None:
    network = Network.random(Spec(1, 2, 16))
    with torch.no_grad():
        network.blocks[0].attention.query.weight[0, 0] = torch.nan
    with pytest.raises(InputError, match=r"attention\.query\.weight"):
        diagnose(network, torch.randn(1, 6, 16))


def test_the_screen_has_the_first_finding_its_cause_and_what_mends_it() -> None:
    def made(kind: str, **more: str) -> Finding:
        return Finding(kind, "collapse", f"{kind} is there.", "a rule", **more)

    blamed = made("entropy collapse", cause="A weight.", remedy="Halve it.")
    alone = _answers([blamed, made("depth collapse")], "Lost.", "Beside.", None)
    assert alone == [
        ("where", "entropy collapse is there."),
        ("", "depth collapse is there."),
        ("why", "A weight."),
        ("", "Beside."),
        ("what now", "Halve it."),
    ]
    unblamed = _answers([made("depth collapse")], "Lost.", "Beside.", None)
    assert [label for label, _ in unblamed] == ["where", "why", "untrained", "what now"]
