"""elektron compare [FILE.toml ...] --objectives electra,mlm --budget-flops 1e17: train by several objectives with the
same data and the same budget, evaluate them alike, and write a table and a plot. Takes the files and flags of
`pretrain`; --run is the folder of the whole comparison. Run again, it goes on where it stopped."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, get_args

import torch
from rich.console import Console

from elektron.config import to_toml
from elektron.data.files import locked, read_json, write_atomically, write_json
from elektron.data.shards import Data, is_prepared, open_data
from elektron.data.tokenizer import Specials
from elektron.objectives import choices, table
from elektron.objectives.lexicon import Lexicon
from elektron.objectives.objective import Kind
from elektron.train.device import choose_device
from elektron.train.schedule import Phase, total_steps, total_tokens, with_short
from elektron.verbs import quality
from elektron.verbs.bench import speed_of
from elektron.verbs.prepare import prepare
from elektron.verbs.pretrain import configure, pretrain
from elektron.verbs.quality import Quality, tell
from elektron.verbs.runs import RunConfig

_PLAN, _SETTINGS = "plan.json", "compare.toml"
_LEAST_STEPS = 10
_TIMES, _TIMED_SECONDS = 3, 0.5
"""How a step is timed for a budget of seconds."""


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    """elektron compare"""

    objectives: str = "electra,mlm"
    """Which, with commas between them."""
    budget_flops: float = 0.0
    """Matrix FLOPs of each run, as `elektron plan` counts them."""
    budget_tokens: float = 0.0
    """Or tokens that each run reads."""
    budget_seconds: float = 0.0
    """Or seconds that each run takes on this machine, by a short measurement before it. With none of the three,
    --train.phases is the budget."""
    seeds: int = 1
    """Runs of each objective; --seed is the first one's."""
    points: int = 4
    """How many checkpoints of a run are evaluated, at even distances; the last is its end."""
    probes: tuple[str, ...] = ()
    """Linear probes on the frozen encoder: pos=FOLDER chunk=FOLDER (folders as `elektron finetune` reads them)."""
    tasks: tuple[str, ...] = ()
    """Tasks to fine-tune those checkpoints on: cola=GLUE rte=GLUE ner=FOLDER ..."""
    task_seeds: int = 3
    """Seeds of each task."""

    def __post_init__(self) -> None:
        known = get_args(Kind)
        unknown = [name for name in self.kinds if name not in known]
        if unknown:
            raise ValueError(f"unknown objective {unknown[0]!r}; known are {', '.join(known)}")
        if sum(budget > 0 for budget in (self.budget_flops, self.budget_tokens, self.budget_seconds)) > 1:
            raise ValueError("one budget at a time: --budget-flops, --budget-tokens or --budget-seconds")
        if min(self.seeds, self.points, self.task_seeds) < 1:
            raise ValueError("--seeds, --points and --task-seeds are at least 1")

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(name.strip() for name in self.objectives.split(","))  # pyright: ignore[reportReturnType]


class Share(NamedTuple):
    """What an objective's budget buys."""

    phases: list[tuple[int, int, int]]
    flops: float
    tokens: int


def main(arguments: Sequence[str]) -> None:
    config = configure(arguments, "elektron compare", __doc__ or "", Config)
    console = Console(highlight=False, soft_wrap=True)
    for kind in config.kinds:
        choices.check(choices.as_needed(config.objective, kind))
    quality.check(config.probes, config.tasks)
    with locked(config.run):
        data = _data(config)
        plan = _plan(config, data, console)
        found: dict[str, list[Quality]] = {}
        for seed in range(config.seed, config.seed + config.seeds):  # all of one first: what is there can be compared
            for kind in config.kinds:
                run = _run(config, kind, seed, plan[kind])
                console.print(f"\n[bold]{kind}, seed {seed}[/]: {sum(p[0] for p in run.train.phases):,} steps")
                stopped = pretrain(run)
                if stopped:
                    sys.exit(stopped)
                asked = config.probes, config.tasks, config.task_seeds, config.device
                found.setdefault(kind, []).append(quality.of_run(run.run, _points(run, plan[kind]), *asked, console))
                tell(config.run, found)
        for path in tell(config.run, found):
            console.print(f"{path.suffix[1:]}: {path}")


