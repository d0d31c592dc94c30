"""The work of commands: the job, the run directory, what is written into it, and how it goes on."""
