"""How far an evaluation is."""

from tqdm import tqdm


class Progress:
    """A line on the terminal that says what is being measured and how much is left.

    Args:
        total: How many steps there will be; None when that is not known yet.
        shown: Whether to show anything.
    """

    def __init__(self, total: int | None, shown: bool = True) -> None:
        self._bar = tqdm(total=total, disable=not shown, unit="unit", dynamic_ncols=True)

    def step(self, what: str) -> None:
        """One step is done."""
        self._bar.set_description(what, refresh=False)
        self._bar.update()

    def close(self) -> None:
        """The last step is done."""
        self._bar.close()
