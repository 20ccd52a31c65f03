"""What belongs to runs and workflows: children, unread messages, evidence, versions, figures."""
