"""Execute runs on a Ray cluster. No other file imports Ray."""

import logging
import os
import pickle
import re
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any, Final

from rankscope.arguments import Count, Range, checked
from rankscope.errors import InputError
from rankscope.process import passive_wait, require
from rankscope.run._engine import Run, RunOutcome, Work, carry_out, in_words, packed
from rankscope.version import __version__

_LEAST: Final = 16
"""Minimum number of queued tasks, so that an autoscaling cluster grows."""
_AHEAD: Final = 4  # queued tasks per task that the cluster can run at once
_COUNT_EVERY: Final = 10.0  # seconds between queries of the size of the cluster

_CONNECT_WITHIN: Final = 10.0


@checked
class RayEngine:
    """Execute runs as tasks of the Ray cluster at ``address`` (default: a new local one).

    >>> from rankscope.run import RayEngine
    >>> engine = RayEngine(cpus=2, memory=8)
    >>> engine.cpus, engine.memory == 8 * 2**30
    (2, True)

    Each task requests ``cpus``, ``gpus`` and ``memory`` (in GiB), and is repeated up to ``retries``
    times if its worker or node dies. At most ``outstanding`` tasks are queued or running. Needs
    ``pip install "rankscope[ray]"``, and the same version of rankscope on every node.
    """

    def __init__(
        self,
        address: str | None = None,
        cpus: Annotated[float, Range(0)] = 1,
        gpus: Annotated[float, Range(0)] = 0,
        memory: Annotated[float, Range(5e-324, 1e9)] | None = None,
        retries: Annotated[int, Range(0)] = 3,
        outstanding: Count | None = None,
    ) -> None:
        self.address = address
        self.cpus, self.gpus = cpus, gpus
        self.memory = None if memory is None else round(memory * 2**30)
        self.retries = retries
        self.outstanding = outstanding
        self._pending: dict[Any, Run] = {}
        self._is_ours = False
        self._capacity, self._counted = 0, -_COUNT_EVERY

    def outcomes(self, runs: Iterable[Run], work: Work) -> Iterator[RunOutcome]:
        """Yield each run's outcome as soon as it is available."""
        ray = self._connected()
        task = ray.remote(
            num_cpus=self.cpus, num_gpus=self.gpus, memory=self.memory, max_retries=self.retries
        )(_carried_out)
        rest = iter(runs)
        try:
            self._check_resources(ray)
            while True:
                free = self._queue_size(ray) - len(self._pending)
                for run in islice(rest, max(0, free)):
                    self._pending[task.remote(run, work, __version__)] = run
                if not self._pending:
                    return
                ready, _ = ray.wait(list(self._pending), num_returns=1)
                for reference in ready:
                    yield self._outcome(ray, reference)
        finally:
            self.close()

    def close(self) -> None:
        """Cancel running tasks; shut the cluster down if this engine started it."""
        if not self._pending and not self._is_ours:
            return
        ray = require("ray")
        pending, self._pending = self._pending, {}
        if self._is_ours:  # this ends our tasks; cancelling them as well can crash Ray
            self._is_ours = False
            ray.shutdown()
            return
        for reference in pending:
            with suppress(Exception):  # the task or the cluster may just have ended
                ray.cancel(reference, force=True)

    def _connected(self) -> Any:
        """Ray, connected to a cluster; an existing connection of the program is reused."""
        ray = require("ray")
        if not ray.is_initialized():
            self._is_ours = True
            # Ray's default is the cluster last started here: another user's, or gone.
            address = self.address or os.environ.get("RAY_ADDRESS") or "local"
            try:
                _check_connection(address)
                ray.init(
                    address,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    runtime_env={"env_vars": passive_wait()},
                )
            except Exception as error:
                self.close()
                raise InputError(
                    f"cannot connect to a Ray cluster at {address}: {in_words(error)}"
                ) from error
        return ray

    def _check_resources(self, ray: Any) -> None:
        """Raise if no node can run a task: Ray would wait for ever. A named cluster may grow."""
        asked = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory or 0}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if self.address is not None or any(
            all(node.get(kind, 0) >= much for kind, much in asked.items()) for node in nodes
        ):
            return
        most = {kind: max((node.get(kind, 0) for node in nodes), default=0) for kind in asked}
        words = [f"{much:g} {kind} of {most[kind]:g}" for kind, much in asked.items() if much]
        raise InputError(f"no node can run a task, which needs {', '.join(words)} available.")

    def _queue_size(self, ray: Any) -> int:
        """The maximum number of outstanding tasks; a cluster can grow, so query it repeatedly."""
        if self.outstanding is not None:
            return self.outstanding
        if time.monotonic() - self._counted > _COUNT_EVERY:
            at_once = ray.cluster_resources().get("CPU", 0) / max(self.cpus, 0.1)
            self._capacity, self._counted = max(_LEAST, int(_AHEAD * at_once)), time.monotonic()
        return self._capacity

    def _outcome(self, ray: Any, reference: Any) -> RunOutcome:
        run = self._pending.pop(reference)
        try:
            outcome = pickle.loads(ray.get(reference))
        except Exception as error:  # its workers died too often, or it cannot be unpickled
            message = " ".join(in_words(error).split())
            crashed = isinstance(error, ray.exceptions.WorkerCrashedError)
            return RunOutcome(
                run, error=message, traceback=str(error), attempts=1 + self.retries * crashed
            )
        assert isinstance(outcome, RunOutcome)
        return outcome


def _check_connection(address: str) -> None:
    """Raise if ``host:port`` does not accept connections: Ray would try for minutes."""
    named = re.fullmatch(r"(?:ray://)?\[?(.+?)\]?:(\d+)", address)
    if named is not None:
        with socket.create_connection((named[1], int(named[2])), timeout=_CONNECT_WITHIN):
            pass


def _carried_out(run: Run, work: Work, version: str) -> bytes:
    """Executed on a node: the pickled outcome of a run, computed by the version of its key."""
    if version != __version__:
        differs = RunOutcome(
            run,
            error=f"{socket.gethostname()} has rankscope {__version__}, the sweep was started with "
            f"{version}; install the same version on every node.",
        )
        return packed(differs)
    return packed(carry_out(run, work, f"{socket.gethostname()}, process {os.getpid()}"))
