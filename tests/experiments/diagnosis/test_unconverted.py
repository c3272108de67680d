"""Models that are not converted are diagnosed by what can be traced, with the same rules."""

import math
from collections.abc import Callable

import pytest
import torch
import transformers as hf
from torch import nn

import rankscope
from rankscope.ask import Subject, model_subject, module_subject
from rankscope.core.tracing import trace
from rankscope.errors import InputError, UnsupportedModelError
from rankscope.experiments.diagnosis import RULES
from rankscope.experiments.diagnosis._diagnose import _evidence
from rankscope.experiments.diagnosis._measure import ModelFigures, measure
from rankscope.experiments.questions.diagnose import ENTRY, Config, diagnose
from rankscope.models.families import Unconverted, load, load_any
from rankscope.results import Result

from ..shown import can_be_shown
from .foreign import FOREIGN, HandmadeViT, NanoGPT, clip_vision, seeded, token_ids, whisper

NEED_A_NETWORK = (
    "Path lengths",
    "The pure-attention core",
    "Bounds against measurement",
    "The design",
)


def encoder(*, batch_first: bool = True, norm_first: bool = False) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        16, 2, 32, batch_first=batch_first, norm_first=norm_first, dropout=0.0
    )
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


def figures(subject: Subject) -> ModelFigures:
    return measure(subject, lambda _: None)


def as_it_is(model: nn.Module) -> Unconverted:
    """A model that is not converted, or that is kept from it."""
    opened = load_any(model)
    if isinstance(opened, Unconverted):
        return opened
    reason = UnsupportedModelError("it was not to be converted.")
    return Unconverted(opened.original, opened.family, opened.name, reason)


def traced(model: nn.Module, ids: list[list[int]]) -> Result:
    subject = model_subject(as_it_is(model), ids=ids)
    return ENTRY.run(Config(subject, chapters=("all",)), lambda _: None)


def left_out(result: Result) -> list[str]:
    return [part.title for part in result.parts if part.sentences[0].startswith("Left out:")]


def finding(result: Result, kind: str):
    return next(found for found in result.findings if found.kind == kind)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_model_that_is_not_converted_is_diagnosed(name: str) -> None:
    model = seeded(FOREIGN[name])
    found = traced(model, token_ids(36, 36, 36, 36))
    assert [one.kind for one in found.findings] == [rule.name for rule in RULES]
    assert found.title.endswith("not converted")
    assert left_out(found) == list(NEED_A_NETWORK)
    reason = str(as_it_is(model).reason).partition("; rankscope.trace")[0].rstrip(".")
    for part in found.parts:
        if part.title in NEED_A_NETWORK:
            assert part.sentences == (f"Left out: {reason}.",)
    unknown = {one.kind for one in found.findings if one.fate == "unknown"}
    attends = name in ("deepseek_v3", "jamba", "qwen3_next")
    assert unknown == (set() if attends else {"entropy collapse"})
    if not attends:
        assert "no softmax attention" in finding(found, "entropy collapse").sentence
    can_be_shown(found)


def test_what_the_loader_refuses_is_diagnosed_with_its_own_words() -> None:
    model = seeded(FOREIGN["fnet"])
    with pytest.raises(UnsupportedModelError) as refused:
        load(model)
    found = diagnose(model, token_ids(36, 20, 36, 36))
    assert found.parts[-2].sentences[0].removeprefix("Left out: ")[:60] in str(refused.value)
    assert found.table.equals(traced(model, token_ids(36, 20, 36, 36)).table)


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (lambda: seeded(NanoGPT), torch.tensor(token_ids(36, 36, 36, 36))),
        (lambda: seeded(lambda: NanoGPT(fused=False)), {"idx": torch.tensor(token_ids(36, 36))}),
        (lambda: seeded(encoder), torch.randn(4, 36, 16, generator=torch.Generator())),
        (
            lambda: seeded(lambda: encoder(batch_first=False, norm_first=True)),
            torch.randn(36, 4, 16, generator=torch.Generator()),
        ),
        (lambda: seeded(HandmadeViT), torch.randn(4, 3, 24, 24, generator=torch.Generator())),
    ],
    ids=["nanoGPT", "eager nanoGPT", "encoder", "token-first encoder", "ViT"],
)
def test_a_module_is_diagnosed_on_its_own_inputs(
    make: Callable[[], nn.Module], inputs: object
) -> None:
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = diagnose(model, inputs, chapters="all")
    assert [one.kind for one in found.findings] == [rule.name for rule in RULES]
    assert left_out(found) == list(NEED_A_NETWORK)
    assert finding(found, "entropy collapse").fate != "unknown"
    assert sorted(set(found.table.filter(part="sublayers")["variant"]))[:2] == ["MLP", "attention"]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    can_be_shown(found)


