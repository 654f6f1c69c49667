"""The README.md of an export, in the form that the hub reads."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvmap.export import ExportConfig


def model_card(config: "ExportConfig") -> str:
    """Markdown with the hub's front matter: what was fitted, on what, and how good it is."""
    rows = "\n".join(
        f"| {name} | {'undefined' if value is None or math.isnan(value) else f'{value:.4f}'} |"
        for name, value in config.metrics.items()
    )
    arguments = "\n".join(f"- `{name}`: {value}" for name, value in config.arguments.items())
    source, target = config.source, config.target
    start = config.refined_from
    refined = f"\n- refined from weights: sha256 `{start}`" if start else ""
    return f"""---
library_name: kvmap
tags: [kvmap, kv-cache, mapper, {config.family}]
---

# A `{config.family}` mapper for the pair `{config.pair}`

Maps the KV cache of **{source.model}** ({source.shape.layers} layers) into that of
**{target.model}** ({target.shape.layers} layers; {target.shape.heads} KV heads of
{target.shape.head_dim} dimensions), token by token.

```python
from kvmap import load_mapper

mapper = load_mapper("path/or/hub-id")
mapped = mapper(source_kv)  # content keys and values, [L, B, H, T, D]
```

## Measured on the development documents

| diagnostic | mean over layers |
|---|---|
{rows}

These say how close the mapped cache is, not what it is worth in use.

## What it was made of

{arguments}

- direction: {config.direction}
- source revision: `{source.revision}`, target revision: `{target.revision}`
- tokenizer: `{source.tokenizer}`
- collection: `{config.collection}`
- commit: `{config.provenance.commit}`
- weights: sha256 `{config.weights_sha256}`{refined}
"""
