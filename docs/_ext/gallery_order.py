"""The order of the gallery."""

from pathlib import Path

ORDER = (
    "quickstart",
    "lightning_trainer",
    "huggingface_trainer",
    "timm_loop",
    "fsdp2_two_processes",
    "ship_a_model",
    "flatness_intervals",
    "loss_surface",
    "own_data_and_method",
)


class ReadersOrder:
    """Sort examples as a reader wants them, and those that `ORDER` does not name last."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, file_name: str) -> tuple[int, str]:
        """Return the key of an example."""
        name = Path(file_name).stem
        return (ORDER.index(name) if name in ORDER else len(ORDER), name)