def _data(config: Config) -> Data:
    """Prepared once for all."""
    if config.corpus and not is_prepared(config.data_folder):
        prepare(config.corpus, config.data_folder, config.prepare)
    return open_data(config.data_folder)


def _plan(config: Config, data: Data, console: Console) -> dict[str, Share]:
    """What each objective gets; what was measured once is kept, so that a comparison goes on as it began."""
    path, settings = config.run / _PLAN, to_toml(replace(config, device="auto"))
    before = config.run / _SETTINGS
    if before.exists() and before.read_text(encoding="utf-8") != settings:
        raise ValueError(f"{config.run} is a comparison with other settings, in {before}: choose another --run")
    write_atomically(before, settings.encode())
    known = read_json(path) if path.exists() else {}
    for kind in config.kinds:
        if kind not in known:
            known[kind] = _share(config, kind, data.index.vocab_size)._asdict()
            write_json(path, known)
    shares = {kind: Share(**known[kind]) for kind in config.kinds}
    for kind, share in shares.items():
        steps = sum(steps for steps, _, _ in share.phases)
        console.print(f"{kind}: {steps:,} steps, {share.tokens:,} tokens, {share.flops:.3g} FLOPs")
    return shares


def _share(config: Config, kind: Kind, words: int) -> Share:
    """Phases as the config has them, each longer or shorter by the same factor."""
    phases = tuple(Phase(*phase) for phase in config.train.phases)
    objective = choices.as_needed(config.objective, kind)
    with torch.device("meta"):
        model = table.build(config.model, objective, Lexicon(Specials(0, 1, 2, 3, 4), words))

    def cost(some: tuple[Phase, ...]) -> float:
        parts = with_short(some, config.train.short)
        return sum(p.steps * p.rows * p.length * model.flops_per_token(p.length) for p in parts)

    factor = 1.0
    if config.budget_flops:
        factor = config.budget_flops / cost(phases)
    elif config.budget_tokens:
        factor = config.budget_tokens / total_tokens(phases)
    elif config.budget_seconds:
        run, device = replace(config, objective=objective), choose_device(config.device)
        seconds = [speed_of(run, phase, words, device, _TIMES, _TIMED_SECONDS).seconds for phase in phases]
        factor = config.budget_seconds / sum(p.steps * s for p, s in zip(phases, seconds, strict=True))
    scaled = tuple(phase._replace(steps=round(phase.steps * factor)) for phase in phases)
    if min(phase.steps for phase in scaled) < 1 or total_steps(scaled) < _LEAST_STEPS:
        raise ValueError(f"the budget buys {total_steps(scaled)} steps of {kind}: give more, or make batches smaller")
    return Share([(p.steps, p.length, p.rows) for p in scaled], cost(scaled), total_tokens(scaled))


def _points(run: RunConfig, share: Share) -> dict[int, float]:
    """The steps whose checkpoints are evaluated, and their FLOPs; where a run was stopped meanwhile is none of them."""
    steps, every = sum(steps for steps, _, _ in share.phases), run.watch.checkpoint_every
    return {step: share.flops * step / steps for step in (*range(every, steps, every), steps)}


def _run(config: Config, kind: Kind, seed: int, share: Share) -> RunConfig:
    """The config of one run: a run like any other."""
    steps = sum(steps for steps, _, _ in share.phases)
    plain = RunConfig(**{field.name: getattr(config, field.name) for field in fields(RunConfig)})
    return replace(
        plain,
        run=config.run / kind / f"seed-{seed}",
        corpus=(),
        data=config.data_folder,
        seed=seed,
        objective=choices.as_needed(config.objective, kind),
        schedule=replace(config.schedule, warmup_steps=min(config.schedule.warmup_steps, steps // 10)),
        train=replace(config.train, phases=tuple(tuple(phase) for phase in share.phases)),
        watch=replace(config.watch, checkpoint_every=-(-steps // config.points), keep_checkpoints=steps),
    )
