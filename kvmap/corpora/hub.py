"""A data set on the Hugging Face hub, streamed: only as much is read as the collection needs."""

from collections.abc import Iterator

from kvmap.corpora.base import CorpusIdentity
from kvmap.corpora.hashed import HashedCorpus
from kvmap.errors import KVMapError


class Hub(HashedCorpus):
    """One text field of a data set's rows, in the data set's order.

    The fingerprint takes ``revision`` as it is written; give a commit to be sure that another day
    reads the same texts.

    Args:
        dataset: the data set's id.
        name: its configuration; None for the only one.
        part: the part to read, ``train`` in most data sets.
        field: the field that holds the text.
        revision: branch, tag or commit.

    Raises:
        KVMapError: while reading, when the ``datasets`` package is missing, the data set cannot be
            had, or its rows have no such field.
    """

    def __init__(
        self,
        dataset: str,
        name: str | None = None,
        part: str = "train",
        field: str = "text",
        revision: str = "main",
    ) -> None:
        self.dataset, self.name, self.part = dataset, name, part
        self.field, self.revision = field, revision

    def texts(self) -> Iterator[str]:
        """The rows' texts, empty ones left out."""
        try:
            import datasets
        except ImportError as error:
            raise KVMapError(
                f"the corpus {self.dataset} needs the datasets package; "
                "install it with pip install 'kvmap[data]', or use data=file or data=embedded"
            ) from error
        try:
            rows = datasets.load_dataset(
                self.dataset, self.name, split=self.part, revision=self.revision, streaming=True
            )
            for row in rows:
                text = row.get(self.field)
                if not isinstance(text, str):
                    raise KVMapError(
                        f"rows of {self.dataset} have no text field '{self.field}' but "
                        f"{sorted(row)}; set data.corpus.field"
                    )
                if text.strip():
                    yield text.strip()
        except KVMapError:
            raise
        except Exception as error:  # whatever the hub and its file formats may raise
            reason = (str(error).splitlines() or [""])[0] or type(error).__name__
            raise KVMapError(
                f"cannot stream the corpus {self.dataset} ({reason}); check its id, the network "
                "and access to it, or use data=file with a local file"
            ) from error

    def identity(self) -> CorpusIdentity:
        """The data set, its revision, and what of it is read."""
        return CorpusIdentity(
            "hub",
            f"{self.dataset}@{self.revision}",
            f"name={self.name} part={self.part} field={self.field}",
        )
