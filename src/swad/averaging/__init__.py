"""Averages of weights along a training trajectory: SWAD, SWA, SMA, EMA, and the detector of the loss valley.

Read it in this order. What decides, from losses and without tensors:

    spans, rule                      which updates are averaged, and what every rule must answer
    algorithm1, published_code       the paper, and the code that its authors published
    valley, window, decay            the rules of SWAD, SWA and EMA

What moves tensors:

    tracked, sums, span_sums         the model's tensors, sums of them, and the sums that one rule still needs
    trajectory, state                follows model and optimizer, closes sums at evaluations, saves and resumes
    averager, average, group         what users call: during training, to read the average, for several at once
    swad, swa, ema, lawa, wsm        an average with one of the rules above
    distributed_checkpoint, mean_of_state
"""
