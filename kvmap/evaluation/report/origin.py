"""Where a page comes from."""

from kvmap.corpora.base import CorpusIdentity
from kvmap.evaluation.report.section import Fact
from kvmap.provenance import Provenance


def provenance_facts(provenance: Provenance) -> list[Fact]:
    """When, by which versions and commit."""
    versions = ", ".join(f"{name} {number}" for name, number in provenance.versions.items())
    return [
        Fact("made", provenance.created),
        Fact("versions", f"Python {provenance.python}, {versions}"),
        Fact("commit", provenance.commit or "not a checkout"),
    ]


def text_name(corpus: CorpusIdentity) -> str:
    """A corpus in one line."""
    return ", ".join(filter(None, (corpus.kind, corpus.settings, f"content {corpus.content}")))
