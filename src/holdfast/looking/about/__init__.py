"""What belongs to runs and workflows: children, messages that wait, what is on record, versions, figures."""
