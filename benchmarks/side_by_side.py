"""Runs the catalogue's engines side by side on one model in one format and collects their figures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tqdm import tqdm

from benchmarks.interleaving import CannotContinueError, MeasureFunction, Repetition, Series, run_interleaved
from benchmarks.machine import CpuMark, session_seconds
from benchmarks.model_files import BenchModel
from benchmarks.peers.catalogue import EngineSpec
from benchmarks.peers.process import PeerError, PeerProcess
from benchmarks.peers.protocol import Chat, PeerConfig, TimedReply, arriving_late
from benchmarks.workloads import Metric, MetricValues, RunChats, Workload

WARM_UP_TOKENS = 4
NOT_BUILT = "not built"
"""Error text of an engine that does not have the format yet."""


def _nothing(run: RunChats, turn: int) -> MetricValues:  # noqa: ARG001
    return {}


START = Workload("second start", _nothing, (Metric("seconds", "to the first token", "s", False),), 17)
"""Measured on fresh processes: the second and later starts, which find the first start's caches on disk."""


@dataclass(frozen=True)
class Row:
    """The results of one engine with one workload."""

    model: BenchModel
    format: str
    work: Workload
    engine: EngineSpec
    series: Series

    @property
    def bytes_per_second(self) -> float | None:
        """Lower bound of the bytes per second read by decodes of one chat."""
        decode = self.series.figures.get("decode")
        if decode is None or self.work.read_at is None:
            return None
        return decode * self.model.bytes_per_token(self.format, self.work.read_at)

    def as_json(self) -> dict[str, Any]:
        return {
            "model": self.model.name,
            "format": self.format,
            "work": self.work.name,
            "engine": self.engine.name,
            "figures": {key: round(value, 4) for key, value in self.series.figures.items()},
            "gb_per_s": round(self.bytes_per_second / 1e9, 2) if self.bytes_per_second else None,
            "dropped": self.series.dropped,
            "disturbed": self.series.is_disturbed,
            "problem": self.series.problem,
            "repetitions": [
                {"others_cpu_share": round(one.others_cpu_share, 3), "counts": one.is_valid, **one.figures}
                for one in self.series.repetitions
            ],
        }


@dataclass
class LoadedPeers:
    """The engines that are loaded."""

    bar: tqdm[Any]
    loads: dict[str, tuple[EngineSpec, PeerConfig]] = field(default_factory=dict)
    peers: dict[str, PeerProcess] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)  #: engine that did not start -> why

    def stop(self) -> None:
        for peer in self.peers.values():
            peer.stop()


@dataclass
class PeerBench:
    """One run of the bench.

    Args:
        threads: threads of every engine.
        kv_gib: memory for each engine's KV cache, GiB.
        repeats: measured repetitions.
        quick: the warm-up repetition ends after a few tokens of each reply.
    """

    threads: int
    kv_gib: float
    repeats: int
    quick: bool = False
    logs: Path = field(default_factory=lambda: Path(mkdtemp(prefix="bench-logs-")))
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def compare(
        self, model: BenchModel, format_: str, entries: Sequence[EngineSpec], works: Sequence[Workload]
    ) -> list[Row]:
        """Runs every workload on every engine; each engine is loaded once and frozen between its turns."""
        rows: list[Row] = []
        fitting = [work for work in works if work.context <= model.context]
        total = len(entries) * sum(self.repeats + (work is not START) for work in fitting)
        with tqdm(total=total, file=sys.stderr, dynamic_ncols=True, leave=False) as bar:
            loaded = LoadedPeers(bar)
            try:
                self._load(loaded, model, format_, entries, max([work.chats for work in fitting], default=1))
                for work in fitting:
                    if work is START:
                        loaded.stop()  # starts are measured with free memory and caches
                    series = run_interleaved(list(loaded.peers), self.repeats, self._measure(loaded, work))
                    for entry in entries:
                        found = series.get(entry.name) or Series(problem=loaded.broken.get(entry.name))
                        rows.append(Row(model, format_, work, entry, found))
            finally:
                loaded.stop()
        return rows

    def _load(
        self, loaded: LoadedPeers, model: BenchModel, format_: str, entries: Sequence[EngineSpec], chats: int
    ) -> None:
        for entry in entries:
            loaded.bar.set_description(f"{model.name} {format_}: {entry.title} starts")
            try:
                file = entry.model_file(model, format_)
                load = PeerConfig(file, format_, self.threads, model.context, chats, self.kv_gib, entry.variant)
                peer = self._start(entry, load)
            except (PeerError, ImportError, ValueError, OSError, subprocess.CalledProcessError) as error:
                loaded.broken[entry.name] = _reason(error)
                continue
            peer.freeze()
            loaded.loads[entry.name], loaded.peers[entry.name] = (entry, load), peer
            self.versions[entry.name] = peer.versions

    def _start(self, entry: EngineSpec, load: PeerConfig) -> PeerProcess:
        return PeerProcess(entry.command, load, self.logs / f"{entry.name}.log", entry.environment)

    def _measure(self, loaded: LoadedPeers, work: Workload) -> MeasureFunction:
        def ask(name: str, turn: int) -> Repetition:
            peer = loaded.peers[name]
            extra: MetricValues = {}

            def run(chats: Sequence[Chat]) -> list[TimedReply]:
                if self.quick and turn == 0 and not arriving_late(chats):
                    chats = [replace(chat, new_tokens=min(chat.new_tokens, WARM_UP_TOKENS)) for chat in chats]
                replies, more = peer.run(chats)
                extra.update(more)
                return replies

            peer.thaw()
            mark = CpuMark.now(peer.session)
            try:
                figures = work.measure(run, turn)
                return Repetition(figures | extra, mark.others_share())
            finally:
                peer.freeze()

        def start(name: str, turn: int) -> Repetition:
            if turn == 0:
                return Repetition({}, 0.0)  # every engine has been started before
            mark = CpuMark.now()
            peer = self._start(*loaded.loads[name])
            others = mark.others_share(ended=session_seconds(peer.session))
            peer.stop()
            return Repetition({"seconds": peer.start_seconds}, others)

        def measure(name: str, turn: int) -> Repetition:
            loaded.bar.set_description(f"{work.name}: {name}")
            try:
                return (start if work is START else ask)(name, turn)
            except (PeerError, RuntimeError) as error:
                raise CannotContinueError(_reason(error)) from error
            finally:
                loaded.bar.total = max(loaded.bar.total or 0, loaded.bar.n + 1)  # dropped repetitions are repeated
                loaded.bar.update(not (work is START and turn == 0))

        return measure


def _reason(error: BaseException) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = str(error.stderr or error).strip().splitlines()
        return f"{error.cmd[0]}: {lines[-1] if lines else 'failed'}"
    if isinstance(error, PeerError):
        return str(error)
    return " ".join(str(error).split()) or type(error).__name__