@pytest.mark.parametrize("make", [whisper, clip_vision], ids=["whisper", "CLIP's images"])
def test_sounds_and_images_of_noise_stand_in_for_real_ones(make) -> None:
    found = diagnose(seeded(make))
    assert [one.kind for one in found.findings] == [rule.name for rule in RULES]
    assert found.table.filter(part="states", metric="relative_residual")["sample"].n_unique() == 32


def test_a_model_with_an_unknown_part_is_traced_on_images_that_are_given() -> None:
    images = torch.rand(4, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    found = diagnose(seeded(clip_vision), images)
    assert found.title == "CLIPVisionModel: clip_vision_model, 3 layers, not converted"
    assert finding(found, "width collapse").sentence.endswith("its input cannot be shortened.")


def test_figures_are_those_of_a_trace() -> None:
    for name in ("deepseek_v3", "jamba", "mamba"):
        model = seeded(FOREIGN[name])
        ids = token_ids(36, 20, 30)
        found = figures(model_subject(as_it_is(model), ids=ids))
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in ids], True)
        mask = padded > 0
        names = [one for one in found.states if one not in ("common_residual", "rank_share")]
        inputs = {"input_ids": padded, "attention_mask": mask.long()}
        rows = trace(model, inputs, metrics=names).table
        for metric in names:
            values = rows.filter(metric=metric).sort("layer", "sample")["value"].to_list()
            assert found.states[metric].flatten().tolist() == pytest.approx(values, rel=2e-4)


def test_attention_is_that_of_a_trace() -> None:
    model = seeded(FOREIGN["deepseek_v3"])
    ids = token_ids(36, 36)
    found = figures(model_subject(as_it_is(model), ids=ids))
    rows = trace(model, torch.tensor(ids), metrics=["attention_entropy", "dobrushin"]).table
    even = sum(math.log(seen) for seen in range(1, 37)) / 36  # uniform over what is seen
    entropy = rows.filter(metric="attention_entropy").sort("layer", "head", "sample")["value"]
    shares = found.heads["entropy_share"].flatten().tolist()
    assert shares == pytest.approx([value / even for value in entropy], rel=1e-4)
    tau = rows.filter(metric="dobrushin").sort("layer", "head", "sample")["value"].to_list()
    assert found.heads["dobrushin"].flatten().tolist() == pytest.approx(tau, rel=1e-4)


def test_eager_and_fused_attention_are_read_alike() -> None:
    models = [seeded(lambda fused=fused: NanoGPT(fused=fused)).double() for fused in (True, False)]
    ids = torch.tensor(token_ids(36, 36))
    one, other = (figures(module_subject(model, ids)) for model in models)
    torch.testing.assert_close(one.heads, other.heads)
    torch.testing.assert_close(one.logits, other.logits)
    assert (one.causal, other.causal) == (True, True)
    subject = module_subject(models[0], ids)
    assert _evidence(subject, one, torch.zeros(2), "", None).causal


