"""Time recurrent layers in fresh processes.

outside  rows: one row per runner from all measurements
between  job
inside   work: prepares every runner, checks it against its control, and times all in turns
"""
