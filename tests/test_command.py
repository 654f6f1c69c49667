"""What every command shares."""

import pytest
from commands import Outcome, call, one_sentence
from omegaconf import DictConfig

from kvmap.cli.command import command
from kvmap.cli.typed import typed
from kvmap.errors import KVMapError


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


@pytest.mark.parametrize("text", ["a b, c", "it's (1)", "Ünï/[x]=1", "12", "end\\"])
def test_a_path_is_what_was_typed(text: str) -> None:
    heard: list[object] = []

    @command("evaluate")
    def main(config: DictConfig) -> None:
        heard.append(config.export)

    assert call(main, f"export={text}", "out_dir=${export}").status == 0
    assert heard == [text]


def test_a_comma_between_paths_means_both_in_a_sweep() -> None:
    words = ["-m", "data.path=a,b", "prompt=a, b"]
    assert typed(words, verbatim=["prompt"]) == ["-m", "data.path=a,b", "prompt='a, b'"]
    assert typed(words[1:]) == ["data.path='a,b'", "prompt=a, b"]


@pytest.mark.parametrize(("value", "told"), [("", ""), ("' '", " ")])
def test_a_path_that_names_nothing_is_refused(value: str, told: str) -> None:
    @command("evaluate")
    def main(config: DictConfig) -> None:
        raise ZeroDivisionError

    assert f"export={told} names nothing" in one_sentence(call(main, f"export={value}"))


def test_what_the_user_can_mend_is_one_line_and_nothing_else() -> None:
    @command("serve")
    def main(config: DictConfig) -> None:
        raise KVMapError("no such luck")

    assert call(main) == Outcome(1, "", "kvmap: no such luck\n")


def test_a_defect_of_ours_keeps_its_traceback() -> None:
    @command("serve")
    def main(config: DictConfig) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        call(main)


@pytest.mark.parametrize(("word", "meant"), [("'a, b'", "a, b"), ("null", None), ("", "")])
def test_hydras_own_quotes_are_left_to_hydra(word: str, meant: str | None) -> None:
    heard: list[object] = []

    @command("serve", verbatim=("prompt",))
    def main(config: DictConfig) -> None:
        heard.append(config.prompt)

    assert call(main, f"prompt={word}").status == 0
    assert heard == [meant]