def test_attention_in_both_directions_is_not_causal() -> None:
    subject = module_subject(seeded(encoder), torch.rand(2, 8, 16))
    assert not _evidence(subject, figures(subject), torch.zeros(2), "", None).causal


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_converted_model_has_the_same_figures_both_ways(name: str) -> None:
    made = {
        "bert": lambda: hf.BertModel(
            hf.BertConfig(
                vocab_size=97, hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
                intermediate_size=24, max_position_embeddings=64,
            )
        ),
        "gpt2": lambda: hf.GPT2Model(
            hf.GPT2Config(vocab_size=97, n_embd=16, n_layer=3, n_head=2, n_positions=64)
        ),
    }  # fmt: skip
    loaded = load(seeded(made[name]).double())
    reason = UnsupportedModelError("forced")
    forced = Unconverted(loaded.original, loaded.family, loaded.name, reason)
    ids = token_ids(36, 20, 30)
    ours, theirs = (figures(model_subject(one, ids=ids)) for one in (loaded, forced))
    torch.testing.assert_close(theirs.states, ours.states)
    torch.testing.assert_close(theirs.heads, ours.heads, equal_nan=True)
    for field in ("logits", "turned", "last_apart", "views", "values", "distances"):
        mine, other = getattr(ours, field), getattr(theirs, field)
        torch.testing.assert_close(other, mine, equal_nan=True)
    for field in ("changes", "alone", "sizes", "lengths", "spreads"):
        parts = getattr(theirs, field)
        for part in parts.keys() - {"block"}:
            torch.testing.assert_close(parts[part], getattr(ours, field)[part], equal_nan=True)
    assert bool(theirs.sizes["block"].isnan().all())  # every sublayer was confirmed


def test_steps_add_up_where_no_sublayer_is_known() -> None:
    class Whole(nn.Module):
        """A block that scales its state, which no sum of outputs explains."""

        def __init__(self) -> None:
            super().__init__()
            self.mix, self.inner = nn.Linear(16, 16), nn.Tanh()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 0.5 * x + 0.3 * self.inner(self.mix(x.mean(1, keepdim=True) + x))

    model = seeded(lambda: nn.Sequential(*(Whole() for _ in range(3))))
    x = torch.randn(3, 12, 16, generator=torch.Generator().manual_seed(0))
    found = figures(module_subject(model, x))
    assert list(found.changes) == ["block"]
    change = (found.residual[-1] / found.residual[0]).log10()
    torch.testing.assert_close(found.changes["block"].sum(0), change)
    assert "it computes no softmax attention" in found.unread


BROKEN: dict[str, tuple[Callable[[nn.Module], None], str, str]] = {}


def broken(kind: str, part: str):
    """Register what breaks the third layer, the finding it makes, and the part that is named."""

    def register(fault: Callable[[nn.Module], None]) -> Callable[[nn.Module], None]:
        BROKEN[fault.__name__] = (fault, kind, part)
        return fault

    return register


@broken("dead sublayer", "attention")
def values_of_zero(block: nn.Module) -> None:
    block.attn.c_attn.weight[32:] = 0.0
    block.attn.c_attn.bias[32:] = 0.0


@broken("dead sublayer", "MLP")
def norm_of_nothing(block: nn.Module) -> None:
    block.ln_2.weight.mul_(1e-4)


@broken("entropy collapse", "attention")
def sharp_logits(block: nn.Module) -> None:
    block.attn.c_attn.weight[:32].mul_(20.0)


@broken("dominating sublayer", "MLP")
def huge_mlp(block: nn.Module) -> None:
    block.mlp[2].weight.mul_(300.0)


@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_is_found_in_its_layer_and_sublayer(name: str) -> None:
    fault, kind, part = BROKEN[name]
    model = seeded(lambda: NanoGPT(layers=6))
    ids = torch.tensor(token_ids(40, 40, 40, 40))
    healthy = diagnose(model, ids)
    assert finding(healthy, kind).fate == "absent"
    with torch.no_grad():
        fault(model.h[2])
    found = finding(diagnose(model, ids), kind)
    assert found.fate in ("collapse", "slow")
    assert (found.layer, found.part) == (3, part)


def test_a_cause_is_named_by_its_path_and_repaired() -> None:
    model = seeded(FOREIGN["deepseek_v3"])
    with torch.no_grad():
        model.layers[2].self_attn.o_proj.weight.mul_(1e-6)
    found = finding(traced(model, token_ids(36, 36, 36, 36)), "dead sublayer")
    assert (found.layer, found.part) == (3, "attention")
    assert found.module == "layers.2.self_attn.o_proj.weight"
    assert "reinitialised" in found.remedy


