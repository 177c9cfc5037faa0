"""The program each rank ran: operations in launch order, their dependencies, their self time."""
