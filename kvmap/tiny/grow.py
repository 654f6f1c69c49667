"""Make a trained model deeper without changing what it computes."""

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from kvmap.tiny.mimetic import WordClasses, initialise


@torch.no_grad()
def grow(shallow: Qwen3ForCausalLM, config: Qwen3Config, classes: WordClasses) -> Qwen3ForCausalLM:
    """Spread a model's layers over a deeper one; the layers between start as the identity.

    A new layer reads as any layer does, but its two output matrices are zero, so that the deep
    model predicts what the shallow one did, and training puts the new layers to use.

    Args:
        shallow: a trained model.
        config: as the shallow model's, with more layers.
        classes: which tokens are names and values.
    """
    deep = Qwen3ForCausalLM(config)
    initialise(deep, classes)
    deep.model.embed_tokens.load_state_dict(shallow.model.embed_tokens.state_dict())
    deep.model.norm.load_state_dict(shallow.model.norm.state_dict())
    for layer in deep.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    last = len(shallow.model.layers) - 1
    for index, layer in enumerate(shallow.model.layers):
        place = index * (config.num_hidden_layers - 1) // last
        deep.model.layers[place].load_state_dict(layer.state_dict())
    return deep
