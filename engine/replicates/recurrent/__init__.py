"""Time recurrent layers in fresh processes.

In the worker:  rows makes one row per runner from all measurements.
In a process:   work defines the job, prepares every runner, checks it against its control, and times all in turns.
"""
