"""Families: what the numbers of a model do not tell about its architecture.

Most architectures need no entry: their blocks are recognised. To describe one, enter a ``Family``
in ``FAMILIES``, or offer it from another package as an entry point of ``rankscope.families``.
"""

import math
from collections.abc import Iterator, Mapping
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any

import torch
from torch import nn

from rankscope.arguments import checked
from rankscope.core import network
from rankscope.core.masks import Full
from rankscope.core.network import MLP, Attention, Init, Scores, View
from rankscope.errors import InputError
from rankscope.models.families._family import Family, Original, config_of
from rankscope.models.recognition import (
    ACTIVATION_NAMES,
    AttentionParts,
    HeadAxis,
    Observed,
    Reading,
    RecognisedBlock,
    confirmed,
)


def _bert(config: Any) -> Mapping[str, Any]:
    """Embeddings are normalised; ELECTRA's are projected after that."""
    narrow = getattr(config, "embedding_size", config.hidden_size)
    projected = narrow != config.hidden_size
    return {"embedding_scale": config.initializer_range * math.sqrt(narrow) if projected else 1.0}


def _albert(config: Any) -> Mapping[str, Any]:
    """Embeddings are normalised in fewer features, then projected."""
    return {"embedding_scale": config.initializer_range * math.sqrt(config.embedding_size)}


def _albert_layers(body: Original) -> list[nn.Module]:
    """The layers of each group, which all layers of a stretch of the network share."""
    groups, depth = body.encoder.albert_layer_groups, body.config.num_hidden_layers
    return [
        layer
        for index in range(depth)
        for layer in groups[index * len(groups) // depth].albert_layers
    ]


def _gpt2(config: Any) -> Mapping[str, Any]:
    """Projections into the stream are smaller; embeddings of words and positions are added."""
    deviation, into_stream = config.initializer_range, 1 / math.sqrt(2 * config.n_layer)
    return {
        "init": Init("normal", deviation, {"output": into_stream, "down": into_stream}),
        "embedding_scale": math.sqrt(2) * deviation,
    }


def _t5(config: Any) -> Mapping[str, Any]:
    return {
        "init": Init("lecun", config.initializer_factor, {"query": config.d_kv**-0.5}),
        "embedding_scale": config.initializer_factor,
    }


def _xlnet(config: Any) -> Mapping[str, Any]:
    return {"embedding_scale": config.initializer_range}  # no norm follows its embeddings


def _xlnet_block(observed: Observed, body: Original, config: Any) -> RecognisedBlock:
    """XLNet keeps its matrices as tensors with a head axis and scores sinusoids of distances.

    Bidirectional, without memory, one segment: what a model sees that reads a text.
    """
    del body
    layer: Original = observed.block
    inner, scale = layer.rel_attn, 1 / math.sqrt(config.d_head)
    query, key, value, project = (View(inner, HeadAxis(), weight=name) for name in "qkvr")
    scores = network.SinusoidKeys(
        content_bias=inner.r_w_bias,
        position_bias=inner.r_r_bias,
        project=project,
        width=config.d_model,
        scale=scale,
        farthest=config.clamp_len if config.clamp_len > 0 else None,
    )
    attention = Attention(
        query=query,
        key=key,
        value=value,
        output=View(inner, HeadAxis(out_of_heads=True), weight="o"),
        scores=scores,
        heads=config.n_head,
        kv_heads=config.n_head,
        scale=scale,
    )
    mlp = MLP(
        up=layer.ff.layer_1,
        down=layer.ff.layer_2,
        gate=None,
        activation=ACTIVATION_NAMES.get(config.ff_activation, config.ff_activation),
    )
    norms = {"attention": inner.layer_norm, "mlp": layer.ff.layer_norm}
    fields = {"norm_place": "post", "parallel": False}
    made = RecognisedBlock(attention, mlp, norms, Full(), fields, "sinusoids of distances")
    return confirmed(made, observed)


def _deberta_scores(parts: AttentionParts) -> Iterator[Reading[Scores]]:
    """DeBERTa v2 and v3: queries and keys also score an embedding of their distance."""
    encoder: Original = parts.body.encoder
    inner: Original = parts.owners[0]
    if not inner.relative_attention:
        yield Reading("", Scores)
        return
    terms = list(inner.pos_att_type)
    # The original rounds this root to float32.
    scale = 1 / float(torch.tensor(parts.head_width * (1.0 + len(terms))).sqrt())
    by_term = {"c2p": ("pos_key_proj", inner.key_proj), "p2c": ("pos_query_proj", inner.query_proj)}
    key, query = (
        (shared if inner.share_att_key else getattr(inner, own)) if term in terms else None
        for term, (own, shared) in by_term.items()
    )
    yield Reading(
        "disentangled positions",
        partial(
            network.DisentangledScores,
            encoder.get_rel_embedding,
            key=key,
            query=query,
            scale=scale,
            span=inner.pos_ebd_size,
            buckets=inner.position_buckets,
            farthest=inner.max_relative_positions,
        ),
    )


FAMILIES: tuple[Family, ...] = (
    Family("BERT", ("bert", "electra"), initialised=_bert, expects={"add_cross_attention": False}),
    Family("RoBERTa", ("roberta", "xlm-roberta", "camembert"), initialised=_bert),
    Family("ALBERT", ("albert",), layers=_albert_layers, initialised=_albert),
    Family(
        "XLNet",
        ("xlnet",),
        recognise=_xlnet_block,
        token_axis=0,
        initialised=_xlnet,
        expects={"attn_type": "bi", "bi_data": False},
    ),
    Family("DeBERTa", ("deberta-v2",), scores=_deberta_scores, initialised=_bert),
    Family("DistilBERT", ("distilbert",)),
    Family("GPT-2", ("gpt2",), initialised=_gpt2, expects={"add_cross_attention": False}),
    Family("Llama", ("llama", "mistral", "qwen2", "qwen3")),
    Family("GPT-NeoX", ("gpt_neox",)),
    Family("T5 encoder", ("t5", "mt5"), body="encoder", initialised=_t5),
    Family("ViT", ("vit", "deit")),
)


@cache
def _offered() -> tuple[Family, ...]:
    """Descriptions that other installed packages offer."""
    offered = []
    for entry in entry_points(group="rankscope.families"):
        family = entry.load()
        if not isinstance(family, Family):
            raise InputError(
                f"the entry point {entry.name} of rankscope.families is a "
                f"{type(family).__name__}, expected a rankscope.families.Family."
            )
        offered.append(family)
    return tuple(offered)


@checked
def family_of(model: nn.Module) -> Family:
    """The family of a model, by the type its configuration states; else a description of its own.

    >>> import transformers
    >>> from rankscope.models.families import family_of
    >>> small = transformers.GPT2Config(vocab_size=9, n_positions=9, n_embd=8, n_layer=2, n_head=2)
    >>> family_of(transformers.GPT2Model(small)).name
    'GPT-2'

    A family that another package offers takes the place of one of ours.
    """
    config = config_of(model)
    kind = getattr(config, "model_type", None)
    for family in (*_offered(), *FAMILIES):
        if kind is not None and kind in family.model_types:
            return family
    return Family(str(kind or type(model).__name__))
