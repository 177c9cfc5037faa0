"""The lake on disk: layout, records, parquet files, catalog and derived data; nothing of their meaning."""
