"""Recorded histories against present code: one of them, all open runs before a deploy, or one step by step."""
