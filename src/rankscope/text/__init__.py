"""Sample text that ships with the tool, and the way from text to a network's input."""

from rankscope.text.embedding import embed
from rankscope.text.input_check import InputCheck, check_texts
from rankscope.text.paragraphs import paragraphs as paragraphs
from rankscope.text.tokenizer import Tokenizer, passages

__all__ = ["InputCheck", "Tokenizer", "check_texts", "embed", "passages"]
