"""The verbs of the command line: read a config, build, run, print."""
