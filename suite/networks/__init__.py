"""Networks that the papers train, defences that change them, and pretrained networks."""
