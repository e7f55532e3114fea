"""Any folder of image files ``<domain>/<class>/<image>``: your own data, read like a benchmark.

Every subfolder is a domain, in sorted order; the option ``domains`` selects some of them. The classes are the sorted
union over the domains. A folder without domains, ``<class>/<image>`` or ``train/<class>/<image>`` and
``val/<class>/<image>``, is one domain.
"""

from swad.testbed.data.benchmark import Benchmark

BENCHMARK = Benchmark(name="folder", folder="", domains=(), license="yours", options={"domains": None})
