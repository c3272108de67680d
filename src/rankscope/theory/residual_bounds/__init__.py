"""Bounds on the residual, and networks whose residual never shrinks."""
