"""What a step takes on many GPUs: computed from what it was measured to take on one, and from the bytes it sends.

    compute(r) = parts(r) * layers * a + 30 P / memory + r * b          r rows on a GPU, cut into parts
    all_reduce(S) = 2 (g-1)/g S / node + 2 (m-1)/m S/g / network + calls * hops      g GPUs of a node, m nodes
    exposed = all_reduce(4 (P-M)) + max(one call, all_reduce(4 M) - overlap * backward)
    step = compute(r) + exposed

P parameters have float32 gradients; those of the M that are matrices of layers travel while the backward pass still
runs, the others after it. b is what makes compute(r) the measured step at the measured rows. docs/scaling.md has the
reasons, and what nobody has measured: more than one GPU.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from elektron.model.cost import PASSES
from elektron.train.distributed import STRETCH_BYTES

GRADIENT_BYTES = 4
UPDATE_BYTES = 30
"""Of memory, read and written, for each parameter that AdamW updates (docs/performance.md)."""
CHECKPOINT_BYTES = 12
"""Of each parameter on disk: itself and two moments, in float32."""


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """What many GPUs are like. Assumptions, for another machine to be replaced by its own numbers."""

    gpus_per_node: int = 8
    """GPUs that are joined by NVLink."""
    node_bandwidth: float = 450e9
    """Bytes a second out of a GPU within its node. NVLink 4 has 900 GB/s, both ways together (NVIDIA's H100 and H200
    datasheets)."""
    network_bandwidth: float = 50e9
    """Bytes a second out of a GPU to other nodes: 400 Gb/s for each GPU, as in NVIDIA's DGX H100."""
    achieved: float = 0.7
    """Share of these bandwidths that an all-reduce achieves: assumed."""
    node_latency: float = 3e-6
    """Seconds of a hop within a node: assumed."""
    network_latency: float = 10e-6
    """Seconds of a hop between nodes: assumed."""
    bucket_bytes: float = STRETCH_BYTES
    """Gradients that are summed by one call."""
    overlap: float = 0.8
    """Share of the backward pass that gradients can travel behind: assumed, since both need the same GPU."""
    layer_seconds: float = 34e-6
    """Seconds of a layer in each part of a step, however few the rows: launches and tails. Of `small` on an H200, from
    steps of 128 and of 1,024 rows; what `elektron bench` measured of a model in two batch sizes goes before it."""
    storage_bandwidth: float = 1e9
    """Bytes a second at which checkpoints are written: assumed."""
    restart_seconds: float = 300.0
    """From a failure to the first step after it: assumed."""
    gpu_failure_hours: float = 50_000.0
    """Mean hours of one GPU between failures that stop a run: 419 in 54 days of 16,384 GPUs (Llama 3's report, 2024,
    arXiv:2407.21783, section 3.3.4)."""

    def __post_init__(self) -> None:
        may_be_zero = {"node_latency", "network_latency", "layer_seconds", "restart_seconds", "overlap"}
        for name, value in vars(self).items():
            if value < 0 or (value == 0 and name not in may_be_zero):
                raise ValueError(f"--cluster.{name.replace('_', '-')} must be positive, not {value}")
        if self.achieved > 1 or self.overlap > 1:
            raise ValueError(f"--cluster.achieved and --cluster.overlap are shares: {self.achieved}, {self.overlap}")


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A step on one GPU, and what decides how it would be on many."""

    seconds: float
    rows: int
    parts: int
    """That the rows were cut into (--train.accumulate)."""
    layers: int
    """Of all networks."""
    parameters: int
    """Trained ones."""
    matrices: int
    """Parameters that are matrices of layers."""
    memory_bandwidth: float
    """Bytes a second of the GPU's memory."""


class Step(NamedTuple):
    """A step on many GPUs."""

    gpus: int
    rows: int
    """On each."""
    compute: float
    communication: float
    """Seconds of all-reduce, hidden or not."""
    exposed: float
    """Those that the backward pass does not hide."""

    @property
    def seconds(self) -> float:
        return self.compute + self.exposed


def bytes_sent(size: float, gpus: int) -> float:
    """Out of each GPU, to have `size` bytes summed over all: by a ring, or by rings in nodes and between them alike."""
    return 2 * (gpus - 1) / gpus * size


def all_reduce_seconds(size: float, gpus: int, cluster: ClusterConfig) -> float:
    """Summed within nodes, each GPU its share between nodes, and given out within nodes again. Latencies are those of
    a ring in a node and of a tree between them (NCCL's double binary trees: full bandwidth, logarithmic latency)."""
    near = min(gpus, cluster.gpus_per_node)
    nodes = gpus / near
    within = bytes_sent(size, near) / (cluster.achieved * cluster.node_bandwidth)
    between = 2 * (nodes - 1) / nodes * size / near / (cluster.achieved * cluster.network_bandwidth)
    hops = 2 * (near - 1) * cluster.node_latency + 2 * math.ceil(math.log2(nodes)) * cluster.network_latency
    return within + between + _calls(size, cluster) * hops


def _calls(size: float, cluster: ClusterConfig) -> int:
    return math.ceil(size / cluster.bucket_bytes)


