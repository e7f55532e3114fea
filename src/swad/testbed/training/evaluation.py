"""Evaluate the weights of a run: mean loss and accuracy, by domain and split.

Sums are kept on the device in double precision and read once per evaluation, so the result depends neither on the
batch size nor on the number of processes. `Evaluator` decides how a run evaluates: which images stay in memory for
later passes, and whether a CUDA graph is used. It does not read the target before `target_scores` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from swad.gpu.cuda_graph import CapturedGraph, CaptureError
from swad.testbed.data.augmentation import Augmentation
from swad.testbed.data.cache import ImageCache
from swad.testbed.data.domains import ImageSpec
from swad.testbed.data.loaders import EvalLoader
from swad.testbed.data.splits import DomainSplit, Target
from swad.testbed.data.transforms import Normalize
from swad.testbed.results.records import Record
from swad.testbed.training.config import ResolvedConfig
from swad.testbed.training.distributed import Dist
from swad.testbed.training.metrics import Outputs, compute
from swad.testbed.training.state import TrainingState
from swad.testbed.training.step import EAGER

MAX_KEPT_BYTES = 2 * 2**30
"""Most bytes of decoded images that a run keeps in host memory for later evaluations; on a GPU, a quarter of the free
memory is the limit. Validation images are kept first, so that only the first evaluation decodes them."""


# -- scores ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """The result of an evaluation, stored as sums so that the scores of two splits add up to the score of both.

    >>> (Score(2.0, 1, 2) + Score(1.0, 2, 2)).accuracy
    0.75
    """

    loss_sum: float
    correct: int
    n: int
    outputs: Outputs | None = field(default=None, repr=False, compare=False)
    """Only of evaluations that were asked for them."""

    def __add__(self, other: Score) -> Score:
        outputs = None
        if self.outputs is not None and other.outputs is not None:
            outputs = Outputs(*map(torch.cat, zip(self.outputs, other.outputs, strict=True)))
        return Score(self.loss_sum + other.loss_sum, self.correct + other.correct, self.n + other.n, outputs)

    @property
    def loss(self) -> float:
        """Mean cross entropy."""
        return self.loss_sum / self.n

    @property
    def accuracy(self) -> float:
        """Fraction of images that are classified correctly."""
        return self.correct / self.n


Scores = dict[str, dict[str, Score]]
"""Scores by domain, then by split."""


Values = dict[str, dict[str, dict[str, float]]]
"""Values by domain, split and metric."""


def value_records(run: str, step: int, values: Values, average: str | None = None) -> list[Record]:
    """Return values as records."""
    return [
        Record(run, step, domain, split, metric, value, average)
        for domain, splits in values.items()
        for split, metrics in splits.items()
        for metric, value in metrics.items()
    ]


# -- one pass --------------------------------------------------------------------------------------------------------


Autocast = Callable[[], AbstractContextManager[object]]


@torch.no_grad()
def evaluate_splits(
    model: nn.Module,
    splits: Mapping[str, Iterable[tuple[Tensor, Tensor]]],
    dist: Dist,
    autocast: Autocast = nullcontext,
    n_outputs: int = 0,
) -> dict[str, Score]:
    """Evaluate the model on the batches of several splits and return their scores by name, read from the device once.

    Each process passes its own batches, and all get the scores of all of them.

    Args:
        model: The model.
        splits: The batches of every split.
        dist: This process.
        autocast: Opens the mixed-precision context of forward passes.
        n_outputs: Number of classes, to keep the model's outputs in the scores; every split is an `EvalLoader` then.
    """
    sums = torch.zeros(len(splits), 3, dtype=torch.float64, device=dist.device)
    outputs: list[Outputs | None] = []
    with eval_mode(model):
        for row, batches in zip(sums, splits.values(), strict=True):
            rows = [torch.zeros(0, n_outputs + 1, device=dist.device)]
            for images, labels in batches:
                logits = compute_logits(model, images, autocast)
                row += per_image(logits, labels).sum(0)
                if n_outputs:
                    rows.append(torch.cat([logits.argmax(1, keepdim=True), logits.softmax(1)], dim=1))
            outputs.append(_gather(batches, torch.cat(rows), dist) if n_outputs else None)
    scores = read_scores(sums, splits, dist)
    return {name: replace(score, outputs=each) for (name, score), each in zip(scores.items(), outputs, strict=True)}


def _gather(loader: Iterable[object], rows: Tensor, dist: Dist) -> Outputs:
    """Put the rows of all processes, a prediction and its probabilities for each image, into the order of the split."""
    assert isinstance(loader, EvalLoader)
    gathered = rows.new_zeros(len(loader.split), rows.shape[1])
    gathered[torch.from_numpy(loader.positions).to(rows.device)] = rows
    dist.sum(gathered)  # a row is zero in all processes but one
    return Outputs(torch.from_numpy(loader.split.labels).to(rows.device), gathered[:, 0].long(), gathered[:, 1:])


def compute_logits(model: nn.Module, images: Tensor, autocast: Autocast) -> Tensor:
    """Return the logits of a batch in single precision."""
    with autocast():
        logits: Tensor = model(images)
    return logits.float()


def per_image(logits: Tensor, labels: Tensor) -> Tensor:
    """Return one row per image: its loss, 1 if it is classified correctly, and 1; zeros where the label is -1."""
    loss = functional.cross_entropy(logits, labels, reduction="none", ignore_index=-1)
    return torch.stack([loss.double(), (logits.argmax(1) == labels).double(), (labels >= 0).double()], dim=1)


def read_scores(sums: Tensor, names: Iterable[str], dist: Dist) -> dict[str, Score]:
    """Read scores from sums on the device, one row per name. Only this call of an evaluation waits for the device."""
    rows = zip(names, dist.sum(sums).tolist(), strict=True)
    return {name: Score(loss_sum, round(correct), round(n)) for name, (loss_sum, correct, n) in rows}


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode for the block, then restore the mode of every module."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


# -- with a CUDA graph -----------------------------------------------------------------------------------------------


class ResidentEvaluation:
    """Evaluates the live weights repeatedly on images that stay on the device, with a captured CUDA graph.

    The domains are concatenated and batches may span two of them, so only the last batch needs padding. The weights
    change in place, so a graph that is captured once stays valid for the whole training.
    """

    def __init__(
        self,
        model: nn.Module,
        loaders: Mapping[str, EvalLoader],
        dist: Dist,
        autocast: Autocast,
        log: Callable[[str], None] = print,
    ) -> None:
        self._log = log
        self._model, self._dist, self._autocast, self._names = model, dist, autocast, tuple(loaders)
        image_spec = next(iter(loaders.values())).image_spec
        self._normalize: Callable[[Tensor], Tensor] = Normalize(image_spec, dist.device)
        sizes = torch.tensor([len(loader) for loader in loaders.values()])
        n = int(sizes.sum())
        self.batch_size = _batch_size(n)
        padding = -n % self.batch_size
        images = [loader.bytes() for loader in loaders.values()]
        images.append(images[0].new_zeros(padding, *images[0].shape[1:]))
        self._images = torch.cat(images)
        labels = torch.cat([loader.labels() for loader in loaders.values()])
        self._labels = functional.pad(labels, (0, padding), value=-1)
        owner = functional.pad(torch.repeat_interleave(sizes), (0, padding))
        self._owner = functional.one_hot(owner, len(loaders)).double().to(dist.device)
        self._sums = torch.zeros(len(loaders), 3, dtype=torch.float64, device=dist.device)
        self._graph: CapturedGraph[None] | None = None
        self._warm = False
        self.reason = ""
        """Why the evaluation is eager, if it could not be captured."""

    @torch.no_grad()
    def __call__(self) -> dict[str, Score]:
        """Evaluate the current weights and return the scores by domain."""
        self._sums.zero_()
        with eval_mode(self._model):
            if self._warm and self._graph is None and not self.reason:
                self._capture()
            for start in range(0, len(self._images), self.batch_size):
                batch = self._batch(start)
                if self._graph is None:
                    self._add(batch)
                else:
                    self._graph.replay(batch)
        self._warm = True
        return read_scores(self._sums.clone(), self._names, self._dist)

    def _batch(self, start: int) -> dict[str, Tensor]:
        rows = slice(start, start + self.batch_size)
        return {"images": self._images[rows], "labels": self._labels[rows], "owner": self._owner[rows]}

    def _add(self, batch: Mapping[str, Tensor]) -> None:
        images, labels = self._normalize(batch["images"]), batch["labels"]
        logits = compute_logits(self._model, images, self._autocast)
        self._sums += batch["owner"].T @ per_image(logits, labels)

    def _capture(self) -> None:
        try:
            self._graph = CapturedGraph(self._add, self._batch(0))
        except CaptureError as error:
            self.reason = str(error)
            self._log(f"evaluating eagerly: the evaluation cannot be captured ({self.reason})")


def _batch_size(n: int) -> int:
    """Choose a batch size that fills a GPU and needs the least padding.

    >>> _batch_size(1587), _batch_size(40)
    (320, 64)
    """
    if n < 256:
        return -(-n // 32) * 32
    return min(range(512, 255, -32), key=lambda size: -n % size)


# -- the evaluations of a run ----------------------------------------------------------------------------------------


class Evaluator:
    """Evaluates the weights of one run. Several processes share the images.

    Args:
        training: The training whose live weights are evaluated.
        log: Called with a message if an evaluation cannot be captured in a CUDA graph.
    """

    def __init__(self, training: TrainingState, log: Callable[[str], None] = print) -> None:
        self._log = log
        config, sources, dist = training.config, training.sources, training.dist
        self._sources, self._live, self._cache = sources, training.predictor, training.cache
        self._dist, self._autocast = dist, training.autocast
        group_size = type(training.algorithm).eval_group_size(training.algorithm.hyperparameters)
        self._loaders = partial(eval_loaders, config, sources.image_spec, dist, group_size, training.cache)
        self._free_bytes = max_kept_bytes(dist.device)
        n, augment = config.validation_subsample, config.augment_validation
        val = [part.subsample(n, config.seed) for part in sources.val]
        keep = self._reserve_memory(val)
        self.validation = self._loaders(val, keep, augment)
        self.full_validation = self.validation
        if n:
            self.full_validation = self._loaders(sources.val, self._reserve_memory(sources.val), augment)
        # Capture evaluations only if steps are captured: a graph pays where kernels take longer to launch than to run.
        self._metrics = config.recorded_metrics
        # Neither the outputs for all images nor torchmetrics can be captured.
        self._captures = training.engine.kind != EAGER and keep and group_size is None and not self._metrics
        n_classes = len(sources.classes)
        self._n_outputs = n_classes if self._metrics else 0
        self._n_final_outputs = n_classes if self._metrics or config.predictions else 0
        self._resident: ResidentEvaluation | None = None
        self._source_test: dict[str, EvalLoader] | None = None
        self._target: dict[str, dict[str, EvalLoader]] | None = None

    def validation_scores(self, model: nn.Module) -> dict[str, Score]:
        """Evaluate the model on every source's validation images, or on the configured subsample of them."""
        if model is self._live and self._captures:
            if self._resident is None:
                self._resident = ResidentEvaluation(model, self.validation, self._dist, self._autocast, self._log)
            return self._resident()
        return self._evaluate(model, self.validation, self._n_outputs)

    def target_scores(self, model: nn.Module, target: Target, n_outputs: int | None = None) -> Scores:
        """Evaluate the model on every held-out domain: in, out, test if there is one, and all of them as full."""
        if self._target is None:  # build the loaders only now, so that no image of the target is read before
            self._target = {name: {} for name in target.names}
            for split, parts in {"in": target.train, "out": target.val, "test": target.test}.items():
                for name, loader in self._loaders(parts, self._reserve_memory(parts)).items():
                    self._target[name][split] = loader
        scores: Scores = {}
        for name, loaders in self._target.items():
            by_split = self._evaluate(model, loaders, self._n_outputs if n_outputs is None else n_outputs)
            first, *rest = by_split.values()
            scores[name] = {**by_split, "full": sum(rest, first)}
        return scores

    def final_scores(self, model: nn.Module, target: Target) -> Scores:
        """Evaluate weights that are reported: on all validation and test images of the sources, and on the target.

        The scores hold the outputs of the model, if the run keeps its predictions.
        """
        n_outputs = self._n_final_outputs
        validation = self._evaluate(model, self.full_validation, n_outputs)
        scores: Scores = {name: {"out": score} for name, score in validation.items()}
        if self._source_test is None:
            parts = self._sources.test
            self._source_test = self._loaders(parts, self._reserve_memory(parts))
        for name, score in self._evaluate(model, self._source_test, n_outputs).items():
            scores[name]["test"] = score
        return {**scores, **self.target_scores(model, target, n_outputs)}

    def values(self, scores: Scores) -> Values:
        """Return loss, accuracy and the metrics that the run asks for."""
        return {
            domain: {
                split: {"loss": score.loss, "accuracy": score.accuracy, **self._others(score)}
                for split, score in splits.items()
            }
            for domain, splits in scores.items()
        }

    def _others(self, score: Score) -> dict[str, float]:
        if not self._metrics or score.outputs is None:
            return {}
        return compute(self._metrics, score.outputs, self._sources.classes)

    def _evaluate(self, model: nn.Module, loaders: Mapping[str, EvalLoader], n_outputs: int) -> dict[str, Score]:
        return evaluate_splits(model, loaders, self._dist, self._autocast, n_outputs)

    def _reserve_memory(self, parts: Sequence[DomainSplit]) -> bool:
        """Reserve memory to keep the decoded images of these splits, if there is enough."""
        if self._cache is None and any(part.split != "val" for part in parts):
            return False
        image_spec = self._sources.image_spec
        n_bytes = sum(map(len, parts)) * image_spec.channels * image_spec.size**2
        self._free_bytes = min(self._free_bytes, max_kept_bytes(self._dist.device))  # free GPU memory changes
        if n_bytes > self._free_bytes:
            return False
        self._free_bytes -= n_bytes
        return True


