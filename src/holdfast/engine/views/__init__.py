"""Views: what a run, its steps and its history look like from outside."""
