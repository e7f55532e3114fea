"""A launcher that trains one task after another in this process, for tests of the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from swad.testbed.experiments.launchers.base import Outcome, Task
from swad.testbed.experiments.launchers.work import train_task


class InProcessLauncher:
    """Trains a task in every call of `wait`.

    Args:
        train: Trains a run; by default the real training.
        before: Called before every task; may raise KeyboardInterrupt.
    """

    slots = 1

    def __init__(self, train: Callable[..., Any] | None = None, before: Callable[[Task], None] | None = None) -> None:
        self._train, self._before = train, before
        self.queue: list[Task] = []
        self.order: list[Task] = []
        self.stopped = False

    def submit(self, tasks: Sequence[Task]) -> None:
        self.queue += tasks

    def wait(self, timeout: float | None = None) -> list[Outcome]:
        if self.stopped:
            left, self.queue = self.queue, []
            return [Outcome(task, "interrupted", "stopped") for task in left]
        if not self.queue:
            return []
        if self._before is not None:
            self._before(self.queue[0])
        task = self.queue.pop(0)
        self.order.append(task)
        return [train_task(task, self._train)]

    def stop(self) -> None:
        self.stopped = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def fake_train(accuracy: Callable[[Any], float]) -> Callable[..., None]:
    """A training that writes records and a result at once; `accuracy(config)` is that on the sources' validation."""
    from swad.testbed.data import benchmarks
    from swad.testbed.results.records import DONE, Record, RecordWriter
    from swad.util.files import write_json

    def train(config: Any, callback: object | None = None) -> None:
        directory, name = config.output, config.name
        write_json(directory / "config.json", config.to_json())
        domains = benchmarks.get(config.dataset).domains
        value = accuracy(config)
        with RecordWriter(directory) as writer:
            for weights in ("best", "last", *config.averages):
                writer.append(
                    *(
                        Record(name, 10, domain, split, "accuracy", 1 - value if target else value, weights)
                        for domain in domains
                        for target in [domain in config.targets]
                        for split in (("in", "out") if target else ("out",))
                    )
                )
        write_json(directory / DONE, {"seconds": 2.0, "warnings": []})

    return train
