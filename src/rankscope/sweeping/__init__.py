"""Many runs of experiments over a grid of settings; what is done is kept, whatever happens."""

from rankscope.sweeping._run import Run, Setting, Work

__all__ = ["Run", "Setting", "Work"]
