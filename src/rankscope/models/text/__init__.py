"""Sample text that ships with the tool, and the way from text to a network's input."""

from rankscope.models.text.embedding import embed
from rankscope.models.text.input_check import InputCheck, check_texts
from rankscope.models.text.paragraphs import paragraphs as paragraphs
from rankscope.models.text.tokenizer import Tokenizer, passages

__all__ = ["InputCheck", "Tokenizer", "check_texts", "embed", "passages"]
