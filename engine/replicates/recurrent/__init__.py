"""Time recurrent layers in fresh processes.

In the worker:  rows makes one row per runner from all measurements.
In both:        job.
In a process:   work prepares every runner, checks it against its control, and times all in turns.
"""
