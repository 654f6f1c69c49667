"""``kvmap-inspect pair=…``: what of a pair fits, what does not, and what can be done with it."""

from typing import TYPE_CHECKING

from omegaconf import DictConfig

from kvmap.cli.command import command

if TYPE_CHECKING:
    from kvmap.compatibility import Compatibility
    from kvmap.pair import ModelPair


def inspect_pair(pair: "ModelPair", probe: bool = True) -> "Compatibility":
    """Print the table of a pair, and its verdict as the last line.

    Args:
        pair: the two models.
        probe: run three tokens and the shift test through the weights that are on this machine.

    Raises:
        KVMapError: when a model's configuration or tokenizer cannot be had.
    """
    from kvmap.compatibility import compare

    result = compare(pair, probe)
    print(table(pair, result))
    if not result.refused:  # a refusal is printed by the caller, as every error is
        print(result.verdict)
    return result


def table(pair: "ModelPair", result: "Compatibility") -> str:
    """The facts of both models, one row each, in aligned columns."""
    rows: list[tuple[str, str, str, str]] = [(f"pair {pair.name}", "source", "target", "fits")]
    rows.append(("model", pair.source.spec.model, pair.target.spec.model, ""))
    rows += [(fact.name, fact.source, fact.target, fact.fits) for fact in result.facts]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


@command("inspect")
def main(config: DictConfig) -> None:
    """Compare the configured pair."""
    from hydra.utils import instantiate

    from kvmap.quiet import quiet

    quiet()
    inspect_pair(instantiate(config.pair), config.probe).require()


if __name__ == "__main__":
    main()
