"""The history of a job's runs."""
