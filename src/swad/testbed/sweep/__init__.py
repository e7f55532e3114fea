"""Train many runs: what to compare, the runs it takes, and the directory that holds them.

spec, spec_file, appendix_b3   what to compare: from Python and the command line, from a file, the paper's searches
search, selected_settings      the hyperparameters that runs try, or that were selected before
checks, estimate               what is wrong with a sweep, and what it will cost
plan, directory                the runs by key; which of them are done, and what a search chose
run, status                    hand the runs to workers; where the sweep stands
"""
