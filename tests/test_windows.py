"""Nothing of ours needs what Windows does not have; what libraries do there is theirs."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import rankscope
from rankscope.process import files, is_path, pool

SOURCE = Path(rankscope.__file__).parent
MISSING = ("fcntl", "resource", "termios", "tty", "pty", "grp", "pwd", "syslog", "readline")
HIDDEN = {  # names that a module has here and not on Windows with Python 3.11
    "os": """chown fchmod fchown fork forkpty getegid geteuid getgid getgroups getloadavg getpgid
        getpriority getuid initgroups killpg lchown mkfifo mknod nice openpty pipe2 posix_spawn
        sched_getaffinity sched_setaffinity set_blocking setpgid setsid setuid statvfs sync sysconf
        uname wait wait3 O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK""",
    "signal": """SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGQUIT SIGTSTP SIGUSR1 SIGUSR2 alarm pause
        pthread_kill pthread_sigmask setitimer sigwait""",
    "socket": "recv_fds send_fds",  # socketpair, which uses AF_UNIX here, is emulated there
    "time": "clock_gettime tzset",
    "select": "poll epoll",
}
LIBRARIES = """torch torch.utils._sympy.functions torch.fx.experimental.proxy_tensor torch._dynamo
    polars altair vl_convert rich.console rich.progress typer jinja2 scipy.sparse.csgraph
    transformers uvicorn starlette.applications uvicorn.protocols.http.h11_impl sqlite3
    concurrent.futures.thread multiprocessing.connection tempfile shutil subprocess"""
WITHOUT = f"""
import importlib, pkgutil, sys
for name in {LIBRARIES.split()}:
    importlib.import_module(name)
for name in {MISSING}:
    sys.modules[name] = None
for name, hidden in {HIDDEN}.items():
    for attribute in hidden.split():
        delattr(importlib.import_module(name), attribute)
"""
IMPORTS = """
import rankscope
names = [found.name for found in pkgutil.walk_packages(rankscope.__path__, "rankscope.")]
for name in names:
    if not name.endswith(("_kernel", "_kernels", "__main__")):  # Triton is for Linux
        importlib.import_module(name)
assert len(names) > 250, len(names)
assert not rankscope.process.CAN_FORK
"""
USES = """
import torch
from rankscope.process import Worker, available_memory, free_address_space, prompt_interruption
from rankscope.process import write_file
available_memory(), free_address_space()
for content in (b"first", b"second"):
    write_file("kept.txt", content)
assert open("kept.txt").read() == "second"
worker = Worker("rankscope.process.fingerprints:fingerprint")
worker.wait_until_ready()
worker.close()
net = rankscope.Network.random(rankscope.Spec(2, 2, 8), seed=0)
with prompt_interruption():
    trace = rankscope.trace(net, torch.randn(1, 4, 8))
assert type(trace).load(trace.save("trace.parquet")).table.equals(trace.table)
"""


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


def test_every_module_is_imported_and_used_without_what_is_missing_there(tmp_path):
    """Files are replaced, a worker starts and ends, Ctrl-C is watched for, a trace is measured."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + IMPORTS + USES], env=environment, cwd=tmp_path,
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_process_is_ended_and_a_folder_left_alone_as_windows_wants(tmp_path, monkeypatch):
    ended = []
    monkeypatch.setattr(os, "kill", lambda pid, kind: ended.append((pid, kind)))
    monkeypatch.delattr(os, "killpg")
    monkeypatch.setattr(os, "open", None)
    monkeypatch.setattr(os, "name", "nt")
    pool._kill_session(7)
    files.settle(tmp_path)  # a folder cannot be opened there
    assert ended == [(7, signal.SIGTERM)]


def test_paths_of_windows_are_no_ids_of_the_hub():
    for path in (r"C:\models\bert", r"models\bert", "D:bert", r"\\server\share\bert"):
        assert is_path(path)
    assert not is_path("google/vit")
    assert not is_path("bert-base")


def test_every_text_file_names_its_encoding():
    """Windows' default is not UTF-8; ruff knows where one is left out."""
    command = [sys.executable, "-m", "ruff", "check", "--preview", "--select", "PLW1514", "-q"]
    done = subprocess.run([*command, str(SOURCE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
