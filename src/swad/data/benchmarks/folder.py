"""Any folder of the shape ``<domain>/<class>/<image>``: one's own data, read like a benchmark.

Every folder is a domain, in sorted order; the option ``domains`` chooses some of them. Classes are the sorted union
over the domains.
"""

from swad.data.benchmark import Benchmark

BENCHMARK = Benchmark(name="folder", folder="", domains=(), license="yours", options={"domains": None})
