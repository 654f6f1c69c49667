"""How a server ends when it is told to."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
from serving import until

SCRIPT = Path(__file__).parent / "serve_fake.py"
BODY = {"model": "fake", "prompt": "a b c", "max_tokens": 40, "ignore_eos": True}


class Process(NamedTuple):
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    url: str


@contextmanager
def process(delay: float, drain_s: float) -> Iterator[Process]:
    command = [sys.executable, str(SCRIPT), str(delay), str(drain_s)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            until(lambda: httpx.get(f"{url}/ready").status_code == 200)
            yield Process(server, url)
        finally:
            server.kill()


def ask(url: str, stream: bool = False) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json={**BODY, "stream": stream}, timeout=20)


def test_sigterm_finishes_what_was_accepted_and_refuses_the_rest() -> None:
    with process(delay=0.04, drain_s=20) as server, ThreadPoolExecutor(4) as pool:
        accepted = [pool.submit(ask, server.url, stream=number % 2 == 0) for number in range(4)]
        until(lambda: "kvmap_queue_length 3.0" in httpx.get(f"{server.url}/metrics").text)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
        assert ask(server.url).status_code == 503
        assert httpx.get(f"{server.url}/health").status_code == 200
        for each in accepted:
            answer = each.result()
            assert answer.status_code == 200
            assert "[DONE]" in answer.text or answer.json()["usage"]["completion_tokens"] == 40
        assert server.process.wait(timeout=20) == 0
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""


def test_after_the_grace_period_what_is_left_is_told_and_the_exit_is_clean() -> None:
    with process(delay=0.5, drain_s=0.3) as server, ThreadPoolExecutor(2) as pool:
        running, queued = (pool.submit(ask, server.url, stream) for stream in (True, False))
        until(lambda: "kvmap_queue_length 1.0" in httpx.get(f"{server.url}/metrics").text)
        time.sleep(0.6)  # the first has begun its stream
        server.process.send_signal(signal.SIGTERM)
        answers = [running.result(), queued.result()]
        assert server.process.wait(timeout=20) == 0
    assert {answer.status_code for answer in answers} <= {200, 503}
    assert all("shutting down" in answer.text for answer in answers)


def test_a_second_signal_does_not_wait() -> None:
    with process(delay=0.2, drain_s=20) as server, ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask, server.url)
        until(lambda: "kvmap_live_cache_bytes 0.0" not in httpx.get(f"{server.url}/metrics").text)
        for _ in range(2):
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        assert running.result(timeout=2).status_code == 503  # the answer would take 3 s more
        assert server.process.wait(timeout=20) == 0
