"""Nothing of ours is imported that Windows does not have; what libraries do there is theirs."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import rankscope

SOURCE = Path(rankscope.__file__).parent
MISSING = ("fcntl", "resource", "termios", "tty", "pty", "grp", "pwd", "syslog")


def test_no_file_imports_a_module_that_is_missing_there():
    imported = {
        alias.name if isinstance(node, ast.Import) else node.module
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert "sqlite3" in imported
    assert not imported & set(MISSING)


def test_sweeps_are_imported_without_functions_that_are_missing_there():
    code = f"""
import importlib, os, pkgutil, signal, socket, sys
for name in {MISSING}:
    sys.modules[name] = None
for module, names in ((os, "fork killpg setsid mkfifo chown sched_getaffinity geteuid"),
                      (signal, "SIGKILL SIGCHLD SIGHUP pause"),
                      (socket, "send_fds recv_fds AF_UNIX")):
    for name in names.split():
        delattr(module, name)
import rankscope.run, rankscope.process
for found in pkgutil.iter_modules(rankscope.process.__path__, "rankscope.process."):
    importlib.import_module(found.name)
for name in ("drive", "status", "table", "Inline", "Processes", "RayEngine", "claim_runs"):
    getattr(rankscope.run, name)
from rankscope.process.pool import CAN_FORK
assert not CAN_FORK
"""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
