"""The live page: server, request checks, loading, downloads."""
