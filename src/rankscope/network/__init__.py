"""The one transformer we own: spec, blocks, masks, and variants that share weights."""

from rankscope.masks import Causal, Explicit, Full, Mask, Window
from rankscope.network.attention import Attention
from rankscope.network.block import Block, Branch, Step
from rankscope.network.initial import Init
from rankscope.network.mlp import MLP
from rankscope.network.network import Network
from rankscope.network.norms import Sphere
from rankscope.network.patterns import (
    ALiBi,
    GaussianKernel,
    LinearKernel,
    Linformer,
    Sink,
    Sparsemax,
)
from rankscope.network.scores import Described, ScoreKind, Scores
from rankscope.network.sight import Sight, sight
from rankscope.network.spec import Spec

__all__ = [
    "MLP",
    "ALiBi",
    "Attention",
    "Block",
    "Branch",
    "Causal",
    "Described",
    "Explicit",
    "Full",
    "GaussianKernel",
    "Init",
    "LinearKernel",
    "Linformer",
    "Mask",
    "Network",
    "ScoreKind",
    "Scores",
    "Sight",
    "Sink",
    "Sparsemax",
    "Spec",
    "Sphere",
    "Step",
    "Window",
    "sight",
]
