"""The model of many GPUs: what must hold of it whatever the numbers, and what a real all-reduce sends."""

import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from elektron.train.scaling import (
    ClusterConfig,
    MeasuredStep,
    PhaseOf,
    all_reduce_seconds,
    bytes_sent,
    checkpoint_interval,
    forecast,
    layer_seconds,
    lost_share,
    step_on,
)

ROOT = Path(__file__).parents[2]
FREE = {"node_latency": 0.0, "network_latency": 0.0}


def between(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(least), math.log(most)).map(math.exp)


clusters = st.builds(
    ClusterConfig,
    gpus_per_node=st.sampled_from([1, 2, 4, 8]),
    node_bandwidth=between(1e9, 1e12),
    network_bandwidth=between(1e8, 1e12),
    achieved=st.floats(0.1, 1),
    node_latency=st.floats(0, 1e-4),
    network_latency=st.floats(0, 1e-3),
    bucket_bytes=between(1e5, 1e9),
    overlap=st.floats(0, 1),
    layer_seconds=st.floats(0, 1e-3),
)


@st.composite
def measurements(draw: st.DrawFn) -> MeasuredStep:
    parts = draw(st.integers(1, 8))
    parameters = draw(st.integers(1, 10**9))
    return MeasuredStep(
        seconds=draw(between(1e-4, 10)),
        rows=parts * draw(st.integers(1, 512)),
        parts=parts,
        layers=draw(st.integers(1, 48)),
        parameters=parameters,
        matrices=draw(st.integers(0, parameters)),
        memory_bandwidth=draw(between(1e9, 1e13)),
    )


powers = st.integers(0, 10).map(lambda power: 2**power)
runs = st.lists(st.builds(PhaseOf, st.integers(1, 10**6), st.sampled_from([64, 128, 512]), measurements()), min_size=1)


@given(measurements(), clusters)
def test_one_gpu_is_what_was_measured(measured, cluster):
    step = step_on(measured, 1, measured.rows, cluster)
    assert step.seconds == pytest.approx(measured.seconds)
    assert step.communication == step.exposed == 0


@given(runs, st.booleans(), clusters)
def test_a_run_on_one_gpu(phases, grows, cluster):
    found = forecast(phases, 1, grows, cluster)
    assert found.efficiency == pytest.approx(1)
    assert found.seconds == pytest.approx(sum(phase.steps * phase.measured.seconds for phase in phases))
    tokens = sum(phase.steps * phase.length * phase.measured.rows for phase in phases)
    assert found.seconds_for(tokens) == pytest.approx(found.seconds)


@given(runs, powers, st.booleans(), clusters)
def test_many_are_never_more_than_so_many_times_one(phases, gpus, grows, cluster):
    assume(grows or gpus <= min(phase.measured.rows for phase in phases))
    found = forecast(phases, gpus, grows, cluster)
    assert 0 < found.efficiency <= 1 + 1e-9
    one = forecast(phases, 1, grows, cluster)
    assert found.tokens_per_second == pytest.approx(found.efficiency * gpus * one.tokens_per_second)
    assert 0 <= found.step.exposed <= found.step.communication * (1 + 1e-9)


@given(measurements(), powers, clusters, st.floats(1, 100), st.sampled_from(["node", "network"]))
def test_a_better_network_is_never_slower(measured, gpus, cluster, times, which):
    name = f"{which}_bandwidth"
    faster = replace(cluster, **{name: times * getattr(cluster, name)})
    nearer = replace(cluster, **{f"{which}_latency": getattr(cluster, f"{which}_latency") / times})
    seconds = step_on(measured, gpus, measured.rows, cluster).seconds
    for better in (faster, nearer):
        assert step_on(measured, gpus, measured.rows, better).seconds <= seconds * (1 + 1e-12)


@given(measurements(), clusters, st.data())
def test_fewer_rows_are_faster_but_not_in_proportion(measured, cluster, data):
    rows = data.draw(st.integers(1, measured.rows))
    seconds = step_on(measured, 1, rows, cluster).seconds
    assert measured.seconds * rows / measured.rows <= seconds * (1 + 1e-9)
    assert seconds <= measured.seconds * (1 + 1e-9)


@given(between(1, 1e10), powers, clusters)
def test_nothing_jumps_where_a_node_is_full(size, gpus, cluster):
    """Nodes that are joined as well as the GPUs in them are one ring; beyond a network that costs nothing, any number
    of nodes take as long as one."""
    even = replace(cluster, **FREE, network_bandwidth=cluster.node_bandwidth)
    ring = bytes_sent(size, gpus) / (cluster.achieved * cluster.node_bandwidth)
    assert all_reduce_seconds(size, gpus, even) == pytest.approx(ring)
    if gpus > cluster.gpus_per_node:
        free = replace(cluster, network_latency=0.0, network_bandwidth=1e300)
        one_node = all_reduce_seconds(size, cluster.gpus_per_node, cluster)
        assert all_reduce_seconds(size, gpus, free) == pytest.approx(one_node)


