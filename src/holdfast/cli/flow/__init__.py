"""Commands about what runs share: schedules, queues, limits, events, and the audit trail."""
