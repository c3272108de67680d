"""Scores: how queries and keys become attention matrices, one file for each kind.

A kind that users put into a ``Spec`` is a frozen value (``Sink``), which builds the module that
computes (``SinkScores``). All are row-stochastic, so whatever asks for no more than that (paths,
metrics of attention) holds for them; what the other rooms can do with each is in ``table``.
Tokens are known by their positions, which count real tokens, so padding changes nothing.

Scores that depend on the pair of positions (rotary, relative biases, ALiBi, XLNet's) turn the
doubly exponential collapse of plain attention into an exponential one (docs/theory.md, section 5).
"""
