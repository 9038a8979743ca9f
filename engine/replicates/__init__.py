"""Time subjects side by side in fresh processes.

In the worker:  processes starts the processes one after the other, and goes on when one dies.
                child runs one process and reads its reports. summary combines all measurements into fields of rows.
In both:        messages has the job that a process gets, and the reports that it returns.
In a process:   __main__ starts it. ready is a subject after its first call. side_by_side times subjects in turns.

benchmark/ and recurrent/ define the subjects, and the other fields of their rows.
"""
