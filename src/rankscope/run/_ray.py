"""Runs on a Ray cluster: retries, resources and waiting are its own. No other file imports Ray."""

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

from rankscope.arguments import Count, Positive, Range, checked
from rankscope.errors import InputError
from rankscope.process import passive_wait
from rankscope.run._engine import Outcome, Run, Work, carry_out, in_words, packed
from rankscope.version import __version__

_LEAST: Final = 16
"""Tasks that are outstanding at least, so that a cluster which can grow has a reason to."""
_AHEAD: Final = 4  # tasks that are outstanding for each that the cluster has room for at once
_COUNT_EVERY: Final = 10.0  # seconds after which a cluster is asked again how large it is

_ANSWER_WITHIN: Final = 10.0


@checked
class RayEngine:
    """Runs as tasks of the Ray cluster at ``address``, or else of a new one on this machine.

    Each asks for ``cpus``, ``gpus`` and ``memory`` (in GiB), and is repeated up to ``retries``
    times if its worker or node dies. At most ``outstanding`` tasks wait or run at once. Needs
    ``pip install "rankscope[ray]"``, and the same version of rankscope on every node.
    """

    def __init__(
        self,
        address: str | None = None,
        cpus: Annotated[float, Range(0)] = 1,
        gpus: Annotated[float, Range(0)] = 0,
        memory: Positive | None = None,
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
        self._room, self._counted = 0, -_COUNT_EVERY

    def outcomes(self, runs: Iterable[Run], work: Work) -> Iterator[Outcome]:
        """Each run's outcome as soon as it is there."""
        ray = self._connected()
        task = ray.remote(
            num_cpus=self.cpus, num_gpus=self.gpus, memory=self.memory, max_retries=self.retries
        )(_carried_out)
        rest = iter(runs)
        try:
            self._refuse_what_fits_nowhere(ray)
            while True:
                room = self._room_in(ray) - len(self._pending)
                for run in islice(rest, max(0, room)):
                    self._pending[task.remote(run, work, __version__)] = run
                if not self._pending:
                    return
                ready, _ = ray.wait(list(self._pending), num_returns=1)
                for reference in ready:
                    yield self._outcome(ray, reference)
        finally:
            self.close()

    def close(self) -> None:
        """Cancel what still runs, and leave the cluster as it was found."""
        if not self._pending and not self._is_ours:
            return
        import ray

        pending, self._pending = self._pending, {}
        if self._is_ours:  # our tasks end with us; cancelling them as well can bring Ray down
            self._is_ours = False
            ray.shutdown()
            return
        for reference in pending:
            with suppress(Exception):  # it may have ended just now, or the cluster may have
                ray.cancel(reference, force=True)

    def _connected(self) -> Any:
        """Ray, with a cluster; one that the program has already is used, and left alone."""
        try:
            import ray
        except ImportError:
            raise InputError(
                'this engine needs Ray, which is not installed: pip install "rankscope[ray]".'
            ) from None
        if not ray.is_initialized():
            self._is_ours = True
            # Ray itself would take the cluster that was started here last: another's, or long gone.
            address = self.address or os.environ.get("RAY_ADDRESS") or "local"
            try:
                _knock(address)
                ray.init(
                    address,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    runtime_env={"env_vars": passive_wait()},
                )
            except Exception as error:
                self.close()
                raise InputError(
                    f"no Ray cluster can be had at {address}: {in_words(error)}"
                ) from error
        return ray

    def _refuse_what_fits_nowhere(self, ray: Any) -> None:
        """Ray would wait for ever and say nothing; a cluster that was named may grow, though."""
        asked = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory or 0}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if self.address is not None or any(
            all(node.get(kind, 0) >= much for kind, much in asked.items()) for node in nodes
        ):
            return
        most = {kind: max((node.get(kind, 0) for node in nodes), default=0) for kind in asked}
        words = [f"{kind} {much:g} of {most[kind]:g}" for kind, much in asked.items() if much]
        raise InputError(f"no run would fit on this machine, each asks for {', '.join(words)}.")

    def _room_in(self, ray: Any) -> int:
        """How many tasks may be outstanding; a cluster can grow, so it is asked now and then."""
        if self.outstanding is not None:
            return self.outstanding
        if time.monotonic() - self._counted > _COUNT_EVERY:
            at_once = ray.cluster_resources().get("CPU", 0) / max(self.cpus, 0.1)
            self._room, self._counted = max(_LEAST, int(_AHEAD * at_once)), time.monotonic()
        return self._room

    def _outcome(self, ray: Any, reference: Any) -> Outcome:
        run = self._pending.pop(reference)
        try:
            outcome = pickle.loads(ray.get(reference))
        except Exception as error:  # its workers died too often, or it cannot be sent
            said = " ".join(in_words(error).split())
            crashed = isinstance(error, ray.exceptions.WorkerCrashedError)
            return Outcome(
                run, error=said, traceback=str(error), attempts=1 + self.retries * crashed
            )
        assert isinstance(outcome, Outcome)
        return outcome


def _knock(address: str) -> None:
    """See whether anyone answers at ``host:port``: Ray itself would try for some minutes."""
    named = re.fullmatch(r"(?:ray://)?\[?(.+?)\]?:(\d+)", address)
    if named is not None:
        with socket.create_connection((named[1], int(named[2])), timeout=_ANSWER_WITHIN):
            pass


def _carried_out(run: Run, work: Work, version: str) -> bytes:
    """On a node: the run's outcome, packed, of the version that its key stands for."""
    if version != __version__:
        differs = Outcome(
            run,
            error=f"{socket.gethostname()} has rankscope {__version__}, the sweep was started with "
            f"{version}; install the same version on every node.",
        )
        return packed(differs)
    return packed(carry_out(run, work, f"{socket.gethostname()}, process {os.getpid()}"))
