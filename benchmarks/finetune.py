"""Our fine-tuning beside transformers' Trainer: the same encoder, examples, batches, epochs and recipe, in one run.

    python benchmarks/finetune.py --model FOLDER --data GLUE [--tasks cola rte] [--seeds 2] [--examples 512]

FOLDER is a run or a Hugging Face folder of an ELECTRA; tasks are those of `elektron finetune`, read from the folder
--data as there. Trainer has the class of transformers,
AdamW with the same learning rate for each layer, the same schedule, rows padded to the longest of their batch (its
batches are drawn at random, ours are of rows of about one length), and on a GPU bfloat16; it needs `pip install -c
constraints.txt accelerate`. Times are of training alone, tokens are there before; scores are of the development set.
Seeds alternate. On a GPU ours runs once before: "new" is what a task takes on a machine that has no kernels of its
lengths yet.
"""

import argparse
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

from elektron.data.examples import IGNORED, Examples, Row
from elektron.data.tokenizer import Specials
from elektron.interop.huggingface import save
from elektron.model.encoder import with_dropout
from elektron.model.task_heads import Tuned, begin_head
from elektron.tasks.protocols import SourceConfig, plan_of
from elektron.tasks.task import Split, Task
from elektron.train.device import choose_device, describe, keep_freed_memory
from elektron.train.tune import RecipeConfig, layer_scale, predict, tune
from elektron.verbs.runs import Pretrained, open_encoder

_CLASSES = {
    "classification": transformers.ElectraForSequenceClassification,
    "regression": transformers.ElectraForSequenceClassification,
    "tagging": transformers.ElectraForTokenClassification,
    "span": transformers.ElectraForQuestionAnswering,
}


class Run(NamedTuple):
    """What a seed took and came to."""

    seconds: float
    score: float


def network(task: Task, pretrained: Pretrained, dropout: float | None, seed: int) -> Tuned:
    tuned = Tuned(with_dropout(pretrained.encoder, dropout), task.kind, "transformers", task.labels)
    begin_head(tuned.head, "transformers", seed)
    return tuned


def ours(task: Task, pretrained: Pretrained, recipe: RecipeConfig, seeds: list[int], device: torch.device) -> list[Run]:
    """The seeds side by side; the time is shared among them."""
    specials = pretrained.tokenizer.specials
    networks = [network(task, pretrained, recipe.dropout, seed).to(device) for seed in seeds]
    dev = next(iter(task.dev.values()))
    train, asked = (Examples(split.rows, specials, device, task.kind == "tagging") for split in (task.train, dev))
    tunings, cost = tune(networks, train, recipe, seeds, lambda network: 0.0)
    found = [predict(tuning.network, asked) for tuning in tunings]
    return [Run(cost.seconds / len(seeds), task.metrics(dev.known, outputs)[task.metric]) for outputs in found]


def theirs(task: Task, pretrained: Pretrained, recipe: RecipeConfig, seed: int, device: torch.device) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        save(network(task, pretrained, recipe.dropout, seed), pretrained.tokenizer, Path(folder, "model"), "")
        model = _CLASSES[task.kind].from_pretrained(Path(folder, "model"))
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
        optimizer = torch.optim.AdamW(groups(model, recipe), eps=1e-6, weight_decay=recipe.weight_decay, fused=True)
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
    return Run(seconds, task.metrics(dev.known, by_row(outputs, dev))[task.metric])


def by_row(outputs: Any, split: Split) -> list[np.ndarray]:  # noqa: ANN401  an array, or one for each end of spans
    """Trainer's scores as ours are: without padding, and those of a span's ends side by side."""
    scores = np.stack(outputs, -1) if isinstance(outputs, tuple) else outputs
    if scores.ndim == 2:
        return list(scores)
    return [of_row[: len(row.tokens)] for of_row, row in zip(scores, split.rows, strict=True)]


