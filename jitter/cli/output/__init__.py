"""Output of the commands: tables, files, standard streams, progress bars."""
