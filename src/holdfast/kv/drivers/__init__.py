"""The drivers that holdfast brings, one file each."""
