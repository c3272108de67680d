"""The command line."""

from rankscope.cli import commands, experiment_commands, listing, sweep_command
from rankscope.cli.application import app, main

__all__ = [
    "app",
    "commands",
    "experiment_commands",
    "listing",
    "main",
    "sweep_command",
]
