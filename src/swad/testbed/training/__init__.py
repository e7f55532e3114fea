"""Train one run. Read `loop` first; from what was asked for to what is kept:

setting, config                what a user may set: the fields, their checks by themselves, `config.json`
checks, recipes, resolve       checks against datasets and methods, the ways to train, every default filled in
loop                           set up, train, report
state, step, evaluation        what changes from step to step, how a step is executed, the scores of weights
dataset, lr_schedule, metrics, numerics, distributed     what these use
run_dir, output, export        the directory of a run, what is written into it, and weights that load anywhere
callback, errors               follow a run; failures in one line
"""
