"""The training command called in this process, on the two random models and a small corpus."""

import hashlib
import io
import json
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from collecting import write_corpus

CONF = Path(__file__).parents[1] / "conf"
FAMILIES = sorted(path.stem for path in (CONF / "mapper").glob("*.yaml"))
QUICK = {"mlp": ["mapper.hidden=4", "mapper.epochs=2", "mapper.batch_size=32"]}
"""What makes a family's demo settings small."""

BRIEF = [
    "sizes.prompt=24",
    "sizes.continuation=8",
    "sizes.passages=6",
    "sizes.choice_tokens=6",
    "sizes.lookups=0",
    "sizes.other_lookups=0",
    "sizes.lookup_distance=60",
    "sizes.greedy=2",
    "sizes.greedy_tokens=4",
    "sizes.development=4",
    "sizes.replacement=0",
    "sizes.conversations=2",
    "sizes.turns=3",
    "sizes.turn_tokens=8",
    "search.repairs=[4]",
    "curve=[0,4]",
    "resamples=200",
    "speed.prompts=0",
    "logger=none",
]
"""What makes an evaluation take a second."""


class Outcome(NamedTuple):
    """What a user sees of a command.

    Attributes:
        status: Exit status.
        out: Standard output.
        err: Standard error.
    """

    status: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        return self.out.rstrip().splitlines()[-1]


def call(main: Callable[[], None], *overrides: str) -> Outcome:
    """Call a command's ``main`` as the shell would."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    handler = signal.getsignal(signal.SIGINT)  # Lightning gives it up when interrupted
    with patch.object(sys, "argv", ["kvmap", *overrides]):
        try:
            with redirect_stdout(out), redirect_stderr(err):
                main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            signal.signal(signal.SIGINT, handler)
    return Outcome(status, out.getvalue(), err.getvalue())


class Workshop:
    """One corpus, one collection and the overrides that every small run shares.

    Args:
        root: A folder for corpus and collections.
        source: The source model's folder.
        target: The target model's folder.
    """

    def __init__(self, root: Path, source: Path, target: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.pair = [
            "pair=custom",
            f"pair.source.model={source}",
            f"pair.target.model={target}",
            "pair.source.dtype=float32",
            "pair.target.dtype=float32",
        ]
        self.corpus = write_corpus(root / "corpus.txt")
        self.collections = root / "collections"
        self.data = [
            "data=file",
            "data.length=64",
            "data.queries=5",
            "data.shard_rows=24",
            "data.documents.fit=6",
            "data.documents.selection=3",
            "data.documents.development=3",
        ]

    @property
    def small(self) -> list[str]:
        """Overrides of a run that takes about a second once the collection is there."""
        return [
            *self.pair,
            *self.data,
            f"data.path={self.corpus}",
            f"data.root={self.collections}",
            "trainer.enable_progress_bar=false",
            "trainer.accelerator=cpu",
        ]

    def train(self, folder: Path, *overrides: str, logger: str = "none") -> Outcome:
        """``kvmap-train`` into a folder."""
        from kvmap.cli.train import main

        flags = [override for override in overrides if override.startswith("-")]
        more = [override for override in overrides if override not in flags]
        shared = [*self.small, f"logger={logger}", f"out_dir={folder}"]
        return call(main, *flags, *shared, *more)  # argparse takes flags only before the rest

    def evaluate(self, *overrides: str) -> Outcome:
        """``kvmap-evaluate`` on the corpus."""
        from kvmap.cli.evaluate import main

        data = ["data=file", f"data.path={self.corpus}"]
        return call(main, *self.pair, *data, *BRIEF, *overrides)


def contents(folder: Path) -> dict[str, str]:
    """Every file's name and digest."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def one_sentence(outcome: Outcome) -> str:
    """The single line that a refused command leaves, with a status that a script can use."""
    assert outcome.status == 1, outcome
    assert "Traceback" not in outcome.out + outcome.err
    lines = [line for line in outcome.err.splitlines() if line.startswith("kvmap: ")]
    assert len(lines) == 1, outcome.err
    return lines[0].removeprefix("kvmap: ")
