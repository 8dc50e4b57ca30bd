"""What a run leaves behind and how it is read: stores, metrics, statistics, figures, tables, tracking."""
