"""Timing things side by side in fresh processes: what such a process does, and how what they find comes together.

outside  processes: which processes are started, one after the other, and what is done when one dies
         child: one of them, seen from outside;  summary: what all have measured, as fields of rows
between  messages: a job in, reports out
inside   __main__: the process itself;  ready: what has made its first call;  side_by_side: timing it in turns

benchmark/ and recurrent/ say what is timed, and what else their rows hold.
"""
