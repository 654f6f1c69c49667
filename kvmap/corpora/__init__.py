"""Texts for calibration, each corpus divided into four disjoint sets of documents."""

from kvmap.corpora.base import Corpus, CorpusIdentity, Split

__all__ = ["Corpus", "CorpusIdentity", "Split"]