def eval_loaders(
    config: ResolvedConfig,
    image_spec: ImageSpec,
    dist: Dist,
    group_size: int | None,
    cache: ImageCache | None,
    parts: Sequence[DomainSplit],
    keep: bool = False,
    augment: bool = False,
) -> dict[str, EvalLoader]:
    """Build the loaders with which a run evaluates splits, by domain.

    Args:
        config: Resolved settings of the run.
        image_spec: The form of the images.
        dist: This process.
        group_size: Images that must be evaluated together, if predictions depend on the batch.
        cache: Decoded images; without it images are read from their files.
        parts: One split of every domain.
        keep: Keep the decoded images in memory for later passes.
        augment: Augment the images.
    """
    # Use small batches on a CPU: large activations cost more in page faults than small batches cost in calls.
    batch_size = 16 if dist.device.type == "cpu" and not image_spec.low_res else 256
    if group_size is not None:
        batch_size = group_size * max(1, batch_size // group_size)
    return {
        part.name: EvalLoader(
            part,
            image_spec,
            batch_size,
            rank=dist.rank,
            world_size=dist.world_size,
            whole_batches=group_size is not None,
            augmentation=Augmentation(**config.augmentation) if augment else None,
            seed=config.seed,
            cache=cache,
            keep=keep,
            workers=config.workers,
            device=dist.device,
        )
        for part in parts
    }


def max_kept_bytes(device: torch.device) -> int:
    """Return how many bytes of decoded images may be kept on a device."""
    return MAX_KEPT_BYTES if device.type != "cuda" else torch.cuda.mem_get_info(device)[0] // 4
