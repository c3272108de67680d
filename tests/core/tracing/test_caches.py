"""Generation with a cache: the prompt pass, a later step, masks wider than the hidden states."""

import pytest
import torch
import transformers as hf

from rankscope.core.metrics import residual
from rankscope.core.tracing import captured_states, trace
from rankscope.core.tracing._inputs import copy_caches
from rankscope.errors import InputError, KindError

IDS = torch.arange(14).reshape(2, 7)
OLD = 4
"""Tokens that are in the cache already."""


@pytest.fixture(scope="module")
def model():
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = hf.LlamaConfig(vocab_size=99, num_hidden_layers=3, **shape)
        return hf.LlamaForCausalLM(config).eval()


def empty(model, kind):
    if kind == "static":
        return hf.StaticCache(config=model.config, max_cache_len=16)
    return hf.DynamicCache(config=model.config)


def filled(model, kind="dynamic", tokens=OLD):
    """A cache of the first tokens, which holds the graph it was computed in."""
    cache = empty(model, kind)
    model(input_ids=IDS[:, :tokens], past_key_values=cache)
    return cache


def figures(found):
    columns = (found.columns[name] for name in ("value", "metric"))
    return [value for value, name in zip(*columns, strict=True) if name == "relative_residual"]


def expected(model, mask=None):
    """Of the new tokens alone, from one pass over all of them: a causal model makes the same."""
    states = captured_states(list(model.model.layers), lambda: model(input_ids=IDS))
    counted = None if mask is None else mask[:, OLD:].bool()
    each = [residual(state[:, OLD:], relative=True, token_mask=counted) for state in states]
    return torch.stack(each).flatten().tolist()


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_the_prompt_pass_is_a_pass_like_any_other(model, kind):
    plain = trace(model, {"input_ids": IDS})
    cached = trace(model, {"input_ids": IDS, "use_cache": True})
    given = trace(model, {"input_ids": IDS, "past_key_values": empty(model, kind)})
    assert cached.columns == plain.columns
    assert figures(given) == pytest.approx(figures(plain), rel=1e-5)
    assert max(given.columns["layer"]) == 3


@pytest.mark.parametrize("width", [None, 7, 16])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_later_step_is_about_the_new_tokens(model, kind, width):
    """A mask has an entry for every token in the cache, and may have one for every empty place."""
    inputs = {"input_ids": IDS[:, OLD:], "past_key_values": filled(model, kind)}
    if width is not None:
        inputs["attention_mask"] = (torch.arange(width) < 7).long().repeat(2, 1)
    found = trace(model, inputs)
    assert figures(found) == pytest.approx(expected(model), rel=1e-4)
    if width is not None:
        assert "entries 4 to 6" in found.provenance.settings["mask"]


def test_padding_among_the_new_tokens_is_read_from_their_end_of_the_mask(model):
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, 6] = 0
    cache = filled(model)
    given = {"input_ids": IDS[:, OLD:], "past_key_values": cache, "attention_mask": mask}
    assert figures(trace(model, given)) == pytest.approx(expected(model, mask), rel=1e-4)


def test_zeros_on_the_right_are_not_taken_for_the_old_tokens_place(model):
    """The first entries of this mask are all ones, and none of them is about a new token."""
    mask = (torch.arange(7) < OLD).long().expand(2, 7)
    given = {"input_ids": IDS[:, OLD:], "past_key_values": filled(model), "attention_mask": mask}
    with pytest.raises(InputError, match="leaves no token"):
        trace(model, given)


def test_a_mask_that_leaves_the_cache_out_is_refused(model):
    mask = torch.ones(2, 5, dtype=torch.long)
    given = {"input_ids": IDS[:, OLD:], "past_key_values": filled(model), "attention_mask": mask}
    with pytest.raises(
        InputError, match="5 entries per sample for 4 tokens in the cache and 3 new"
    ):
        trace(model, given)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_cache_is_left_as_it_was_and_is_part_of_the_provenance(model, kind):
    cache = filled(model, kind)
    keys = cache.layers[0].keys.clone()
    given = {"input_ids": IDS[:, OLD:], "past_key_values": cache}
    first, again = trace(model, given), trace(model, given)
    assert int(cache.get_seq_length()) == OLD
    assert torch.equal(cache.layers[0].keys, keys)
    assert first.columns == again.columns
    assert first.provenance == again.provenance
    other = trace(model, {**given, "past_key_values": filled(model, kind, tokens=3)})
    assert other.provenance.inputs != first.provenance.inputs


