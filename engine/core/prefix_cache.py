"""Which full blocks hold which text, under whose namespace, and which of them give way first. Pure."""