def test_a_repaired_checkpoint_is_written(tmp_path) -> None:
    model = seeded(FOREIGN["fnet"])
    with torch.no_grad():
        model.encoder.layer[1].output.dense.weight.mul_(1e-6)
    diagnose(model, token_ids(36, 36, 36, 36), fix=tmp_path / "repaired")
    again = hf.FNetModel.from_pretrained(tmp_path / "repaired")
    old, new = (one.encoder.layer[1].output.dense.weight for one in (model, again))
    assert bool(new.norm() > 1e3 * old.norm())


def test_a_module_without_a_way_to_draw_it_has_no_twin_and_says_so() -> None:
    found = diagnose(seeded(HandmadeViT), torch.rand(4, 3, 24, 24))
    (layers,) = (part for part in found.parts if part.title == "Layer by layer")
    assert any(
        said == "There is no untrained twin: HandmadeViT has no reset_parameters() that would draw "
        "cls again."
        for said in layers.sentences
    )
    assert finding(found, "collapse between texts").fate == "unknown"


def test_the_twin_of_a_module_is_drawn_by_its_own_reset() -> None:
    model = seeded(encoder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.25)
    subject = module_subject(model, torch.rand(3, 8, 16))
    twin = subject.origin.fresh(1).traced.model.requires_grad_(False)
    assert float(twin.layers[0].self_attn.in_proj_weight.std()) > 0.05
    assert float(twin.layers[0].norm1.weight.mean()) == 1.0
    assert float(twin.layers[0].self_attn.out_proj.bias.abs().max()) == 0.0
    assert bool((model.layers[0].linear1.weight == 0.25).all())


def test_samples_of_different_lengths_run_without_padding_where_it_cannot_be_told() -> None:
    model, ids = seeded(FOREIGN["fnet"]), token_ids(36, 20, 30)
    found = figures(model_subject(model, ids=ids, any_model=True))
    for sample, row in enumerate(ids):
        alone = trace(model, torch.tensor([row]), metrics="relative_residual").table
        values = alone.sort("layer")["value"].to_list()
        assert found.residual[:, sample].tolist() == pytest.approx(values, rel=1e-5)


def test_a_network_refuses_with_the_reason_whatever_needs_it() -> None:
    subject = model_subject(seeded(FOREIGN["mamba"]), ids=token_ids(8, 8), any_model=True)
    for need in (
        lambda: subject.network.spec,
        lambda: subject.network.blocks,
        lambda: subject.network(subject.x),
        lambda: subject.without("skip"),
        lambda: subject.deep_trace(),
    ):
        with pytest.raises(UnsupportedModelError, match="MambaBlock"):
            need()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: diagnose(NanoGPT()), "has no tokeniser"),
        (lambda: diagnose(NanoGPT(), ["A rose."]), "has no tokeniser"),
        (
            lambda: diagnose(NanoGPT(), torch.ones(1, 4).long(), pickled=True),
            "pickled is not an option",
        ),
        (lambda: diagnose(clip_vision(), [[1, 2]]), "sees images"),
        (lambda: diagnose(whisper(), ["A rose."]), "takes input_features"),
        (lambda: diagnose(encoder(), torch.rand(2, 8, 16), fix="new"), "repaired checkpoint"),
    ],
)
def test_calls_that_mean_nothing_are_refused(call, says: str) -> None:
    with pytest.raises(InputError, match=says):
        call()


