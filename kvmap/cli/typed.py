"""Words of the command line as Hydra's grammar wants them."""

import re
from collections.abc import Sequence

PATHS = (
    "runs",
    "export",
    "checkpoint",
    "reverse_export",
    "evaluation",
    "out_dir",
    "data.path",
    "pair.source.model",
    "pair.target.model",
    "harness.include_path",
)
"""Settings that name a folder, a file or a hub id, in whichever command has them."""

SWEEPING = ("-m", "--multirun")


def typed(words: Sequence[str], verbatim: Sequence[str] = ()) -> list[str]:
    """The command line, with what is text and no list, number or choice quoted for the grammar.

    Paths are quoted too, since folders have spaces and accents in their names; not in a sweep,
    where a comma between two of them means both. ``null``, what is empty and what is quoted already
    stay as they are.

    Args:
        words: As the shell handed them over.
        verbatim: Settings whose text is taken as it is typed, ``${…}`` and all.
    """
    paths = () if any(word in SWEEPING for word in words) else PATHS
    return [_quoted(word, verbatim, paths) for word in words]


def _quoted(word: str, verbatim: Sequence[str], paths: Sequence[str]) -> str:
    name, equals, text = word.partition("=")
    done = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    if not equals or name not in (*verbatim, *paths) or done or text in ("", "null"):
        return word
    # A backslash counts only before a quote, a brace or the end; Hydra fills in ${…} in quotes too.
    special = r"(\\*)('|$|\$\{)" if name in verbatim else r"(\\*)('|$)"
    text = re.sub(special, lambda found: found[1] * 2 + _ESCAPED[found[2]], text)
    return f"{name}='{text}'"


_ESCAPED = {"'": "\\'", "${": "\\${", "": ""}
