"""Sample text that ships with the tool, and the way from text to a network's input."""

from rankscope.models.text._reading import InputCheck, Tokenizer, check_texts, embed, passages
from rankscope.models.text._reading import paragraphs as paragraphs

__all__ = ["InputCheck", "Tokenizer", "check_texts", "embed", "passages"]
