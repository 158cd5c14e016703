"""Metrics of the cards beside vLLM's own in `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from vllm.v1.metrics.loggers import StatLoggerBase

from openspyre.runtime.shown import CardUse, read_states
from openspyre.settings import settings
from openspyre.vllm.step_record import SECONDS, StepRecord, read_records

_LABELS = ("engine", "card")
_BOUNDS = (*map(str, SECONDS), "+Inf")


class SpyreStatLogger(StatLoggerBase):
    """vLLM's entry point for metrics; they are read from the workers when somebody asks for them.

    vLLM gives one to each engine. What it records of steps is vLLM's own affair.
    """

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        REGISTRY.register(CardCollector(vllm_config.instance_id, engine_index))

    def record(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: see CardCollector."""

    def log_engine_initialized(self) -> None:
        """Nothing."""


class CardCollector(Collector):
    """The metrics of an instance's cards at the moment they are asked for."""

    def __init__(self, instance: str, engine: int) -> None:
        self.instance, self.engine = instance, str(engine)

    def describe(self) -> Iterator[Metric]:
        """No names before the first scrape: so that registration reads no files."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        folder = settings().run
        records = list(read_records(folder, self.instance))
        uses = {(use.process, use.device): use for use in read_states(folder)}
        yield from self._of_steps(records)
        yield from self._of_cards(
            [(r, uses[r.process, r.device]) for r in records if (r.process, r.device) in uses]
        )

    def _labels(self, record: StepRecord) -> list[str]:
        return [self.engine, str(record.rank)]

    def _of_steps(self, records: list[StepRecord]) -> Iterator[Metric]:
        steps = HistogramMetricFamily(
            "openspyre:step_card_seconds", "Card time of a step", labels=_LABELS
        )
        cycles = _counter("card_cycles", "Card time of all steps in core clock cycles")
        fallbacks = _counter("fallbacks", "Ops that ran on the CPU, by name", "op")
        compiles = _counter("compiles_after_warmup", "Programs compiled since the server was ready")
        for record in records:
            labels = self._labels(record)
            buckets = list(zip(_BOUNDS, accumulate(record.counts), strict=True))
            steps.add_metric(labels, buckets, record.seconds)
            cycles.add_metric(labels, record.cycles)
            compiles.add_metric(labels, record.compiles)
            for op, count in (record.fallbacks or {}).items():
                fallbacks.add_metric([*labels, op], count)
        yield from (steps, cycles, fallbacks, compiles)

    def _of_cards(self, found: list[tuple[StepRecord, CardUse]]) -> Iterator[Metric]:
        total = _gauge("card_memory_bytes", "Device memory of the card")
        used = _gauge("card_memory_used_bytes", "Device memory that tensors hold")
        reserved = _gauge("card_memory_reserved_bytes", "Device memory held for tensors or reuse")
        busy = _counter("card_busy_seconds", "Time in which a program ran; its rate is the use")
        launches = _counter("card_launches", "Programs that the card ran")
        for record, use in found:
            labels = self._labels(record)
            total.add_metric(labels, use.memory)
            used.add_metric(labels, use.allocated)
            reserved.add_metric(labels, use.reserved)
            busy.add_metric(labels, use.busy_seconds)
            launches.add_metric(labels, use.launches)
        yield from (total, used, reserved, busy, launches)


def _gauge(name: str, about: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"openspyre:{name}", about, labels=_LABELS)


def _counter(name: str, about: str, *more: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"openspyre:{name}", about, labels=(*_LABELS, *more))
