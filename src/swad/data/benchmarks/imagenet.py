"""ImageNet, or any folder of its layout: ``train/<class>/<image>`` and ``val/<class>/<image>``.

It is one domain, whose folders are its training and validation split, and it is trained from scratch by the recipe of
the paper's appendix B.6.
"""

from swad.data.benchmark import Benchmark
from swad.data.domains import Defaults

BENCHMARK = Benchmark(
    name="ImageNet",
    folder="",
    domains=(),
    defaults=Defaults(recipe="imagenet"),
    license="non-commercial research",
    citation="Russakovsky et al.: ImageNet Large Scale Visual Recognition Challenge. IJCV, 2015.",
    homepage="https://www.image-net.org",
)
