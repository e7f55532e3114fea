"""A training that writes its files at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
