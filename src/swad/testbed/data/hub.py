"""Downloading a dataset from the Hugging Face Hub with the Hub's own client, which resumes and verifies its files."""

from __future__ import annotations

from pathlib import Path

from swad.util.data_path import HUB
from swad.util.images import DataError
from swad.util.names import one_line

INSTALL = "pip install 'swad[hub]'"


def fetch(address: str, into: Path) -> list[Path]:
    """Download the parquet files of ``hub:owner/name`` or ``hub:owner/name@revision`` into a folder."""
    try:
        import huggingface_hub
    except ImportError:
        raise DataError(f"{address} needs huggingface-hub and pyarrow: {INSTALL}") from None
    repository, _, revision = address.removeprefix(HUB).partition("@")
    try:
        # Asked for first: without a connection, the client would take a folder with some of the files as complete.
        info = huggingface_hub.HfApi().dataset_info(repository, revision=revision or None)
        names = sorted(file.rfilename for file in info.siblings or () if file.rfilename.endswith(".parquet"))
        if names:
            huggingface_hub.snapshot_download(
                repository, repo_type="dataset", revision=info.sha, local_dir=into, allow_patterns=names
            )
    except Exception as error:  # among others those of its HTTP library, which differ between versions
        raise DataError(
            f"cannot download {address} from the Hugging Face Hub ({one_line(error, 300)}); check the name and the "
            "connection"
        ) from error
    if not names:
        raise DataError(
            f"{address} must have parquet files, but has none; the Hub may have converted its files: try "
            f"{HUB}{repository}@refs/convert/parquet"
        )
    return [into / name for name in names]
