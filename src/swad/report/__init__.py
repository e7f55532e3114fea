"""From records to tables, figures and one HTML page. Nothing here imports torch.

`tables` makes the numbers, `figures` the curves, `page` the file a reader opens, and `published` holds
what the paper printed, so that ours can stand beside it.
"""
