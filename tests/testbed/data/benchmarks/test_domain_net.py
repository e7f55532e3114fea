"""DomainNet without its duplicates."""

import pytest

from helpers.small_trees import make
from swad.testbed.data import benchmarks
from swad.util.images import DataError


def test_domain_nets_duplicates_are_left_out(tmp_path):
    root = make(benchmarks.get("DomainNet"), tmp_path)
    name = "domain_net_duplicates.txt"
    for file in (root / "domain_net" / name, root / name, root / "given.txt"):
        file.write_text("clipart/class_003/000.png\nreal/class_344/000.png\n../../outside.png\n\n")
        options = {"duplicates": file} if file.name != name else {}
        dataset = benchmarks.load("DomainNet", root, check_counts=False, **options)
        assert [len(domain) for domain in dataset.domains] == [344, 345, 345, 345, 344, 345]
        # The class stays, though its only image here is gone.
        assert len(dataset.classes) == 345
        assert 3 not in dataset.domains[0].labels
        file.unlink()
    with pytest.raises(DataError, match="is not a file"):
        benchmarks.load("DomainNet", root, duplicates=root / "none.txt")