def step_on(measured: MeasuredStep, gpus: int, rows: int, cluster: ClusterConfig) -> Step:
    """With so many rows on each GPU."""
    parts = _parts(measured, rows)
    compute = _compute(measured, rows, cluster)
    if gpus == 1:
        return Step(gpus, rows, compute, 0.0, 0.0)
    early, late = GRADIENT_BYTES * measured.matrices, GRADIENT_BYTES * (measured.parameters - measured.matrices)
    of_layers, of_others = (all_reduce_seconds(size, gpus, cluster) for size in (early, late))
    backward = (PASSES - 1) / PASSES * max(0.0, compute - _update_seconds(measured)) / parts  # of the last part
    last_call = of_layers / max(1, _calls(early, cluster))  # there is nothing left to hide it behind
    exposed = of_others + max(last_call, of_layers - cluster.overlap * backward)
    return Step(gpus, rows, compute, of_layers + of_others, exposed)


def _parts(measured: MeasuredStep, rows: int) -> int:
    """As large as those that were measured, at the most."""
    return math.ceil(rows * measured.parts / measured.rows)


def _compute(measured: MeasuredStep, rows: int, cluster: ClusterConfig) -> float:
    fixed = _fixed(measured, measured.parts, cluster)
    scale = min(1.0, measured.seconds / fixed) if fixed else 0.0  # never more than was measured
    of_row = (measured.seconds - scale * fixed) / measured.rows
    return scale * _fixed(measured, _parts(measured, rows), cluster) + rows * of_row


def _fixed(measured: MeasuredStep, parts: int, cluster: ClusterConfig) -> float:
    """Seconds of a step that do not depend on its rows."""
    return parts * measured.layers * cluster.layer_seconds + _update_seconds(measured)


def _update_seconds(measured: MeasuredStep) -> float:
    return UPDATE_BYTES * measured.parameters / measured.memory_bandwidth


def layer_seconds(one: MeasuredStep, other: MeasuredStep) -> float:
    """ClusterConfig's, from steps of one model with two numbers of rows, uncut: where a line through both meets no
    rows at all."""
    assert one.parts == other.parts == 1, (one.parts, other.parts)
    assert one.rows != other.rows, one.rows
    beginning = (one.seconds * other.rows - other.seconds * one.rows) / (other.rows - one.rows)
    return max(0.0, beginning - _update_seconds(one)) / one.layers


class PhaseOf(NamedTuple):
    """A phase of a run, and its step on one GPU."""

    steps: int
    length: int
    measured: MeasuredStep


class Forecast(NamedTuple):
    """A run on many GPUs."""

    gpus: int
    step: Step
    """The mean over the run, with the rows of the phase that has most tokens."""
    efficiency: float
    """Of one GPU's speed, what each of the many has."""
    tokens_per_second: float
    seconds: float

    def seconds_for(self, tokens: float) -> float:
        return tokens / self.tokens_per_second


def forecast(phases: list[PhaseOf], gpus: int, grows: bool, cluster: ClusterConfig) -> Forecast:
    """Of all phases: each GPU takes its share of the batch; or, where the batch `grows`, as much as one GPU alone, and
    the same tokens are read in fewer steps."""
    assert grows or gpus <= least_rows(phases), (gpus, phases)
    longest = max(phases, key=lambda phase: phase.steps * phase.length * phase.measured.rows)
    shares = [phase.measured.rows if grows else math.ceil(phase.measured.rows / gpus) for phase in phases]
    steps = [step_on(phase.measured, gpus, rows, cluster) for phase, rows in zip(phases, shares, strict=True)]
    counts = [phase.steps / (gpus if grows else 1) for phase in phases]
    seconds = sum(count * step.seconds for count, step in zip(counts, steps, strict=True))
    alone = sum(phase.steps * phase.measured.seconds for phase in phases)
    means = (
        sum(count * getattr(step, name) for count, step in zip(counts, steps, strict=True)) / sum(counts)
        for name in ("compute", "communication", "exposed")
    )
    tokens = sum(phase.steps * phase.length * phase.measured.rows for phase in phases)
    mean = Step(gpus, shares[phases.index(longest)], *means)
    return Forecast(gpus, mean, alone / (gpus * seconds), tokens / seconds, seconds)


def least_rows(phases: list[PhaseOf]) -> int:
    """Of a batch: more GPUs than that would have none to share."""
    return min(phase.measured.rows for phase in phases)


def checkpoint_seconds(parameters: int, cluster: ClusterConfig) -> float:
    return CHECKPOINT_BYTES * parameters / cluster.storage_bandwidth


def failure_seconds(gpus: int, cluster: ClusterConfig) -> float:
    """Between failures of any of them, on average."""
    return 3600 * cluster.gpu_failure_hours / gpus


def checkpoint_interval(cost: float, between_failures: float) -> float:
    """Seconds of work between checkpoints that cost so many, for the least time lost (Daly, 2006, equation 37, which
    begins with Young's of 1974: the root of twice cost times time between failures)."""
    if cost >= 2 * between_failures:
        return between_failures
    ratio = cost / (2 * between_failures)
    return math.sqrt(2 * cost * between_failures) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


def lost_share(interval: float, cost: float, between_failures: float, restart: float) -> float:
    """Of the time, to the first order: checkpoints; and after each failure a restart and half an interval's work."""
    return cost / (interval + cost) + min(1.0, (restart + (interval + cost) / 2) / between_failures)