def test_what_is_hidden_and_what_is_not():
    """By hand: two GPUs, gradients of 4 MB in calls of 1 MB, three of which are of layers."""
    cluster = ClusterConfig(
        gpus_per_node=2, node_bandwidth=1e9, achieved=0.5, bucket_bytes=1e6, overlap=0.5, layer_seconds=0, **FREE
    )
    measured = MeasuredStep(
        seconds=9e-3, rows=4, parts=2, layers=1, parameters=1_000_000, matrices=750_000, memory_bandwidth=1e300
    )
    step = step_on(measured, 2, 4, cluster)
    assert step.communication == pytest.approx(8e-3)  # 4 MB out of each at half a GB/s
    assert step.exposed == pytest.approx(2e-3 + 6e-3 - 1.5e-3)  # half of two thirds of the last part's 4.5 ms
    slow = step_on(replace(measured, seconds=1.0), 2, 4, cluster)
    assert slow.exposed == pytest.approx(2e-3 + 2e-3)  # the last call of the layers', and the others


@given(measurements(), clusters, st.integers(1, 2000))
def test_two_batch_sizes_tell_what_a_layer_costs_without_rows(measured, cluster, rows):
    one = replace(measured, parts=1)
    assume(rows != one.rows)
    one = replace(one, seconds=one.seconds + step_on(one, 1, 1, cluster).seconds)  # above what does not shrink
    other = replace(one, rows=rows, seconds=_by_the_law(one, rows, cluster))
    assert layer_seconds(one, other) == pytest.approx(cluster.layer_seconds, rel=1e-3, abs=1e-6 * one.seconds)


def _by_the_law(one: MeasuredStep, rows: int, cluster: ClusterConfig) -> float:
    """A step whose layers take `layer_seconds` and whose rows take the rest, in the other batch size."""
    fixed = one.layers * cluster.layer_seconds + 30 * one.parameters / one.memory_bandwidth
    assume(fixed < one.seconds)
    return fixed + rows * (one.seconds - fixed) / one.rows


@given(between(1e-2, 1e3), between(1e3, 1e8))
def test_checkpoints_as_often_as_loses_least(cost, failing):
    """Daly's own complete model, tried at many intervals: none is much better."""
    assume(cost < failing / 4)

    def expected(interval: float) -> float:
        """Seconds for a second of work, where failures come at random."""
        return failing * math.expm1((interval + cost) / failing) / interval

    best = min(expected(cost * 1.05**power) for power in range(-100, 500) if cost * 1.05**power < 20 * failing)
    interval = checkpoint_interval(cost, failing)
    assert expected(interval) <= best * 1.01
    lost = 1 - 1 / expected(interval)
    assert lost_share(interval, cost, failing, 0.0) == pytest.approx(lost, rel=0.35, abs=1e-6)


def test_a_machine_that_fails_while_it_saves():
    assert checkpoint_interval(100.0, 10.0) == 10.0


@pytest.mark.parametrize(
    "wrong", [{"achieved": 1.5}, {"overlap": -0.1}, {"node_bandwidth": 0}, {"gpu_failure_hours": -1}, {"overlap": 2}]
)
def test_clusters_without_sense(wrong):
    with pytest.raises(ValueError, match=f"--cluster.{next(iter(wrong)).replace('_', '-')}"):
        ClusterConfig(**wrong)


COUNTED = """
import fcntl, os, socket, struct, sys, termios, time
import torch, torch.distributed as dist

def sent():
    '''Bytes that have arrived out of all TCP sockets of this process, once none is on its way: tcpi_bytes_acked, which
    counts what is sent again once.'''
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            end = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with end:
            tcp = end.type == socket.SOCK_STREAM and end.family in (socket.AF_INET, socket.AF_INET6)
            if tcp and not end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                while struct.unpack("i", fcntl.ioctl(end, termios.TIOCOUTQ, bytes(4)))[0]:
                    time.sleep(0.001)
                total += struct.unpack_from("Q", end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), 120)[0]
    return total

ranks, count, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rank = 0
for other in range(1, ranks):
    if os.fork() == 0:
        rank = other
        break
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
flat = torch.full((count,), float(rank + 1))
dist.all_reduce(torch.ones(1))
dist.barrier()
before = sent()
dist.all_reduce(flat)
after = sent()
assert (flat == sum(range(1, ranks + 1))).all()
with open(f"{folder}/{rank}", "w") as file:
    file.write(str(after - before))
dist.barrier()
dist.destroy_process_group()
if rank == 0:
    for _ in range(1, ranks):
        os.wait()
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_real_all_reduce_sends_what_the_formula_says(ranks, tmp_path):
    """gloo, over real sockets, counted by the kernel; beside the gradients there are a few headers."""
    if sys.platform != "linux":
        pytest.skip("the kernel's count of a socket's bytes is Linux's")
    count = 1_000_000
    command = [sys.executable, "-c", COUNTED, str(ranks), str(count), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for rank in range(ranks):
        assert int((tmp_path / str(rank)).read_text()) == pytest.approx(bytes_sent(4 * count, ranks), rel=0.01)


def test_the_tables_in_the_docs_are_those_that_the_command_makes():
    command = [sys.executable, "benchmarks/scaling.py"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tables = [line for line in made.splitlines() if line.startswith("| ")]
    assert len(tables) > 50
    told = (ROOT / "docs" / "scaling.md").read_text()
    assert [line for line in tables if line not in told] == []
    measured = re.findall(r'Known\("\w+", \d+, \d+, ([\d.e-]+)\)', (ROOT / "benchmarks" / "scaling.py").read_text())
    assert len(measured) == 4
    performance = (ROOT / "docs" / "performance.md").read_text()
    assert [seconds for seconds in measured if f" {1e3 * float(seconds):.3g} |" not in performance] == []
    assert f"{ClusterConfig().layer_seconds * 1e6:.0f}." in made.splitlines()[0]
