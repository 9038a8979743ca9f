"""Timing recurrent layers in fresh processes.

outside  rows: what all processes have measured
between  job
inside   work: every runner made ready, checked against its control, and timed in turns
"""
