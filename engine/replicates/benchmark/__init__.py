"""Time one model in fresh processes, or compare what its variants compute.

In the worker:  sizes finds the batch size that is used. rows makes one row per variant from all measurements.
In both:        job.
In a process:   work does the job, or finds the largest batch. prepared is a variant after its first call.
                timed times all variants in turns. agreement compares what they compute.
"""
