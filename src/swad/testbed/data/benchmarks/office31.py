"""Office-31: 31 objects of an office in a shop's pictures, and in photographs of a camera and of a webcam.

The archive has ``<domain>/images/<class>/<image>``; without ``images`` it is read as well.
"""

from swad.testbed.data.benchmark import Benchmark, Download

DRIVE = "https://drive.google.com/uc?id=0B4IapRTv9pJ1WGZVd1VDMmhwdlE&resourcekey=0-gNMHVtZfRAyO_t2_WrOunA"
GITHUB = "https://github.com/syorami/DDC-transfer-learning/archive/refs/heads/master.zip"

BENCHMARK = Benchmark(
    name="Office31",
    folder="office31",
    domains=("amazon", "dslr", "webcam"),
    counts={"amazon": 2817, "dslr": 498, "webcam": 795},
    n_classes=31,
    license="none stated: images of a shop and photographs, for research",
    citation="Saenko, Kulis, Fritz, Darrell: Adapting Visual Category Models to New Domains. ECCV 2010.",
    homepage="https://faculty.cc.gatech.edu/~judy/domainadapt/",
    sources=(
        (Download(DRIVE, "domain_adaptation_images.tar.gz"),),
        (Download("https://wjdcloud.blob.core.windows.net/dataset/OFFICE31.zip", "OFFICE31.zip"),),
        (Download(GITHUB, "DDC-transfer-learning.zip"),),
    ),
)
