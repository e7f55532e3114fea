"""Predictions: what the weights of a run say about every image that they were evaluated on, in one file per run.

The final evaluation of a training writes `predictions.npz`: arrays that NumPy reads without unpickling anything.

    classes, domains, splits, weights     names
    domain, split, label                  of every image, as places in these lists
    image, path                           its number in the domain, and its file in `root` ("" without files)
    root                                  the directory of the files of every domain
    prediction                            class by weights and image
    probability                           by weights, image and class; with more than `MAX_CLASSES` classes, only that
                                          of the predicted class

    predictions = read_predictions("runs/digits/erm/paper-0")     # a data frame
    wrong = predictions[predictions.label != predictions.prediction]
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from swad.testbed.results.records import RecordError
from swad.util.files import MAX_BYTES, atomic_write, require_regular
from swad.util.names import one_line

if TYPE_CHECKING:
    import pandas as pd

PREDICTIONS = "predictions.npz"

MAX_CLASSES = 100
"""With more classes, only the probability of the predicted one is kept: 345 of them for the 150,000 images of a run on
DomainNet would take 200 MB for each average."""

Array = npt.NDArray[Any]


class Part(NamedTuple):
    """The images of one split of a domain."""

    domain: str
    split: str
    images: Array
    labels: Array
    paths: Sequence[str] = ()
    """The files of the images, below `root`; none for images that are no files."""
    root: str = ""


def write_predictions(
    directory: Path, classes: Sequence[str], parts: Sequence[Part], outputs: Mapping[str, tuple[Array, Array]]
) -> None:
    """Write the predictions of a run.

    Args:
        directory: The run directory.
        classes: Names of the classes.
        parts: The images, split by split.
        outputs: By weights, the predicted class of every image, and the probabilities of all classes or that of the
            prediction.
    """
    sizes = [len(part.images) for part in parts]
    domains, splits = (list(dict.fromkeys(names)) for names in zip(*(part[:2] for part in parts), strict=True))
    roots = {part.domain: part.root for part in parts}
    predictions, probabilities = zip(*outputs.values(), strict=True)
    arrays = {
        "classes": np.array(classes),
        "domains": np.array(domains),
        "splits": np.array(splits),
        "weights": np.array(list(outputs)),
        "domain": np.repeat([domains.index(part.domain) for part in parts], sizes).astype(np.int16),
        "split": np.repeat([splits.index(part.split) for part in parts], sizes).astype(np.int8),
        "label": np.concatenate([part.labels for part in parts]).astype(np.int32),
        "image": np.concatenate([part.images for part in parts]).astype(np.int32),
        "path": np.array([path for part in parts for path in part.paths or [""] * len(part.images)]),
        "root": np.array([roots[name] for name in domains]),
        "prediction": np.stack(predictions).astype(np.int32),
        "probability": np.stack(probabilities).astype(np.float32),
    }
    with atomic_write(directory / PREDICTIONS) as partial, partial.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def read_predictions(run: str | os.PathLike[str]) -> pd.DataFrame:
    """Return the predictions of a run as a data frame with a row for each image and weights.

    The columns are weights, domain, split, image, path, label, prediction and probability, that of the prediction. A
    column `p(CLASS)` for each class follows, if the run kept them. Names are categories. Images
    that are no files have the path "".

    Args:
        run: The run directory.
    """
    import pandas as pd

    path = Path(run) / PREDICTIONS
    try:
        require_regular(path, MAX_BYTES)
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_BYTES:
                raise ValueError(f"it holds more than {MAX_BYTES:,} bytes")
        with np.load(path, allow_pickle=False) as arrays:
            stored = dict(arrays)
        names = {name: stored[name].astype(str).tolist() for name in ("classes", "domains", "splits", "weights")}
        n_weights, n = stored["prediction"].shape
        roots = stored["root"].astype(str)[stored["domain"]].tolist()
        paths = [path and os.path.join(root, path) for root, path in zip(roots, stored["path"].tolist(), strict=True)]

        def category(name: str, codes: Array) -> pd.Categorical:
            return pd.Categorical.from_codes(codes.reshape(-1), pd.Index(names[name], dtype=object))

        columns: dict[str, Any] = {
            "weights": category("weights", np.repeat(np.arange(n_weights), n)),
            "domain": category("domains", np.tile(stored["domain"], n_weights)),
            "split": category("splits", np.tile(stored["split"], n_weights)),
            "image": np.tile(stored["image"], n_weights),
            "path": pd.Series(paths * n_weights, dtype=object),  # as texts of pandas, names must be in UTF-8
            "label": category("classes", np.tile(stored["label"], n_weights)),
            "prediction": category("classes", stored["prediction"]),
        }
        probability = stored["probability"].reshape(n_weights * n, -1)
        if stored["probability"].ndim == 2:
            columns["probability"] = probability[:, 0]
        else:
            columns["probability"] = np.take_along_axis(probability, stored["prediction"].reshape(-1, 1), 1)[:, 0]
            columns |= {f"p({name})": probability[:, code] for code, name in enumerate(names["classes"])}
        frame = pd.DataFrame(columns)
    except FileNotFoundError:
        raise RecordError(
            f"{path.parent} has no {PREDICTIONS}: it is written when a training ends, unless it was trained with "
            "--no-predictions"
        ) from None
    except OSError as error:
        raise RecordError(f"cannot read {path} ({error.strerror or error}): restore it or remove it") from None
    except Exception as error:  # NumPy and zipfile raise several classes for files that are no such archive
        raise RecordError(f"cannot read {path} ({one_line(error)}): restore it or remove it") from None
    return frame
