"""How much cache memory what runs will need at its peak, predicted. Pure."""
