"""The order of the gallery, and the thumbnails of examples that draw nothing."""

from pathlib import Path

ORDER = (
    "quickstart",
    "lightning_trainer",
    "huggingface_trainer",
    "timm_loop",
    "fsdp2_two_processes",
    "large_models",
    "merge_checkpoints",
    "ship_a_model",
    "flatness_intervals",
    "loss_surface",
    "own_data_and_method",
)

TILES = {
    "lightning_trainer": "Trainer(\n  callbacks=[\n    SWADCallback(),\n  ],\n)",
    "huggingface_trainer": "Trainer(\n  model,\n  callbacks=[\n    SWADCallback(),\n  ],\n)",
    "timm_loop": "ModelSwad(model)\n\n# in place of\n# ModelEmaV3",
    "large_models": "get_peft_model(\n  model,\n  LoraConfig(),\n)\n\nswad.SWAD(model)",
    "fsdp2_two_processes": "fully_shard(model)\n\nswad.SWAD(model)\nswad.EMA(model)",
}
"""The lines of code on the thumbnails."""


class ReadersOrder:
    """Sort examples as a reader wants them, and those that `ORDER` does not name last."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, file_name: str) -> tuple[int, str]:
        """Return the key of an example."""
        name = Path(file_name).stem
        return (ORDER.index(name) if name in ORDER else len(ORDER), name)
