"""Timing recurrent layers in fresh processes.

outside  rows: what all processes have measured
between  job
inside   work: every runner made ready, checked against torch's own layer, and timed in turns
"""
