"""What measurements of a saved run share: names of weights, settings of images, and the check of weights files."""

from __future__ import annotations

from collections.abc import Sequence

from swad.experiments.saved_run import SavedRun
from swad.results.flatness_rows import Row, RowFile
from swad.training.run_dir import RunError


def full_names(run: SavedRun, names: Sequence[str]) -> list[str]:
    """Return the full names of weights, each once."""
    return list(dict.fromkeys(run.full_name(name) for name in names))


def source_domains(run: SavedRun) -> list[str]:
    """Return the names of the domains that the run was trained on."""
    return list(run.held_out.sources.names)


def image_settings(run: SavedRun, n_images: int | None) -> dict[str, int | None]:
    """Return the settings that determine the images of each domain.

    The size of mixed groups is among them only if predictions depend on the group. Results that were stored before the
    groups were mixed lack it, so they are not reused.
    """
    group_size = run.eval_group_size
    return {"images": n_images} | ({} if group_size is None else {"mixed_groups": group_size})


def stored_rows(file: RowFile, key: str, kind: str, name: str) -> list[Row]:
    """Return the rows of one kind of some weights, in order."""
    return [row for row in file.rows_of(key) if row["kind"] == kind and row["weights"] == name]


def require_same_weights(file: RowFile, key: str, run: SavedRun, names: Sequence[str]) -> None:
    """Refuse weights files that changed since they were measured."""
    for name in names:
        fingerprint = run.fingerprint(name)
        stored = stored_rows(file, key, "weights", name)
        if not stored:
            file.append({"key": key, "kind": "weights", "weights": name, "fingerprint": fingerprint})
        elif stored[-1]["fingerprint"] != fingerprint:
            raise RunError(f"{run.file(name)} changed since {file.path} was written: remove that file to measure again")
