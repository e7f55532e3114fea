"""Makes the README's links absolute in the package, because PyPI shows it outside of the repository."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent


def description(readme: str, repository: str | None, version: str) -> str:
    """Return the README with links and images of the tagged version; unchanged as long as no address is set."""
    if repository is None:
        return readme
    repository = repository.rstrip("/")
    readme = re.sub(r"(!\[[^\]]*\])\((?!\w+:)", rf"\1({repository}/raw/v{version}/", readme)
    return re.sub(r"\]\((?!\w+:|#)", f"]({repository}/blob/v{version}/", readme)  # the links, after the images


if __name__ == "__main__":
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("urls", {})
    (version,) = re.findall(r'__version__ = "(.+)"', (ROOT / "src/swad/util/version.py").read_text(encoding="utf-8"))
    setup(
        long_description=description((ROOT / "README.md").read_text(encoding="utf-8"), urls.get("Repository"), version),
        long_description_content_type="text/markdown",
    )
