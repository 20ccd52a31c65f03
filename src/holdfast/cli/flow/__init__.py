"""Commands about what is shared by runs: schedules, queues, limits, events, and the audit trail."""
