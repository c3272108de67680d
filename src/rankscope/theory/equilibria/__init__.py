"""Equilibria of a step: designed, found, of every rank, and whether they are stable."""
