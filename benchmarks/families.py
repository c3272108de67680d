"""Is our network as fast as the original it was built from, and as sparing with memory?"""

import time
from collections.abc import Callable

import torch
import transformers as hf
from torch import nn

from measuring import Job, Ratio, interleaved, peak_bytes
from rankscope import load
from rankscope.models.text import passages

OURS, THEIRS = "our network", "the original"
_SHAPE = {
    "vocab_size": 500, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
    "intermediate_size": 512, "max_position_embeddings": 512,
}  # fmt: skip
_GROUPED = {**_SHAPE, "num_key_value_heads": 4}
_LATENT = {
    "num_key_value_heads": 8, "first_k_dense_replace": 4, "kv_lora_rank": 64, "q_lora_rank": 64,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 32, "head_dim": 16,
}  # fmt: skip
_DEBERTA = {
    "relative_attention": True, "position_buckets": 64, "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
}  # fmt: skip
_MARKS = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
SMALL: dict[str, Callable[[], nn.Module]] = {
    "BERT": lambda: hf.BertModel(hf.BertConfig(**_SHAPE)),
    "DeBERTa": lambda: hf.DebertaV2Model(hf.DebertaV2Config(**_SHAPE, **_DEBERTA)),
    "ModernBERT": lambda: hf.ModernBertModel(hf.ModernBertConfig(**_SHAPE, **_MARKS)),
    "MPNet": lambda: hf.MPNetModel(hf.MPNetConfig(**_SHAPE)),
    "Llama": lambda: hf.LlamaModel(hf.LlamaConfig(**_GROUPED)),
    "GPT-NeoX": lambda: hf.GPTNeoXModel(hf.GPTNeoXConfig(**_SHAPE)),
    "Falcon": lambda: hf.FalconModel(hf.FalconConfig(**_SHAPE)),
    "BLOOM": lambda: hf.BloomModel(
        hf.BloomConfig(vocab_size=500, hidden_size=256, n_layer=4, n_head=8)
    ),
    "Phi-3": lambda: hf.Phi3Model(hf.Phi3Config(**_GROUPED, pad_token_id=0)),
    "OLMo 2": lambda: hf.Olmo2Model(hf.Olmo2Config(**_GROUPED)),
    "Gemma 2": lambda: hf.Gemma2Model(hf.Gemma2Config(**_GROUPED, head_dim=32)),
    "Gemma 3": lambda: hf.Gemma3TextModel(hf.Gemma3TextConfig(**_GROUPED, head_dim=32)),
    "Mixtral": lambda: hf.MixtralModel(hf.MixtralConfig(**_GROUPED, num_local_experts=4)),
    "DeepSeek-V3": lambda: hf.DeepseekV3Model(hf.DeepseekV3Config(**_SHAPE, **_LATENT)),
}
"""Small configurations of architectures whose blocks differ."""


def main() -> list[Ratio]:
    """Blocks of BERT-base, and of small models of many kinds; and how long a conversion takes."""
    return [*_bert(), _small(), _conversion()]


def _small() -> Ratio:
    """Our blocks beside the original's on 4 × 128 tokens; the slowest of all counts."""
    slowest = 0.0
    print("Our blocks / the original's, small configurations, 4 × 128 tokens")
    for name, make in SMALL.items():
        torch.manual_seed(0)
        loaded = load(make().eval())
        ids = torch.randint(5, 400, (4, 128), generator=torch.Generator().manual_seed(0))
        x, _, _ = loaded.inputs(ids)
        given = loaded.arguments(ids)
        jobs: dict[str, Job] = {
            THEIRS: lambda loaded=loaded, given=given: loaded.body(**given),
            OURS: lambda loaded=loaded, x=x: loaded.network(x),
        }
        with torch.no_grad():
            ratio = interleaved(jobs, rounds=21).ratio(OURS, THEIRS)
        print(f"  {name:<26} {ratio:.2f}")
        slowest = max(slowest, ratio)
    return Ratio("our blocks / the original, slowest of 14 kinds", slowest, 1.1)


def _conversion() -> Ratio:
    """A Llama of 135 million parameters, recognised and verified, beside loading it."""
    shape = {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9}
    more = {"num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152}
    model = hf.LlamaModel(hf.LlamaConfig(**shape, **more)).eval()
    begun = time.perf_counter()
    load(model)
    seconds = time.perf_counter() - begun
    print(f"Converting and verifying a Llama of 135 million parameters: {seconds:.2f} s")
    return Ratio("conversion of 135 million parameters / 3 s", seconds / 3, 1.0)


def _bert() -> list[Ratio]:
    """BERT-base at initialisation, 8 passages of 128 tokens, the blocks of both."""
    loaded = load("bert-base", at_init=True)
    x, token_mask, _ = loaded.inputs(passages()[:8], length=128)
    blocks = loaded.body.encoder
    assert bool(token_mask.all())
    jobs: dict[str, Job] = {THEIRS: lambda: blocks(x), OURS: lambda: loaded.network(x)}
    with torch.no_grad():
        seconds = interleaved(jobs, rounds=15)
        peaks = {name: peak_bytes(job) for name, job in jobs.items()}
    one_layer = 8 * 12 * 128 * 128 * 4
    print(f"Forward pass, BERT-base, 8 × 128 tokens, {torch.get_num_threads()} threads")
    for name in jobs:
        print(f"  {name:<26} {seconds[name] * 1e3:8.0f} ms   peak {peaks[name] / 2**20:.1f} MiB")
    print(f"  (one layer's attention matrices would be {one_layer / 2**20:.1f} MiB)")
    return [Ratio("our forward pass / the original's", seconds.ratio(OURS, THEIRS), 1.1)]


if __name__ == "__main__":
    main()
