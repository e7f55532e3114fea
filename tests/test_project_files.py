"""Files about the project agree with each other and with what they name."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib

import pytest

from helpers import ROOT
from swad.util.version import __version__

yaml = pytest.importorskip("yaml")

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = ["CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md", ".github/PULL_REQUEST_TEMPLATE.md"]


def read(name: str) -> str:
    return (ROOT / name).read_text()


def read_yaml(name: str):
    return yaml.safe_load(read(name))


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job.get("steps", ())]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):(?!=)", read("Makefile"), re.MULTILINE))


def links(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def test_one_version():
    assert read_yaml("CITATION.cff")["version"] == __version__
    assert re.search(r"^## (\S+)", read("CHANGELOG.md"), re.MULTILINE).group(1) == __version__


def test_the_readme_cites_the_paper_as_citation_cff_does():
    (paper,) = [item for item in read_yaml("CITATION.cff")["references"] if item["type"] == "conference-paper"]
    (entry,) = re.findall(r"^```bibtex\n(.*?)^```", read("README.md"), re.DOTALL | re.MULTILINE)
    fields = {
        name: " ".join(value.split()) for name, value in re.findall(r"(\w+) += \{(.*?)\}(?=,\n|\n)", entry, re.DOTALL)
    }
    assert re.sub("[{}]", "", fields["title"]) == paper["title"]
    assert fields["author"].split(" and ") == [
        f"{author['family-names']}, {author['given-names']}" for author in paper["authors"]
    ]
    assert fields["year"] == str(paper["year"])
    assert paper["collection-title"].startswith(fields["booktitle"])


def test_ruff_has_one_version():
    (pinned,) = re.findall(r"^ruff==(\S+)$", read("constraints.txt"), re.MULTILINE)
    revisions = {
        entry["repo"].rsplit("/", 1)[1]: entry["rev"] for entry in read_yaml(".pre-commit-config.yaml")["repos"]
    }
    assert revisions["ruff-pre-commit"] == f"v{pinned}"


def test_the_demo_is_a_part_of_what_the_tests_install():
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    names = {extra: {re.split(r"[><=\[]", line)[0] for line in lines} for extra, lines in extras.items()}
    assert names["demo"] <= names["vision"] | names["report"]
    assert not names["demo"] & {"torchvision", "timm"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_least_rights_and_end(path):
    workflow = read_yaml(path)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    assert workflow["concurrency"]
    for job in workflow["jobs"].values():
        assert "uses" in job or job["timeout-minutes"] <= 90
    actions = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert actions
    assert all(re.search(r"@(release/)?v\d", action) for action in actions)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_what_there_is(path):
    commands = "\n".join(step.get("run", "") for step in steps(read_yaml(path)))
    targets = [name for line in re.findall(r"^make (.+)$", commands, re.MULTILINE) for name in line.split()]
    assert set(targets) <= make_targets()
    for name in re.findall(r"(?:^|\s)((?:tests|src)/[\w./-]+)", commands):
        assert (ROOT / name).exists(), name


def test_ci_covers_the_supported_versions_of_python():
    project = tomllib.loads(read("pyproject.toml"))["project"]
    classified = [re.search(r":: (3\.\d+)$", line) for line in project["classifiers"]]
    tested = read_yaml(".github/workflows/ci.yml")["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert tested == [match.group(1) for match in classified if match]
    assert project["requires-python"] == f">={tested[0]}"


def test_only_the_release_may_publish():
    publishing = [
        (path.name, name)
        for path in WORKFLOWS
        for name, job in read_yaml(path)["jobs"].items()
        if (job.get("permissions") or {}).get("id-token") == "write"
    ]
    assert publishing == [("release.yml", "publish")]
    jobs = read_yaml(".github/workflows/release.yml")["jobs"]
    assert jobs["publish"]["environment"] == "pypi"
    assert (jobs["publish"]["needs"], jobs["ci"]["needs"]) == ("ci", "version")


def run_release_check(naming, folder, **environment):
    """Run the one step of the release's first job whose command contains a text."""
    job = read_yaml(".github/workflows/release.yml")["jobs"]["version"]
    (command,) = [step["run"] for step in job["steps"] if naming in step.get("run", "")]
    environment = {**os.environ, **environment}
    return subprocess.run(["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(("tag", "code"), [(f"v{__version__}", 0), (__version__, 1), ("v0.0.9", 1)])
def test_a_tag_that_is_not_the_version_is_refused(tag, code):
    result = run_release_check("GITHUB_REF_NAME", ROOT, GITHUB_REF_NAME=tag)
    assert result.returncode == code
    assert (f"must be v{__version__}" in result.stdout) == bool(code)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('Repository = "https://example.org/swad"', 0),
        ("", 1),
        ('# Repository = "https://example.org/swad"', 1),
        ('Repository = ""', 1),
        ('Repository = "swad"', 1),
    ],
)
def test_a_release_without_the_address_is_refused(tmp_path, line, code):
    text = re.sub(r"^Repository = .*\n", "", read("pyproject.toml"), flags=re.MULTILINE)
    text = text.replace("[project.urls]\n", f"[project.urls]\n{line}\n")
    (tmp_path / "pyproject.toml").write_text(text)
    result = run_release_check("Repository", tmp_path)
    assert result.returncode == code
    assert result.stdout.startswith("::error::pyproject.toml must set Repository") == bool(code)
    assert len(result.stdout.splitlines()) == code


def test_an_address_elsewhere_is_not_the_one_of_the_package(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project.urls]\nPaper = "p"\n\n[tool.x]\nRepository = "https://x.org"\n')
    assert run_release_check("Repository", tmp_path).returncode == 1


@pytest.mark.parametrize("name", PAGES)
def test_pages_name_what_there_is(name):
    text, folder = read(name), (ROOT / name).parent
    missing = [link for link in links(text) if not (folder / link.partition("#")[0]).exists()]
    # What `make docs` builds may be missing.
    paths = re.findall(r"`((?:src|tests|docs|\.github)/(?!_build/)[\w./-]+)`", text)
    assert not missing + [path for path in paths if not (ROOT / path).exists()]


def test_commands_of_contributing_exist():
    targets = re.findall(r"`make ([a-z ]+)`", read("CONTRIBUTING.md"))
    assert {name for names in targets for name in names.split()} <= make_targets()


def test_llms_txt_has_the_form_of_llmstxt_org():
    title, blank, summary, *rest = read("llms.txt").splitlines()
    assert (title, blank) == ("# swad", "")
    assert summary.startswith("> ")
    sections = "\n".join(rest).split("\n## ")[1:]
    for section in sections:
        heading, *items = section.strip().splitlines()
        assert all(re.fullmatch(r"- \[[^]]+\]\([^)]+\): .+", item) for item in items if item), heading


def test_links_of_llms_txt_exist():
    assert not [link for link in links(read("llms.txt")) if not (ROOT / link).exists()]


def test_no_address_of_the_repository_is_invented():
    urls = tomllib.loads(read("pyproject.toml"))["project"]["urls"]
    known = "Repository" in urls
    for name in [*PAGES, "CITATION.cff", "llms.txt"]:
        assert known or not re.search(r"github\.com/[\w-]+/swad", read(name)), name
