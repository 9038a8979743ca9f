"""Time subjects side by side in fresh processes.

outside  processes: starts the processes one after the other, and goes on when one dies
         child: runs one process and reads its reports;  summary: combines all measurements into fields of rows
between  messages: the job that a process gets, and the reports that it returns
inside   __main__: the process itself;  ready: a subject after its first call;  side_by_side: timing subjects in turns

benchmark/ and recurrent/ define the subjects, and the other fields of their rows.
"""
