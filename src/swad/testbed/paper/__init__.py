"""Every table and figure of the paper as a plan: the runs that it needs, what is measured on them, and what is built.

paper_config.py   PaperConfig: available datasets, scale, trials, protocol
trainings.py      the trainings that items share, so that nothing is trained twice
reproduction.py   Reproduction, one item of the paper; PaperRuns, the runs that it is built from, with the config
methods.py        the rows of the accuracy tables: which training, which weights, which search the paper used
accuracy.py       the accuracy of a method on a dataset, and tables with our numbers, the paper's and the difference
*_tables.py, robustness_table.py, search_spaces.py, figure*.py, cost.py, ranking.py, sensitivity.py      the items
items.py          all items by name
reproduce.py      cost first, then train, measure, build, write; and the index page
"""
