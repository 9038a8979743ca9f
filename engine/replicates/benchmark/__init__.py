"""Time one model in fresh processes, or compare what its variants compute.

outside  sizes: the batch size that is used;  rows: one row per variant from all measurements
between  job
inside   work: does the job, or finds the largest batch;  prepared: a variant after its first call
         timed: timing all variants in turns;  agreement: comparing what they compute
"""
