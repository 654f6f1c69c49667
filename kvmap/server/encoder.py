"""From a request's prompt to token ids, off the event loop."""

import asyncio
import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from transformers import PreTrainedTokenizerBase

from kvmap.server.chat_parameters import ChatParameters
from kvmap.server.chat_template import encode_chat
from kvmap.server.completion_parameters import CompletionParameters
from kvmap.server.errors import invalid
from kvmap.server.parameters import Parameters


class Encoder:
    """Encodes prompts in a thread of its own: a long one would keep the event loop busy.

    Args:
        tokenizer: Copied, since the engine decodes with it at the same time and a tokenizer's
            state is not for two threads.

    Attributes:
        tokenizer: The copy; it may decode while it encodes.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = copy.deepcopy(tokenizer)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kvmap-encoder")

    async def __call__(self, parameters: Parameters) -> list[int]:
        """Token ids of a prompt or of a conversation.

        Raises:
            APIError: It cannot be encoded.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._encode, parameters)

    def _encode(self, parameters: Parameters) -> list[int]:
        self._require_known("stop_token_ids", parameters.stop_token_ids or ())
        if isinstance(parameters, ChatParameters):
            return encode_chat(self.tokenizer, parameters.messages)
        assert isinstance(parameters, CompletionParameters)
        if isinstance(parameters.prompt, str):
            return list(self.tokenizer(parameters.prompt)["input_ids"])
        self._require_known("prompt", parameters.prompt)
        return parameters.prompt

    def _require_known(self, name: str, tokens: Sequence[int]) -> None:
        known = len(self.tokenizer)
        for token in tokens:
            if not 0 <= token < known:
                raise invalid(f"{name} holds token id {token}; the tokenizer has {known}", name)
