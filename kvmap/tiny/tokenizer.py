"""The pair's tokenizer: byte-level BPE in which nearly every word of the English is one token."""

import itertools

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from kvmap.tiny.english import English

END = "<|endoftext|>"
VOCABULARY = 1024
CONTEXT = 8192  # what the pair's position embedding allows
TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"
)


def train_tokenizer(english: English, documents: int = 2000) -> PreTrainedTokenizerFast:
    """Train the tokenizer on training documents.

    Words keep their leading space. All 256 bytes are in the vocabulary, so any text can be
    encoded; text outside the small English takes more tokens.

    Args:
        english: what to train on.
        documents: how many training documents to read.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (
        english.document("training", i).text for i in itertools.islice(itertools.count(), documents)
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        model_max_length=CONTEXT,
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
