"""The figures that README and docs/figures.md quote are those of the committed results."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FIGURES = (ROOT / "docs" / "figures.md").read_text()
README = " ".join((ROOT / "README.md").read_text().split())


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return found


def test_training() -> None:
    rates = {name: median(values) for name, values in result("training")["samples_per_second"].items()}
    serial, ddp = rates["serial, batch 1024, 1 thread"], rates["PyTorch DDP (gloo), 16 ranks x 64"]
    for row, name in {
        "one process, batch 1,024, 1 thread": "serial, batch 1024, 1 thread",
        "one process, batch 1,024, 16 threads": "serial, batch 1024, all threads",
        "sync:allreduce=shared-memory": "sync:shared-memory, 16 ranks x 64",
        "sync:allreduce=native": "sync:native, 16 ranks x 64",
        "sync:allreduce=ring": "sync:ring, 16 ranks x 64",
        "PyTorch DDP (gloo)": "PyTorch DDP (gloo), 16 ranks x 64",
        "16 independent processes, no exchange": "independent, 16 processes x 64, no exchange",
    }.items():
        (line,) = [line for line in FIGURES.splitlines() if line.startswith(f"| {row} |")]
        rate, *ratios = (cell.strip() for cell in line.strip("|").split("|")[1:])
        assert rate == f"{rates[name]:,.0f}"
        assert [float(r) for r in ratios] == pytest.approx(
            [rates[name] / serial, rates[name] / ddp], abs=0.06
        )
    shared = rates["sync:shared-memory, 16 ranks x 64"]
    course = rates["course setting, sync:shared-memory, 4 ranks, 4 cores"]
    course /= rates["course setting, serial, 1 thread, 4 cores"]
    assert f"{shared / serial:.1f} times as many samples per second as one process" in README
    assert f"and {shared / ddp:.1f} times as many as PyTorch DDP" in README
    assert f"4 ranks are still {course:.2f} times as fast as one" in README
    assert f"**{course:.2f} times as fast**" in FIGURES


def test_exchange() -> None:
    small, large = (
        {name: median(times) for name, times in sizes.items()}
        for sizes in result("exchange")["sizes"].values()
    )
    rows = {"shared-memory": "shared-memory", "raw MPI_Allreduce": "MPI_Allreduce", "ring": "ring"}
    for name, row in {**rows, "gloo all_reduce": "gloo all_reduce"}.items():
        (line,) = [
            line for line in FIGURES.splitlines() if line.startswith(f"| {row} | ") and " ms |" in line
        ]
        first, ratio, second, other = (cell.strip() for cell in line.strip("|").split("|")[1:])
        value, unit = first.split()
        assert float(value) == pytest.approx(small[name] * (1e6 if unit == "us" else 1e3), rel=0.01)
        assert float(second.split()[0]) == pytest.approx(large[name] * 1e3, rel=0.02)
        if ratio:
            assert float(ratio.strip("x")) == pytest.approx(small[name] / small["shared-memory"], rel=0.03)
            assert float(other.strip("x")) == pytest.approx(large[name] / large["shared-memory"], rel=0.03)


def test_memory_and_start() -> None:
    memory, start = result("memory"), result("start")
    a_rank, bare = fmean(memory["ranks_mb"]), fmean(memory["interpreters_mb"])
    assert f"takes {a_rank:.1f} MB per rank (PSS), {a_rank - bare:.1f} MB more" in FIGURES
    assert f"takes {median(start['seconds']):.2f} s on 4 cores" in FIGURES


def test_collectives() -> None:
    cells: dict[tuple[int, int, str], float] = {
        (job["ranks"], cell["size"], cell["algorithm"]): cell["median"]
        for job in result("allreduce")["jobs"]
        for cell in job["cells"]
    }
    long = [cells[p, s, "ring"] / cells[p, s, "native"] for p, s, a in cells if a == "ring" and s >= 1 << 20]
    assert f"{min(long):.2f} to {max(long):.2f} times as long as MPI's own" in " ".join(FIGURES.split())
    naive = [cells[8, 1 << k, "naive"] / cells[8, 1 << k, "ring"] for k in (16, 18, 20, 22, 24, 26)]
    quoted = ", ".join(f"{ratio:.1f}" for ratio in naive[:-1]) + f" and {naive[-1]:.1f} times"
    assert quoted in FIGURES


def test_every_result_says_where_it_was_made() -> None:
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        found = result(path.stem)
        where = found.get("machine") or found.get("environment")
        assert where, path
        assert "processor" in where, path
        assert found.get("command") or where.get("command"), path


def cells(row: str, among: str = "# Figures") -> list[str]:
    """The cells of a row of docs/figures.md, or of one of its parts."""
    part = FIGURES[FIGURES.index(among) :]
    part = part if among == "# Figures" else part.partition("\n## ")[0]
    (line,) = [line for line in part.splitlines() if line.startswith(f"| {row} |")]
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


def test_accuracy_of_asynchronous_training() -> None:
    found = result("asynchronous")
    rows = {
        "serial": "serial SGD",
        "serial with the same rule": "serial with the same rule (1 master + 1 worker)",
        "1 master + 31 workers": "1 master + 31 workers (more ranks than cores)",
    }
    for name, right in found["accuracy"].items():
        mean, span, stale, _ = cells(rows.get(name, name))
        assert len(right) == 5
        assert mean == f"{fmean(right):.2f}"
        assert span == f"{min(right):.2f}, {max(right):.2f}"
        assert stale == (f"{fmean(found['staleness'][name]):.1f}" if found["staleness"][name] else "")
    assert f"reaches {fmean(found['accuracy']['4 masters + 12 workers']):.1f} %" in README
    plain = result("staleness")["rules"]["plain"]["12"]
    assert f"ends at {fmean(plain):.0f} %" in README


def test_speed_of_asynchronous_training() -> None:
    for which, name in {"first": "asynchronous", "second": "asynchronous-speed"}.items():
        for case, took in result(name)["seconds"].items():
            if which == "first" and case.startswith("layers"):
                continue
            one, many = median(took["serial"]), median(took["parameter-server"])
            assert cells(f"{case}, {which} run") == [f"{one:.3f}", f"{many:.3f}", f"{one / many:.2f}"]


def test_averaging_and_lock_free_training() -> None:
    cnn = result("averaging")["cnn"]
    rows = {name: (median(case["seconds"]), fmean(case["test_accuracy"])) for name, case in cnn.items()}
    base = rows.pop("serial")
    for name, (seconds, right) in rows.items():
        expected = [f"{base[0] / seconds:.2f}", f"{100 * right:.2f} %", f"{100 * base[1]:.2f} %"]
        assert cells(f"`{name}`") == expected
    parts = cnn["psgd"]["parts_accuracy"]
    assert f"{100 * min(parts):.2f} to {100 * max(parts):.2f} %" in FIGURES
    for start in result("averaging")["starts"].values():
        assert f"{100 * fmean(start['average']):.2f} %" in FIGURES
    runs = result("hogwild")["runs"]

    def mean(name: str, key: str) -> float:
        return fmean(run[key] for run in runs[name])

    one = "one process, 1 thread"
    speed = mean(one, "samples_per_second")
    for name in ("hogwild", "hogwild:backend=torch", "gossip"):
        assert cells(f"`{name}`") == [
            f"{mean(f'{name}, 4 ranks', 'samples_per_second') / speed:.2f}",
            f"{100 * mean(f'{name}, 4 ranks', 'test_accuracy'):.2f} %",
            f"{100 * mean(one, 'test_accuracy'):.2f} %",
        ]
    alone = fmean(result("hogwild")["independent_samples_per_second"]) / speed
    assert f"{alone:.2f} times one process: that is the speed of 4 processes that exchange nothing" in FIGURES


def test_the_simulator() -> None:
    found = result("simulated")
    errors: dict[str, dict[tuple[str, int], float]] = {}
    for row in found["rows"]:
        name = row["strategy"].removeprefix("sync:allreduce=")
        errors.setdefault(name, {})[row["setting"], row["ranks"]] = row["error"]
    for name, by_case in errors.items():
        cases = [(setting, ranks) for setting in ("reference", "larger") for ranks in (2, 4, 8, 16)]
        said = [f"{100 * by_case[case]:+.0f} %" if case in by_case else "" for case in cases]
        middle = median(abs(error) for error in by_case.values())
        assert cells(f"`{name}`", among="The simulator against real runs") == [*said, f"{100 * middle:.1f} %"]
    of_mean, of_median = (found[f"error of the {kind} step"] for kind in ("mean", "median"))
    sync, server, every = (100 * of_mean[kind]["median"] for kind in ("sync", "parameter-server", "all"))
    assert len(found["rows"]) == 70
    figures = " ".join(FIGURES.split())
    assert (
        f"is {sync:.1f} % of 56 synchronous cases, {server:.1f} % of 14 of the parameter server, {every:.1f} % of all; "
        f"the largest is {100 * of_mean['all']['largest']:.0f} %" in figures
    )
    assert (
        f"it is {100 * of_median['all']['median']:.1f} % of all, and the largest {100 * of_median['all']['largest']:.0f} %"
        in figures
    )
    assert f"its median error in the time per step was {every:.1f} %" in README
    simulator = " ".join((ROOT / "docs" / "simulator.md").read_text().split())
    assert f"on 2 to 16 ranks, have a median difference of {every:.1f} %" in simulator
    apart = median(row["high"] / row["low"] - 1 for row in found["rows"])
    assert f"of a case differ by {100 * apart:.0f} % in the median" in figures
    for name, runs in found["accuracy"].items():
        assert cells(f"{name}, real and simulated") == [
            f"{fmean(runs['measured']):.2f} %",
            f"{fmean(runs['simulated']):.2f} %",
            f"{fmean(runs['staleness']):.1f}",
            f"{fmean(runs['simulated_staleness']):.1f}",
        ]


def test_the_simulators_speed() -> None:
    found = result("simulator")["cases"]
    rows = {
        "messages per second, 1 KiB to a neighbour, 256 ranks": f"{found['messages']['messages_per_second']:,.0f}",
        "the same, strict": f"{found['messages']['messages_per_second_strict']:,.0f}",
    }
    ring, epoch, memory, largest = (found[name] for name in ("ring", "epoch", "memory", "largest"))
    rows[f"ring allreduce of 1 MiB on 1,024 ranks, {ring['messages']:,} messages"] = (
        f"{ring['seconds']:.1f} s"
    )
    name = f"an epoch of sync, recursive doubling, 4,096 ranks, time only, {epoch['messages']:,} messages"
    rows[name] = f"{epoch['seconds']:.1f} s, {epoch['peak_megabytes']:,.0f} MB"
    name = "the reference network trained on 1,024 ranks, 3 steps"
    rows[name] = f"{memory['seconds']:.0f} s, {memory['peak_megabytes']:,.0f} MB"
    name = (
        f"ten steps of sync on 65,536 ranks, recursive doubling, time only, {largest['messages']:,} messages"
    )
    rows[name] = f"{largest['seconds']:.1f} s, {largest['peak_megabytes']:,.0f} MB"
    for name, value in rows.items():
        assert cells(name) == [value]
