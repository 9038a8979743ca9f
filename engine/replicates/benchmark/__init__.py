"""Timing one model in fresh processes, or comparing what its variants compute.

outside  sizes: the batch size it ends at;  rows: what all processes have measured
between  job
inside   work: whatever the job is;  prepared: a variant built and called once;  timed: timing all in turns
         agreement: comparing what they compute;  search: the largest batch size that fits
"""
