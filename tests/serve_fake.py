"""Serve a fake engine in a process of its own: ``python serve_fake.py DELAY DRAIN_S``."""

import sys

from conftest import make_tokenizer
from fake_engine import FakeEngine

from kvmap.server.run import serve
from kvmap.server.settings import ServerSettings

if __name__ == "__main__":
    delay, drain_s = map(float, sys.argv[1:])
    serve(
        lambda: FakeEngine(make_tokenizer(), delay=delay), ServerSettings(port=0, drain_s=drain_s)
    )
