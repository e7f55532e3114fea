"""PACS: seven classes as photographs, art paintings, cartoons and sketches."""

from swad.testbed.data.benchmark import Benchmark, Download
from swad.testbed.data.domains import Defaults

BENCHMARK = Benchmark(
    name="PACS",
    folder="PACS",
    domains=("art_painting", "cartoon", "photo", "sketch"),
    counts={"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},
    n_classes=7,
    classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    defaults=Defaults(published_schedule=True),
    license="none stated: images gathered from the web, for research",
    citation="Li, Yang, Song, Hospedales: Deeper, Broader and Artier Domain Generalization. ICCV 2017.",
    homepage="http://www.eecs.qmul.ac.uk/~dl307/project_iccv2017",
    sources=(
        (Download("https://drive.google.com/uc?id=1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd", "PACS.zip"),),
        (Download("https://drive.google.com/uc?id=1WWi9tuUNFmUiw7Eirq_JT_hxYZv3J-Vv", "PACS-copy.zip"),),
        "hub:flwrlabs/pacs",
        (Download("https://wjdcloud.blob.core.windows.net/dataset/PACS.zip", "PACS-wjdcloud.zip"),),
    ),
)
