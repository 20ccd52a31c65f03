"""Steps under limits that workers share."""
