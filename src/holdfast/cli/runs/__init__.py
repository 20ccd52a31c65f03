"""Commands about single runs, except those in `look.py` and `act.py`."""
