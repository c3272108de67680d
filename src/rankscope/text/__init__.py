"""Sample text that ships with the tool, and the way from text to a network's input."""

from rankscope.text.embedding import embed
from rankscope.text.tokenizer import Tokenizer, passages

__all__ = ["Tokenizer", "embed", "passages"]