def test_a_model_without_random_networks_says_so_in_one_line() -> None:
    shape = {"vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = hf.MixtralConfig(
        **shape, num_key_value_heads=1, num_local_experts=2, intermediate_size=24,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = seeded(lambda: hf.MixtralModel(config))
    with torch.no_grad():
        for layer in model.layers:  # a depth collapse, for which remedies would be tried
            layer.self_attn.o_proj.weight.mul_(1e4)
            layer.self_attn.q_proj.weight.mul_(1e-3)
    found = diagnose(model, token_ids(36, 36))
    (design,) = (part for part in found.parts if part.title == "The design")
    assert len(design.sentences) == 1
    assert "mixtures of experts" in design.sentences[0]
    assert found.findings[0].fate != "absent"


def test_models_are_compared_whether_they_are_converted_or_not() -> None:
    bert = hf.BertConfig(
        vocab_size=97, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24,
    )  # fmt: skip
    models = {
        "BERT": seeded(lambda: hf.BertModel(bert)),
        "FNet": seeded(FOREIGN["fnet"]),
        "DeepSeek": seeded(FOREIGN["deepseek_v3"]),
    }
    found = rankscope.compare(models, token_ids(36, 20))
    assert set(found.table["variant"]) >= set(models)
    entropies = found.table.filter(metric="attention_entropy")["variant"].unique()
    assert set(entropies) == {"BERT", "DeepSeek"}


def test_a_model_that_adds_tokens_of_its_own_is_measured_on_all_of_them() -> None:
    class Prompted(hf.FNetModel):
        """Puts three tokens before every text."""

        def forward(self, input_ids: torch.Tensor):
            prompt = torch.arange(3, 6).expand(len(input_ids), -1)
            return super().forward(torch.cat([prompt, input_ids], 1))

    model = seeded(lambda: Prompted(seeded(FOREIGN["fnet"]).config))
    subject = model_subject(as_it_is(model), ids=token_ids(20, 20, 20))
    assert subject.x.shape == (3, 23, 16)
    rows = trace(model, torch.tensor(token_ids(20, 20, 20)), metrics="relative_residual").table
    values = rows.sort("layer", "sample")["value"].to_list()
    assert figures(subject).residual.flatten().tolist() == pytest.approx(values, rel=1e-5)
    assert len(traced(model, token_ids(20, 20, 20)).findings) == len(RULES)
    with pytest.raises(InputError, match="23 tokens for 20 in the input"):
        model_subject(as_it_is(model), ids=token_ids(20, 10))


def test_samples_of_given_inputs_are_picked_after_the_model_ran() -> None:
    model = seeded(lambda: encoder(batch_first=False))
    x = torch.randn(20, 9, 16, generator=torch.Generator().manual_seed(3))
    subject, some = module_subject(model, x), torch.tensor([7, 2])
    every, picked = figures(subject), figures(subject.of_samples(some))
    torch.testing.assert_close(picked.states, every.of_samples(some).states)
    torch.testing.assert_close(picked.heads, every.of_samples(some).heads)
    torch.testing.assert_close(picked.sizes, every.of_samples(some).sizes, equal_nan=True)


def test_an_input_that_a_model_does_not_take_is_refused_in_a_sentence() -> None:
    with pytest.raises(InputError, match=r"NanoGPT does not run on this input \(TypeError"):
        diagnose(NanoGPT(), {"tokens": torch.ones(1, 4).long()})


def test_a_broken_weight_is_named_before_the_model_runs() -> None:
    model = seeded(NanoGPT)
    name, weight = next((n, p) for n, p in model.named_parameters() if ".1." in n and p.ndim == 2)
    with torch.no_grad():
        weight[0, 0] = math.nan
    with pytest.raises(InputError, match=f"layer 2, {name} is nan at"):
        diagnose(model, torch.tensor(token_ids(20)))


def test_heads_are_listed_without_a_column_that_only_paths_could_fill() -> None:
    found = diagnose(seeded(NanoGPT), torch.tensor(token_ids(20, 20)))
    (part,) = (part for part in found.parts if part.title == "Heads and tokens")
    assert part.listings[0].columns[:2] == ("head", "entropy share")
    assert all(None not in row for row in part.listings[0].rows)
    assert not any("token(" in sentence for sentence in part.sentences)


def test_a_comparison_names_the_model_whose_weights_are_broken() -> None:
    good, bad = seeded(FOREIGN["fnet"]), seeded(FOREIGN["fnet"])
    with torch.no_grad():
        bad.encoder.layer[0].intermediate.dense.weight[0, 0] = math.nan
    with pytest.raises(InputError, match=r"second: layer 1, encoder\.layer\.0"):
        rankscope.compare({"first": good, "second": bad}, token_ids(20))
