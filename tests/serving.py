"""A server on a free loopback port, in a thread of this process."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from fake_engine import FakeEngine
from openai import OpenAI

from kvmap.evaluation.evidence import Evidence
from kvmap.server.run import Server, listen
from kvmap.server.settings import ServerSettings

PATIENCE_S = 20


@dataclass(frozen=True)
class Running:
    """A server that answers.

    Attributes:
        url: Its root.
        engine: What it drives.
        server: The server itself.
    """

    url: str
    engine: FakeEngine
    server: Server

    def openai(self, key: str = "none", retries: int = 0) -> OpenAI:
        """OpenAI's own client."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=retries)

    def http(self) -> httpx.Client:
        """A plain client."""
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def metrics(self) -> dict[str, float]:
        """What ``/metrics`` says, by sample name and labels."""
        from prometheus_client.parser import text_string_to_metric_families

        text = httpx.get(f"{self.url}/metrics").text
        return {
            sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@contextmanager
def running(
    engine: FakeEngine, wait: bool = True, evidence: Evidence | None = None, **settings: object
) -> Iterator[Running]:
    """Serve an engine for as long as the block lasts."""
    chosen = ServerSettings(port=0, **settings)  # type: ignore[arg-type]
    listener = listen(chosen)
    port = listener.getsockname()[1]
    server = Server(lambda: engine, chosen, evidence)
    thread = threading.Thread(target=lambda: asyncio.run(server.run_on(listener)), daemon=True)
    thread.start()
    try:
        if wait:
            until(lambda: server.started and server.thread.ready is not None)
        yield Running(f"http://127.0.0.1:{port}", engine, server)
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server does not end"


def until(true: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Wait until something is true."""
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
