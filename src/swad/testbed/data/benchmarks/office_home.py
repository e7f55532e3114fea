"""OfficeHome: 65 everyday objects as art, clip art, product shots and photographs."""

from swad.testbed.data.benchmark import Benchmark, Download
from swad.testbed.data.domains import Defaults

BENCHMARK = Benchmark(
    name="OfficeHome",
    folder="office_home",
    domains=("Art", "Clipart", "Product", "Real"),
    counts={"Art": 2427, "Clipart": 4365, "Product": 4439, "Real": 4357},
    n_classes=65,
    aliases={"Real World": "Real", "RealWorld": "Real", "Real_World": "Real"},
    defaults=Defaults(published_schedule=True),
    license="fair-use notice: non-commercial research",
    citation="Venkateswara, Eusebio, Chakraborty, Panchanathan: Deep Hashing Network for Unsupervised "
    "Domain Adaptation. CVPR 2017.",
    homepage="https://www.hemanthdv.org/officeHomeDataset.html",
    sources=(
        (Download("https://drive.google.com/uc?id=1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC", "office_home.zip"),),
        (Download("https://drive.google.com/uc?id=1USXqK4nCvOAR5Ty4iwKcuCOrRJoRuDyU", "office_home-copy.zip"),),
        "hub:flwrlabs/office-home",
        (Download("https://wjdcloud.blob.core.windows.net/dataset/OfficeHome.zip", "office_home-wjdcloud.zip"),),
    ),
)
