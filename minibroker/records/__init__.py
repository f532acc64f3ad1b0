"""Records as the commands read, print and send them."""