def groups(model: torch.nn.Module, recipe: RecipeConfig) -> list[dict[str, Any]]:
    """The parameters of each learning rate."""
    layers = model.config.num_hidden_layers  # pyright: ignore[reportAttributeAccessIssue]
    found: dict[float, list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        place = name.replace("electra.encoder.layer.", "encoder.layers.").replace("electra.", "encoder.")
        place = place.replace("classifier.", "head.").replace("qa_outputs.", "head.")
        scale = layer_scale(place, layers, recipe.layer_decay, recipe.decay_from_top)  # pyright: ignore[reportArgumentType]
        found.setdefault(recipe.learning_rate * scale, []).append(parameter)
    return [{"params": parameters, "lr": rate} for rate, parameters in found.items()]


def items(split: Split, task: Task) -> list[dict[str, np.ndarray]]:
    """Examples as transformers names them."""

    def targets(row: Row) -> dict[str, np.ndarray]:
        if task.kind == "span":
            return {"start_positions": row.target[0], "end_positions": row.target[1]}
        return {"labels": row.target.astype(np.float32 if task.kind == "regression" else np.int64)}

    return [
        {
            "input_ids": row.tokens.astype(np.int64),
            "token_type_ids": (np.arange(len(row.tokens)) >= row.second).astype(np.int64),
            "attention_mask": np.ones(len(row.tokens), np.int64),
            **targets(row),
        }
        for row in split.rows
    ]


class Padded:
    """What Trainer calls with the examples of a batch."""

    def __init__(self, specials: Specials) -> None:
        self._empty = {"input_ids": specials.pad, "labels": IGNORED}

    def __call__(self, batch: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
        return {name: self._padded(name, [torch.as_tensor(item[name]) for item in batch]) for name in batch[0]}

    def _padded(self, name: str, values: list[torch.Tensor]) -> torch.Tensor:
        if not values[0].ndim:
            return torch.stack(values)
        return torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=self._empty.get(name, 0))


def shortened(task: Task, examples: int) -> Task:
    return task._replace(train=task.train._replace(rows=task.train.rows[:examples])) if examples else task


def told(runs: list[Run]) -> str:
    scores = [100 * run.score for run in runs]
    spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
    return f"{statistics.median(run.seconds for run in runs):8.1f}{statistics.fmean(scores):8.1f}{spread:6.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face folder or a run")
    parser.add_argument("--data", required=True, help="GLUE's folder, SQuAD's, or one with train.txt and dev.txt")
    parser.add_argument("--tasks", nargs="+", default=["cola", "rte"])
    parser.add_argument("--length", type=int, default=0, help="longest row in tokens; the paper's if 0")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--together", type=int, default=5, help="seeds of ours that run side by side on a GPU")
    parser.add_argument("--examples", type=int, default=0, help="take no more of them to learn from")
    parser.add_argument("--epochs", type=float, default=0.0, help="the paper's if 0")
    parser.add_argument("--window", type=int, default=RecipeConfig().window, help="batches sorted by length together")
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
        plan = plan_of(name, SourceConfig(task=name, data=options.data))
        task = shortened(plan.open(pretrained.tokenizer, options.length or plan.length), options.examples)
        recipe = RecipeConfig(epochs=options.epochs, window=options.window).resolved(
            pretrained.encoder.config, plan.epochs
        )
        found: dict[str, list[Run]] = {"Trainer": [], "ours": []}
        if device.type == "cuda":
            found["new"] = ours(task, pretrained, recipe, list(range(at_once)), device)
        for first in range(0, options.seeds, at_once):
            seeds = list(range(first, min(first + at_once, options.seeds)))
            found["ours"] += ours(task, pretrained, recipe, seeds, device)
            for seed in seeds:
                found["Trainer"].append(theirs(task, pretrained, recipe, seed, device))
                pair = ", ".join(f"{who} {100 * found[who][seed].score:.1f}" for who in ("Trainer", "ours"))
                print(f"{name}, seed {seed}: {pair}", file=sys.stderr, flush=True)
        base = statistics.median(run.seconds for run in found["Trainer"])
        for who, runs in found.items():
            ratio = base / statistics.median(run.seconds for run in runs)
            print(f"{name:6}{who:10}  {told(runs)}{ratio:8.2f}x", flush=True)


if __name__ == "__main__":
    main()
