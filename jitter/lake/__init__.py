"""The lake on disk: its layout, records, parquet files and catalog; not their meaning."""