def test_an_encoders_mask_is_not_about_the_decoders_cache():
    shape = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_heads": 2, "num_layers": 2}
    t5 = hf.T5Model(hf.T5Config(vocab_size=99, **shape)).eval()
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, 5:] = 0
    given = {"input_ids": IDS, "attention_mask": mask, "decoder_input_ids": IDS[:, :3]}
    cache = t5(**given, use_cache=True).past_key_values
    later = {**given, "decoder_input_ids": IDS[:, 3:5], "past_key_values": cache}
    known = trace(t5, given, blocks="encoder.block").columns
    assert trace(t5, later, blocks="encoder.block").columns == known
    seen = trace(t5, {**later, "decoder_attention_mask": mask[1:, :5]. expand(2, 5)},
                 blocks="decoder.block")  # fmt: skip
    assert "entries 3 to 4" in seen.provenance.settings["mask"]


def test_keys_and_values_in_tuples_count_too(tokens):
    """As own models have them, and transformers once had."""

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(8, 8).double())
                                              for _ in range(2))  # fmt: skip

        def forward(self, inputs_embeds, attention_mask, past_key_values):  # noqa: ARG002
            for layer in self.layers:
                inputs_embeds = inputs_embeds + layer(inputs_embeds)
            return inputs_embeds

    past = ((tokens(2, 1, OLD, 8), tokens(2, 1, OLD, 8)),)
    given = {"inputs_embeds": tokens(2, 3, 8), "past_key_values": past}
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, 5] = 0
    model = Own()
    found = trace(model, {**given, "attention_mask": mask})
    told = trace(model, {**given, "attention_mask": mask}, token_mask=mask[:, OLD:].bool())
    assert found.columns == told.columns


def test_generation_itself_is_refused_in_words(model):
    class Generates(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask):
            more = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
            return self.model.generate(input_ids, attention_mask=attention_mask, **more)

    with pytest.raises(KindError, match=r"model is a method, expected a torch\.nn\.Module"):
        trace(model.generate, {"input_ids": IDS})
    with pytest.raises(InputError, match=r"one plain forward pass \(no generate\(\)"):
        trace(Generates(), (IDS, torch.ones_like(IDS)))


def attention_figures(found, name):
    columns = (found.columns[each] for each in ("value", "metric"))
    return [value for value, metric in zip(*columns, strict=True) if metric == name]


@pytest.mark.parametrize("told", [False, True])
def test_attention_with_a_cache_takes_the_whole_mask_and_states_its_end(model, told):
    """Padding on the left is in the cache; the oracle is one pass over all tokens."""
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, :2] = 0
    mask[1, 5] = 0
    cache = empty(model, "dynamic")
    model(input_ids=IDS[:, :OLD], past_key_values=cache, attention_mask=mask[:, :OLD])
    given = {"input_ids": IDS[:, OLD:], "past_key_values": cache, "attention_mask": mask}
    metrics = ["relative_residual", "attention_entropy", "sink_mass"]
    found = trace(model, given, metrics=metrics, token_mask=mask.bool() if told else None)
    assert found.columns["value"] == pytest.approx(
        trace(model, given, metrics=metrics).columns["value"], rel=1e-6
    )
    eager = hf.LlamaForCausalLM(model.config).eval()
    eager.load_state_dict(model.state_dict())
    eager.set_attn_implementation("eager")
    p = eager(input_ids=IDS, attention_mask=mask, output_attentions=True).attentions
    for name, first in (("attention_entropy", None), ("sink_mass", (2, 0))):
        expected = []
        for matrix in p:
            for sample in range(2):
                rows = matrix[sample, :, OLD:][:, mask[sample, OLD:].bool()].double()
                each = (-torch.special.xlogy(rows, rows).sum(-1) if first is None
                        else rows[..., first[sample]])  # fmt: skip
                expected += each.mean(-1).tolist()
        assert attention_figures(found, name) == pytest.approx(expected, rel=1e-4)


def test_empty_places_of_a_cache_are_no_keys(model):
    """All tokens are real, so the mask says nothing that the model's own does not."""
    for kind in ("dynamic", "static"):
        mask = torch.ones(2, 7, dtype=torch.long)
        given = {"input_ids": IDS[:, OLD:], "past_key_values": filled(model, kind)}
        plain = trace(model, given, metrics=["attention_entropy"])
        masked = trace(model, {**given, "attention_mask": mask}, metrics=["attention_entropy"])
        assert masked.columns["value"] == pytest.approx(plain.columns["value"], rel=1e-5)


def test_nothing_inside_a_cache_is_shared():
    class Cache:
        def __init__(self):
            pair = (torch.zeros(2), [torch.zeros(2)])
            self.by_layer = {0: pair, "size": torch.Size([2])}

        def get_seq_length(self):
            return 2

    cache = Cache()
    twin = copy_caches(cache)
    assert twin.by_layer is not cache.by_layer
    assert twin.by_layer["size"] == torch.Size([2])
    twin.by_layer[0][0].add_(1)
    twin.by_layer[0][1][0].add_(1)
    assert cache.by_layer[0][0].tolist() == cache.by_layer[0][1][0].tolist() == [0, 0]
