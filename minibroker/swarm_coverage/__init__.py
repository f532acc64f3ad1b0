"""What a swarm of simulated runs never entered: lines, functions, events, wire APIs, settings, calls of the clients."""
