"""Our fine-tuning beside transformers' Trainer: the same encoder, examples, batches, epochs and recipe, in one run.

    python benchmarks/finetune.py --model FOLDER --data GLUE [--tasks cola rte] [--seeds 2] [--examples 512]

FOLDER is a Hugging Face folder of an ELECTRA (`elektron export` writes one). Trainer has the class of transformers,
AdamW with the same learning rate for each layer, the same schedule, rows padded to the longest of their batch (its
batches are drawn at random, ours are of rows of about one length), and on a GPU bfloat16; it needs `pip install -c
constraints.txt accelerate`. Times are of training alone, tokens are there before; scores are of the development set.
Seeds alternate.
"""

import argparse
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

from elektron.data.examples import Examples
from elektron.data.tokenizer import Specials
from elektron.interop.huggingface import save
from elektron.model.encoder import with_dropout
from elektron.model.task_heads import Tuned, begin_head
from elektron.tasks import glue
from elektron.tasks.task import Split, Task
from elektron.train.device import choose_device, describe, keep_freed_memory
from elektron.train.tune import RecipeConfig, layer_scale, predict, tune
from elektron.verbs.runs import Pretrained, open_encoder

LENGTH = 128


class Run(NamedTuple):
    """What a seed took and came to."""

    seconds: float
    score: float


def network(task: Task, pretrained: Pretrained, dropout: float, seed: int) -> Tuned:
    tuned = Tuned(with_dropout(pretrained.encoder, dropout), task.kind, "transformers", task.labels)
    begin_head(tuned.head, "transformers", seed)
    return tuned


def ours(task: Task, pretrained: Pretrained, recipe: RecipeConfig, seeds: list[int], device: torch.device) -> list[Run]:
    """The seeds side by side; the time is shared among them."""
    specials = pretrained.tokenizer.specials
    networks = [network(task, pretrained, recipe.dropout, seed).to(device) for seed in seeds]
    tunings, cost = tune(networks, Examples(task.train.rows, specials, device), recipe, seeds, lambda network: 0.0)
    dev = next(iter(task.dev.values()))
    found = [predict(tuning.network, Examples(dev.rows, specials, device)) for tuning in tunings]
    return [Run(cost.seconds / len(seeds), task.metrics(dev.known, outputs)[task.metric]) for outputs in found]


def theirs(task: Task, pretrained: Pretrained, recipe: RecipeConfig, seed: int, device: torch.device) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        save(network(task, pretrained, recipe.dropout, seed), pretrained.tokenizer, Path(folder, "model"), "")
        model = transformers.ElectraForSequenceClassification.from_pretrained(Path(folder, "model"))
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=recipe.batch,
            per_device_eval_batch_size=256,
            num_train_epochs=recipe.epochs,
            max_grad_norm=1.0,
            seed=seed,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            bf16=device.type == "cuda",
            use_cpu=device.type == "cpu",
        )
        train = items(task.train, task)
        optimizer = torch.optim.AdamW(groups(model, recipe), eps=1e-6, weight_decay=recipe.weight_decay)
        steps = math.ceil(math.ceil(len(train) / recipe.batch) * recipe.epochs)
        schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(recipe.warmup * steps), steps)
        trainer = transformers.Trainer(
            model,
            arguments,
            data_collator=Padded(pretrained.tokenizer.specials),
            train_dataset=train,  # pyright: ignore[reportArgumentType]
            optimizers=(optimizer, schedule),
        )
        begin = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - begin
        dev = next(iter(task.dev.values()))
        outputs = trainer.predict(items(dev, task)).predictions  # pyright: ignore[reportArgumentType]
    return Run(seconds, task.metrics(dev.known, list(outputs))[task.metric])


def groups(model: torch.nn.Module, recipe: RecipeConfig) -> list[dict[str, Any]]:
    """Each parameter with the learning rate of its layer."""
    layers = model.config.num_hidden_layers  # pyright: ignore[reportAttributeAccessIssue]
    found = []
    for name, parameter in model.named_parameters():
        place = name.replace("electra.encoder.layer.", "encoder.layers.").replace("electra.", "encoder.")
        place = place.replace("classifier.", "head.")
        scale = layer_scale(place, layers, recipe.layer_decay, recipe.decay_from_top)  # pyright: ignore[reportArgumentType]
        found.append({"params": [parameter], "lr": recipe.learning_rate * scale})
    return found


def items(split: Split, task: Task) -> list[dict[str, Any]]:
    kind = float if task.kind == "regression" else int
    return [
        {
            "input_ids": row.tokens,
            "token_type_ids": (np.arange(len(row.tokens)) >= row.second).astype(np.int64),
            "labels": kind(row.target),
        }
        for row in split.rows
    ]


class Padded:
    """What Trainer calls with the examples of a batch."""

    def __init__(self, specials: Specials) -> None:
        self._pad = specials.pad

    def __call__(self, batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        longest = max(len(item["input_ids"]) for item in batch)
        tokens = torch.full((len(batch), longest), self._pad)
        segments, mask = torch.zeros(2, len(batch), longest, dtype=torch.long)
        for place, item in enumerate(batch):
            length = len(item["input_ids"])
            tokens[place, :length] = torch.from_numpy(item["input_ids"])
            segments[place, :length] = torch.from_numpy(item["token_type_ids"])
            mask[place, :length] = 1
        labels = torch.tensor([item["labels"] for item in batch])
        return {"input_ids": tokens, "token_type_ids": segments, "attention_mask": mask, "labels": labels}


def shortened(task: Task, examples: int) -> Task:
    return task._replace(train=task.train._replace(rows=task.train.rows[:examples])) if examples else task


def told(runs: list[Run]) -> str:
    scores = [100 * run.score for run in runs]
    spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
    return f"{statistics.median(run.seconds for run in runs):8.1f}{statistics.fmean(scores):8.1f}{spread:6.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face folder or a run")
    parser.add_argument("--data", required=True, help="GLUE's folder")
    parser.add_argument("--tasks", nargs="+", choices=glue.TASKS, default=["cola", "rte"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--together", type=int, default=5, help="seeds of ours that run side by side on a GPU")
    parser.add_argument("--examples", type=int, default=0, help="take no more of them to learn from")
    parser.add_argument("--epochs", type=float, default=0.0, help="the paper's if 0")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    device = choose_device("auto")
    if device.type == "cpu":
        keep_freed_memory()
    at_once = options.together if device.type == "cuda" else 1
    pretrained = open_encoder(options.model)
    print(f"{describe(device)}, torch {torch.__version__}, transformers {transformers.__version__}\n")
    print(f"{'task':6}{'who':10}{'seconds':>10}{'score':>8}{'sd':>6}{'faster':>9}")
    for name in options.tasks:
        task = shortened(glue.open_task(name, options.data, pretrained.tokenizer, LENGTH), options.examples)
        recipe = RecipeConfig(epochs=options.epochs).resolved(pretrained.encoder.config, glue.TASKS[name].epochs)
        found: dict[str, list[Run]] = {"Trainer": [], "ours": []}
        for first in range(0, options.seeds, at_once):
            seeds = list(range(first, min(first + at_once, options.seeds)))
            found["ours"] += ours(task, pretrained, recipe, seeds, device)
            found["Trainer"] += [theirs(task, pretrained, recipe, seed, device) for seed in seeds]
        base = statistics.median(run.seconds for run in found["Trainer"])
        for who, runs in found.items():
            ratio = base / statistics.median(run.seconds for run in runs)
            print(f"{name:6}{who:10}  {told(runs)}{ratio:8.2f}x", flush=True)


if __name__ == "__main__":
    main()
