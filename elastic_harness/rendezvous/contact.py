"""A node's contact with the others: the one thread that talks to the backend."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import random
import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe

from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend

from elastic_harness.rendezvous.member import Member
from elastic_harness.rendezvous.state import State
from elastic_harness.rendezvous.view import Phase

log = logging.getLogger(__name__)

_WORKING_POLL_SECONDS = 0.1
_JOINING_POLL_SECONDS = 0.03
_SECONDS_A_NODE = 0.0075  # so many nodes together do not look more often than this
_CONTENTION_SECONDS = 0.0025


class Contact:
    """Reads the state many times a second, lets the member decide, and writes, until it is stopped.

    What others ask of the member, they do under ``seen``, a condition that is notified after every look. So a backend
    that hangs holds up nobody else.

    Args:
        backend: holds the state.
        member: this node.
        endpoint: as it is named in the log.
    """

    def __init__(self, backend: RendezvousBackend, member: Member, endpoint: str) -> None:
        self.reader, self._writer = Pipe(duplex=False)
        self.seen = threading.Condition()
        self.answered: float | None = None
        self.error: Exception | None = None
        self._backend: RendezvousBackend | None = backend
        self._member = member
        self._endpoint = endpoint
        self._asked = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="rendezvous", daemon=True)

    @property
    def running(self) -> bool:
        """The thread has been started, and has not ended."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread, if it has not been started yet."""
        if not self.running:
            atexit.register(self.stop, 1.0)  # a thread that returns from C++ while Python ends would abort the process
            self._thread.start()

    def stop(self, timeout: float) -> bool:
        """End the thread and let go of the backend; whether that came about in time.

        Args:
            timeout: seconds to wait.
        """
        atexit.unregister(self.stop)
        self._stopped = True
        self._asked.set()
        if self.running:
            self._thread.join(timeout)
        self._backend = None
        self._writer.close()
        return not self.running

    def ask(self) -> None:
        """Look at once."""
        self._asked.set()

    def wait_briefly(self, condition: Callable[[], object], seconds: float) -> None:
        """Look at once, and wait until the condition holds, at most for some seconds."""
        if self.running:
            self.ask()
            with self.seen:
                self.seen.wait_for(condition, seconds)

    def rearm(self) -> None:
        """Make ``reader`` wait for the end of the next round."""
        while self.reader.poll():
            self.reader.recv_bytes()

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._look()
                self.error = None
            except (RendezvousError, ValueError) as error:
                if self.error is None:
                    log.warning("rendezvous %s does not answer: %s", self._endpoint, error.__cause__ or error)
                self.error = error
            with self.seen:
                self._signal()
                self.seen.notify_all()
            poll = _WORKING_POLL_SECONDS if self._member.phase is Phase.WORKING else _JOINING_POLL_SECONDS
            poll = max(poll, len(self._member.state.nodes) * _SECONDS_A_NODE)
            self._asked.wait(poll * random.uniform(0.5, 1.5))
            self._asked.clear()

    def _look(self) -> None:
        """Read the state and write what follows from it; again, if somebody else wrote in between."""
        assert self._backend is not None
        read = self._backend.get_state()
        for attempt in itertools.count(1):
            began = time.monotonic()
            with self.seen:
                self.answered = began
                new = self._member.step(State.from_bytes(read[0]) if read is not None else None, began)
            if new is None:
                return
            written = self._backend.set_state(new.to_bytes(), read[1] if read is not None else None)
            if written is not None and written[2]:
                with self.seen:
                    self._member.accepted(new, began)
                return
            read = written[:2] if written is not None else None
            if attempt > 1:
                # Many want to write. What was read is old after the pause.
                time.sleep(random.uniform(0, _CONTENTION_SECONDS * 2 ** min(attempt, 9)))
                read = self._backend.get_state()

    def _signal(self) -> None:
        """Make ``reader`` readable, once a round."""
        change = self._member.change(time.monotonic())
        if change is not None and not self.reader.poll():
            log.info("round over: %s", change.text)
            with contextlib.suppress(OSError):
                self._writer.send_bytes(b"changed")
