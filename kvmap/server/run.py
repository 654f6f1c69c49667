"""Running the server: from a free port to the last answer after SIGTERM."""

import asyncio
import errno
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import uvicorn

from kvmap.errors import KVMapError
from kvmap.evaluation.evidence import Evidence
from kvmap.server.answering import Service
from kvmap.server.app import create_app
from kvmap.server.contract import AnsweringEngine
from kvmap.server.engine_thread import EngineThread
from kvmap.server.metrics import Metrics
from kvmap.server.settings import ServerSettings

POLL_S = 0.05
FAREWELL_S = 5  # for sending what the engine has finished
BACKLOG = 2048


def serve(
    load: Callable[[], AnsweringEngine],
    settings: ServerSettings,
    evidence: Evidence | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was accepted; a second signal breaks it off.

    Args:
        load: Gives the engine. It is called in the thread that drives the engine, while the
            server already tells that it is not ready.
        settings: How the server runs.
        evidence: What the mapper is worth, told to clients; None for nothing to tell.

    Raises:
        KVMapError: The port cannot be had, or the engine cannot be loaded.
    """
    listener = listen(settings)
    host, port = listener.getsockname()[:2]
    server = Server(load, settings, evidence)
    print(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
    asyncio.run(server.run_on(listener))
    if server.thread.failure is not None:
        raise server.thread.failure


def listen(settings: ServerSettings) -> socket.socket:
    """A socket that listens, before anything that takes time is done.

    Raises:
        KVMapError: The address cannot be had.
    """
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise KVMapError(
                f"port {port} of {host} is in use; choose another with server.port="
            ) from error
        raise KVMapError(
            f"server.host={host} server.port={port} cannot be listened on ({error.strerror}); "
            "choose others"
        ) from error
    return listener


class Server(uvicorn.Server):
    """uvicorn, with an engine thread that finishes what was accepted before the server ends.

    Args:
        load: Gives the engine.
        settings: How the server runs.
        evidence: What the mapper is worth; None for nothing to tell.

    Attributes:
        thread: What drives the engine.
    """

    def __init__(
        self,
        load: Callable[[], AnsweringEngine],
        settings: ServerSettings,
        evidence: Evidence | None = None,
    ) -> None:
        metrics = Metrics()
        self.thread = EngineThread(load, settings.model, settings.queue, metrics)
        self._drain_s = settings.drain_s
        self._draining: asyncio.Task[None] | None = None
        app = create_app(Service(self.thread, settings, metrics, evidence))
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=FAREWELL_S,
            )
        )

    async def run_on(self, listener: socket.socket) -> None:
        """Serve on a socket until told to end, or until the engine fails."""
        watch = asyncio.create_task(self._watch())
        try:
            await self.serve(sockets=[listener])
        finally:
            watch.cancel()

    def drain(self) -> None:
        """Refuse new requests, finish the others, end; when called again, break the others off."""
        if self._draining is None:
            self._draining = asyncio.ensure_future(self._drain())
        else:
            self.thread.give_up()
            self.should_exit = True

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._drain_s
        self.thread.drain()
        while self.thread.busy and loop.time() < end:
            await asyncio.sleep(POLL_S)
        self.thread.give_up()
        self.should_exit = True

    async def _watch(self) -> None:
        while self.thread.ready is None and self.thread.failure is None:
            await asyncio.sleep(POLL_S)
        if self.thread.ready is not None:
            print(f"ready: model {self.thread.ready.served.model}", flush=True)
        while self.thread.failure is None:
            await asyncio.sleep(POLL_S)
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Drain on signals, where uvicorn would end and then let the signal kill the process."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread hears signals
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.drain)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                with suppress(RuntimeError):
                    loop.remove_signal_handler(number)
