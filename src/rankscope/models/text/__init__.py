"""Sample text that ships with the tool, and the way from text to a network's input."""

from rankscope.models.text._input_check import InputCheck, check_texts
from rankscope.models.text._reading import Tokenizer, embed, passages
from rankscope.models.text._reading import paragraphs as paragraphs

__all__ = ["InputCheck", "Tokenizer", "check_texts", "embed", "passages"]
