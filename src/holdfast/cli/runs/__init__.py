"""Commands about single runs, beside those that look at them and stop them."""
