"""Evidence of findings: facts of the analysis, locations, workload, host work, code, markers and logs."""
