"""The command line."""

from rankscope.cli import commands, experiment_commands, listing
from rankscope.cli.application import app, main

__all__ = ["app", "commands", "experiment_commands", "listing", "main"]
