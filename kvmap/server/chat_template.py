"""From messages to text: the tokenizer's own chat template, or a plain one."""

from collections.abc import Sequence

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from kvmap.server.errors import invalid
from kvmap.server.messages import Message


def plain(messages: Sequence[Message]) -> str:
    r"""Every message as ``role\ncontent\n\n``, then ``assistant\n`` for the answer.

    The text of a turn and its answer begins the next turn's text, whatever is said, so that the
    next turn can reuse the KV of this one.
    """
    return "".join(f"{each.role}\n{each.content}\n\n" for each in messages) + "assistant\n"


def encode_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    """Token ids of a conversation, up to where the answer begins.

    Raises:
        APIError: The template refuses the messages, as some do when roles do not alternate.
    """
    if tokenizer.chat_template is None:
        return list(tokenizer(plain(messages))["input_ids"])
    turns = [{"role": each.role, "content": each.content} for each in messages]
    try:
        text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    except TemplateError as error:
        raise invalid(f"the model's chat template refuses messages: {error}", "messages") from None
    # The template writes the special tokens that the model wants.
    return list(tokenizer(str(text), add_special_tokens=False)["input_ids"])
