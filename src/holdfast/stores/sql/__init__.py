"""What the SQL stores share: statements, files of SQL, reads."""
