"""What every command shares."""

import pytest
from commands import call
from omegaconf import DictConfig

from kvmap.cli.command import command


@pytest.mark.parametrize(
    "text",
    [
        "a, b", "it's", "a {b: 1} [c]", "back\\slash", "end\\", "tick\\'", "${x}", "a $ b",
        "\\${x}", "line\nbreak", "x=y", "ünï 🙂", "'open", "(a", 'a"b', "#c", "true", "12", "\\\\'",
        "  lead", "null x",
    ],
)  # fmt: skip
def test_a_verbatim_setting_is_what_was_typed(text: str) -> None:
    heard: list[object] = []

    @command("serve", verbatim=("prompt",))
    def main(config: DictConfig) -> None:
        heard.append(config.prompt)

    assert call(main, f"prompt={text}").status == 0
    assert heard == [text]


@pytest.mark.parametrize(("typed", "meant"), [("'a, b'", "a, b"), ("null", None), ("", "")])
def test_hydras_own_quotes_are_left_to_hydra(typed: str, meant: str | None) -> None:
    heard: list[object] = []

    @command("serve", verbatim=("prompt",))
    def main(config: DictConfig) -> None:
        heard.append(config.prompt)

    assert call(main, f"prompt={typed}").status == 0
    assert heard == [meant]
