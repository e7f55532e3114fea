"""VLCS: five classes from four collections of photographs (VOC2007, LabelMe, Caltech101, SUN09)."""

from swad.testbed.data.benchmark import Benchmark, Download
from swad.testbed.data.domains import Defaults

BENCHMARK = Benchmark(
    name="VLCS",
    folder="VLCS",
    domains=("Caltech101", "LabelMe", "SUN09", "VOC2007"),
    counts={"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376},
    n_classes=5,
    classes=("bird", "car", "chair", "dog", "person"),
    # The paper uses r = 1.2 for this dataset only, and evaluates twice as often because it overfits early.
    defaults=Defaults(evaluate_every=50, published_schedule=True, tolerance_ratio=0.2),
    license="none stated: images gathered from four collections, for research",
    citation="Fang, Xu, Rockmore: Unbiased Metric Learning. ICCV 2013.",
    homepage="http://www.eecs.qmul.ac.uk/~dl307/project_iccv2017",
    sources=(
        (Download("https://drive.google.com/uc?id=1skwblH1_okBwxWxmRsp9_qi15hyPpxg8", "VLCS.tar.gz"),),
        (Download("https://drive.google.com/uc?id=1yDuLrJdPSvMbTmpq-7XmwG0HnJengD-T", "VLCS-copy.zip"),),
    ),
)
