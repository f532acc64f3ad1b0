"""The mutation score: how many small random changes of the code do the tests and the swarm notice?

`make mutation-score SAMPLE=400 SEED=1`. Mutations come from cosmic-ray's operators (`population`). A sample by a seed
(`sample`) is tried one mutant at a time (`trial`, a child process) against the killers that execute its line
(`reach`): unit tests first, then seeds of the swarm. What survives is sorted by hand in `survivors.toml`.
Nothing here changes a source file.
"""
