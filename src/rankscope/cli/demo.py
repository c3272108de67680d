"""A random model of MiniLM's size with one fault, and the same model without it; no download."""

import copy
import zlib
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from rankscope.arguments import Seed, checked
from rankscope.ask import Subject, model_subject
from rankscope.models.families import load
from rankscope.models.text import passages
from rankscope.process import require
from rankscope.streams import global_stream

FAULT = "encoder.layer.3.output.LayerNorm.weight"
FACTOR = 1e-4
_WORDS = 4096
_SAMPLES, _TOKENS = 8, 48


class Pair(NamedTuple):
    """The same model on the same texts, with one norm's gain near zero and without."""

    broken: Subject
    healthy: Subject


@checked
def demo_pair(seed: Seed = 0) -> Pair:
    """Both models as subjects of a diagnosis.

    >>> pair = demo_pair()
    >>> pair.broken.network.spec.layers, pair.broken.name == pair.healthy.name
    (6, False)
    """
    transformers = require("transformers")
    config = transformers.BertConfig(
        vocab_size=_WORDS,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
    )
    with global_stream(seed, "demo"):
        healthy = transformers.BertModel(config).eval()
        for module in healthy.modules():
            if isinstance(module, nn.LayerNorm):  # trained biases are not zero
                nn.init.normal_(module.bias, std=0.1)
    broken = copy.deepcopy(healthy)
    with torch.no_grad():
        broken.get_parameter(FAULT).mul_(FACTOR)
    # Hash words to ids: an untrained model needs no tokeniser of its own.
    ids = [
        [3 + zlib.crc32(word.encode()) % (_WORDS - 3) for word in text.lower().split()][:_TOKENS]
        for text in passages()[:_SAMPLES]
    ]
    names = {"A BERT with a fault": broken, "The same BERT without it": healthy}
    subjects = [
        model_subject(replace(load(model), name=name), ids=ids, seed=seed)
        for name, model in names.items()
    ]
    return Pair(*subjects)
