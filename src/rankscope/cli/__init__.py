"""The command line."""

from rankscope.cli import commands, depth_commands
from rankscope.cli.application import app, main

__all__ = ["app", "commands", "depth_commands", "main"]
