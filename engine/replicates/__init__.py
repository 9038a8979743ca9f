"""Timing one model in fresh processes: what such a process does, and how those of one model come together.

outside  processes: which processes are started, one after the other, and what is done when one dies
         child: one of them, seen from outside;  combine: what all have measured, as rows
between  messages: a job in, reports out
inside   __main__: the process itself;  prepared: variants built and called once;  timed: timing them in turns
         agreement: comparing what they compute;  search: the largest batch size that fits
"""
