"""Many checkpoints into one.

    checkpoints      the tensors of any trainer's checkpoint, by name
    weighted_mean    a weighted mean of checkpoints in little memory
    merge            `swad.merge`: which checkpoints, and how much each counts

It is not called `swad.merge`, since importing a module of that name would hide the function.
"""
