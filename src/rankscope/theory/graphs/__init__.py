"""Masks as graphs, and how fast attention under a mask forgets."""
