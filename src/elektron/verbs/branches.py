"""Runs that leave another one where it stood, to end in their own way: several budgets from one trunk.

A trunk whose learning rate is stable until shortly before its end (--schedule.kind wsd) is, up to there, the beginning
of every shorter run of the kind. A branch takes over a checkpoint of it with all that a run goes on from, and ends in
the bytes that the shorter run would have ended in.
"""

from dataclasses import replace
from pathlib import Path

from elektron.config import differences
from elektron.train.checkpoint import FOLDER, load, save
from elektron.train.schedule import Phase, learning_rate, phase_at, total_steps
from elektron.verbs.runs import Choice, RunConfig, read_config, told

_MAY_DIFFER = ("run", "branch", "data", "corpus", "device", "watch.", "schedule.", "train.phases", "train.shard")
_ENDS_MATTER = ("two-stage", "gumbel")
"""Objectives that look at how much of the run is over."""


def branched(choice: Choice) -> RunConfig:
    """The config that a branch begins with: the trunk's."""
    trunk = read_config(_trunk(choice))
    return replace(trunk, run=choice.run, branch=choice.branch, data=trunk.data_folder, corpus=())


def begin(config: RunConfig) -> None:
    """Put the trunk's checkpoint into the run's folder, if the run would have come by it."""
    trunk = read_config(_trunk(config))
    refused = {name: values for name, values in differences(trunk, config).items() if not name.startswith(_MAY_DIFFER)}
    if refused:
        raise ValueError(f"--branch {config.branch} is of a run with another config: {told(refused)}")
    if config.objective.kind in _ENDS_MATTER or config.objective.first_temperature:
        raise ValueError(f"--branch {config.branch}: its objective changes over the run, which a branch cuts short")
    saved = load(Path(config.branch))
    steps = total_steps(_phases(config))
    if steps <= saved.step:
        raise ValueError(
            f"--branch {config.branch}: these --train.phases end at step {steps:,}, no later than it stands"
        )
    other = next((step for step in range(saved.step) if _step(trunk, step) != _step(config, step)), None)
    if other is not None:
        raise ValueError(
            f"--branch {config.branch}: from step {other} on, the rows or the learning rate were others there than "
            "with these --train.phases and --schedule; with --schedule.kind wsd, leave the trunk before it decays"
        )
    save(config.run, saved, keep=1)


def _trunk(choice: Choice) -> Path:
    path = Path(choice.branch).resolve()
    if path.parent.name != FOLDER or not path.is_dir():
        raise ValueError(f"--branch {choice.branch} is no checkpoint of a run, as RUN/{FOLDER}/step-00050000 would be")
    return path.parent.parent


def _step(config: RunConfig, step: int) -> tuple[int, int, int, float]:
    """The step's number in its phase, its rows, and its learning rate."""
    phases = _phases(config)
    number, within = phase_at(phases, step)
    _, length, rows = phases[number]
    return within, length, rows, learning_rate(config.schedule, step, total_steps(phases))


def _phases(config: RunConfig) -> tuple[Phase, ...]:
    return tuple(Phase(*phase) for phase in config.train.phases)
