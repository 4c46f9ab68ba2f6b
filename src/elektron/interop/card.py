"""The model card: what a run knows of itself, for whoever finds the folder."""

import json
from collections.abc import Mapping
from typing import Any

from elektron.interop.huggingface import Role
from elektron.model.task_heads import Tuned
from elektron.tasks.results import NO_SHARES

_USE = {
    "discriminator": """from transformers import AutoTokenizer, ElectraForPreTraining

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = ElectraForPreTraining.from_pretrained("FOLDER")
batch = tokenizer("The cat sat on the hat.", return_tensors="pt")
replaced = model(**batch).logits.sigmoid()  # for every token, how likely it was replaced
```

To fine-tune it, load it with `AutoModelForSequenceClassification` and the like; `SentenceTransformer("FOLDER")` gives
mean-pooled embeddings.""",
    "generator": """from transformers import pipeline

pipeline("fill-mask", model="FOLDER")("The cat sat on the [MASK].")
```""",
}


_LIMITS = {
    "discriminator": """ A probability of "replaced" is relative to the
replacements its own generator made in training: it is no calibrated probability of an error in somebody's text."""
}


def model_card(
    role: Role,
    folder: str,
    name: str,
    objective: str,
    step: int,
    facts: dict[str, Any],
    held: dict[str, Any],
    config: str,
    licence: str = "",
    text: str = "",
) -> str:
    """`facts` and `held` (empty if there is none yet) are the run's own records, `config` its config.toml; `text` says
    what it was trained on."""
    use = _USE[role].replace("FOLDER", f"{name}/{folder}")
    numbers = "\n".join(f"| {label} | {value} |" for label, value in _numbers(step, facts, held))
    head = f"license: {licence}\n" if licence else ""
    return f"""---
{head}library_name: transformers
tags:
- electra
- elektron
- {objective}
---

# {name}: {folder}

An ELECTRA network (Clark et al., 2020, [arXiv 2003.10555](https://arxiv.org/abs/2003.10555)), pre-trained by the
objective `{objective}` with Elektron {facts["clock"]["elektron"]}.{f" {text}" if text else ""}

## Use

```python
{use}

## Training

| | |
|---|---|
{numbers}

Held-out numbers are from documents that were not trained on. The config below repeats the run.

```toml
{config.strip()}
```

## Limits

It has read what was in its corpus and nothing else, biases included.{_LIMITS.get(role, "")}
"""


_PIPELINE = """from transformers import pipeline

pipeline("{pipeline}", model="{folder}")"""
_READER = """from transformers import AutoTokenizer, ElectraForQuestionAnswering

tokenizer, model = (kind.from_pretrained("{folder}") for kind in (AutoTokenizer, ElectraForQuestionAnswering))
found = model(**tokenizer("Who sat?", "The cat sat on the hat.", return_tensors="pt"))
found.start_logits, found.end_logits  # of each token: whether the answer begins or ends there"""
_TASKS = {
    "classification": "text-classification",
    "regression": "text-classification",
    "tagging": "token-classification",
    "span": "question-answering",
}
"""The pipeline for each kind of network."""


def task_card(
    network: Tuned, folder: str, metrics: Mapping[str, Mapping[str, float]], settings: Mapping[str, Any]
) -> str:
    """`metrics` are those of each development set, `settings` all that decided them."""
    numbers = "\n".join(
        f"| {split}: {name} | {100 * value:.1f} |"
        for split, of in metrics.items()
        for name, value in of.items()
        if not name.endswith(NO_SHARES)
    )
    pipeline = _TASKS[network.kind]
    use = _PIPELINE if network.kind != "span" else _READER
    return f"""---
library_name: transformers
pipeline_tag: {pipeline}
tags:
- electra
- elektron
---

# {settings["task"]}

An ELECTRA encoder that was fine-tuned with Elektron.

```python
{use.format(pipeline=pipeline, folder=folder)}
```

| development set | percent |
|---|---|
{numbers}

The settings that decided it:

```json
{json.dumps(settings, indent=2)}
```
"""


def _numbers(step: int, facts: dict[str, Any], held: dict[str, Any]) -> list[tuple[str, str]]:
    share = step / facts["steps"]
    rows = [
        ("parameters", ", ".join(f"{count:,} ({name})" for name, count in facts["networks"].items())),
        ("vocabulary", f"{facts['vocab_size']:,}"),
        ("corpus", f"{facts['corpus_tokens']:,} tokens"),
        ("steps", f"{step:,} of {facts['steps']:,}"),
        ("tokens seen", f"{round(facts['tokens'] * share):,}"),
        ("FLOPs", f"{facts['flops'] * share:.2e}"),
        ("device", facts["clock"]["device"]),
        ("unigram loss", f"{facts['unigram_loss']:.3f}"),
    ]
    losses = [name for name in held if name.endswith("_loss")]
    rows += [(f"held-out {name.replace('_', ' ')}", f"{held[name]:.4f}") for name in losses]
    if "detection_auc" in held:
        rows.append(("held-out detection AUC", f"{held['detection_auc']:.3f}"))
    return rows
