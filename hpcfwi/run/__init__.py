"""A command's work: the job, the run directory, what is written into it, and how it goes on."""
