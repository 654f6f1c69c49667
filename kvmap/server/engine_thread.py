"""The one thread that drives the engine, and the queue before it."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import chain

from kvmap.runtime.options import Abandoned, RequestError
from kvmap.server.contract import AnsweringEngine, PieceStream
from kvmap.server.errors import busy, failed, invalid, unready
from kvmap.server.job import Job
from kvmap.server.metrics import Metrics
from kvmap.server.ready import Ready
from kvmap.server.summary import Served, Summary

LOG = logging.getLogger(__name__)
LONGEST_WAIT_S = 60


class EngineThread:
    """Loads an engine and answers jobs with it, first come, first served.

    Args:
        load: Gives the engine; called in the thread, as everything that is asked of the engine.
        model: The name under which it is served; None for the pair's.
        queue: Jobs that may wait while one is answered.
        metrics: What is counted.

    Attributes:
        ready: None until the engine is loaded and its self-test has passed.
        failure: Why it will never be.
    """

    def __init__(
        self,
        load: Callable[[], AnsweringEngine],
        model: str | None,
        queue: int,
        metrics: Metrics,
    ) -> None:
        self._load, self._model, self._limit, self._metrics = load, model, queue, metrics
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._draining = self._stopping = False
        self._seconds_per_job = 0.0
        self._thread = threading.Thread(target=self._run, name="kvmap-engine", daemon=True)
        self.ready: Ready | None = None
        self.failure: BaseException | None = None
        metrics.queue_length.set_function(lambda: len(self._waiting))

    # What the event loop calls; none of it waits for the engine.

    def start(self) -> None:
        """Start loading."""
        self._thread.start()

    def require(self) -> Ready:
        """What is served.

        Raises:
            APIError: Nothing is yet, or the server is shutting down.
        """
        if self._draining:
            raise unready("the server is shutting down; ask another one")
        if self.ready is None:
            raise unready("the models are being loaded; try again later")
        return self.ready

    def require_place(self) -> None:
        """Refuse early what :meth:`submit` would refuse.

        Raises:
            APIError: The queue is full.
        """
        if len(self._waiting) + (self._running is not None) > self._limit:
            raise busy(min(max(1, math.ceil(self._seconds_per_job)), LONGEST_WAIT_S))

    def submit(self, job: Job) -> None:
        """Put a job at the queue's end.

        Raises:
            APIError: The queue is full, or the server does not answer prompts.
        """
        with self._changed:
            self.require()
            self.require_place()
            self._waiting.append(job)
            self._changed.notify()

    def abandon(self, job: Job) -> None:
        """Take a job out of the queue, or let its generation end after the round that runs."""
        job.abandoned = True
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                self._metrics.aborts.inc()

    @property
    def busy(self) -> bool:
        """Whether a job runs or waits."""
        return self._running is not None or bool(self._waiting)

    def drain(self) -> None:
        """Accept no more jobs."""
        self._draining = True

    def give_up(self) -> None:
        """Tell every job that is left that the server goes."""
        with self._changed:
            jobs = [*self._waiting, *([self._running] if self._running else [])]
        for job in jobs:
            self.abandon(job)
            job.post(unready("the server is shutting down; the answer was broken off"))

    def stop(self, timeout_s: float) -> None:
        """End the thread after the round that runs; wait so long for it at most."""
        self.drain()
        self.give_up()
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # What runs in the thread.

    def _run(self) -> None:
        try:
            engine = self._load()
            engine.self_test()
            self.ready = Ready.of(engine, self._model)
            while (job := self._take()) is not None:
                self._answer(engine, self.ready.served, job)
                with self._changed:
                    self._running = None
        except BaseException as error:  # handed on to whoever started the server
            self.ready, self.failure = None, error

    def _take(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping)
            if self._stopping:
                return None
            self._running = self._waiting.popleft()
            return self._running

    def _answer(self, engine: AnsweringEngine, served: Served, job: Job) -> None:
        started = time.perf_counter()
        stream: PieceStream | None = None
        try:
            stream = engine.stream(job.prompt, job.options, lambda: not job.abandoned)
            self._deliver(engine, served, job, stream, started)
        except Abandoned:
            self._metrics.aborts.inc()
        except RequestError as error:
            job.post(invalid(str(error)))
        except Exception as error:
            LOG.error("a request failed", exc_info=error)
            job.post(failed())
        finally:
            if stream is not None:
                stream.close()
                self._metrics.count(stream.stats)
            self._metrics.live_bytes.set(engine.live_bytes)
            spent = time.perf_counter() - started
            self._seconds_per_job += (spent - self._seconds_per_job) / 4

    def _deliver(
        self,
        engine: AnsweringEngine,
        served: Served,
        job: Job,
        stream: PieceStream,
        started: float,
    ) -> None:
        """Post a stream's pieces until it ends or nobody waits for them."""
        first = next(stream)
        ttft = time.perf_counter() - job.submitted
        for piece in chain((first,), stream):
            self._metrics.live_bytes.set(engine.live_bytes)
            if job.abandoned:
                self._metrics.aborts.inc()
                return  # before the stream is exhausted, so that no session is kept
            job.post(piece)
            if piece.finish_reason is not None:
                summary = Summary.of(served, stream.stats, started - job.submitted, ttft)
                self._metrics.finish(summary)
                job.post(summary)
