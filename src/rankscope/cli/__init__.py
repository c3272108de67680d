"""The command line."""

from rankscope.process import optional_packages

with optional_packages():
    from rankscope.cli import commands, listing, monitor_commands, sweep_command
    from rankscope.cli.application import app, main

__all__ = ["app", "commands", "listing", "main", "monitor_commands", "sweep_command"]
