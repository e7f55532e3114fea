"""Any folder of image files ``<domain>/<class>/<image>``: your own data, read like a benchmark.

Every subfolder is a domain, in sorted order; the option ``domains`` selects some of them. The classes are the sorted
union over the domains.
"""

from swad.data.benchmark import Benchmark

BENCHMARK = Benchmark(name="folder", folder="", domains=(), license="yours", options={"domains": None})
