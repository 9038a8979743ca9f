"""The processes of one attempt: warm process, supervisor, worker."""
