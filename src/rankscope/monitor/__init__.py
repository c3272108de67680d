"""Watch a training run: what is measured, kept and judged."""
