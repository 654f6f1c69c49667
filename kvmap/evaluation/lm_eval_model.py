"""Any arm as a model of lm-evaluation-harness (EleutherAI). Needs the extra ``eval``.

The only file that knows the harness's model API.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor

from kvmap.errors import KVMapError
from kvmap.evaluation.answering import Answering, Ask
from kvmap.evaluation.prompts import Item, Prompt

Request = tuple[tuple[str, str], list[int], list[int]]


class ArmLM(TemplateLM):
    """Scores and generates through one arm; a context is read and mapped once for all its requests.

    Ids beyond the tokenizer's, with which some models pad their vocabulary, take no probability;
    in a plain model of the harness they take what little the model gives them.

    Args:
        answering: The arm with its models.
        max_length: Most tokens of context and continuation; the models' positions by default.

    Attributes:
        context_tokens: Context tokens seen so far.
        repaired_tokens: Those of them that the answering model computed itself.
    """

    def __init__(self, answering: Answering, max_length: int | None = None) -> None:
        super().__init__()
        self.answering = answering
        self.tokenizer = answering.models.pair.target.tokenizer
        sides = (answering.models.pair.source, answering.models.pair.target)
        limit = min(int(side.config.max_position_embeddings) for side in sides)
        self.max_length = min(max_length or limit, limit)
        self.context_tokens = self.repaired_tokens = 0.0

    @property
    def repaired_share(self) -> float:
        """Share of all context tokens that was repaired."""
        return self.repaired_tokens / self.context_tokens if self.context_tokens else 0.0

    @property
    def eot_token_id(self) -> int:
        """The end token."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """What stands before an empty context."""
        first = self.tokenizer.bos_token_id
        return self.eot_token_id if first is None else int(first)

    @property
    def tokenizer_name(self) -> str:
        """Tells tokenizers apart in the harness's own caches."""
        return self.answering.models.pair.target.tokenizer_digest

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Refuse the harness's cache of answers.

        Raises:
            KVMapError: Always: its keys do not name the mapper, so that a sweep would read the
                first mapper's answers again and again.
        """
        raise KVMapError(
            "use_cache would answer for every mapper with the first one's answers; leave it out"
        )

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Token ids; special tokens as the tokenizer has them, unless said otherwise."""
        if add_special_tokens is None:
            first = str(self.tokenizer.decode(self.prefix_token_id))
            add_special_tokens = not string.startswith(first)
        return list(self.tokenizer.encode(string, add_special_tokens=add_special_tokens))

    def _loglikelihood_tokens(self, requests: list[Request], **_: Any) -> list[tuple[float, bool]]:
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, (_texts, context, continuation) in enumerate(requests):
            room = self.max_length + 1 - len(continuation)
            if room < 1:
                raise KVMapError(
                    f"a continuation of {len(continuation)} tokens exceeds max_length="
                    f"{self.max_length}"
                )
            groups.setdefault(tuple(context[-room:]), []).append(number)
        answers: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        for item, members in self._items(groups):
            wanted = [torch.tensor(requests[number][2]) for number in members]
            found = self.answering.logits(item, [Ask(len(item.prompt.ids), wanted)])[0]
            for number, ids, logits in zip(members, wanted, found, strict=True):
                said = logits.log_softmax(-1).gather(1, ids[:, None]).sum()
                answers[number] = (float(said), torch.equal(logits.argmax(-1), ids))
        return answers

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-likelihood of whole texts.

        A window's context is one token, which is always repaired: of the target's arms every one
        answers as the target does. The repaired share says so.
        """
        windows: list[Request] = []
        counts = []
        for (text,) in (request.args for request in requests):
            rolling = get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            found = [make_disjoint_window(window) for window in rolling]
            windows += [(("", ""), context, continuation) for context, continuation in found]
            counts.append(len(found))
        scores = iter(self._loglikelihood_tokens(windows))
        return [sum(next(scores)[0] for _ in range(count)) for count in counts]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy texts, each up to its first stop string.

        Raises:
            KVMapError: A task asks for sampling.
        """
        answers = [""] * len(requests)
        for number, (context, asked) in enumerate(request.args for request in requests):
            wanted = normalize_gen_kwargs(dict(asked))
            if wanted["do_sample"]:
                raise KVMapError("arms answer greedily; set do_sample: false in the task")
            ids = tuple(self.tok_encode(context) or [self.prefix_token_id])
            room = self.max_length - wanted["max_gen_toks"]
            if room < 1:
                raise KVMapError(
                    f"max_gen_toks={wanted['max_gen_toks']} leaves no room for a context within "
                    f"max_length={self.max_length}"
                )
            ((item, _),) = self._items({ids[-room:]: [number]})
            answers[number] = self._written(item, wanted["until"], wanted["max_gen_toks"])
        return answers

    def _written(self, item: Item, until: Sequence[str], most: int) -> str:
        end = len(item.prompt.ids)
        cache, logits = self.answering.opened(item, end)
        tokens: list[int] = []
        stops = [stop for stop in until if stop]
        while True:
            token = int(logits.argmax())
            if token == self.eot_token_id:
                break
            tokens.append(token)
            text = str(self.tokenizer.decode(tokens))
            if len(tokens) == most or any(stop in text for stop in stops):
                break
            logits = self.answering.extend(cache, torch.tensor([token]), end + len(tokens) - 1)[-1]
        text = str(self.tokenizer.decode(tokens, skip_special_tokens=True))
        for stop in stops:
            text = text.split(stop)[0]
        return text

    def _items(self, groups: dict[tuple[int, ...], list[int]]) -> Iterator[tuple[Item, list[int]]]:
        """Contexts, each with as many tokens of those that follow it for ``mismatched``."""
        contexts = [torch.tensor(context) for context in groups]
        for place, (context, members) in enumerate(zip(contexts, groups.values(), strict=True)):
            arm, length = self.answering.arm, len(context)
            self.context_tokens += length * len(members)
            self.repaired_tokens += arm.repaired_share(length) * length * len(members)
            own = Prompt(self.answering.models, context)
            other = own
            if arm.role == "mismatched":
                other = Prompt(self.answering.models, _others(contexts, place))
            yield Item(own, other), members


def _others(contexts: Sequence[Tensor], place: int) -> Tensor:
    """As many tokens of the following contexts as one has; its own backwards if it is the only one.

    Left whole contexts would be longer or shorter, and a cache's length alone says something.
    """
    length = len(contexts[place])
    following = [*contexts[place + 1 :], *contexts[:place]] or [contexts[place].flip(0)]
    stream = torch.cat(following)
    return stream.repeat(-(-length // len(stream)))[:length]
